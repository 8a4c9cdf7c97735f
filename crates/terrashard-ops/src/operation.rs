//! The list of our operations: what each needs in forward and backward.

use crate::activation::Activation;
use crate::batch_norm::BatchStatistics;
use crate::convolution::ConvShape;
use crate::focal::Focal;
use crate::kernels::Kernels;
use crate::labels::Labels;
use crate::overlap::{Dice, SoftBce};
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

/// An operation with everything that is not a differentiable input.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    /// Inputs: x, weight, bias.
    Linear,
    /// Inputs: x, weight and perhaps bias.
    Conv2d(ConvShape),
    /// Inputs: x, weight, bias. Holds epsilon.
    LayerNorm(f64),
    /// Inputs: x, weight, bias.
    BatchNorm(BatchStatistics),
    /// Input: x.
    Activation(Activation),
    /// Input: x. Holds the output's height and width.
    Resize([usize; 2]),
    /// Inputs: x, weight and perhaps bias. Holds the factor.
    UpsampleConv2d(usize),
    /// Input: logits.
    Focal(Focal, Labels),
    /// Input: logits.
    SoftBce(SoftBce, Labels),
    /// Input: logits.
    Dice(Dice, Labels),
    /// Input: prediction. Holds the target and what the sum is divided by.
    L1(Tensor<4>, f64),
    /// Inputs: the two maps. Holds the distance between sampled positions and what the sum is divided by.
    Affinity(usize, f64),
}

impl Operation {
    /// Whether backward needs the value of this input again.
    pub(crate) fn keeps(&self, input: usize) -> bool {
        match self {
            // Never the bias: no gradient depends on it.
            Self::Linear
            | Self::Conv2d(_)
            | Self::LayerNorm(_)
            | Self::BatchNorm(_)
            | Self::UpsampleConv2d(_) => input < 2,
            Self::Resize(_) => true,
            _ => true,
        }
    }

    pub(crate) fn forward<B: Kernels>(&self, inputs: Vec<FloatTensor<B>>) -> FloatTensor<B> {
        let mut inputs = inputs.into_iter();
        let mut next = || {
            inputs
                .next()
                .expect("an operation gets as many inputs as it lists")
        };
        match self {
            Self::Linear => B::linear_forward(next(), next(), next()),
            Self::Conv2d(shape) => B::conv2d_forward(next(), next(), inputs.next(), *shape),
            Self::LayerNorm(epsilon) => B::layer_norm_forward(next(), next(), next(), *epsilon),
            Self::BatchNorm(statistics) => {
                B::batch_norm_forward(next(), next(), next(), statistics)
            }
            Self::Activation(kind) => B::activate_forward(next(), *kind),
            Self::Resize(size) => B::resize_forward(next(), *size),
            Self::UpsampleConv2d(factor) => {
                B::upsample_conv2d_forward(next(), next(), inputs.next(), *factor)
            }
            Self::Focal(focal, labels) => B::focal_forward(next(), labels, *focal),
            Self::SoftBce(bce, labels) => B::soft_bce_forward(next(), labels, *bce),
            Self::Dice(dice, _) => B::full(&next(), dice.value()),
            Self::L1(target, divisor) => B::l1_forward(next(), target, *divisor),
            Self::Affinity(every, divisor) => B::affinity_forward(next(), next(), *every, *divisor),
        }
    }

    /// The gradients of the inputs that are `wanted`; others may be `None`.
    pub(crate) fn backward<B: Kernels>(
        self,
        gradient: FloatTensor<B>,
        inputs: Vec<Option<FloatTensor<B>>>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let mut inputs = inputs.into_iter().flatten();
        let mut next = || {
            inputs
                .next()
                .expect("the inputs that an operation keeps come back")
        };
        match self {
            Self::Linear => B::linear_backward(gradient, next(), next(), wanted),
            Self::Conv2d(shape) => B::conv2d_backward(gradient, next(), next(), shape, wanted),
            Self::LayerNorm(epsilon) => B::layer_norm_backward(gradient, next(), next(), epsilon),
            Self::BatchNorm(statistics) => {
                B::batch_norm_backward(gradient, next(), next(), &statistics)
            }
            Self::Activation(kind) => vec![Some(B::activate_backward(gradient, next(), kind))],
            Self::Resize(size) => vec![Some(B::resize_backward(gradient, next(), size))],
            Self::UpsampleConv2d(factor) => {
                B::upsample_conv2d_backward(gradient, next(), next(), factor, wanted)
            }
            Self::Focal(focal, labels) => {
                vec![Some(B::focal_backward(gradient, next(), &labels, focal))]
            }
            Self::SoftBce(bce, labels) => {
                vec![Some(B::soft_bce_backward(gradient, next(), &labels, bce))]
            }
            Self::Dice(dice, labels) => {
                vec![Some(B::dice_backward(gradient, next(), &labels, &dice))]
            }
            Self::L1(target, divisor) => {
                vec![Some(B::l1_backward(gradient, next(), &target, divisor))]
            }
            Self::Affinity(every, divisor) => {
                B::affinity_backward(gradient, next(), next(), every, divisor)
            }
        }
    }
}
