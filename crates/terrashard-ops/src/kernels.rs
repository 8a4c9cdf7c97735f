//! What a backend computes for each operation. The default bodies are the portable ones.

pub(crate) mod portable;

use crate::activation::Activation;
use crate::batch_norm::{self, BatchStatistics};
use crate::branch::{self, Branch, Saved};
use crate::convolution::ConvShape;
use crate::cross_entropy::{self, ClassDice};
use crate::focal::Focal;
use crate::image::Image;
use crate::labels::Labels;
use crate::operation::Operation;
use crate::overlap::{self, Dice, SoftBce};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorData};

pub(crate) type Gradients<B> = Vec<Option<FloatTensor<B>>>;

/// The gradients of a loss, computed with its value but for the factor that backward knows.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "tch"),
    expect(dead_code, reason = "LibTorch alone computes them")
)]
pub(crate) struct Slopes<B: Backend> {
    pub(crate) tensors: Vec<FloatTensor<B>>,
    /// Shapes and types of the inputs.
    pub(crate) inputs: Vec<(Shape, DType)>,
}

/// The bodies of our operations on one backend. Inputs are on the plain device, never tracked.
///
/// A backend needs [`lift`](Self::lift) and [`lower`](Self::lower), and overrides what it does faster than the portable bodies.
pub(crate) trait Kernels: Backend {
    /// The tensor as a high-level one.
    fn lift<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D>;

    /// The high-level tensor, which lives on this backend, as its primitive.
    fn lower<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Self>;

    /// The type in which tensors of this type are computed, if not in their own; see
    /// [`computes_narrow`](Self::computes_narrow).
    fn compute_type(_dtype: DType) -> Option<FloatDType> {
        None
    }

    /// Whether the bodies of this operation take 16 bits as they are, and add up in more.
    fn computes_narrow(_operation: &Operation) -> bool {
        false
    }

    /// Whether the bodies of branches take 16 bits as they are, and add up in more.
    fn computes_narrow_branches() -> bool {
        false
    }

    /// The tensor in another type.
    fn cast(tensor: FloatTensor<Self>, to: FloatDType) -> FloatTensor<Self> {
        Self::float_cast(tensor, to)
    }

    /// The tensor in the type in which it is computed.
    fn widened(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        match Self::compute_type(tensor.dtype()) {
            Some(wide) => Self::cast(tensor, wide),
            None => tensor,
        }
    }

    /// A result rounded to this type, if that is one that another computes for.
    fn rounded(tensor: FloatTensor<Self>, to: DType) -> FloatTensor<Self> {
        match Self::compute_type(to) {
            Some(_) => Self::cast(tensor, to.into()),
            None => tensor,
        }
    }

    /// One element of this value, in the type and on the device of `like`.
    fn full(like: &FloatTensor<Self>, value: f64) -> FloatTensor<Self> {
        Self::float_from_data(
            TensorData::from([value]).convert_dtype(like.dtype()),
            &like.device(),
        )
    }

    /// The tensor as a matrix of which the last dimension is kept.
    fn rows(tensor: FloatTensor<Self>) -> Tensor<2> {
        let shape = tensor.shape();
        let last = shape[shape.num_dims() - 1];
        let rows = shape.num_elements() / last.max(1);
        Self::lift(Self::float_reshape(tensor, [rows, last].into()))
    }

