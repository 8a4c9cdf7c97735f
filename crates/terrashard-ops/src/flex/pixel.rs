//! Functions of single values, applied to whole tensors or added up over them.

use super::real::Real;
use super::{BLOCK, Kernel, fill, partial, vectorised, widen};

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
    fill(&mut out, 1, |start, out| {
        let range = start..start + out.len();
        vectorised(Apply {
            pixel,
            out,
            x: &x[range.clone()],
            beside: &beside[range],
        });
    });
    out
}

struct Apply<'a, P, T, U> {
    pixel: &'a P,
    out: &'a mut [T],
    x: &'a [T],
    beside: &'a [U],
}

impl<P: Pixel<T, U>, T: Real, U: Copy> Kernel for Apply<'_, P, T, U> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((out, x), beside) in self.out.iter_mut().zip(self.x).zip(self.beside) {
            *out = self.pixel.at(*x, *beside);
        }
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
        vectorised(Total {
            pixel,
            x: &x[range.clone()],
            beside: &beside[range],
            neutral,
        })
    });
    parts.into_iter().sum()
}

struct Total<'a, P, T, U> {
    pixel: &'a P,
    x: &'a [T],
    beside: &'a [U],
    neutral: (T, U),
}

impl<P: Pixel<T, U>, T: Real, U: Copy> Kernel for Total<'_, P, T, U> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut total = [0.0; LANES];
        let (x, x_rest) = self.x.as_chunks::<LANES>();
        let (beside, beside_rest) = self.beside.as_chunks::<LANES>();
        for (x, beside) in x.chunks(BLOCK).zip(beside.chunks(BLOCK)) {
            let mut sums = [T::ZERO; LANES];
            for (x, beside) in x.iter().zip(beside) {
                add(self.pixel, &mut sums, x, beside);
            }
            widen(&mut total, &sums);
        }
        let (mut x, mut beside) = ([self.neutral.0; LANES], [self.neutral.1; LANES]);
        x[..x_rest.len()].copy_from_slice(x_rest);
        beside[..beside_rest.len()].copy_from_slice(beside_rest);
        let mut sums = [T::ZERO; LANES];
        add(self.pixel, &mut sums, &x, &beside);
        widen(&mut total, &sums);
        total.into_iter().sum()
    }
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
