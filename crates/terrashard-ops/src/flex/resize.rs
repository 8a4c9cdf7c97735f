//! Bilinear resizing, channels last.

use super::real::Real;
use super::{Flat, as_map, channels_last, fill, flat, values};
use burn::backend::TensorMetadata;

/// The two sources of an output row (or column) and the weight of the second.
#[derive(Clone, Copy)]
struct Source {
    first: usize,
    second: usize,
    weight: f64,
}

/// Where output positions lie between pixel centres of the input.
fn sources(input: usize, output: usize) -> Vec<Source> {
    let ratio = input as f64 / output as f64;
    (0..output)
        .map(|i| {
            let at = ((i as f64 + 0.5) * ratio - 0.5).max(0.0);
            let first = (at as usize).min(input - 1);
            Source {
                first,
                second: (first + 1).min(input - 1),
                weight: at - first as f64,
            }
        })
        .collect()
}

/// For each input row (or column) the outputs that read it, and with which weight.
fn readers(input: usize, output: usize) -> Vec<Vec<(usize, f64)>> {
    let mut readers = vec![Vec::new(); input];
    for (i, source) in sources(input, output).into_iter().enumerate() {
        readers[source.first].push((i, 1.0 - source.weight));
        readers[source.second].push((i, source.weight));
    }
    readers
}

/// `out += weight * row`.
#[inline(always)]
fn add_scaled<T: Real>(out: &mut [T], row: &[T], weight: f64) {
    let weight = T::real(weight);
    for (out, value) in out.iter_mut().zip(row) {
        *out += weight * *value;
    }
}

pub(super) fn forward<T: Real>(x: &Flat, [height, width]: [usize; 2]) -> Flat {
    let x = channels_last(x);
    let [n, h, w, channels] = [0, 1, 2, 3].map(|i| x.shape()[i]);
    let data: &[T] = values(&x);
    let (rows, columns) = (sources(h, height), sources(w, width));
    let mut out = vec![T::ZERO; n * height * width * channels];
    fill(&mut out, width * channels, |first, piece| {
        for (i, out) in piece.chunks_exact_mut(width * channels).enumerate() {
            let (image, y) = ((first + i) / height, rows[(first + i) % height]);
            let line = |row: usize| &data[(image * h + row) * w * channels..][..w * channels];
            for (source, weight) in [(y.first, 1.0 - y.weight), (y.second, y.weight)] {
                let line = line(source);
                for (out, x) in out.chunks_exact_mut(channels).zip(&columns) {
                    add_scaled(out, &line[x.first * channels..], weight * (1.0 - x.weight));
                    add_scaled(out, &line[x.second * channels..], weight * x.weight);
                }
            }
        }
    });
    as_map(flat(out, [n, height, width, channels]))
}

pub(super) fn backward<T: Real>(gradient: &Flat, [h, w]: [usize; 2]) -> Flat {
    let gradient = channels_last(gradient);
    let [n, height, width, channels] = [0, 1, 2, 3].map(|i| gradient.shape()[i]);
    let data: &[T] = values(&gradient);
    let (rows, columns) = (readers(h, height), readers(w, width));
    let mut out = vec![T::ZERO; n * h * w * channels];
    fill(&mut out, w * channels, |first, piece| {
        // Columns first, then rows: fewer products, and no sum of very many terms.
        let mut sums = vec![T::ZERO; w * channels];
        for (i, out) in piece.chunks_exact_mut(w * channels).enumerate() {
            let (image, y) = ((first + i) / h, (first + i) % h);
            for (reader, weight) in &rows[y] {
                let line =
                    &data[(image * height + reader) * width * channels..][..width * channels];
                sums.fill(T::ZERO);
                for (sums, readers) in sums.chunks_exact_mut(channels).zip(&columns) {
                    for (x, weight) in readers {
                        add_scaled(sums, &line[x * channels..], *weight);
                    }
                }
                add_scaled(out, &sums, *weight);
            }
        }
    });
    as_map(flat(out, [n, h, w, channels]))
}
