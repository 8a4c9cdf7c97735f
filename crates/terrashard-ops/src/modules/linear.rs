//! A fully connected layer over the last dimension.

use crate::{Initial, parameter};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

/// `y = x weight^T + bias` over the last dimension.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features.
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self {
            weight: parameter::lazy(
                [outputs, inputs],
                Initial::Normal { deviation: 0.02 },
                device,
            ),
            bias: parameter::lazy([outputs], Initial::Zeros, device),
        }
    }

    /// Applies the layer.
    ///
    /// # Shapes
    /// `[.., in]` to `[.., out]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        crate::linear(x, self.weight.val(), self.bias.val())
    }
}
