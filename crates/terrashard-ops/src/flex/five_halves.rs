//! Nearest-neighbour enlargement by 2.5 and 3x3 convolution at the small size: the classes are those of a factor of 3; see
//! [`crate::upsample`].

use super::real::Real;
use super::upsample::{Layout, MAPS, classified, gradients};
use super::{Flat, as_map, channels_last, flat, values};
use crate::upsample::five_halves;
use rayon::prelude::*;

/// The factor of which a block has the same classes.
const CLASSES: usize = 3;

pub(super) fn forward<T: Real>(x: &Flat, weight: &Flat, bias: Option<&Flat>) -> Flat {
    let x = channels_last(x);
    let layout = Layout::new(&x, weight, CLASSES);
    let low = classified::<T>(&x, weight, bias, layout);
    let Layout {
        images,
        height,
        width,
        outputs,
        ..
    } = layout;
    let pixel = CLASSES * CLASSES * outputs;
    let small: Vec<&[T]> = low
        .iter()
        .flat_map(|strip| strip.chunks_exact(width * pixel))
        .collect();
    let (rows, columns) = (five_halves(height), five_halves(width));
    let [tall, wide] = [rows.len(), columns.len()];
    let mut out = vec![T::ZERO; images * tall * wide * outputs];
    if outputs > MAPS {
        let lines = out.par_chunks_mut(wide * outputs).enumerate();
        lines.for_each(|(line, out)| {
            let (image, (y, row_class)) = (line / tall, rows[line % tall]);
            let low = small[image * height + y];
            for (out, (x, column_class)) in out.chunks_exact_mut(outputs).zip(&columns) {
                let class = row_class * CLASSES + column_class;
                out.copy_from_slice(&low[x * pixel + class * outputs..][..outputs]);
            }
        });
        return as_map(flat(out, [images, tall, wide, outputs]));
    }
    let lines = out.par_chunks_mut(wide).enumerate();
    lines.for_each(|(line, out)| {
        let (plane, (y, row_class)) = (line / tall, rows[line % tall]);
        let low = small[plane / outputs * height + y];
        for (out, (x, column_class)) in out.iter_mut().zip(&columns) {
            let class = row_class * CLASSES + column_class;
            *out = low[x * pixel + class * outputs + plane % outputs];
        }
    });
    flat(out, [images, outputs, tall, wide])
}

pub(super) fn backward<T: Real>(
    gradient: &Flat,
    x: &Flat,
    weight: &Flat,
    wanted: &[bool],
) -> Vec<Option<Flat>> {
    let x = channels_last(x);
    let layout = Layout::new(&x, weight, CLASSES);
    gradients(gather::<T>(gradient, layout), &x, weight, layout, wanted)
}

/// The adjoint of laying out. Each class of a pixel has at most one pixel of the large map: its gradient, or zero.
fn gather<T: Real>(gradient: &Flat, layout: Layout) -> Vec<T> {
    let Layout {
        images,
        height,
        width,
        outputs,
        ..
    } = layout;
    let last = outputs > MAPS;
    let gradient = if last {
        channels_last(gradient)
    } else {
        gradient.to_contiguous()
    };
    let g: &[T] = values(&gradient);
    let (rows, columns) = (five_halves(height), five_halves(width));
    let [tall, wide] = [rows.len(), columns.len()];
    let pixel = CLASSES * CLASSES * outputs;
    let mut low = vec![T::ZERO; images * height * width * pixel];
    let lines = low.par_chunks_mut(width * pixel).enumerate();
    lines.for_each(|(line, low)| {
        let (image, y) = (line / height, line % height);
        // Rows of the large map come in the order of the small one's.
        let first = rows.partition_point(|(row, _)| *row < y);
        let end = rows.partition_point(|(row, _)| *row <= y);
        for (i, (_, row_class)) in rows[first..end].iter().enumerate() {
            for (j, (x, column_class)) in columns.iter().enumerate() {
                let class = row_class * CLASSES + column_class;
                let low = &mut low[x * pixel + class * outputs..][..outputs];
                for (output, low) in low.iter_mut().enumerate() {
                    let row = first + i;
                    let at = if last {
                        ((image * tall + row) * wide + j) * outputs + output
                    } else {
                        ((image * outputs + output) * tall + row) * wide + j
                    };
                    *low = g[at];
                }
            }
        }
    });
    low
}
