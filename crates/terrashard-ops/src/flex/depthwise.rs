//! Depthwise convolutions of stride 1 that keep the size, channels last.

use super::real::Real;
use super::{Flat, Kernel, as_map, channels_last, flat, matrix, narrowed, values, vectorised};
use burn::backend::TensorMetadata;
use rayon::prelude::*;

/// Channels that are worked on at once: their sums stay in registers.
const LANES: usize = 32;

/// Sizes of a depthwise convolution over `[N, H, W, C]`.
#[derive(Clone, Copy)]
struct Extent {
    height: usize,
    width: usize,
    channels: usize,
    kernel: usize,
}

impl Extent {
    fn new(x: &Flat, weight: &Flat) -> Self {
        let [_, height, width, channels] = [0, 1, 2, 3].map(|i| x.shape()[i]);
        Self {
            height,
            width,
            channels,
            kernel: weight.shape()[2],
        }
    }

    /// Values of an image.
    fn image(self) -> usize {
        self.height * self.width * self.channels
    }

    /// The rows (or columns) that a tap reaches from position `at`: pairs of tap and source.
    #[inline(always)]
    fn taps(self, at: usize, extent: usize) -> impl Iterator<Item = (usize, usize)> {
        let half = self.kernel / 2;
        (0..self.kernel).filter_map(move |tap| {
            let source = at + tap;
            (source >= half && source - half < extent).then(|| (tap, source - half))
        })
    }
}

/// `[C, 1, k, k]` as `[k k, C]`, in the opposite order of taps if `flip`.
fn taps_first<T: Real>(weight: &Flat, flip: bool) -> Vec<T> {
    let [channels, _, kernel] = [0, 1, 2].map(|i| weight.shape()[i]);
    let (weight, taps) = (weight.to_contiguous(), kernel * kernel);
    let mut out = vec![T::ZERO; channels * taps];
    for (c, kernel) in values::<T>(&weight).chunks_exact(taps).enumerate() {
        for (t, value) in kernel.iter().enumerate() {
            let t = if flip { taps - 1 - t } else { t };
            out[t * channels + c] = *value;
        }
    }
    out
}

pub(super) fn forward<T: Real>(x: &Flat, weight: &Flat, bias: Option<&Flat>) -> Flat {
    let x = channels_last(x);
    let extent = Extent::new(&x, weight);
    let bias = bias.map(|bias| bias.to_contiguous());
    convolve::<T>(
        &x,
        &taps_first(weight, false),
        bias.as_ref().map(values),
        extent,
    )
}

/// A convolution of `[N, H, W, C]` with `[k k, C]`.
fn convolve<T: Real>(x: &Flat, weight: &[T], bias: Option<&[T]>, extent: Extent) -> Flat {
    let data: &[T] = values(x);
    let mut out = vec![T::ZERO; data.len()];
    let rows = out
        .par_chunks_mut(extent.width * extent.channels)
        .enumerate();
    rows.for_each(|(row, out)| {
        let image = &data[row / extent.height * extent.image()..][..extent.image()];
        vectorised(Row {
            out,
            image,
            weight,
            bias,
            y: row % extent.height,
            extent,
        });
    });
    as_map(flat(out, x.shape()))
}

/// One row of a convolution.
struct Row<'a, T> {
    out: &'a mut [T],
    image: &'a [T],
    weight: &'a [T],
    bias: Option<&'a [T]>,
    y: usize,
    extent: Extent,
}

impl<T: Real> Kernel for Row<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Extent {
            height,
            width,
            channels,
            kernel,
        } = self.extent;
        for start in (0..channels).step_by(LANES) {
            let lanes = LANES.min(channels - start);
            for (x, out) in self.out.chunks_exact_mut(channels).enumerate() {
                let mut sums = [T::ZERO; LANES];
                if let Some(bias) = self.bias {
                    sums[..lanes].copy_from_slice(&bias[start..start + lanes]);
                }
                for (dy, sy) in self.extent.taps(self.y, height) {
                    for (dx, sx) in self.extent.taps(x, width) {
                        let weight = &self.weight[(dy * kernel + dx) * channels + start..];
                        let pixel = &self.image[(sy * width + sx) * channels + start..];
                        multiply_add(&mut sums, weight, pixel, lanes);
                    }
                }
                out[start..start + lanes].copy_from_slice(&sums[..lanes]);
            }
        }
    }
}

