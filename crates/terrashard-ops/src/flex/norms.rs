//! Layer and batch normalisation.

use super::real::Real;
use super::{
    BLOCK, Flat, Kernel, PIECE, add_up, as_map, channels_last, fill, flat, narrowed, partial,
    sum_rows, values, vectorised, widen,
};
use crate::batch_norm::BatchStatistics;
use burn::backend::TensorMetadata;
use rayon::prelude::*;

/// Sums that are kept side by side, so that a row is added up by vector instructions.
const LANES: usize = 16;

/// The sum of `f` over triples of values.
#[inline(always)]
fn sum3<T: Real>(a: &[T], b: &[T], c: &[T], f: impl Fn(T, T, T) -> T) -> T {
    let mut sums = [T::ZERO; LANES];
    let ((a, a_rest), (b, b_rest), (c, c_rest)) = (
        a.as_chunks::<LANES>(),
        b.as_chunks::<LANES>(),
        c.as_chunks::<LANES>(),
    );
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for i in 0..LANES {
            sums[i] += f(a[i], b[i], c[i]);
        }
    }
    let rest: T = a_rest
        .iter()
        .zip(b_rest)
        .zip(c_rest)
        .map(|((a, b), c)| f(*a, *b, *c))
        .sum();
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    sums[0] + rest
}

/// Mean and 1 / deviation of a row.
#[inline(always)]
fn moments<T: Real>(row: &[T], epsilon: T) -> (T, T) {
    let count = T::real(row.len() as f64);
    let mean = sum3(row, row, row, |x, _, _| x) / count;
    let variance = sum3(row, row, row, |x, _, _| (x - mean) * (x - mean)) / count;
    (mean, T::ONE / (variance + epsilon).root())
}

pub(super) fn layer_norm<T: Real>(x: &Flat, weight: &Flat, bias: &Flat, epsilon: f64) -> Flat {
    let (x, weight, bias) = (
        x.to_contiguous(),
        weight.to_contiguous(),
        bias.to_contiguous(),
    );
    let (data, weight, bias): (&[T], &[T], &[T]) = (values(&x), values(&weight), values(&bias));
    let (width, epsilon) = (weight.len(), T::real(epsilon));
    let mut out = vec![T::ZERO; data.len()];
    fill(&mut out, width, |first, piece| {
        let data = &data[first * width..][..piece.len()];
        vectorised(Rows {
            out: piece,
            data,
            weight,
            bias,
            epsilon,
        });
    });
    flat(out, x.shape())
}

/// Rows to normalise.
struct Rows<'a, T> {
    out: &'a mut [T],
    data: &'a [T],
    weight: &'a [T],
    bias: &'a [T],
    epsilon: T,
}

impl<T: Real> Kernel for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = self.weight.len();
        let rows = self.data.chunks_exact(width);
        for (out, row) in self.out.chunks_exact_mut(width).zip(rows) {
            let (mean, inverse) = moments(row, self.epsilon);
            for (((out, x), w), b) in out.iter_mut().zip(row).zip(self.weight).zip(self.bias) {
                *out = (*x - mean) * inverse * *w + *b;
            }
        }
    }
}

pub(super) fn layer_norm_backward<T: Real>(
    gradient: &Flat,
    x: &Flat,
    weight: &Flat,
    epsilon: f64,
) -> Vec<Option<Flat>> {
    let (x, gradient, weight) = (
        x.to_contiguous(),
        gradient.to_contiguous(),
        weight.to_contiguous(),
    );
    let (data, gradient, weight): (&[T], &[T], &[T]) =
        (values(&x), values(&gradient), values(&weight));
    let (width, epsilon) = (weight.len(), T::real(epsilon));
    let piece = PIECE.div_ceil(width) * width;
    let mut gx = vec![T::ZERO; data.len()];
    let inputs = data.par_chunks(piece).zip(gradient.par_chunks(piece));
    let parts = gx
        .par_chunks_mut(piece)
        .zip(inputs)
        .map(|(gx, (data, gradient))| {
            vectorised(RowsBackward {
                gx,
                data,
                gradient,
                weight,
                epsilon,
            })
        });
    let sums = add_up(parts.collect(), 2 * width);
    let (gw, gb) = sums.split_at(width);
    vec![
        Some(flat(gx, x.shape())),
        Some(flat(narrowed::<T>(gw), [width])),
        Some(flat(narrowed::<T>(gb), [width])),
    ]
}

/// Rows whose gradient to take: fills that of the input and gives the rows' part of the weight's, then of the bias's.
struct RowsBackward<'a, T> {
    gx: &'a mut [T],
    data: &'a [T],
    gradient: &'a [T],
    weight: &'a [T],
    epsilon: T,
}

impl<T: Real> Kernel for RowsBackward<'_, T> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn run(self) -> Vec<f64> {
        let (weight, width) = (self.weight, self.weight.len());
        let (count, block) = (T::real(width as f64), BLOCK * width);
        let mut total = vec![0.0; 2 * width];
        let mut sums = vec![T::ZERO; 2 * width];
        let inputs = self.data.chunks(block).zip(self.gradient.chunks(block));
        for (gx, (data, gradient)) in self.gx.chunks_mut(block).zip(inputs) {
            sums.fill(T::ZERO);
            let (gw, gb) = sums.split_at_mut(width);
            let rows = data.chunks_exact(width).zip(gradient.chunks_exact(width));
            for (gx, (row, g)) in gx.chunks_exact_mut(width).zip(rows) {
                let (mean, inverse) = moments(row, self.epsilon);
                let sums = gw.iter_mut().zip(gb.iter_mut());
                for (((normal, x), g), (gw, gb)) in gx.iter_mut().zip(row).zip(g).zip(sums) {
                    *normal = (*x - mean) * inverse;
                    *gw += *g * *normal;
                    *gb += *g;
                }
                let mean = sum3(g, weight, gx, |g, w, _| g * w) / count;
                let along = sum3(g, weight, gx, |g, w, normal| g * w * normal) / count;
                for ((gx, g), w) in gx.iter_mut().zip(g).zip(weight) {
                    *gx = (*g * *w - mean - *gx * along) * inverse;
                }
            }
            widen(&mut total, &sums);
        }
        total
    }
}

