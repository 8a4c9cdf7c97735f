//! Half-precision conversions that vectorise: integer arithmetic and selections, no branch, no call.
//!
//! Those of `half` ask the processor at every call, or branch on NaN, and keep a loop scalar. These give the same
//! values, rounded to nearest even, for every value that is a number; a NaN stays one.

use half::{bf16, f16};

const F32_EXPONENT: u32 = 0x7f80_0000;
/// Exponent bias of f32 less that of f16, as bits of an f32.
const REBIAS: u32 = (127 - 15) << 23;
/// The smallest normal f16.
const F16_NORMAL: u32 = (127 - 14) << 23;
/// 65536: from here on an f16 is infinite, whatever the rounding.
const F16_OVERFLOW: u32 = (127 + 16) << 23;
/// 0.5: its unit in the last place is the smallest subnormal f16, so that adding it rounds to those.
const F16_SUBNORMAL_MAGIC: u32 = (127 - 1) << 23;

/// `value` rounded to the nearest bf16, ties to even.
#[inline(always)]
pub(super) fn to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding could carry a NaN into infinity or zero.
    let quiet = (bits >> 16) | 0x40;
    let is_nan = bits & 0x7fff_ffff > F32_EXPONENT;
    bf16::from_bits(if is_nan { quiet } else { rounded } as u16)
}

/// The value of `half`, exactly.
#[inline(always)]
pub(super) fn of_bf16(half: bf16) -> f32 {
    f32::from_bits(u32::from(half.to_bits()) << 16)
}

/// `value` rounded to the nearest f16, ties to even: beyond 65504 to infinity, below 2^-14 to the subnormals.
#[inline(always)]
pub(super) fn to_f16(value: f32) -> f16 {
    let bits = value.to_bits();
    let sign = bits & 0x8000_0000;
    let magnitude = bits ^ sign;
    let special = if magnitude > F32_EXPONENT {
        0x7e00
    } else {
        0x7c00
    };
    let magic = f32::from_bits(F16_SUBNORMAL_MAGIC);
    let subnormal = (f32::from_bits(magnitude) + magic)
        .to_bits()
        .wrapping_sub(F16_SUBNORMAL_MAGIC);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(0xfff + odd) >> 13;
    let finite = if magnitude < F16_NORMAL {
        subnormal
    } else {
        normal
    };
    let half = if magnitude >= F16_OVERFLOW {
        special
    } else {
        finite
    };
    f16::from_bits((half | (sign >> 16)) as u16)
}

