//! Functions of single values, applied to whole tensors or added up over them.

use super::real::Real;
use super::{fill, partial, vectorised};

/// A function of a value and what stands beside it: a label, a target, a gradient.
pub(super) trait Pixel<T, U>: Sync {
    /// The result for one pixel. Always inlined, so that loops over it compile to vector instructions.
    fn at(&self, x: T, beside: U) -> T;
}

/// Sums that are kept side by side.
const LANES: usize = 16;

/// The results for all pixels.
pub(super) fn apply<T: Real, U: Copy + Sync>(
    pixel: &impl Pixel<T, U>,
    x: &[T],
    beside: &[U],
) -> Vec<T> {
    let mut out = vec![T::ZERO; x.len()];
    fill(&mut out, 1, |start, piece| {
        let range = start..start + piece.len();
        vectorised(
            (pixel, piece, &x[range.clone()], &beside[range]),
            apply_piece,
        );
    });
    out
}

#[inline(always)]
fn apply_piece<T: Real, U: Copy>(
    (pixel, out, x, beside): (&impl Pixel<T, U>, &mut [T], &[T], &[U]),
) {
    for ((out, x), beside) in out.iter_mut().zip(x).zip(beside) {
        *out = pixel.at(*x, *beside);
    }
}

/// The sum of the results over all pixels, in `f64` from piece to piece. `neutral` is a pixel whose result is 0.
pub(super) fn total<T: Real, U: Copy + Sync>(
    pixel: &impl Pixel<T, U>,
    x: &[T],
    beside: &[U],
    neutral: (T, U),
) -> f64 {
    let parts = partial(x.len(), 1, |range| {
        vectorised(
            (pixel, &x[range.clone()], &beside[range], neutral),
            total_piece,
        )
    });
    parts.into_iter().sum()
}

#[inline(always)]
fn total_piece<T: Real, U: Copy>(
    (pixel, x, beside, neutral): (&impl Pixel<T, U>, &[T], &[U], (T, U)),
) -> f64 {
    let mut sums = [T::ZERO; LANES];
    let ((x, x_rest), (beside, beside_rest)) =
        (x.as_chunks::<LANES>(), beside.as_chunks::<LANES>());
    for (x, beside) in x.iter().zip(beside) {
        add(pixel, &mut sums, x, beside);
    }
    let (mut x, mut beside) = ([neutral.0; LANES], [neutral.1; LANES]);
    x[..x_rest.len()].copy_from_slice(x_rest);
    beside[..beside_rest.len()].copy_from_slice(beside_rest);
    add(pixel, &mut sums, &x, &beside);
    sums.into_iter().map(Real::wide).sum()
}

#[inline(always)]
fn add<T: Real, U: Copy>(
    pixel: &impl Pixel<T, U>,
    sums: &mut [T; LANES],
    x: &[T; LANES],
    beside: &[U; LANES],
) {
    for i in 0..LANES {
        sums[i] += pixel.at(x[i], beside[i]);
    }
}