/// Adds `f` of each row (written to a row of sums) over all rows.
fn column_sums<T: Real>(
    data: &[T],
    width: usize,
    f: impl Fn(&mut [T], &[T], usize) + Sync,
    sums: usize,
) -> Vec<f64> {
    let parts = partial(data.len() / width, width, |rows| {
        sum_rows(rows, sums, |sums, row| {
            f(sums, &data[row * width..][..width], row)
        })
    });
    add_up(parts, sums)
}

/// Count, means, and sums of squares around them.
pub(super) fn batch_sums<T: Real>(x: &Flat) -> Flat {
    let x = channels_last(x);
    let (data, width): (&[T], _) = (values(&x), x.shape()[3]);
    let count = (data.len() / width) as f64;
    let sums = column_sums(
        data,
        width,
        |sums, row, _| sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += *x),
        width,
    );
    let mean: Vec<T> = sums.iter().map(|sum| T::real(sum / count)).collect();
    let squares = column_sums(
        data,
        width,
        |sums, row, _| {
            for ((sum, x), mean) in sums.iter_mut().zip(row).zip(&mean) {
                *sum += (*x - *mean) * (*x - *mean);
            }
        },
        width,
    );
    // The squares are around the rounded mean, which moves them by a little.
    let squares = squares
        .iter()
        .zip(&sums)
        .zip(&mean)
        .map(|((square, sum), mean)| {
            let off = sum / count - mean.wide();
            square - count * off * off
        });
    let means = sums.iter().map(|sum| sum / count);
    let all: Vec<f64> = std::iter::once(count).chain(means).chain(squares).collect();
    let length = all.len();
    flat(all, [length])
}

pub(super) fn batch_norm<T: Real>(
    x: &Flat,
    weight: &Flat,
    bias: &Flat,
    statistics: &BatchStatistics,
) -> Flat {
    let (x, weight, bias) = (
        channels_last(x),
        weight.to_contiguous(),
        bias.to_contiguous(),
    );
    let (data, weight, bias): (&[T], &[T], &[T]) = (values(&x), values(&weight), values(&bias));
    let (mean, inverse) = (
        narrowed::<T>(&statistics.mean),
        narrowed::<T>(&statistics.inverse()),
    );
    let scale: Vec<T> = inverse
        .iter()
        .zip(weight)
        .map(|(inverse, w)| *inverse * *w)
        .collect();
    let width = weight.len();
    let mut out = vec![T::ZERO; data.len()];
    fill(&mut out, width, |first, piece| {
        for (out, row) in piece
            .chunks_exact_mut(width)
            .zip(data[first * width..].chunks_exact(width))
        {
            for ((((out, x), mean), scale), bias) in
                out.iter_mut().zip(row).zip(&mean).zip(&scale).zip(bias)
            {
                *out = (*x - *mean) * *scale + *bias;
            }
        }
    });
    as_map(flat(out, x.shape()))
}

pub(super) fn batch_norm_backward<T: Real>(
    gradient: &Flat,
    x: &Flat,
    weight: &Flat,
    statistics: &BatchStatistics,
) -> Vec<Option<Flat>> {
    let (gradient, x, weight) = (
        channels_last(gradient),
        channels_last(x),
        weight.to_contiguous(),
    );
    let (g, data, weight): (&[T], &[T], &[T]) = (values(&gradient), values(&x), values(&weight));
    let (mean, inverse) = (
        narrowed::<T>(&statistics.mean),
        narrowed::<T>(&statistics.inverse()),
    );
    let width = weight.len();
    // The gradient of the bias, then that of the weight.
    let sums = column_sums(
        data,
        width,
        |sums, row, index| {
            let (gb, gw) = sums.split_at_mut(width);
            let g = &g[index * width..][..width];
            for (((((gb, gw), g), x), mean), inverse) in gb
                .iter_mut()
                .zip(gw)
                .zip(g)
                .zip(row)
                .zip(&mean)
                .zip(&inverse)
            {
                *gb += *g;
                *gw += *g * (*x - *mean) * *inverse;
            }
        },
        2 * width,
    );
    let means = statistics.gradient_means(&sums);
    let (mean_of_g, along) = means.split_at(width);
    let (mean_of_g, along) = (narrowed::<T>(mean_of_g), narrowed::<T>(along));
    let mut gx = vec![T::ZERO; data.len()];
    fill(&mut gx, width, |first, piece| {
        let rows = data[first * width..]
            .chunks_exact(width)
            .zip(g[first * width..].chunks_exact(width));
        for (gx, (row, g)) in piece.chunks_exact_mut(width).zip(rows) {
            for c in 0..width {
                let normal = (row[c] - mean[c]) * inverse[c];
                gx[c] = (g[c] - mean_of_g[c] - normal * along[c]) * inverse[c] * weight[c];
            }
        }
    });
    let (gb, gw) = sums.split_at(width);
    vec![
        Some(as_map(flat(gx, x.shape()))),
        Some(flat(narrowed::<T>(gw), [width])),
        Some(flat(narrowed::<T>(gb), [width])),
    ]
}
