//! Layouts of enlarged maps: from classes of pixels to pixels and back, and constants that live on the device.

use crate::upsample::{classes, folded_tap};
use std::sync::{Mutex, PoisonError};
use terrashard_torch::tch::{Device, Kind, Tensor};

/// Elements of the largest temporary that a GPU gets at a time; a CPU gets one sample, which its caches like.
const TEMPORARY: i64 = 1 << 25;

/// Where each piece of a batch begins and how many samples it has, for temporaries of so many elements a sample.
pub(super) fn pieces(like: &Tensor, elements: i64) -> impl Iterator<Item = (i64, i64)> {
    let samples = like.size()[0];
    let step = if like.device().is_cuda() {
        (TEMPORARY / elements.max(1)).max(1)
    } else {
        1
    };
    (0..samples)
        .step_by(step as usize)
        .map(move |start| (start, step.min(samples - start)))
}

/// Number of classes of rows, and of columns.
pub(super) fn kinds(factor: i64) -> i64 {
    classes(factor as usize) as i64
}

/// The rows of a block that belong to each class: the first one and how many.
pub(super) fn spans(factor: i64) -> impl Iterator<Item = (i64, i64, i64)> {
    let spans = match factor {
        1 => vec![(0, 1)],
        2 => vec![(0, 1), (1, 1)],
        _ => vec![(0, 1), (1, factor - 2), (factor - 1, 1)],
    };
    (0..)
        .zip(spans)
        .map(|(class, (start, count))| (class, start, count))
}

pub(super) fn size4(map: &Tensor) -> [i64; 4] {
    let size = map.size();
    [size[0], size[1], size[2], size[3]]
}

/// What does not depend on values, made once for each device: copying it there would wait for all that the device has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Constant {
    /// `[9, classes^2 * 9]`: which tap of which folded kernel each tap of the given one is added to.
    Fold,
    /// `[classes, classes, 1, 1]`: the pixels of each class.
    Areas,
}

type Key = (Device, Kind, i64, Constant);

fn constant(like: &Tensor, kind: Kind, factor: i64, constant: Constant) -> Tensor {
    static MADE: Mutex<Vec<(Key, Tensor)>> = Mutex::new(Vec::new());
    let key = (like.device(), kind, factor, constant);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, tensor)) = made.iter().find(|(other, _)| *other == key) {
        return tensor.shallow_clone();
    }
    let k = kinds(factor);
    let (values, shape) = match constant {
        Constant::Fold => (fold_values(factor as usize), vec![9, k * k * 9]),
        Constant::Areas => {
            let counts: Vec<f32> = spans(factor).map(|(.., count)| count as f32).collect();
            let areas = counts
                .iter()
                .flat_map(|a| counts.iter().map(move |b| a * b));
            (areas.collect(), vec![k, k, 1, 1])
        }
    };
    let tensor = Tensor::from_slice(&values)
        .view(&shape[..])
        .to_device(like.device())
        .to_kind(kind);
    made.push((key, tensor.shallow_clone()));
    tensor
}

fn fold_values(factor: usize) -> Vec<f32> {
    let k = classes(factor);
    let mut values = vec![0.0; 9 * k * k * 9];
    for class in 0..k * k {
        for tap in 0..9 {
            let y = folded_tap(class / k, tap / 3, factor);
            let x = folded_tap(class % k, tap % 3, factor);
            values[tap * k * k * 9 + class * 9 + y * 3 + x] = 1.0;
        }
    }
    values
}

/// The pixels of each class, `[classes, classes, 1, 1]`.
pub(super) fn areas(like: &Tensor, kind: Kind, factor: i64) -> Tensor {
    constant(like, kind, factor, Constant::Areas)
}

/// `[out, in, 3, 3]` to `[out * classes^2, in * 9]`.
pub(super) fn fold(weight: &Tensor, factor: i64) -> Tensor {
    let [out, inputs, ..] = size4(weight);
    let classes = kinds(factor) * kinds(factor);
    let matrix = constant(weight, weight.kind(), factor, Constant::Fold);
    weight
        .reshape([out * inputs, 9])
        .mm(&matrix)
        .view([out, inputs, classes, 9])
        .transpose(1, 2)
        .reshape([out * classes, inputs * 9])
}

