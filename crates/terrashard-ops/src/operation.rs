//! The list of our operations: what each needs in forward and backward.

use crate::activation::Activation;
use crate::batch_norm::BatchStatistics;
use crate::convolution::ConvShape;
use crate::cross_entropy::ClassDice;
use crate::dropout::{self, Mask};
use crate::focal::Focal;
use crate::fuse::{self, LevelOrder};
use crate::image::Image;
use crate::kernels::{Gradients, Kernels};
use crate::labels::Labels;
use crate::overlap::{Dice, SoftBce};
use crate::upsample::Factor;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;

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
    /// Input: x.
    Drop(Mask),
    /// Inputs: four levels, weight and perhaps bias.
    FuseLevels(LevelOrder),
    /// Inputs: queries, keys and values. Holds the number of heads.
    Attention(usize),
    /// Input: x, never tracked.
    BatchSums,
    /// Input: logits, never tracked.
    DiceSums(Labels),
    /// Input: x. Holds height and width of the input and of the output.
    Resize([usize; 2], [usize; 2]),
    /// Inputs: x, weight and perhaps bias.
    UpsampleConv2d(Factor),
    /// The same in the layout of [`Enlarged`](crate::Enlarged).
    EnlargeConv2d(usize),
    /// Input: a map by blocks. Holds the factor.
    Pixels(usize),
    /// Input: logits.
    Focal(Focal, Labels),
    /// Input: logits.
    SoftBce(SoftBce, Labels),
    /// Input: logits.
    Dice(Dice, Labels),
    /// Input: logits, never tracked.
    ClassSums(Labels),
    /// Input: logits. Holds what the sum is divided by.
    CrossEntropy(f64, Labels),
    /// Input: logits.
    ClassDice(ClassDice, Labels),
    /// Input: prediction. Holds the target and what the sum is divided by.
    L1(Image, f64),
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
            | Self::UpsampleConv2d(_)
            | Self::EnlargeConv2d(_) => input < 2,
            Self::FuseLevels(_) => input < 5,
            // Linear functions: their gradients are the same everywhere.
            Self::Resize(..) | Self::Drop(_) | Self::Pixels(_) => false,
            _ => true,
        }
    }

    /// Whether the result is one or a few sums over maps, which keep the precision that they were computed with.
    fn sums(&self) -> bool {
        matches!(
            self,
            Self::BatchSums
                | Self::DiceSums(_)
                | Self::ClassSums(_)
                | Self::CrossEntropy(..)
                | Self::ClassDice(..)
                | Self::Focal(..)
                | Self::SoftBce(..)
                | Self::Dice(..)
                | Self::L1(..)
                | Self::Affinity(..)
        )
    }

    /// The result in the first input's type, computed in the type that the backend computes that in.
    pub(crate) fn forward<B: Kernels>(&self, inputs: Vec<FloatTensor<B>>) -> FloatTensor<B> {
        let dtype = inputs[0].dtype();
        if B::computes_narrow(self) && inputs.iter().all(|input| input.dtype() == dtype) {
            return self.forward_in_type::<B>(inputs);
        }
        let inputs = inputs.into_iter().map(B::widened).collect();
        let output = self.forward_in_type::<B>(inputs);
        if self.sums() {
            output
        } else {
            B::rounded(output, dtype)
        }
    }

    fn forward_in_type<B: Kernels>(&self, inputs: Vec<FloatTensor<B>>) -> FloatTensor<B> {
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
            Self::Drop(mask) => dropout::apply::<B>(next(), mask),
            Self::Resize(_, to) => B::resize_forward(next(), *to),
            Self::FuseLevels(order) => fuse::forward::<B>(
                vec![next(), next(), next(), next()],
                next(),
                inputs.next(),
                *order,
            ),
            Self::Attention(heads) => B::attention_forward(next(), next(), *heads),
            Self::BatchSums => B::batch_sums(next()),
            Self::DiceSums(labels) => B::dice_sums(next(), labels),
            Self::UpsampleConv2d(Factor::Whole(factor)) => {
                B::upsample_conv2d_forward(next(), next(), inputs.next(), *factor)
            }
            Self::UpsampleConv2d(Factor::FiveHalves) => {
                B::upsample_conv2d_five_halves_forward(next(), next(), inputs.next())
            }
            Self::EnlargeConv2d(factor) => {
                B::enlarge_conv2d_forward(next(), next(), inputs.next(), *factor)
            }
            Self::Pixels(factor) => B::pixels_forward(next(), *factor),
            Self::Focal(focal, labels) => B::focal_forward(next(), labels, *focal),
            Self::SoftBce(bce, labels) => B::soft_bce_forward(next(), labels, *bce),
            Self::Dice(dice, _) => B::full(&next(), dice.value()),
            Self::ClassSums(labels) => B::class_sums(next(), labels),
            Self::CrossEntropy(divisor, labels) => {
                B::cross_entropy_forward(next(), labels, *divisor)
            }
            Self::ClassDice(dice, _) => B::full(&next(), dice.value()),
            Self::L1(target, divisor) => B::l1_forward(next(), target, *divisor),
            Self::Affinity(every, divisor) => B::affinity_forward(next(), next(), *every, *divisor),
        }
    }

    /// The gradients of the inputs that are `wanted`, computed as [`forward`](Self::forward) is and each in its input's type;
    /// others may be `None`.
    pub(crate) fn backward<B: Kernels>(
        self,
        gradient: FloatTensor<B>,
        inputs: Vec<Option<FloatTensor<B>>>,
        wanted: &[bool],
    ) -> Gradients<B> {
        // An input that is not kept is a bias, of the type of what stands before it, or of that of the result.
        let types = inputs.iter().scan(gradient.dtype(), |last, input| {
            *last = input.as_ref().map_or(*last, FloatTensor::<B>::dtype);
            Some(*last)
        });
        let types: Vec<DType> = types.collect();
        let gradient_type = gradient.dtype();
        if B::computes_narrow(&self) && types.iter().all(|dtype| *dtype == gradient_type) {
            return self.backward_in_type::<B>(gradient, inputs, wanted);
        }
        let inputs = inputs.into_iter().map(|input| input.map(B::widened));
        let inputs = inputs.collect();
        let results = self.backward_in_type::<B>(B::widened(gradient), inputs, wanted);
        let results = results.into_iter().zip(types);
        results
            .map(|(result, dtype)| result.map(|result| B::rounded(result, dtype)))
            .collect()
    }

    fn backward_in_type<B: Kernels>(
        self,
        gradient: FloatTensor<B>,
        inputs: Vec<Option<FloatTensor<B>>>,
        wanted: &[bool],
    ) -> Gradients<B> {
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
            Self::Drop(mask) => vec![Some(dropout::apply::<B>(gradient, &mask))],
            Self::Resize(from, _) => vec![Some(B::resize_backward(gradient, from))],
            Self::FuseLevels(order) => fuse::backward::<B>(
                gradient,
                vec![next(), next(), next(), next()],
                next(),
                order,
                wanted,
            ),
            Self::Attention(heads) => B::attention_backward(gradient, next(), next(), heads),
            Self::BatchSums | Self::DiceSums(_) | Self::ClassSums(_) => {
                unreachable!("sums for the host are taken of untracked tensors")
            }
            Self::UpsampleConv2d(Factor::Whole(factor)) => {
                B::upsample_conv2d_backward(gradient, next(), next(), factor, wanted)
            }
            Self::UpsampleConv2d(Factor::FiveHalves) => {
                B::upsample_conv2d_five_halves_backward(gradient, next(), next(), wanted)
            }
            Self::EnlargeConv2d(factor) => {
                B::enlarge_conv2d_backward(gradient, next(), next(), factor, wanted)
            }
            Self::Pixels(factor) => vec![Some(B::pixels_backward(gradient, factor))],
            Self::Focal(focal, labels) => {
                vec![Some(B::focal_backward(gradient, next(), &labels, focal))]
            }
            Self::SoftBce(bce, labels) => {
                vec![Some(B::soft_bce_backward(gradient, next(), &labels, bce))]
            }
            Self::Dice(dice, labels) => {
                vec![Some(B::dice_backward(gradient, next(), &labels, &dice))]
            }
            Self::CrossEntropy(divisor, labels) => {
                vec![Some(B::cross_entropy_backward(
                    gradient,
                    next(),
                    &labels,
                    divisor,
                ))]
            }
            Self::ClassDice(dice, labels) => {
                vec![Some(B::class_dice_backward(
                    gradient,
                    next(),
                    &labels,
                    &dice,
                ))]
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
