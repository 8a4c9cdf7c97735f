//! Convolutions as matrix products of the unfolded input, channels last.

use super::real::Real;
use super::{Flat, as_map, channels_last, fill, flat, matrix, values};
use crate::convolution::ConvShape;
use burn::backend::TensorMetadata;

/// Elements of the unfolded input that exist at a time, as far as whole images allow.
const UNFOLDED: usize = 4 << 20;

/// Sizes of a convolution over `[N, H, W, C]`.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) out_height: usize,
    pub(super) out_width: usize,
}

impl Window {
    pub(super) fn new(x: &Flat, kernel: usize, shape: ConvShape) -> Self {
        let [height, width, channels] = [1, 2, 3].map(|i| x.shape()[i]);
        let ConvShape {
            stride, padding, ..
        } = shape;
        let out = |extent: usize| {
            assert!(
                extent + 2 * padding >= kernel,
                "a kernel of {kernel} does not fit into {extent} pixels"
            );
            (extent + 2 * padding - kernel) / stride + 1
        };
        Self {
            height,
            width,
            channels,
            kernel,
            stride,
            padding,
            out_height: out(height),
            out_width: out(width),
        }
    }

    /// Values that go into one output position.
    pub(super) fn depth(&self) -> usize {
        self.kernel * self.kernel * self.channels
    }

    fn positions(&self) -> usize {
        self.out_height * self.out_width
    }

    /// Images that are unfolded at a time.
    fn group(&self) -> usize {
        (UNFOLDED / (self.positions() * self.depth()).max(1)).max(1)
    }

    /// Unfolds images: `[images out_height out_width, kernel kernel channels]`.
    pub(super) fn unfold<T: Real>(&self, images: &[T]) -> Vec<T> {
        let size = self.height * self.width * self.channels;
        let count = images.len() / size;
        let mut columns = vec![T::ZERO; count * self.positions() * self.depth()];
        fill(&mut columns, self.depth(), |first, piece| {
            for (i, column) in piece.chunks_exact_mut(self.depth()).enumerate() {
                let (image, position) = (
                    (first + i) / self.positions(),
                    (first + i) % self.positions(),
                );
                let image = &images[image * size..][..size];
                let (y, x) = (position / self.out_width, position % self.out_width);
                for (dy, row) in column
                    .chunks_exact_mut(self.kernel * self.channels)
                    .enumerate()
                {
                    let Some(sy) = self.source(y, dy, self.height) else {
                        continue;
                    };
                    // The taps of a row that lie inside the image are one run of memory.
                    let left = x * self.stride;
                    let begin = self.padding.saturating_sub(left).min(self.kernel);
                    let end = self
                        .kernel
                        .min((self.width + self.padding).saturating_sub(left))
                        .max(begin);
                    let from = (sy * self.width + left + begin - self.padding.min(left + begin))
                        * self.channels;
                    let run = (end - begin) * self.channels;
                    row[begin * self.channels..][..run].copy_from_slice(&image[from..][..run]);
                }
            }
        });
        columns
    }

    /// The row (or column) of the input that a tap reads for an output row.
    fn source(&self, out: usize, tap: usize, extent: usize) -> Option<usize> {
        (out * self.stride + tap)
            .checked_sub(self.padding)
            .filter(|source| *source < extent)
    }

    /// The adjoint of [`unfold`](Self::unfold) for one image, gathered so that rows are independent.
    fn fold<T: Real>(&self, columns: &[T], image: &mut [T]) {
        let channels = self.channels;
        fill(image, self.width * channels, |first, piece| {
            for (i, row) in piece.chunks_exact_mut(self.width * channels).enumerate() {
                let y = first + i;
                for dy in 0..self.kernel {
                    let Some(oy) = self.reached(y, dy, self.out_height) else {
                        continue;
                    };
                    for dx in 0..self.kernel {
                        for (x, out) in row.chunks_exact_mut(channels).enumerate() {
                            let Some(ox) = self.reached(x, dx, self.out_width) else {
                                continue;
                            };
                            let column = (oy * self.out_width + ox) * self.depth()
                                + (dy * self.kernel + dx) * channels;
                            for (out, value) in out.iter_mut().zip(&columns[column..][..channels]) {
                                *out += *value;
                            }
                        }
                    }
                }
            }
        });
    }

    /// The output row (or column) that reads an input row through a tap.
    fn reached(&self, source: usize, tap: usize, extent: usize) -> Option<usize> {
        let shifted = (source + self.padding).checked_sub(tap)?;
        (shifted % self.stride == 0)
            .then_some(shifted / self.stride)
            .filter(|out| *out < extent)
    }
}

/// `[out, in, k, k]` as the matrix `[out, k k in]`.
fn weight_matrix<T: Real>(weight: &Flat) -> Flat {
    let [out, inputs, kernel] = [0, 1, 2].map(|i| weight.shape()[i]);
    let taps = kernel * kernel;
    swap_last::<T>(weight, inputs, taps).reshape([out, taps * inputs].into())
}