/// The gradient of the weight from that of the folded one.
pub(super) fn unfold(folded: &Tensor, [out, inputs]: [i64; 2], factor: i64) -> Tensor {
    let classes = kinds(factor) * kinds(factor);
    let matrix = constant(folded, folded.kind(), factor, Constant::Fold);
    folded
        .view([out, classes, inputs, 9])
        .transpose(1, 2)
        .reshape([out * inputs, classes * 9])
        .mm(&matrix.tr())
        .view([out, inputs, 3, 3])
}

/// Lays columns out: `[N, C * classes^2, h, w]` to `[N, C, classes, h, w * factor]` of this kind.
pub(super) fn columns(low: &Tensor, factor: i64, kind: Kind) -> Tensor {
    let [n, channels, h, w] = size4(low);
    let k = kinds(factor);
    let low = low.reshape([n, channels / (k * k), k, k, h, w]);
    let wide = Tensor::empty(
        [n, channels / (k * k), k, h, w, factor],
        (kind, low.device()),
    );
    for (class, start, count) in spans(factor) {
        wide.narrow(5, start, count)
            .copy_(&low.select(3, class).unsqueeze(5));
    }
    wide.view([n, channels / (k * k), k, h, w * factor])
}

/// Lays the classes out: `[N, C * classes^2, h, w]` to `[N, C, factor h, factor w]`.
pub(super) fn expand(low: &Tensor, factor: i64) -> Tensor {
    if factor == 1 {
        return low.contiguous();
    }
    let [n, channels, h, w] = size4(low);
    let channels = channels / (kinds(factor) * kinds(factor));
    let map = Tensor::empty(
        [n, channels, h, factor, w * factor],
        (low.kind(), low.device()),
    );
    for (start, count) in pieces(low, channels * h * w * kinds(factor) * factor) {
        let wide = columns(&low.narrow(0, start, count), factor, low.kind());
        let part = map.narrow(0, start, count);
        for (class, first, rows) in spans(factor) {
            part.narrow(3, first, rows)
                .copy_(&wide.select(2, class).unsqueeze(3));
        }
    }
    map.view([n, channels, h * factor, w * factor])
}

/// Adds up the pixels of each class: `map` `[N, C, factor h, factor w]`, contiguous, into `low` `[N, C * classes^2, h, w]`, whose type
/// may be another one.
pub(super) fn sum_classes(map: &Tensor, low: &Tensor, factor: i64) {
    let [n, channels, height, width] = size4(map);
    let (h, w, k) = (height / factor, width / factor, kinds(factor));
    let map = map.view([n, channels, h, factor, width]);
    let low = low.view([n, channels, k, k, h, w]);
    for (row_class, start, count) in spans(factor) {
        let rows = sum(&map, 3, start, count).unwrap_or_else(|| map.select(3, start));
        let rows = rows.reshape([n, channels, h, w, factor]);
        for (class, start, count) in spans(factor) {
            let mut to = low.select(2, row_class).select(2, class);
            match count {
                1 => to.copy_(&rows.select(4, start)),
                _ => {
                    let last = rows.select(4, start + count - 1);
                    let before = sum(&rows, 4, start, count - 1);
                    let before = before.unwrap_or_else(|| rows.select(4, start));
                    let _ = before.add_out(&to, &last);
                }
            }
        }
    }
}

/// The sum of `count` slices along a dimension, if they are more than one. There are few of them, and adding whole slices reads and writes in
/// long runs, which a reduction over so short a dimension does not.
fn sum(map: &Tensor, dim: i64, start: i64, count: i64) -> Option<Tensor> {
    (count > 1).then(|| {
        let mut sum = map.select(dim, start) + map.select(dim, start + 1);
        for slice in start + 2..start + count {
            sum += map.select(dim, slice);
        }
        sum
    })
}

/// [`sum_classes`] into a new tensor: the adjoint of [`expand`].
pub(super) fn expand_backward(gradient: &Tensor, factor: i64) -> Tensor {
    if factor == 1 {
        return gradient.contiguous();
    }
    let [n, channels, height, width] = size4(gradient);
    let k = kinds(factor);
    let low = Tensor::empty(
        [n, channels * k * k, height / factor, width / factor],
        (gradient.kind(), gradient.device()),
    );
    for (start, count) in pieces(gradient, channels * height * width / 2) {
        let map = gradient.narrow(0, start, count).contiguous();
        sum_classes(&map, &low.narrow(0, start, count), factor);
    }
    low
}
