//! Activations that keep only their input.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::Tensor;
use burn::tensor::activation::{log_sigmoid, sigmoid};

/// A function of each value by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x Phi(x)` by the error function ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// `x sigmoid(x)`.
    Silu,
    /// `x tanh(ln(1 + e^x))` ([Misra 2019](https://arxiv.org/abs/1908.08681)).
    Mish,
    /// `max(x, 0)`.
    Relu,
}

/// Applies an activation.
pub fn activate<const D: usize>(x: Tensor<D>, kind: Activation) -> Tensor<D> {
    operate(vec![x.into_dispatch()], Operation::Activation(kind))
}

/// The normal distribution's function.
fn phi(x: Tensor<2>) -> Tensor<2> {
    ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5
}

/// `ln(1 + e^x)`.
fn softplus(x: Tensor<2>) -> Tensor<2> {
    log_sigmoid(x.neg()).neg()
}

pub(crate) fn forward(x: Tensor<2>, kind: Activation) -> Tensor<2> {
    match kind {
        Activation::Gelu => x.clone() * phi(x),
        Activation::Silu => x.clone() * sigmoid(x),
        Activation::Mish => x.clone() * softplus(x).tanh(),
        Activation::Relu => x.clamp_min(0.0),
    }
}

pub(crate) fn backward(gradient: Tensor<2>, x: Tensor<2>, kind: Activation) -> Tensor<2> {
    let slope = match kind {
        Activation::Gelu => {
            let density =
                (x.clone() * x.clone() * -0.5).exp() * (1.0 / std::f64::consts::TAU.sqrt());
            phi(x.clone()) + x * density
        }
        Activation::Silu => {
            let s = sigmoid(x.clone());
            s.clone() * (x * (s.neg() + 1.0) + 1.0)
        }
        Activation::Mish => {
            let t = softplus(x.clone()).tanh();
            let fall = (t.clone() * t.clone()).neg() + 1.0;
            t + x.clone() * fall * sigmoid(x)
        }
        Activation::Relu => return gradient.mask_fill(x.lower_equal_elem(0.0), 0.0),
    };
    gradient * slope
}