/// The value of `half`, exactly.
#[inline(always)]
pub(super) fn of_f16(half: f16) -> f32 {
    let bits = u32::from(half.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    let exponent = magnitude & (0x7c00 << 13);
    let normal = magnitude + REBIAS;
    let special = normal + REBIAS;
    // One exponent up, then the implied one taken away again: the float unit normalises.
    let subnormal = (f32::from_bits(normal + (1 << 23)) - f32::from_bits(F16_NORMAL)).to_bits();
    let finite = if exponent == 0 { subnormal } else { normal };
    let value = if exponent == 0x7c00 << 13 {
        special
    } else {
        finite
    };
    f32::from_bits(value | ((bits & 0x8000) << 16))
}

/// `value` as an f32 that rounds to the same half as `value` itself: rounded to odd, so that a value just beside a tie
/// does not become one (Boldo & Melquiond, <https://doi.org/10.1109/TC.2007.70819>).
#[inline(always)]
pub(super) fn to_f32_odd(value: f64) -> f32 {
    let near = value as f32;
    let beyond = f64::from(near).abs() > value.abs();
    let toward_zero = near.to_bits() - u32::from(beyond);
    let inexact = f64::from(near) != value && !value.is_nan();
    f32::from_bits(toward_zero | u32::from(inexact))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 251st f32, which meets all exponents and both signs, and what lies about every half and every tie.
    fn values() -> impl Iterator<Item = f32> {
        let spread = (0..=u32::MAX / 251).map(|i| i * 251);
        let about = |half: f32| (-2..=2i32).map(move |i| half.to_bits().wrapping_add_signed(i));
        let halves = (0..=u16::MAX).flat_map(move |bits| {
            let (a, b) = (
                f16::from_bits(bits).to_f32(),
                bf16::from_bits(bits).to_f32(),
            );
            let next = f16::from_bits(bits.wrapping_add(1)).to_f32();
            let tie = b.to_bits() | 0x8000;
            [a, b, a + (next - a) / 2.0, f32::from_bits(tie)]
                .into_iter()
                .flat_map(about)
        });
        spread.chain(halves).map(f32::from_bits)
    }

    #[test]
    fn written_halves_are_those_of_the_half_crate() {
        for value in values() {
            let (b, h) = (to_bf16(value), to_f16(value));
            if value.is_nan() {
                assert!(b.is_nan() && h.is_nan(), "{:#x}", value.to_bits());
            } else {
                let expected = (bf16::from_f32(value), f16::from_f32(value));
                assert_eq!((b, h), expected, "{value} {:#x}", value.to_bits());
            }
        }
    }

    #[test]
    fn read_halves_are_those_of_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            if b.is_nan() {
                assert!(of_bf16(b).is_nan());
            } else {
                assert_eq!(of_bf16(b).to_bits(), b.to_f32().to_bits(), "{bits:#x}");
            }
            if h.is_nan() {
                assert!(of_f16(h).is_nan());
            } else {
                assert_eq!(of_f16(h).to_bits(), h.to_f32().to_bits(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_large_values_to_infinity() {
        // A bf16 has 8 significant bits: 257 lies between 256 and 258, 259 between 258 and 260.
        assert_eq!(to_bf16(257.0).to_f32(), 256.0);
        assert_eq!(to_bf16(259.0).to_f32(), 260.0);
        assert_eq!(to_bf16(f32::MAX), bf16::INFINITY);
        // An f16 has 11: 2049 lies between 2048 and 2050, 2051 between 2050 and 2052.
        assert_eq!(to_f16(2049.0).to_f32(), 2048.0);
        assert_eq!(to_f16(-2051.0).to_f32(), -2052.0);
        // 65520 lies between 65504, the largest, and 65536, which is none.
        assert_eq!(to_f16(65519.0).to_f32(), 65504.0);
        assert_eq!(to_f16(65520.0), f16::INFINITY);
        assert_eq!(to_f16(-1e9), f16::NEG_INFINITY);
        // Subnormals are multiples of 2^-24.
        let unit = 2f32.powi(-24);
        assert_eq!(to_f16(1.5 * unit).to_f32(), 2.0 * unit);
        assert_eq!(to_f16(-2.5 * unit).to_f32(), -2.0 * unit);
        assert_eq!(to_f16(0.5 * unit).to_bits(), 0);
        assert_eq!(to_f16(-0.4 * unit).to_bits(), 0x8000);
    }

    #[test]
    fn a_double_is_rounded_once() {
        // Just above a tie of bf16; the nearest f32 is the tie itself, which would go down to 256.
        let above = 257.0 + 2f64.powi(-30);
        assert_eq!(above as f32, 257.0);
        assert_eq!(to_bf16(to_f32_odd(above)).to_f32(), 258.0);
        assert_eq!(to_bf16(to_f32_odd(-above)).to_f32(), -258.0);
        assert_eq!(to_bf16(to_f32_odd(257.0)).to_f32(), 256.0);
        // Just below a tie of f16.
        let below = 2051.0 - 2f64.powi(-30);
        assert_eq!(to_f16(to_f32_odd(below)).to_f32(), 2050.0);
        for exact in [0.0, -0.0, 1.5, f64::INFINITY, f64::from(-1e30f32)] {
            assert_eq!(f64::from(to_f32_odd(exact)).to_bits(), exact.to_bits());
        }
        assert_eq!(to_bf16(to_f32_odd(1e300)), bf16::INFINITY);
        assert_eq!(to_f16(to_f32_odd(-1e-300)).to_bits(), 0x8000);
        assert!(to_f32_odd(f64::NAN).is_nan());
    }
}
