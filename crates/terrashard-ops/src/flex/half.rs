//! Tensors of 16 bits to `f32` and back, in the order in which they lie in memory.
//!
//! The bits are converted by integer arithmetic that compiles to vector instructions; results are those of the `half` crate.

use super::{Flat, Kernel, PIECE, as_map, channels_last, vectorised};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Element, Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, TensorData, bf16, f16};
use bytemuck::Pod;
use rayon::prelude::*;

/// The tensor in another type, rounded to the nearest value, of two the even one.
pub(super) fn cast(x: Flat, to: FloatDType) -> Flat {
    match (x.dtype(), DType::from(to)) {
        (DType::BF16, DType::F32) => convert::<bf16, f32, Bf16ToF32>(&x),
        (DType::F32, DType::BF16) => convert::<f32, bf16, F32ToBf16>(&x),
        (DType::F16, DType::F32) => convert::<f16, f32, F16ToF32>(&x),
        (DType::F32, DType::F16) => convert::<f32, f16, F32ToF16>(&x),
        _ => Flex::float_cast(x, to),
    }
}

/// A conversion of bits.
trait Bits {
    type From: Pod + Sync;
    type To: Pod + Send;

    fn convert(bits: Self::From) -> Self::To;
}

struct Bf16ToF32;

impl Bits for Bf16ToF32 {
    type From = u16;
    type To = u32;

    #[inline(always)]
    fn convert(bits: u16) -> u32 {
        u32::from(bits) << 16
    }
}

struct F32ToBf16;

impl Bits for F32ToBf16 {
    type From = u32;
    type To = u16;

    #[inline(always)]
    fn convert(bits: u32) -> u16 {
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // Rounding could carry a NaN's payload into infinity.
        let quiet = (bits >> 16) | 0x40;
        let nan = bits & 0x7fff_ffff > 0x7f80_0000;
        (if nan { quiet } else { rounded }) as u16
    }
}

struct F16ToF32;

impl Bits for F16ToF32 {
    type From = u16;
    type To = u32;

    #[inline(always)]
    fn convert(bits: u16) -> u32 {
        let bits = u32::from(bits);
        let magnitude = (bits & 0x7fff) << 13;
        // The exponents' biases differ by 112; the product also makes subnormal values normal.
        let finite = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
        let special = magnitude | 0x7f80_0000;
        let special = special | (u32::from(bits & 0x3ff != 0) << 22);
        let value = if bits & 0x7c00 == 0x7c00 {
            special
        } else {
            finite
        };
        value | (bits & 0x8000) << 16
    }
}

struct F32ToF16;

impl Bits for F32ToF16 {
    type From = u32;
    type To = u16;

    #[inline(always)]
    fn convert(bits: u32) -> u16 {
        let magnitude = bits & 0x7fff_ffff;
        // Exponent and mantissa moved to their places, rounded by what falls off; a carry into the exponent is right.
        let normal = magnitude
            .wrapping_sub(112 << 23)
            .wrapping_add(0xfff + ((magnitude >> 13) & 1))
            >> 13;
        // Adding a half puts the last bit that a subnormal value keeps at the end of the mantissa, rounded.
        let half = 126 << 23;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(half)).to_bits();
        let subnormal = subnormal.wrapping_sub(half);
        let special = 0x7c00
            | if magnitude > 0x7f80_0000 {
                0x200 | ((magnitude >> 13) & 0x3ff)
            } else {
                0
            };
        let value = if magnitude < 113 << 23 {
            subnormal
        } else {
            normal
        };
        let value = if magnitude >= 143 << 23 {
            special
        } else {
            value
        };
        (value | (bits >> 16) & 0x8000) as u16
    }
}

/// One piece of values.
struct Convert<'a, C: Bits> {
    from: &'a [C::From],
    to: &'a mut [C::To],
}

impl<C: Bits> Kernel for Convert<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = C::convert(*from);
        }
    }
}

fn convert<A, B, C>(x: &Flat) -> Flat
where
    A: Element + Pod,
    B: Element + Pod,
    C: Bits,
{
    let last =
        x.shape().num_dims() == 4 && !x.is_contiguous() && x.permute(&[0, 2, 3, 1]).is_contiguous();
    if last {
        return as_map(convert_contiguous::<A, B, C>(&channels_last(x)));
    }
    convert_contiguous::<A, B, C>(&x.to_contiguous())
}

fn convert_contiguous<A, B, C>(x: &Flat) -> Flat
where
    A: Element + Pod,
    B: Element + Pod,
    C: Bits,
{
    let from: &[A] = x.as_slice().expect("made contiguous before");
    let from: &[C::From] = bytemuck::cast_slice(from);
    let mut result = vec![B::zeroed(); from.len()];
    let to: &mut [C::To] = bytemuck::cast_slice_mut(&mut result);
    let step = 4 * PIECE;
    if from.len() <= step {
        vectorised(Convert::<C> { from, to });
    } else {
        let pieces = to.par_chunks_mut(step).zip(from.par_chunks(step));
        pieces.for_each(|(to, from)| vectorised(Convert::<C> { from, to }));
    }
    Flat::from_data(TensorData::new(result, x.shape()))
}

#[cfg(test)]
mod tests {
    use super::super::flat;
    use super::*;

    /// Every pattern of bits.
    fn values_of_16_bits() -> impl Iterator<Item = u16> {
        0..=u16::MAX
    }

    #[test]
    fn every_value_of_16_bits_is_widened_as_it_is() {
        for bits in values_of_16_bits() {
            let (wide, expected) = (
                f32::from_bits(F16ToF32::convert(bits)),
                f16::from_bits(bits).to_f32(),
            );
            assert!(wide.to_bits() == expected.to_bits(), "{bits:x}");
            let (wide, expected) = (
                f32::from_bits(Bf16ToF32::convert(bits)),
                bf16::from_bits(bits).to_f32(),
            );
            assert!(
                wide.to_bits() == expected.to_bits() || wide.is_nan() && expected.is_nan(),
                "{bits:x}"
            );
        }
    }

    #[test]
    fn values_are_rounded_to_the_nearest() {
        // Around every value of 16 bits, and at and around the middle between it and the next.
        for bits in values_of_16_bits() {
            let high = u32::from(bits) << 16;
            let half = f16::from_bits(bits).to_f32().to_bits();
            let near = [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000, 0x8001];
            for bits in near
                .iter()
                .flat_map(|low| [high + low, half.wrapping_add(*low)])
            {
                let value = f32::from_bits(bits);
                let (got, expected) = (F32ToBf16::convert(bits), bf16::from_f32(value));
                assert!(got == expected.to_bits(), "{value:e} to bf16");
                let (got, expected) = (F32ToF16::convert(bits), f16::from_f32(value));
                assert!(got == expected.to_bits(), "{value:e} to f16");
            }
        }
    }

    #[test]
    fn a_map_stays_channels_last() {
        let count = 2 * 3 * 50 * 70;
        let map = flat((0..count).map(|i| i as f32).collect(), [2, 50, 70, 3]);
        let map = as_map(map);
        let half = cast(map.clone(), FloatDType::BF16);
        assert!(half.permute(&[0, 2, 3, 1]).is_contiguous());
        let expected = Flex::float_cast(map, FloatDType::BF16);
        let host = |tensor: Flat| tensor.to_contiguous().into_data();
        assert_eq!(host(half.clone()), host(expected));
        let back = cast(half.clone(), FloatDType::F32);
        assert_eq!(host(back), host(Flex::float_cast(half, FloatDType::F32)));
    }
}
