//! Attention of queries to keys and values that stand side by side, head by head.

use super::real::Real;
use super::{Flat, Kernel, flat, matrix, values, vectorised};
use burn::backend::TensorMetadata;
use rayon::prelude::*;

/// Sizes of an attention.
#[derive(Clone, Copy)]
struct Heads {
    images: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
}

impl Heads {
    fn new(q: &Flat, kv: &Flat, heads: usize) -> Self {
        let [images, queries, dim] = [0, 1, 2].map(|i| q.shape()[i]);
        Self {
            images,
            heads,
            queries,
            keys: kv.shape()[1],
            dim,
        }
    }

    fn width(self) -> usize {
        self.dim / self.heads
    }

    fn scale<T: Real>(self) -> T {
        T::real(1.0 / (self.width() as f64).sqrt())
    }

    /// Runs `body` for each image and head.
    fn each<R: Send>(self, body: impl Fn(usize, usize) -> R + Sync) -> Vec<R> {
        let run = |i: usize| body(i / self.heads, i % self.heads);
        let count = self.images * self.heads;
        // Few large products use threads inside; many small ones side by side.
        if count == 1 {
            vec![run(0)]
        } else {
            (0..count).into_par_iter().map(run).collect()
        }
    }

    /// Columns of one head in `[images rows, ..]`, from column `start`.
    fn part(self, matrix: &Flat, image: usize, rows: usize, start: usize) -> Flat {
        matrix
            .narrow(0, image * rows, rows)
            .narrow(1, start, self.width())
    }

    /// The probabilities of one head.
    fn probabilities<T: Real>(self, q: Flat, k: Flat) -> Flat {
        let mut scores = matrix::product(q, k.transpose(0, 1));
        let scale = self.scale();
        vectorised(Softmax {
            scores: scores.storage_mut::<T>(),
            keys: self.keys,
            scale,
        });
        scores
    }
}

/// Softmax of each row of `scale` times the scores, in place.
struct Softmax<'a, T> {
    scores: &'a mut [T],
    keys: usize,
    scale: T,
}

impl<T: Real> Kernel for Softmax<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for row in self.scores.chunks_exact_mut(self.keys) {
            let top = row.iter().fold(row[0], |top, x| x.greater(top));
            for x in row.iter_mut() {
                *x = ((*x - top) * self.scale).exponential();
            }
            let total: T = row.iter().copied().sum();
            for x in row.iter_mut() {
                *x = *x / total;
            }
        }
    }
}

/// The gradient of the scores from that of the probabilities `p`, in place.
struct SoftmaxSlope<'a, T> {
    gradient: &'a mut [T],
    p: &'a [T],
    keys: usize,
    scale: T,
}

impl<T: Real> Kernel for SoftmaxSlope<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.gradient.chunks_exact_mut(self.keys);
        for (gradient, p) in rows.zip(self.p.chunks_exact(self.keys)) {
            let along: T = gradient.iter().zip(p).map(|(g, p)| *g * *p).sum();
            for (g, p) in gradient.iter_mut().zip(p) {
                *g = (*g - along) * *p * self.scale;
            }
        }
    }
}

/// Lays the parts of all heads side by side: part `i` of each image goes to columns `i width..`.
fn interleave<T: Real>(parts: &[Flat], rows: usize, columns: usize) -> Vec<T> {
    // A batch may have no image.
    let Some(width) = parts.first().map(|part| part.shape()[1]) else {
        return Vec::new();
    };
    let across = columns / width;
    let mut out = vec![T::ZERO; parts.len() / across * rows * columns];
    for (i, part) in parts.iter().enumerate() {
        let (image, column) = (i / across, i % across * width);
        let target = &mut out[image * rows * columns..][..rows * columns];
        for (target, row) in target
            .chunks_exact_mut(columns)
            .zip(values::<T>(part).chunks_exact(width))
        {
            target[column..column + width].copy_from_slice(row);
        }
    }
    out
}

pub(super) fn forward<T: Real>(q: &Flat, kv: &Flat, heads: usize) -> Flat {
    let size = Heads::new(q, kv, heads);
    let (queries, pairs) = (matrix::rows(q), matrix::rows(kv));
    let parts = size.each(|image, head| {
        let column = head * size.width();
        let q = size.part(&queries, image, size.queries, column);
        let k = size.part(&pairs, image, size.keys, column);
        let v = size.part(&pairs, image, size.keys, size.dim + column);
        matrix::product(size.probabilities::<T>(q, k), v)
    });
    flat(interleave::<T>(&parts, size.queries, size.dim), q.shape())
}

pub(super) fn backward<T: Real>(
    gradient: &Flat,
    q: &Flat,
    kv: &Flat,
    heads: usize,
) -> Vec<Option<Flat>> {
    let size = Heads::new(q, kv, heads);
    let (gradient, queries, pairs) = (matrix::rows(gradient), matrix::rows(q), matrix::rows(kv));
    let parts = size.each(|image, head| {
        let column = head * size.width();
        let g = size.part(&gradient, image, size.queries, column);
        let q = size.part(&queries, image, size.queries, column);
        let k = size.part(&pairs, image, size.keys, column);
        let v = size.part(&pairs, image, size.keys, size.dim + column);
        let p = size.probabilities::<T>(q.clone(), k.clone());
        let gv = matrix::product(p.transpose(0, 1), g.clone());
        let mut gs = matrix::product(g, v.transpose(0, 1));
        let scale = size.scale();
        vectorised(SoftmaxSlope {
            gradient: gs.storage_mut::<T>(),
            p: values(&p),
            keys: size.keys,
            scale,
        });
        (
            matrix::product(gs.clone(), k),
            matrix::product(gs.transpose(0, 1), q),
            gv,
        )
    });
    let mut gq = Vec::with_capacity(parts.len());
    let mut gkv = Vec::with_capacity(2 * parts.len());
    for image in parts.chunks(heads) {
        gq.extend(image.iter().map(|(gq, _, _)| gq.clone()));
        gkv.extend(image.iter().map(|(_, gk, _)| gk.clone()));
        gkv.extend(image.iter().map(|(_, _, gv)| gv.clone()));
    }
    vec![
        Some(flat(
            interleave::<T>(&gq, size.queries, size.dim),
            q.shape(),
        )),
        Some(flat(
            interleave::<T>(&gkv, size.keys, 2 * size.dim),
            kv.shape(),
        )),
    ]
}