/// `sums += a b` over the first `lanes` values.
#[inline(always)]
fn multiply_add<T: Real>(sums: &mut [T; LANES], a: &[T], b: &[T], lanes: usize) {
    if let (LANES, Some((a, _)), Some((b, _))) = (
        lanes,
        a.split_first_chunk::<LANES>(),
        b.split_first_chunk::<LANES>(),
    ) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    } else {
        for ((sum, a), b) in sums[..lanes].iter_mut().zip(a).zip(b) {
            *sum += *a * *b;
        }
    }
}

pub(super) fn backward<T: Real>(
    gradient: &Flat,
    x: &Flat,
    weight: &Flat,
    wanted: &[bool],
) -> Vec<Option<Flat>> {
    let (gradient, x) = (channels_last(gradient), channels_last(x));
    let extent = Extent::new(&x, weight);
    let gx = wanted[0].then(|| convolve::<T>(&gradient, &taps_first(weight, true), None, extent));
    let gw = wanted[1].then(|| weight_gradient::<T>(&gradient, &x, extent));
    let gb = wanted
        .get(2)
        .is_some_and(|wanted| *wanted)
        .then(|| matrix::column_sums::<T>(&matrix::rows(&gradient)));
    vec![gx, gw, gb]
}

/// `[C, 1, k, k]`: each channel block by itself, row by row.
fn weight_gradient<T: Real>(gradient: &Flat, x: &Flat, extent: Extent) -> Flat {
    let (gradient, data): (&[T], &[T]) = (values(gradient), values(x));
    let blocks: Vec<Vec<f64>> = (0..extent.channels.div_ceil(LANES))
        .into_par_iter()
        .map(|block| {
            vectorised(Block {
                gradient,
                data,
                start: block * LANES,
                extent,
            })
        })
        .collect();
    flat(
        narrowed::<T>(&blocks.concat()),
        [extent.channels, 1, extent.kernel, extent.kernel],
    )
}

/// The weight's gradient for the block of channels that begins at `start`.
struct Block<'a, T> {
    gradient: &'a [T],
    data: &'a [T],
    start: usize,
    extent: Extent,
}

impl<T: Real> Kernel for Block<'_, T> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn run(self) -> Vec<f64> {
        let Self { start, extent, .. } = self;
        let Extent {
            height,
            width,
            channels,
            kernel,
        } = extent;
        let (lanes, taps) = (LANES.min(channels - start), kernel * kernel);
        let mut total = vec![0.0; lanes * taps];
        let images = self
            .gradient
            .chunks_exact(extent.image())
            .zip(self.data.chunks_exact(extent.image()));
        for (g, image) in images {
            for y in 0..height {
                for (dy, sy) in extent.taps(y, height) {
                    for tap in 0..kernel {
                        let g = &g[y * width * channels + start..];
                        let image = &image[sy * width * channels + start..];
                        let sums = row_products(g, image, Shift { tap, extent, lanes });
                        for (c, sum) in sums[..lanes].iter().enumerate() {
                            total[c * taps + dy * kernel + tap] += sum.wide();
                        }
                    }
                }
            }
        }
        total
    }
}

/// A horizontal tap over one block of channels.
struct Shift {
    tap: usize,
    extent: Extent,
    lanes: usize,
}

/// The sums over a row of the products of gradients and the inputs that the tap takes them to.
#[inline(always)]
fn row_products<T: Real>(gradient: &[T], image: &[T], shift: Shift) -> [T; LANES] {
    let Extent {
        width,
        channels,
        kernel,
        ..
    } = shift.extent;
    let half = kernel / 2;
    let first = half.saturating_sub(shift.tap);
    let last = width.min((width + half).saturating_sub(shift.tap));
    let mut sums = [T::ZERO; LANES];
    for x in first..last {
        multiply_add(
            &mut sums,
            &gradient[x * channels..],
            &image[(x + shift.tap - half) * channels..],
            shift.lanes,
        );
    }
    sums
}
