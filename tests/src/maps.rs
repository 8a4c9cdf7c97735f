//! What the reference keeps of a forward pass: whole maps, every K-th pixel of the large ones, sums, similarities.

use burn::tensor::Tensor;
use terrashard_models::Maps;

use crate::fixture::{Tensors, Values};

/// Inserts everything that a set may have of these maps under `{prefix}out/`.
pub fn observe_maps(maps: &Maps, prefix: &str, seen: &mut Tensors) {
    let mut put = |name: String, values: Values| {
        seen.insert(format!("{prefix}out/{name}"), values);
    };
    for (stage, feature) in maps.features.iter().enumerate() {
        put(format!("feat{stage}"), values(feature));
    }
    put("head".into(), values(&maps.head));
    let branches = [
        ("seg", Some(&maps.seg_low), Some(&maps.segmentation)),
        ("sr", maps.sr_low.as_ref(), maps.superres.as_ref()),
        // The net with one branch has another name for its map.
        ("logits", None, Some(&maps.segmentation)),
    ];
    for (name, low, map) in branches {
        if let Some(low) = low {
            put(format!("{name}_low"), values(low));
            put(format!("{name}_sim"), similarity(&values(low)));
        }
        if let Some(map) = map {
            observe_large(name, values(&map.clone().pixels()), &mut put);
        }
    }
}

/// Everything that a set may have of one large map.
pub fn observe_large(name: &str, map: Values, put: &mut impl FnMut(String, Values)) {
    for every in [3, 11] {
        put(format!("{name}_every{every}"), sampled(&map, every));
    }
    put(format!("{name}_sum"), summed(&map, |value| value));
    put(format!("{name}_sumsq"), summed(&map, |value| value * value));
    put(name.into(), map);
}

/// A tensor as doubles.
pub fn values<const D: usize>(map: &Tensor<D>) -> Values {
    Values {
        shape: map.dims().to_vec(),
        values: map.clone().into_data().iter::<f64>().collect(),
    }
}

/// `[:, :, ::every, ::every]`.
fn sampled(map: &Values, every: usize) -> Values {
    let [n, c, h, w] = map.shape[..] else {
        unreachable!("maps have four dimensions")
    };
    let mut values = Vec::new();
    for plane in map.values.chunks(h * w).take(n * c) {
        for row in plane.chunks(w).step_by(every) {
            values.extend(row.iter().step_by(every));
        }
    }
    Values {
        shape: vec![n, c, h.div_ceil(every), w.div_ceil(every)],
        values,
    }
}

/// The sum of `f` over each plane.
fn summed(map: &Values, f: impl Fn(f64) -> f64) -> Values {
    let pixels = map.shape[2] * map.shape[3];
    let values = map
        .values
        .chunks(pixels)
        .map(|plane| plane.iter().map(|value| f(*value)).sum())
        .collect();
    Values {
        shape: map.shape[..2].to_vec(),
        values,
    }
}

/// `S = f f^T` of the vectors at every eighth pixel, each divided by its norm: computed plainly, as the reference
/// defines it, apart from the model's own loss.
fn similarity(low: &Values) -> Values {
    let small = sampled(low, 8);
    let (n, c) = (small.shape[0], small.shape[1]);
    let positions = small.shape[2] * small.shape[3];
    let mut values = Vec::with_capacity(n * positions * positions);
    for sample in small.values.chunks(c * positions) {
        let vector = |p: usize| (0..c).map(move |channel| sample[channel * positions + p]);
        let norm = |p: usize| vector(p).map(|x| x * x).sum::<f64>().sqrt().max(1e-8);
        for a in 0..positions {
            for b in 0..positions {
                let product: f64 = vector(a).zip(vector(b)).map(|(x, y)| x * y).sum();
                values.push(product / (norm(a) * norm(b)));
            }
        }
    }
    Values {
        shape: vec![n, positions, positions],
        values,
    }
}
