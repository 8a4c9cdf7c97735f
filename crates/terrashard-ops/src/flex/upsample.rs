//! Nearest-neighbour enlargement and 3x3 convolution at the small size; see [`crate::upsample`].
//!
//! The small map is worked on in strips of rows, so that the unfolded input and the classes of a strip are all that exists beside
//! the result.

use super::real::Real;
use super::{Flat, add_up, as_map, channels_last, flat, matrix, values};
use crate::kernels::Kernels;
use crate::upsample::{classes, fold_weight, fold_weight_backward};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};
use rayon::prelude::*;

/// Positions of the small map that one strip has at least.
const STRIP: usize = 1024;

/// Sizes of an enlargement.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) images: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) outputs: usize,
    pub(super) factor: usize,
}

impl Layout {
    /// Of an input that lies channels last.
    pub(super) fn new(x: &Flat, weight: &Flat, factor: usize) -> Self {
        let [images, height, width] = [0, 1, 2].map(|i| x.shape()[i]);
        Self {
            images,
            height,
            width,
            outputs: weight.shape()[0],
            factor,
        }
    }

    fn classes(self) -> usize {
        classes(self.factor)
    }

    /// Rows of the small map in a strip.
    fn strip(self) -> usize {
        STRIP.div_ceil(self.width)
    }

    /// Strips of all images: image, first row, rows.
    fn strips(self) -> Vec<(usize, usize, usize)> {
        (0..self.images)
            .flat_map(|image| {
                (0..self.height)
                    .step_by(self.strip())
                    .map(move |y| (image, y, self.strip().min(self.height - y)))
            })
            .collect()
    }

    /// Values of one small row in the large map of one output.
    fn large_row(self) -> usize {
        self.factor * self.factor * self.width
    }
}

/// The folded weight as `[9 in, classes classes out]`: columns are the row's class, the column's class, the output.
fn folded_matrix(weight: &Flat, factor: usize) -> Flat {
    let [out, inputs] = [0, 1].map(|i| weight.shape()[i]);
    let k = classes(factor);
    let folded = Flex::lower(fold_weight(Flex::lift(weight.clone()), factor));
    let folded = folded.reshape([out, k * k, inputs, 9].into());
    folded
        .permute(&[3, 2, 1, 0])
        .to_contiguous()
        .reshape([9 * inputs, k * k * out].into())
}

/// Unfolds rows `y - 1` to `y + rows` of an image: `[rows width, 9 channels]`.
fn unfold_strip<T: Real>(
    image: &[T],
    y: usize,
    rows: usize,
    [height, width, channels]: [usize; 3],
) -> Vec<T> {
    let mut columns = vec![T::ZERO; rows * width * 9 * channels];
    for (i, column) in columns.chunks_exact_mut(9 * channels).enumerate() {
        let (row, x) = (y + i / width, i % width);
        for (dy, part) in column.chunks_exact_mut(3 * channels).enumerate() {
            if row + dy == 0 || row + dy > height {
                continue;
            }
            let line = &image[(row + dy - 1) * width * channels..][..width * channels];
            let begin = usize::from(x == 0);
            let end = 3 - usize::from(x + 1 == width);
            part[begin * channels..end * channels]
                .copy_from_slice(&line[(x + begin - 1) * channels..(x + end - 1) * channels]);
        }
    }
    columns
}

pub(super) fn forward<T: Real>(
    x: &Flat,
    weight: &Flat,
    bias: Option<&Flat>,
    factor: usize,
) -> Flat {
    let x = channels_last(x);
    let layout = Layout::new(&x, weight, factor);
    let low = classified::<T>(&x, weight, bias, layout);
    if layout.outputs > MAPS {
        spread_last(&low, layout)
    } else {
        spread_first(&low, layout)
    }
}

/// The classes of every pixel of the small map, strip by strip, bias added: `[rows, W, classes classes out]`. The map lies channels
/// last.
pub(super) fn classified<T: Real>(
    x: &Flat,
    weight: &Flat,
    bias: Option<&Flat>,
    layout: Layout,
) -> Vec<Vec<T>> {
    let Layout { height, width, .. } = layout;
    let channels = x.shape()[3];
    let bias = bias.map(|bias| bias.to_contiguous());
    let bias = bias.as_ref().map_or_else(
        || vec![T::ZERO; layout.outputs],
        |bias| values::<T>(bias).to_vec(),
    );
    let folded = folded_matrix(weight, layout.factor);
    let data: &[T] = values(x);
    layout
        .strips()
        .into_par_iter()
        .map(|(image, y, rows)| {
            let image = &data[image * height * width * channels..][..height * width * channels];
            let columns = unfold_strip(image, y, rows, [height, width, channels]);
            let low = matrix::product(flat(columns, [rows * width, 9 * channels]), folded.clone());
            values::<T>(&matrix::add_row::<T>(low, &tiled(&bias, layout))).to_vec()
        })
        .collect()
}

/// Results of at most so many channels are laid out channels first.
pub(super) const MAPS: usize = 4;

