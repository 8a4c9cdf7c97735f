//! Values in another element type.

use half::{bf16, f16};

use crate::ElementType;

/// Little-endian bytes as single precision, each value rounded to the nearest.
pub(crate) fn floats(bytes: &[u8], dtype: ElementType) -> Vec<f32> {
    match dtype {
        ElementType::F32 => each(bytes, f32::from_le_bytes),
        ElementType::F64 => each(bytes, |word| f64::from_le_bytes(word) as f32),
        ElementType::Bf16 => each(bytes, |word| bf16::from_le_bytes(word).to_f32()),
        ElementType::F16 => each(bytes, |word| f16::from_le_bytes(word).to_f32()),
    }
}

/// Little-endian bytes as double precision, which holds the values of all types.
pub(crate) fn doubles(bytes: &[u8], dtype: ElementType) -> Vec<f64> {
    match dtype {
        ElementType::F64 => each(bytes, f64::from_le_bytes),
        _ => floats(bytes, dtype).into_iter().map(f64::from).collect(),
    }
}

/// Little-endian bytes of one type as those of another, each value rounded to the nearest, ties to even. `None` if a finite value
/// becomes infinite.
pub(crate) fn convert(bytes: &[u8], from: ElementType, to: ElementType) -> Option<Vec<u8>> {
    if from == to {
        return Some(bytes.to_vec());
    }
    let mut out = Vec::with_capacity(bytes.len() / from.bytes() * to.bytes());
    for value in doubles(bytes, from) {
        // From double precision at once: rounding twice is not rounding to the nearest.
        let is_finite = match to {
            ElementType::F64 => put(&mut out, value.to_le_bytes(), true),
            ElementType::F32 => put(
                &mut out,
                (value as f32).to_le_bytes(),
                (value as f32).is_finite(),
            ),
            ElementType::Bf16 => {
                let narrow = bf16::from_f64(value);
                put(&mut out, narrow.to_le_bytes(), narrow.is_finite())
            }
            ElementType::F16 => {
                let narrow = f16::from_f64(value);
                put(&mut out, narrow.to_le_bytes(), narrow.is_finite())
            }
        };
        if !is_finite && value.is_finite() {
            return None;
        }
    }
    Some(out)
}

fn put<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N], is_finite: bool) -> bool {
    out.extend(bytes);
    is_finite
}

fn each<const N: usize, T>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| value(*word))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ElementType::{Bf16, F16, F32, F64};

    fn bytes(values: &[f64]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    #[test]
    fn values_round_to_the_nearest() {
        // 1 + 2^-8 lies between two of bf16, 1 + 2^-11 between two of f16: the even one is 1.
        let values = bytes(&[
            1.0,
            -2.5,
            1.0 + 2f64.powi(-8),
            1.0 + 2f64.powi(-11),
            1.0 / 3.0,
        ]);
        let check = |to, expected: [f32; 5]| {
            let converted = convert(&values, F64, to).unwrap();
            assert_eq!(converted.len(), 5 * to.bytes());
            assert_eq!(floats(&converted, to), expected, "{to}");
        };
        let third = 1.0 / 3.0_f32;
        check(
            F32,
            [1.0, -2.5, 1.0 + 2f32.powi(-8), 1.0 + 2f32.powi(-11), third],
        );
        check(Bf16, [1.0, -2.5, 1.0, 1.0, 0.333_984_38]);
        check(F16, [1.0, -2.5, 1.0 + 2f32.powi(-8), 1.0, 0.333_251_95]);
        let single = convert(&values, F64, F32).unwrap();
        assert_eq!(convert(&single, F32, F16), convert(&values, F64, F16));
        assert_eq!(convert(&single, F32, F32).unwrap(), single);
    }

    #[test]
    fn what_is_too_large_is_not_made_infinite() {
        let check = |value, to, fits| {
            assert_eq!(
                convert(&bytes(&[value]), F64, to).is_some(),
                fits,
                "{value} {to}"
            );
        };
        check(65504.0, F16, true);
        check(65520.0, F16, false);
        check(65520.0, Bf16, true);
        check(1e39, F32, false);
        check(f64::INFINITY, F16, true);
    }
}