    /// See [`linear`](crate::linear).
    fn linear_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        portable::linear_forward::<Self>(x, weight, bias)
    }

    /// Gradients of x, weight and bias.
    fn linear_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        wanted: &[bool],
    ) -> Gradients<Self> {
        portable::linear_backward::<Self>(gradient, x, weight, wanted)
    }

    /// See [`conv2d`](crate::conv2d).
    fn conv2d_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        shape: ConvShape,
    ) -> FloatTensor<Self> {
        portable::conv2d_forward::<Self>(x, weight, bias, shape)
    }

    /// Gradients of x, weight and bias.
    fn conv2d_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        shape: ConvShape,
        wanted: &[bool],
    ) -> Gradients<Self> {
        portable::conv2d_backward::<Self>(gradient, x, weight, shape, wanted)
    }

    /// See [`layer_norm`](crate::layer_norm).
    fn layer_norm_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        portable::layer_norm_forward::<Self>(x, weight, bias, epsilon)
    }

    /// Gradients of x, weight and bias.
    fn layer_norm_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> Gradients<Self> {
        portable::layer_norm_backward::<Self>(gradient, x, weight, epsilon)
    }

    /// See [`batch_norm`](crate::batch_norm).
    fn batch_norm_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        statistics: &BatchStatistics,
    ) -> FloatTensor<Self> {
        portable::batch_norm_forward::<Self>(x, weight, bias, statistics)
    }

    /// Gradients of x, weight and bias.
    fn batch_norm_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        statistics: &BatchStatistics,
    ) -> Gradients<Self> {
        portable::batch_norm_backward::<Self>(gradient, x, weight, statistics)
    }

    /// See [`activate`](crate::activate).
    fn activate_forward(x: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self> {
        portable::activate_forward::<Self>(x, kind)
    }

    /// Gradient of x.
    fn activate_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        kind: Activation,
    ) -> FloatTensor<Self> {
        portable::activate_backward::<Self>(gradient, x, kind)
    }

    /// See [`resize_bilinear`](crate::resize_bilinear).
    fn resize_forward(x: FloatTensor<Self>, size: [usize; 2]) -> FloatTensor<Self> {
        portable::resize_forward::<Self>(x, size)
    }

    /// Gradient of x, whose height and width are `from`.
    fn resize_backward(gradient: FloatTensor<Self>, from: [usize; 2]) -> FloatTensor<Self> {
        portable::resize_backward::<Self>(gradient, from)
    }

    /// See [`upsample_conv2d`](crate::upsample_conv2d).
    fn upsample_conv2d_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        factor: usize,
    ) -> FloatTensor<Self> {
        portable::upsample_conv2d_forward::<Self>(x, weight, bias, factor)
    }

    /// Gradients of x, weight and bias.
    fn upsample_conv2d_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        factor: usize,
        wanted: &[bool],
    ) -> Gradients<Self> {
        portable::upsample_conv2d_backward::<Self>(gradient, x, weight, factor, wanted)
    }

    /// As [`upsample_conv2d_forward`](Self::upsample_conv2d_forward), by pixels or by blocks, whichever losses are computed of.
    fn enlarge_conv2d_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        factor: usize,
    ) -> FloatTensor<Self> {
        Self::upsample_conv2d_forward(x, weight, bias, factor)
    }

    /// Gradients of x, weight and bias.
    fn enlarge_conv2d_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        factor: usize,
        wanted: &[bool],
    ) -> Gradients<Self> {
        Self::upsample_conv2d_backward(gradient, x, weight, factor, wanted)
    }

    /// The pixels of a map by blocks.
    fn pixels_forward(blocks: FloatTensor<Self>, factor: usize) -> FloatTensor<Self> {
        portable::pixels_forward::<Self>(blocks, factor)
    }

    /// The adjoint of [`pixels_forward`](Self::pixels_forward).
    fn pixels_backward(gradient: FloatTensor<Self>, factor: usize) -> FloatTensor<Self> {
        portable::pixels_backward::<Self>(gradient, factor)
    }

    /// The value of a loss together with its gradients, on a backend that computes them in one pass.
    fn with_slopes(
        _loss: &Operation,
        _inputs: &[FloatTensor<Self>],
    ) -> Option<(FloatTensor<Self>, Slopes<Self>)> {
        None
    }

    /// The gradients for those that came with the value, and that of the value.
    fn scale_slopes(
        _loss: &Operation,
        _gradient: FloatTensor<Self>,
        _slopes: Slopes<Self>,
    ) -> Gradients<Self> {
        unreachable!("a backend that computes slopes scales them")
    }

    /// See [`upsample_conv2d`](crate::upsample_conv2d): by 2.5.
    fn upsample_conv2d_five_halves_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        portable::upsample_conv2d_five_halves_forward::<Self>(x, weight, bias)
    }

    /// Gradients of x, weight and bias.
    fn upsample_conv2d_five_halves_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        wanted: &[bool],
    ) -> Gradients<Self> {
        portable::upsample_conv2d_five_halves_backward::<Self>(gradient, x, weight, wanted)
    }

    /// See [`focal`](crate::focal).
    fn focal_forward(
        logits: FloatTensor<Self>,
        labels: &Labels,
        focal: Focal,
    ) -> FloatTensor<Self> {
        portable::focal_forward::<Self>(logits, labels, focal)
    }

    /// Gradient of the logits.
    fn focal_backward(
        gradient: FloatTensor<Self>,
        logits: FloatTensor<Self>,
        labels: &Labels,
        focal: Focal,
    ) -> FloatTensor<Self> {
        portable::focal_backward::<Self>(gradient, logits, labels, focal)
    }

    /// See [`soft_bce`](crate::soft_bce).
    fn soft_bce_forward(
        logits: FloatTensor<Self>,
        labels: &Labels,
        bce: SoftBce,
    ) -> FloatTensor<Self> {
        portable::soft_bce_forward::<Self>(logits, labels, bce)
    }

    /// Gradient of the logits.
    fn soft_bce_backward(
        gradient: FloatTensor<Self>,
        logits: FloatTensor<Self>,
        labels: &Labels,
        bce: SoftBce,
    ) -> FloatTensor<Self> {
        portable::soft_bce_backward::<Self>(gradient, logits, labels, bce)
    }

    /// Gradient of the logits; see [`dice`](crate::dice).
    fn dice_backward(
        gradient: FloatTensor<Self>,
        logits: FloatTensor<Self>,
        labels: &Labels,
        dice: &Dice,
    ) -> FloatTensor<Self> {
        portable::dice_backward::<Self>(gradient, logits, labels, dice)
    }

    /// See [`cross_entropy`](crate::cross_entropy).
    fn cross_entropy_forward(
        logits: FloatTensor<Self>,
        labels: &Labels,
        divisor: f64,
    ) -> FloatTensor<Self> {
        Self::lower(cross_entropy::forward(Self::lift(logits), labels, divisor))
    }

    /// Gradient of the logits.
    fn cross_entropy_backward(
        gradient: FloatTensor<Self>,
        logits: FloatTensor<Self>,
        labels: &Labels,
        divisor: f64,
    ) -> FloatTensor<Self> {
        portable::cross_entropy_backward::<Self>(gradient, logits, labels, divisor)
    }

    /// For each class the sum of its probability over its own pixels, then for each that over all valid pixels; see
    /// [`class_dice`](crate::class_dice).
    fn class_sums(logits: FloatTensor<Self>, labels: &Labels) -> FloatTensor<Self> {
        Self::lower(cross_entropy::sums(Self::lift(logits), labels))
    }

    /// Gradient of the logits; see [`class_dice`](crate::class_dice).
    fn class_dice_backward(
        gradient: FloatTensor<Self>,
        logits: FloatTensor<Self>,
        labels: &Labels,
        dice: &ClassDice,
    ) -> FloatTensor<Self> {
        portable::class_dice_backward::<Self>(gradient, logits, labels, dice)
    }

    /// See [`l1`](crate::l1).
    fn l1_forward(x: FloatTensor<Self>, target: &Image, divisor: f64) -> FloatTensor<Self> {
        portable::l1_forward::<Self>(x, target, divisor)
    }

    /// Gradient of the prediction.
    fn l1_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        target: &Image,
        divisor: f64,
    ) -> FloatTensor<Self> {
        portable::l1_backward::<Self>(gradient, x, target, divisor)
    }

    /// See [`affinity`](crate::affinity).
    fn affinity_forward(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        every: usize,
        divisor: f64,
    ) -> FloatTensor<Self> {
        portable::affinity_forward::<Self>(a, b, every, divisor)
    }

    /// Gradients of both maps.
    fn affinity_backward(
        gradient: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        every: usize,
        divisor: f64,
    ) -> Gradients<Self> {
        portable::affinity_backward::<Self>(gradient, a, b, every, divisor)
    }

    /// See [`attention`](crate::attention).
    fn attention_forward(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        heads: usize,
    ) -> FloatTensor<Self> {
        portable::attention_forward::<Self>(q, kv, heads)
    }

    /// Gradients of queries and of keys with values.
    fn attention_backward(
        gradient: FloatTensor<Self>,
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        heads: usize,
    ) -> Gradients<Self> {
        portable::attention_backward::<Self>(gradient, q, kv, heads)
    }

    /// The number of values a channel, then the mean of each, then the sum of each one's squares around its mean. May be of a
    /// wider type than x.
    fn batch_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::lower(batch_norm::sums(Self::lift(x)))
    }

    /// The sums of `p y` and of `p` over valid pixels; see [`dice`](crate::dice).
    fn dice_sums(logits: FloatTensor<Self>, labels: &Labels) -> FloatTensor<Self> {
        Self::lower(overlap::dice_sums(Self::lift(logits), labels))
    }

    /// The result of a branch, and what its backward needs; see [`attention_branch`](crate::attention_branch) and
    /// [`feed_forward_branch`](crate::feed_forward_branch).
    fn branch_forward(
        branch: &Branch,
        x: FloatTensor<Self>,
        parameters: Vec<FloatTensor<Self>>,
    ) -> (FloatTensor<Self>, Saved<Self>) {
        branch::forward::<Self>(branch, x, parameters)
    }

    /// Gradients of x and of the parameters.
    fn branch_backward(branch: &Branch, given: branch::Backward<Self>) -> Gradients<Self> {
        branch::backward::<Self>(branch, given)
    }
}