/// The bias repeated for every class.
fn tiled<T: Real>(bias: &[T], layout: Layout) -> Flat {
    let k = layout.classes();
    flat(bias.repeat(k * k), [k * k * bias.len()])
}

/// The class of a row (or column) within its block.
fn class_of(within: usize, factor: usize) -> usize {
    match within {
        0 => 0,
        within if within == factor - 1 => classes(factor) - 1,
        _ => 1,
    }
}

/// Lays strips of classes out as `[N, H, W, out]`.
fn spread_last<T: Real>(low: &[Vec<T>], layout: Layout) -> Flat {
    let Layout {
        images,
        height,
        width,
        outputs,
        factor,
    } = layout;
    let k = layout.classes();
    let mut out = vec![T::ZERO; images * height * layout.large_row() * outputs];
    let rows = low
        .iter()
        .flat_map(|strip| strip.chunks_exact(width * k * k * outputs))
        .collect::<Vec<_>>();
    out.par_chunks_mut(layout.large_row() * outputs)
        .zip(rows)
        .for_each(|(out, low)| {
            for (within, line) in out.chunks_exact_mut(factor * width * outputs).enumerate() {
                let row_class = class_of(within, factor);
                for (pixels, low) in line
                    .chunks_exact_mut(factor * outputs)
                    .zip(low.chunks_exact(k * k * outputs))
                {
                    let low = &low[row_class * k * outputs..][..k * outputs];
                    for (within, pixel) in pixels.chunks_exact_mut(outputs).enumerate() {
                        pixel
                            .copy_from_slice(&low[class_of(within, factor) * outputs..][..outputs]);
                    }
                }
            }
        });
    as_map(flat(
        out,
        [images, height * factor, width * factor, outputs],
    ))
}

/// Lays strips of classes out as `[N, out, H, W]`.
fn spread_first<T: Real>(low: &[Vec<T>], layout: Layout) -> Flat {
    let Layout {
        images,
        height,
        width,
        outputs,
        factor,
    } = layout;
    let k = layout.classes();
    let mut out = vec![T::ZERO; images * height * layout.large_row() * outputs];
    let rows = low
        .iter()
        .flat_map(|strip| strip.chunks_exact(width * k * k * outputs))
        .collect::<Vec<_>>();
    // One task for each small row of each output of each image.
    out.par_chunks_mut(layout.large_row())
        .enumerate()
        .for_each(|(task, out)| {
            let (plane, y) = (task / height, task % height);
            let (image, output) = (plane / outputs, plane % outputs);
            let low = rows[image * height + y];
            for (within, line) in out.chunks_exact_mut(factor * width).enumerate() {
                if within > 1 && within < factor - 1 {
                    continue;
                }
                let row_class = class_of(within, factor);
                for (pixels, low) in line
                    .chunks_exact_mut(factor)
                    .zip(low.chunks_exact(k * k * outputs))
                {
                    let low = &low[row_class * k * outputs..];
                    for (within, pixel) in pixels.iter_mut().enumerate() {
                        *pixel = low[class_of(within, factor) * outputs + output];
                    }
                }
            }
            // All middle rows of a block are alike.
            for within in 2..factor.max(3) - 1 {
                out.copy_within(factor * width..2 * factor * width, within * factor * width);
            }
        });
    flat(out, [images, outputs, height * factor, width * factor])
}

/// The adjoint of laying out: sums of the gradient over each class, `[N, H, W, classes classes out]`.
fn gather<T: Real>(gradient: &Flat, layout: Layout) -> Vec<T> {
    let Layout {
        images,
        height,
        width,
        outputs,
        ..
    } = layout;
    let k = layout.classes();
    let mut low = vec![T::ZERO; images * height * width * k * k * outputs];
    let last = outputs > MAPS;
    let gradient = if last {
        channels_last(gradient)
    } else {
        gradient.to_contiguous()
    };
    let g: &[T] = values(&gradient);
    let (small, large) = (width * k * k * outputs, layout.large_row());
    low.par_chunks_mut(small)
        .enumerate()
        .for_each(|(row, low)| {
            if last {
                gather_row(&g[row * large * outputs..][..large * outputs], low, layout);
            } else {
                let (image, y) = (row / height, row % height);
                for output in 0..outputs {
                    let plane = image * outputs + output;
                    let lines = &g[(plane * height + y) * large..][..large];
                    gather_plane(lines, low, layout, output);
                }
            }
        });
    low
}

/// Adds the rows of one block row, channels last.
fn gather_row<T: Real>(lines: &[T], low: &mut [T], layout: Layout) {
    let Layout {
        width,
        outputs,
        factor,
        ..
    } = layout;
    let k = layout.classes();
    for (within, line) in lines.chunks_exact(factor * width * outputs).enumerate() {
        let row_class = class_of(within, factor);
        let blocks = line.chunks_exact(factor * outputs);
        for (pixels, low) in blocks.zip(low.chunks_exact_mut(k * k * outputs)) {
            let low = &mut low[row_class * k * outputs..][..k * outputs];
            for (within, pixel) in pixels.chunks_exact(outputs).enumerate() {
                let low = &mut low[class_of(within, factor) * outputs..][..outputs];
                low.iter_mut().zip(pixel).for_each(|(low, g)| *low += *g);
            }
        }
    }
}

