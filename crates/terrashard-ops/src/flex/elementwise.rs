//! Activations.

use super::pixel::{Pixel, apply};
use super::real::{Real, erf, sigmoid_and_log};
use super::{Flat, as_map, channels_last, flat, values};
use crate::Activation;
use burn::backend::TensorMetadata;

/// The standard normal density at 0.
const DENSITY: f32 = 0.398_942_3;

/// Applies a function to every value of `x` and of what stands beside it. The result lies in memory as x does.
fn map<T: Real>(x: &Flat, beside: &Flat, pixel: &impl Pixel<T, T>) -> Flat {
    let contiguous = |x: Flat, beside: Flat| {
        flat(
            apply(pixel, values::<T>(&x), values::<T>(&beside)),
            x.shape(),
        )
    };
    let last =
        x.shape().num_dims() == 4 && !x.is_contiguous() && x.permute(&[0, 2, 3, 1]).is_contiguous();
    if last {
        as_map(contiguous(channels_last(x), channels_last(beside)))
    } else {
        contiguous(x.to_contiguous(), beside.to_contiguous())
    }
}

struct Relu;

impl<T: Real> Pixel<T, T> for Relu {
    #[inline(always)]
    fn at(&self, x: T, _: T) -> T {
        // In this order what is no number stays.
        T::ZERO.greater(x)
    }
}

struct ReluSlope;

impl<T: Real> Pixel<T, T> for ReluSlope {
    #[inline(always)]
    fn at(&self, x: T, gradient: T) -> T {
        if x > T::ZERO { gradient } else { T::ZERO }
    }
}

struct Gelu;

impl Pixel<f32, f32> for Gelu {
    #[inline(always)]
    fn at(&self, x: f32, _: f32) -> f32 {
        x * phi(x)
    }
}

struct GeluSlope;

impl Pixel<f32, f32> for GeluSlope {
    #[inline(always)]
    fn at(&self, x: f32, gradient: f32) -> f32 {
        gradient * (phi(x) + x * DENSITY * (-0.5 * x * x).exponential())
    }
}

struct Silu;

impl Pixel<f32, f32> for Silu {
    #[inline(always)]
    fn at(&self, x: f32, _: f32) -> f32 {
        x / (1.0 + (-x).exponential())
    }
}

struct SiluSlope;

impl Pixel<f32, f32> for SiluSlope {
    #[inline(always)]
    fn at(&self, x: f32, gradient: f32) -> f32 {
        let s = 1.0 / (1.0 + (-x).exponential());
        gradient * s * (1.0 + x * (1.0 - s))
    }
}

/// `tanh(ln(1 + e^x))` and how much it is below 1, of e to the power of `-|x|` alone: nothing overflows or cancels.
#[inline(always)]
fn tanh_of_softplus<T: Real>(x: T) -> (T, T) {
    let n = (-x.magnitude()).exponential();
    let two = T::ONE + T::ONE;
    let square = n * n;
    // Of e^x where x is negative, or else of e^-x, by which numerator and denominator are divided.
    let negative = x < T::ZERO;
    let top = if negative {
        square + two * n
    } else {
        T::ONE + two * n
    };
    let rest = if negative { two } else { two * square };
    let inverse = T::ONE / (top + rest);
    (top * inverse, rest * inverse)
}

struct Mish;

impl<T: Real> Pixel<T, T> for Mish {
    #[inline(always)]
    fn at(&self, x: T, _: T) -> T {
        x * tanh_of_softplus(x).0
    }
}

struct MishSlope;

impl<T: Real> Pixel<T, T> for MishSlope {
    #[inline(always)]
    fn at(&self, x: T, gradient: T) -> T {
        let (t, below) = tanh_of_softplus(x);
        gradient * (t + x * below * (T::ONE + t) * sigmoid_and_log(x).0)
    }
}

pub(super) fn mish<T: Real>(x: &Flat) -> Flat {
    map::<T>(x, x, &Mish)
}

pub(super) fn mish_backward<T: Real>(gradient: &Flat, x: &Flat) -> Flat {
    map::<T>(x, gradient, &MishSlope)
}

pub(super) fn relu<T: Real>(x: &Flat) -> Flat {
    map::<T>(x, x, &Relu)
}

pub(super) fn relu_backward<T: Real>(gradient: &Flat, x: &Flat) -> Flat {
    map::<T>(x, gradient, &ReluSlope)
}

pub(super) fn activate(x: &Flat, kind: Activation) -> Flat {
    match kind {
        Activation::Gelu => map(x, x, &Gelu),
        Activation::Silu => map(x, x, &Silu),
        Activation::Mish => mish::<f32>(x),
        Activation::Relu => relu::<f32>(x),
    }
}

pub(super) fn activate_backward(gradient: &Flat, x: &Flat, kind: Activation) -> Flat {
    match kind {
        Activation::Gelu => map(x, gradient, &GeluSlope),
        Activation::Silu => map(x, gradient, &SiluSlope),
        Activation::Mish => mish_backward::<f32>(gradient, x),
        Activation::Relu => relu_backward::<f32>(gradient, x),
    }
}

/// The normal distribution's function.
#[inline(always)]
fn phi(x: f32) -> f32 {
    0.5 + 0.5 * erf(x * std::f32::consts::FRAC_1_SQRT_2)
}
