//! Sums over ranks, in rank order.

use burn::tensor::Element;
use half::{bf16, f16};

/// Elements that are added over all ranks before the next ones: a block and its sum stay in the first cache.
const BLOCK: usize = 4096;

/// An element type that is summed over ranks.
pub(crate) trait Summand: Element + Send + Sync {
    /// Appends `rank 0 + rank 1 + ...` to `sum`, element by element. All terms have the same length.
    fn append_sum(sum: &mut Vec<Self>, terms: &[&[Self]]);
}

/// Adds in the element type itself. The sum starts from the first term, not from zero, so that one term keeps
/// the sign of its zeros.
macro_rules! add_as_is {
    ($($element:ty),*) => {$(
        impl Summand for $element {
            fn append_sum(sum: &mut Vec<Self>, terms: &[&[Self]]) {
                let Some((first, rest)) = terms.split_first() else { return };
                for start in (0..first.len()).step_by(BLOCK) {
                    let block = start..(start + BLOCK).min(first.len());
                    let at = sum.len();
                    sum.extend_from_slice(&first[block.clone()]);
                    for term in rest {
                        for (total, value) in sum[at..].iter_mut().zip(&term[block.clone()]) {
                            *total += value;
                        }
                    }
                }
            }
        }
    )*};
}

/// Adds in `f32` and rounds once, at the end.
macro_rules! add_in_f32 {
    ($($element:ty),*) => {$(
        impl Summand for $element {
            fn append_sum(sum: &mut Vec<Self>, terms: &[&[Self]]) {
                let Some((first, rest)) = terms.split_first() else { return };
                let mut totals = Vec::with_capacity(BLOCK.min(first.len()));
                for start in (0..first.len()).step_by(BLOCK) {
                    let block = start..(start + BLOCK).min(first.len());
                    totals.clear();
                    totals.extend(first[block.clone()].iter().map(|value| value.to_f32()));
                    for term in rest {
                        for (total, value) in totals.iter_mut().zip(&term[block.clone()]) {
                            *total += value.to_f32();
                        }
                    }
                    sum.extend(totals.iter().map(|&total| Self::from_f32(total)));
                }
            }
        }
    )*};
}

add_as_is!(f32, f64);
add_in_f32!(bf16, f16);

#[cfg(test)]
mod tests {
    use super::*;

    fn check<E: Summand + PartialEq>(terms: &[&[E]], expected: &[E]) {
        let mut sum = Vec::new();
        E::append_sum(&mut sum, terms);
        assert_eq!(sum, expected);
    }

    #[test]
    fn adds_in_rank_order() {
        // 2^24 + 1 rounds to 2^24 in f32: only (1 + 1) + 2^24 keeps both ones.
        let big = 16_777_216.0_f32;
        check(&[&[1.0], &[1.0], &[big]], &[big + 2.0]);
        check(&[&[big], &[1.0], &[1.0]], &[big]);
        check::<f64>(&[&[16_777_216.0], &[1.0], &[1.0]], &[16_777_218.0]);
    }

    #[test]
    fn rounds_half_types_once() {
        // 256 + 1 is a tie that rounds to 256 in bf16 (8 bits), but 256 + 1 + 1 = 258 is exact.
        let bf = bf16::from_f32;
        check(&[&[bf(256.0)], &[bf(1.0)], &[bf(1.0)]], &[bf(258.0)]);
        // The same with 11 bits: 2048 + 1 + 1 = 2050.
        let f = f16::from_f32;
        check(&[&[f(2048.0)], &[f(1.0)], &[f(1.0)]], &[f(2050.0)]);
    }

    #[test]
    fn crosses_block_borders() {
        let terms: Vec<Vec<f64>> = (0..3)
            .map(|rank| {
                (0..2 * BLOCK + 3)
                    .map(|i| (i * (rank + 1)) as f64)
                    .collect()
            })
            .collect();
        let terms: Vec<&[f64]> = terms.iter().map(Vec::as_slice).collect();
        let expected: Vec<f64> = (0..2 * BLOCK + 3).map(|i| (6 * i) as f64).collect();
        check(&terms, &expected);
        check::<bf16>(&[&[], &[]], &[]);
    }

    #[test]
    fn one_term_keeps_its_zeros_sign() {
        let mut sum = Vec::new();
        f32::append_sum(&mut sum, &[&[-0.0]]);
        assert!(sum[0].is_sign_negative());
    }
}
