//! Normalisation of each token.

use crate::{Initial, layer_norm, parameter};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

/// Layer normalisation over the last dimension ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// `[channels]`.
    pub weight: Param<Tensor<1>>,
    /// `[channels]`.
    pub bias: Param<Tensor<1>>,
    epsilon: f64,
}

impl LayerNorm {
    /// A normalisation of `channels` values, `epsilon` added to their variance.
    pub fn new(channels: usize, epsilon: f64, device: &Device) -> Self {
        Self {
            weight: parameter::lazy([channels], Initial::Ones, device),
            bias: parameter::lazy([channels], Initial::Zeros, device),
            epsilon,
        }
    }

    /// What is added to the variance.
    pub(crate) fn epsilon(&self) -> f64 {
        self.epsilon
    }

    /// Applies the normalisation.
    ///
    /// # Shapes
    /// `[.., channels]`, kept.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        layer_norm(x, self.weight.val(), self.bias.val(), self.epsilon)
    }
}
