//! What a backend computes for each operation. The default bodies are the portable ones.

use crate::activation::{self, Activation};
use crate::batch_norm::{self, BatchStatistics};
use crate::convolution::{self, ConvShape};
use crate::focal::{self, Focal};
use crate::labels::Labels;
use crate::overlap::{self, Dice, SoftBce};
use crate::{affinity, l1, layer_norm, linear, resize, upsample};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, TensorMetadata};
use burn::tensor::{Tensor, TensorData};

type Gradients<B> = Vec<Option<FloatTensor<B>>>;

/// The bodies of our operations on one backend. Inputs are on the plain device, never tracked.
///
/// A backend needs [`lift`](Self::lift) and [`lower`](Self::lower), and overrides what it does faster than the portable bodies.
pub(crate) trait Kernels: Backend {
    /// The tensor as a high-level one.
    fn lift<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D>;

    /// The high-level tensor, which lives on this backend, as its primitive.
    fn lower<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Self>;

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
        let mut shape = x.shape();
        let last = shape.num_dims() - 1;
        shape[last] = weight.shape()[0];
        let y = linear::forward(Self::rows(x), Self::lift(weight), Self::lift(bias));
        Self::float_reshape(Self::lower(y), shape)
    }

    /// Gradients of x, weight and bias.
    fn linear_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        wanted: &[bool],
    ) -> Gradients<Self> {
        let shape = x.shape();
        let (gradient, x) = (Self::rows(gradient), Self::rows(x));
        let gx = wanted[0].then(|| linear::input_gradient(gradient.clone(), Self::lift(weight)));
        vec![
            gx.map(|gx| Self::float_reshape(Self::lower(gx), shape)),
            wanted[1].then(|| Self::lower(linear::weight_gradient(gradient.clone(), x))),
            wanted[2].then(|| Self::lower(linear::bias_gradient(gradient))),
        ]
    }

    /// See [`conv2d`](crate::conv2d).
    fn conv2d_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        shape: ConvShape,
    ) -> FloatTensor<Self> {
        Self::conv2d(x, weight, bias, shape.options())
    }

    /// Gradients of x, weight and bias.
    fn conv2d_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        shape: ConvShape,
        wanted: &[bool],
    ) -> Gradients<Self> {
        let kernel = weight.shape()[2];
        let gx = wanted[0].then(|| {
            Self::conv2d_x_backward(x.clone(), weight.clone(), gradient.clone(), shape.options())
        });
        let gradient = Self::lift(gradient);
        let gw = wanted[1].then(|| {
            Self::lower(convolution::weight_gradient(
                gradient.clone(),
                Self::lift(x),
                kernel,
                shape,
            ))
        });
        let gb = wanted.get(2).is_some_and(|wanted| *wanted);
        vec![
            gx,
            gw,
            gb.then(|| Self::lower(convolution::bias_gradient(gradient))),
        ]
    }

    /// See [`layer_norm`](crate::layer_norm).
    fn layer_norm_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let shape = x.shape();
        let y = layer_norm::forward(Self::rows(x), Self::lift(weight), Self::lift(bias), epsilon);
        Self::float_reshape(Self::lower(y), shape)
    }

    /// Gradients of x, weight and bias.
    fn layer_norm_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> Gradients<Self> {
        let shape = x.shape();
        let (gx, gw, gb) = layer_norm::backward(
            Self::rows(gradient),
            Self::rows(x),
            Self::lift(weight),
            epsilon,
        );
        vec![
            Some(Self::float_reshape(Self::lower(gx), shape)),
            Some(Self::lower(gw)),
            Some(Self::lower(gb)),
        ]
    }

    /// See [`batch_norm`](crate::batch_norm).
    fn batch_norm_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        statistics: &BatchStatistics,
    ) -> FloatTensor<Self> {
        Self::lower(batch_norm::forward(
            Self::lift(x),
            Self::lift(weight),
            Self::lift(bias),
            statistics,
        ))
    }

    /// Gradients of x, weight and bias.
    fn batch_norm_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        statistics: &BatchStatistics,
    ) -> Gradients<Self> {
        let (gx, gw, gb) = batch_norm::backward(
            Self::lift(gradient),
            Self::lift(x),
            Self::lift(weight),
            statistics,
        );
        vec![
            Some(Self::lower(gx)),
            Some(Self::lower(gw)),
            Some(Self::lower(gb)),
        ]
    }

    /// See [`activate`](crate::activate).
    fn activate_forward(x: FloatTensor<Self>, kind: Activation) -> FloatTensor<Self> {
        let shape = x.shape();
        Self::float_reshape(Self::lower(activation::forward(Self::rows(x), kind)), shape)
    }

    /// Gradient of x.
    fn activate_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        kind: Activation,
    ) -> FloatTensor<Self> {
        let shape = x.shape();
        let gx = activation::backward(Self::rows(gradient), Self::rows(x), kind);
        Self::float_reshape(Self::lower(gx), shape)
    }

    /// See [`resize_bilinear`](crate::resize_bilinear).
    fn resize_forward(x: FloatTensor<Self>, size: [usize; 2]) -> FloatTensor<Self> {
        Self::interpolate(x, size, resize::options())
    }

    /// Gradient of x.
    fn resize_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        size: [usize; 2],
    ) -> FloatTensor<Self> {
        Self::interpolate_backward(x, gradient, size, resize::options())
    }

    /// See [`upsample_conv2d`](crate::upsample_conv2d).
    fn upsample_conv2d_forward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        factor: usize,
    ) -> FloatTensor<Self> {
        let channels = weight.shape()[0];
        let folded = Self::lower(upsample::fold_weight(Self::lift(weight), factor));
        let low = Self::conv2d_forward(x, folded, None, ConvShape::SAME_3X3);
        Self::lower(upsample::expand(
            Self::lift(low),
            bias.map(Self::lift),
            channels,
            factor,
        ))
    }

    /// Gradients of x, weight and bias.
    fn upsample_conv2d_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        factor: usize,
        wanted: &[bool],
    ) -> Gradients<Self> {
        let gradient = Self::lift::<4>(gradient);
        let channels = weight.shape()[0];
        let inputs = weight.shape()[1];
        let bias = wanted.get(2).is_some_and(|wanted| *wanted);
        let gb = bias.then(|| Self::lower(convolution::bias_gradient(gradient.clone())));
        let low = Self::lower(upsample::expand_backward(gradient, factor));
        let folded = Self::lower(upsample::fold_weight(Self::lift(weight), factor));
        let mut results =
            Self::conv2d_backward(low, x, folded, ConvShape::SAME_3X3, &wanted[..2]).into_iter();
        let gx = results.next().flatten();
        let gw = results.next().flatten();
        let gw = gw.map(|gw| {
            Self::lower(upsample::fold_weight_backward(
                Self::lift(gw),
                [channels, inputs],
                factor,
            ))
        });
        vec![gx, gw, gb]
    }

    /// See [`focal`](crate::focal).
    fn focal_forward(
        logits: FloatTensor<Self>,
        labels: &Labels,
        focal: Focal,
    ) -> FloatTensor<Self> {
        Self::lower(focal::forward(Self::lift(logits), labels, focal))
    }

    /// Gradient of the logits.
    fn focal_backward(
        gradient: FloatTensor<Self>,
        logits: FloatTensor<Self>,
        labels: &Labels,
        focal: Focal,
    ) -> FloatTensor<Self> {
        Self::lower(focal::backward(
            Self::lift(gradient),
            Self::lift(logits),
            labels,
            focal,
        ))
    }

    /// See [`soft_bce`](crate::soft_bce).
    fn soft_bce_forward(
        logits: FloatTensor<Self>,
        labels: &Labels,
        bce: SoftBce,
    ) -> FloatTensor<Self> {
        Self::lower(overlap::soft_bce_forward(Self::lift(logits), labels, bce))
    }

    /// Gradient of the logits.
    fn soft_bce_backward(
        gradient: FloatTensor<Self>,
        logits: FloatTensor<Self>,
        labels: &Labels,
        bce: SoftBce,
    ) -> FloatTensor<Self> {
        Self::lower(overlap::soft_bce_backward(
            Self::lift(gradient),
            Self::lift(logits),
            labels,
            bce,
        ))
    }

    /// Gradient of the logits; see [`dice`](crate::dice).
    fn dice_backward(
        gradient: FloatTensor<Self>,
        logits: FloatTensor<Self>,
        labels: &Labels,
        dice: &Dice,
    ) -> FloatTensor<Self> {
        Self::lower(overlap::dice_backward(
            Self::lift(gradient),
            Self::lift(logits),
            labels,
            dice,
        ))
    }

    /// See [`l1`](crate::l1).
    fn l1_forward(x: FloatTensor<Self>, target: &Tensor<4>, divisor: f64) -> FloatTensor<Self> {
        Self::lower(l1::forward(Self::lift(x), target.clone(), divisor))
    }

    /// Gradient of the prediction.
    fn l1_backward(
        gradient: FloatTensor<Self>,
        x: FloatTensor<Self>,
        target: &Tensor<4>,
        divisor: f64,
    ) -> FloatTensor<Self> {
        Self::lower(l1::backward(
            Self::lift(gradient),
            Self::lift(x),
            target.clone(),
            divisor,
        ))
    }

    /// See [`affinity`](crate::affinity).
    fn affinity_forward(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        every: usize,
        divisor: f64,
    ) -> FloatTensor<Self> {
        Self::lower(affinity::forward(
            Self::lift(a),
            Self::lift(b),
            every,
            divisor,
        ))
    }

    /// Gradients of both maps.
    fn affinity_backward(
        gradient: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        every: usize,
        divisor: f64,
    ) -> Gradients<Self> {
        let (ga, gb) = affinity::backward(
            Self::lift(gradient),
            Self::lift(a),
            Self::lift(b),
            every,
            divisor,
        );
        vec![Some(Self::lower(ga)), Some(Self::lower(gb))]
    }
}

impl Kernels for Flex {
    fn lift<const D: usize>(tensor: FloatTensor<Self>) -> Tensor<D> {
        Tensor::from_primitive::<Self>(tensor)
    }

    fn lower<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Self> {
        tensor
            .try_into_primitive::<Self>()
            .expect("the operation's inputs lived on this backend")
    }
}