/// The opposite of [`weight_matrix`].
fn weight_tensor<T: Real>(matrix: &Flat, kernel: usize) -> Flat {
    let [out, depth] = [0, 1].map(|i| matrix.shape()[i]);
    let taps = kernel * kernel;
    swap_last::<T>(matrix, taps, depth / taps).reshape([out, depth / taps, kernel, kernel].into())
}

/// Each run of `rows columns` values as `columns rows`.
fn swap_last<T: Real>(tensor: &Flat, rows: usize, columns: usize) -> Flat {
    let tensor = tensor.to_contiguous();
    if rows == 1 || columns == 1 {
        return tensor;
    }
    let data: &[T] = values(&tensor);
    let mut swapped = vec![T::ZERO; data.len()];
    fill(&mut swapped, rows * columns, |first, piece| {
        let runs = data[first * rows * columns..].chunks_exact(rows * columns);
        for (out, run) in piece.chunks_exact_mut(rows * columns).zip(runs) {
            for (row, values) in run.chunks_exact(columns).enumerate() {
                for (column, value) in values.iter().enumerate() {
                    out[column * rows + row] = *value;
                }
            }
        }
    });
    flat(swapped, [data.len()])
}

fn pointwise(kernel: usize, shape: ConvShape) -> bool {
    kernel == 1 && shape.stride == 1 && shape.padding == 0
}

pub(super) fn forward<T: Real>(
    x: &Flat,
    weight: &Flat,
    bias: Option<&Flat>,
    shape: ConvShape,
) -> Flat {
    let x = channels_last(x);
    let [out, _, kernel] = [0, 1, 2].map(|i| weight.shape()[i]);
    let window = Window::new(&x, kernel, shape);
    let weight = weight_matrix::<T>(weight).transpose(0, 1);
    let y = if pointwise(kernel, shape) {
        matrix::product(matrix::rows(&x), weight)
    } else {
        let size = window.height * window.width * window.channels;
        let parts = values::<T>(&x).chunks(window.group() * size).map(|images| {
            let columns = window.unfold(images);
            let rows = columns.len() / window.depth();
            matrix::product(flat(columns, [rows, window.depth()]), weight.clone())
        });
        concatenate::<T>(parts.collect(), out)
    };
    let y = match bias {
        Some(bias) => matrix::add_row::<T>(y, bias),
        None => y,
    };
    as_map(y.reshape([x.shape()[0], window.out_height, window.out_width, out].into()))
}

/// Matrices of this width, one below the other.
fn concatenate<T: Real>(mut parts: Vec<Flat>, width: usize) -> Flat {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let joined: Vec<T> = parts
        .iter()
        .flat_map(|part| values::<T>(part).iter().copied())
        .collect();
    let rows = joined.len() / width;
    flat(joined, [rows, width])
}

pub(super) fn backward<T: Real>(
    gradient: &Flat,
    x: &Flat,
    weight: &Flat,
    shape: ConvShape,
    wanted: &[bool],
) -> Vec<Option<Flat>> {
    let (gradient, x) = (matrix::rows(&channels_last(gradient)), channels_last(x));
    let [out, _, kernel] = [0, 1, 2].map(|i| weight.shape()[i]);
    let window = Window::new(&x, kernel, shape);
    let matrix_of_weight = weight_matrix::<T>(weight);
    let gb = wanted
        .get(2)
        .is_some_and(|wanted| *wanted)
        .then(|| matrix::column_sums::<T>(&gradient));
    if pointwise(kernel, shape) {
        let gx = wanted[0].then(|| {
            as_map(matrix::product(gradient.clone(), matrix_of_weight).reshape(x.shape()))
        });
        let gw = wanted[1].then(|| {
            matrix::product(gradient.transpose(0, 1), matrix::rows(&x)).reshape(weight.shape())
        });
        return vec![gx, gw, gb];
    }
    let size = window.height * window.width * window.channels;
    let rows = |image: usize, images: usize| {
        gradient.narrow(0, image * window.positions(), images * window.positions())
    };
    let gx = wanted[0].then(|| {
        let mut gx = vec![T::ZERO; values::<T>(&x).len()];
        for (image, gx) in gx.chunks_mut(size).enumerate() {
            let columns = matrix::product(rows(image, 1), matrix_of_weight.clone());
            window.fold(values::<T>(&columns), gx);
        }
        as_map(flat(gx, x.shape()))
    });
    let gw = wanted[1].then(|| {
        let parts = values::<T>(&x)
            .chunks(window.group() * size)
            .enumerate()
            .map(|(group, images)| {
                let columns = window.unfold(images);
                let columns = flat(
                    columns,
                    [images.len() / size * window.positions(), window.depth()],
                );
                let gradient = rows(group * window.group(), images.len() / size);
                values::<T>(&matrix::product(gradient.transpose(0, 1), columns)).to_vec()
            });
        let sum = super::add_up(parts.collect(), out * window.depth());
        weight_tensor::<T>(&flat(sum, [out, window.depth()]), kernel)
    });
    vec![gx, gw, gb]
}