/// Adds the rows of one block row of one plane.
#[inline(always)]
fn gather_plane<T: Real>(lines: &[T], low: &mut [T], layout: Layout, output: usize) {
    let Layout {
        width,
        outputs,
        factor,
        ..
    } = layout;
    let k = layout.classes();
    let across = factor * width;
    let mut middle = vec![T::ZERO; across];
    for line in lines.chunks_exact(across).take(factor - 1).skip(1) {
        middle.iter_mut().zip(line).for_each(|(sum, g)| *sum += *g);
    }
    let ends = [
        (0, &lines[..across]),
        (k - 1, &lines[(factor - 1) * across..]),
    ];
    let middle = (k == 3).then_some((1, &middle[..]));
    // With a factor of 1 both ends are the same row.
    for (row_class, line) in ends
        .into_iter()
        .skip(usize::from(factor == 1))
        .chain(middle)
    {
        for (pixels, low) in line
            .chunks_exact(factor)
            .zip(low.chunks_exact_mut(k * k * outputs))
        {
            let low = &mut low[row_class * k * outputs..];
            low[output] += pixels[0];
            if factor > 1 {
                low[(k - 1) * outputs + output] += pixels[factor - 1];
            }
            if factor > 2 {
                low[outputs + output] += pixels[1..factor - 1].iter().copied().sum();
            }
        }
    }
}

pub(super) fn backward<T: Real>(
    gradient: &Flat,
    x: &Flat,
    weight: &Flat,
    factor: usize,
    wanted: &[bool],
) -> Vec<Option<Flat>> {
    let x = channels_last(x);
    let layout = Layout::new(&x, weight, factor);
    gradients(gather::<T>(gradient, layout), &x, weight, layout, wanted)
}

/// Gradients of x, weight and bias from that of the classes. The map lies channels last.
pub(super) fn gradients<T: Real>(
    low: Vec<T>,
    x: &Flat,
    weight: &Flat,
    layout: Layout,
    wanted: &[bool],
) -> Vec<Option<Flat>> {
    let Layout {
        images,
        height,
        width,
        outputs,
        factor,
    } = layout;
    let channels = x.shape()[3];
    let depth = classes(factor) * classes(factor) * outputs;
    let low = flat(low, [images, height, width, depth]);
    let gx = wanted[0].then(|| {
        // The input's gradient is the convolution with the kernel turned round, classes as input channels.
        let turned = folded_matrix(weight, factor).reshape([9, channels, depth].into());
        let turned = Flex::float_flip(turned, &[0])
            .permute(&[0, 2, 1])
            .to_contiguous();
        let turned = turned.reshape([9 * depth, channels].into());
        let data: &[T] = values(&low);
        let parts: Vec<Vec<T>> = layout
            .strips()
            .into_par_iter()
            .map(|(image, y, rows)| {
                let image = &data[image * height * width * depth..][..height * width * depth];
                let columns = unfold_strip(image, y, rows, [height, width, depth]);
                let gx = matrix::product(flat(columns, [rows * width, 9 * depth]), turned.clone());
                values::<T>(&gx).to_vec()
            })
            .collect();
        as_map(flat(parts.concat(), x.shape()))
    });
    let rows_of_low = matrix::rows(&low);
    let gw = wanted[1].then(|| {
        let data: &[T] = values(x);
        let parts: Vec<Vec<T>> = layout
            .strips()
            .into_par_iter()
            .map(|(image, y, rows)| {
                let pixels =
                    &data[image * height * width * channels..][..height * width * channels];
                let columns = unfold_strip(pixels, y, rows, [height, width, channels]);
                let columns = flat(columns, [rows * width, 9 * channels]);
                let low = rows_of_low.narrow(0, (image * height + y) * width, rows * width);
                values::<T>(&matrix::product(columns.transpose(0, 1), low)).to_vec()
            })
            .collect();
        let k = classes(factor);
        // [9, in, classes, out] back to the folded weight [out classes, in, 3, 3].
        let sum = add_up(parts, 9 * channels * k * k * outputs);
        let folded = flat(sum, [9, channels, k * k, outputs])
            .permute(&[3, 2, 1, 0])
            .to_contiguous();
        let folded = folded.reshape([outputs * k * k, channels, 3, 3].into());
        Flex::lower(fold_weight_backward(
            Flex::lift(folded),
            [outputs, channels],
            factor,
        ))
    });
    let gb = wanted.get(2).is_some_and(|wanted| *wanted).then(|| {
        let sums =
            matrix::column_sums::<T>(&rows_of_low).reshape([depth / outputs, outputs].into());
        matrix::column_sums::<T>(&sums)
    });
    vec![gx, gw, gb]
}
