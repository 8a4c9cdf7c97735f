//! Activations.

use super::real::{Real, erf};
use super::{Flat, fill, flat, values};
use crate::Activation;
use burn::backend::TensorMetadata;

/// The standard normal density at 0.
const DENSITY: f32 = 0.398_942_3;

/// Applies `f` to every value. The result lies in memory as the input does.
fn map<T: Real>(x: &Flat, f: impl Fn(T) -> T + Sync) -> Flat {
    in_memory_order(&[x], |inputs| {
        let data: &[T] = values(&inputs[0]);
        let mut out = vec![T::ZERO; data.len()];
        fill(&mut out, 1, |start, piece| {
            for (out, x) in piece.iter_mut().zip(&data[start..]) {
                *out = f(*x);
            }
        });
        flat(out, inputs[0].shape())
    })
}

/// Applies `f` to every pair of values. The result lies in memory as the second input does.
fn map2<T: Real>(gradient: &Flat, x: &Flat, f: impl Fn(T, T) -> T + Sync) -> Flat {
    in_memory_order(&[x, gradient], |inputs| {
        let (x, gradient): (&[T], &[T]) = (values(&inputs[0]), values(&inputs[1]));
        let mut out = vec![T::ZERO; x.len()];
        fill(&mut out, 1, |start, piece| {
            for ((out, x), g) in piece.iter_mut().zip(&x[start..]).zip(&gradient[start..]) {
                *out = f(*g, *x);
            }
        });
        flat(out, inputs[0].shape())
    })
}

/// Runs `body` on contiguous tensors: permuted as the first lies in memory, if that is channels last.
fn in_memory_order(tensors: &[&Flat], body: impl FnOnce(Vec<Flat>) -> Flat) -> Flat {
    let first = tensors[0];
    if !first.is_contiguous()
        && first.shape().num_dims() == 4
        && first.permute(&[0, 2, 3, 1]).is_contiguous()
    {
        super::as_map(body(
            tensors
                .iter()
                .map(|tensor| super::channels_last(tensor))
                .collect(),
        ))
    } else {
        body(
            tensors
                .iter()
                .map(|tensor| tensor.to_contiguous())
                .collect(),
        )
    }
}

pub(super) fn relu<T: Real>(x: &Flat) -> Flat {
    map(x, |x: T| x.greater(T::ZERO))
}

pub(super) fn relu_backward<T: Real>(gradient: &Flat, x: &Flat) -> Flat {
    map2(gradient, x, |g: T, x| if x > T::ZERO { g } else { T::ZERO })
}

pub(super) fn activate(x: &Flat, kind: Activation) -> Flat {
    match kind {
        Activation::Gelu => map(x, |x: f32| x * phi(x)),
        Activation::Silu => map(x, |x: f32| x / (1.0 + (-x).exponential())),
        Activation::Relu => relu::<f32>(x),
    }
}

pub(super) fn activate_backward(gradient: &Flat, x: &Flat, kind: Activation) -> Flat {
    match kind {
        Activation::Gelu => map2(gradient, x, |g: f32, x| {
            g * (phi(x) + x * DENSITY * (-0.5 * x * x).exponential())
        }),
        Activation::Silu => map2(gradient, x, |g: f32, x| {
            let s = 1.0 / (1.0 + (-x).exponential());
            g * s * (1.0 + x * (1.0 - s))
        }),
        Activation::Relu => relu_backward::<f32>(gradient, x),
    }
}

/// The normal distribution's function.
#[inline(always)]
fn phi(x: f32) -> f32 {
    0.5 + 0.5 * erf(x * std::f32::consts::FRAC_1_SQRT_2)
}
