//! The portable body of every operation: plain burn tensors, on any backend.

use super::{Gradients, Kernels};
use crate::activation::{self, Activation};
use crate::batch_norm::{self, BatchStatistics};
use crate::convolution::{self, ConvShape};
use crate::cross_entropy::{self, ClassDice};
use crate::focal::{self, Focal};
use crate::image::Image;
use crate::labels::Labels;
use crate::overlap::{self, Dice, SoftBce};
use crate::{affinity, attention, l1, layer_norm, linear, resize, upsample};
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;

pub(crate) fn linear_forward<B: Kernels>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
) -> FloatTensor<B> {
    let mut shape = x.shape();
    let last = shape.num_dims() - 1;
    shape[last] = weight.shape()[0];
    let y = linear::forward(B::rows(x), B::lift(weight), B::lift(bias));
    B::float_reshape(B::lower(y), shape)
}

pub(crate) fn linear_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    wanted: &[bool],
) -> Gradients<B> {
    let shape = x.shape();
    let (gradient, x) = (B::rows(gradient), B::rows(x));
    let gx = wanted[0].then(|| linear::input_gradient(gradient.clone(), B::lift(weight)));
    vec![
        gx.map(|gx| B::float_reshape(B::lower(gx), shape)),
        wanted[1].then(|| B::lower(linear::weight_gradient(gradient.clone(), x))),
        wanted[2].then(|| B::lower(linear::bias_gradient(gradient))),
    ]
}

pub(crate) fn conv2d_forward<B: Kernels>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    shape: ConvShape,
) -> FloatTensor<B> {
    B::conv2d(x, weight, bias, shape.options())
}

pub(crate) fn conv2d_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    shape: ConvShape,
    wanted: &[bool],
) -> Gradients<B> {
    let kernel = weight.shape()[2];
    let gx = wanted[0].then(|| {
        B::conv2d_x_backward(x.clone(), weight.clone(), gradient.clone(), shape.options())
    });
    let gradient = B::lift(gradient);
    let gw = wanted[1].then(|| {
        B::lower(convolution::weight_gradient(
            gradient.clone(),
            B::lift(x),
            kernel,
            shape,
        ))
    });
    let gb = wanted.get(2).is_some_and(|wanted| *wanted);
    vec![
        gx,
        gw,
        gb.then(|| B::lower(convolution::bias_gradient(gradient))),
    ]
}

pub(crate) fn layer_norm_forward<B: Kernels>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    epsilon: f64,
) -> FloatTensor<B> {
    let shape = x.shape();
    let y = layer_norm::forward(B::rows(x), B::lift(weight), B::lift(bias), epsilon);
    B::float_reshape(B::lower(y), shape)
}

pub(crate) fn layer_norm_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    epsilon: f64,
) -> Gradients<B> {
    let shape = x.shape();
    let (gx, gw, gb) =
        layer_norm::backward(B::rows(gradient), B::rows(x), B::lift(weight), epsilon);
    vec![
        Some(B::float_reshape(B::lower(gx), shape)),
        Some(B::lower(gw)),
        Some(B::lower(gb)),
    ]
}

pub(crate) fn batch_norm_forward<B: Kernels>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    statistics: &BatchStatistics,
) -> FloatTensor<B> {
    B::lower(batch_norm::forward(
        B::lift(x),
        B::lift(weight),
        B::lift(bias),
        statistics,
    ))
}

pub(crate) fn batch_norm_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    statistics: &BatchStatistics,
) -> Gradients<B> {
    let (gx, gw, gb) =
        batch_norm::backward(B::lift(gradient), B::lift(x), B::lift(weight), statistics);
    vec![Some(B::lower(gx)), Some(B::lower(gw)), Some(B::lower(gb))]
}

pub(crate) fn activate_forward<B: Kernels>(x: FloatTensor<B>, kind: Activation) -> FloatTensor<B> {
    let shape = x.shape();
    B::float_reshape(B::lower(activation::forward(B::rows(x), kind)), shape)
}

pub(crate) fn activate_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    kind: Activation,
) -> FloatTensor<B> {
    let shape = x.shape();
    let gx = activation::backward(B::rows(gradient), B::rows(x), kind);
    B::float_reshape(B::lower(gx), shape)
}

pub(crate) fn resize_forward<B: Kernels>(x: FloatTensor<B>, size: [usize; 2]) -> FloatTensor<B> {
    B::interpolate(x, size, resize::options())
}

pub(crate) fn resize_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    [h, w]: [usize; 2],
) -> FloatTensor<B> {
    let [n, channels, height, width] = [0, 1, 2, 3].map(|i| gradient.shape()[i]);
    // Only the shape of the input matters.
    let x = B::float_zeros(
        [n, channels, h, w].into(),
        &gradient.device(),
        gradient.dtype().into(),
    );
    B::interpolate_backward(x, gradient, [height, width], resize::options())
}

pub(crate) fn upsample_conv2d_forward<B: Kernels>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    factor: usize,
) -> FloatTensor<B> {
    let channels = weight.shape()[0];
    let folded = B::lower(upsample::fold_weight(B::lift(weight), factor));
    let low = B::conv2d_forward(x, folded, None, ConvShape::SAME_3X3);
    B::lower(upsample::expand(
        B::lift(low),
        bias.map(B::lift),
        channels,
        factor,
    ))
}

pub(crate) fn upsample_conv2d_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    factor: usize,
    wanted: &[bool],
) -> Gradients<B> {
    let gradient = B::lift::<4>(gradient);
    let bias = wanted.get(2).is_some_and(|wanted| *wanted);
    let gb = bias.then(|| B::lower(convolution::bias_gradient(gradient.clone())));
    let low = B::lower(upsample::expand_backward(gradient, factor));
    let mut results = folded_backward::<B>(low, x, weight, factor, wanted);
    results.push(gb);
    results
}

/// Gradients of x and weight from that of the classes.
fn folded_backward<B: Kernels>(
    low: FloatTensor<B>,
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    factor: usize,
    wanted: &[bool],
) -> Gradients<B> {
    let [channels, inputs] = [0, 1].map(|i| weight.shape()[i]);
    let folded = B::lower(upsample::fold_weight(B::lift(weight), factor));
    let mut results =
        B::conv2d_backward(low, x, folded, ConvShape::SAME_3X3, &wanted[..2]).into_iter();
    let gx = results.next().flatten();
    let gw = results.next().flatten();
    let gw = gw.map(|gw| {
        B::lower(upsample::fold_weight_backward(
            B::lift(gw),
            [channels, inputs],
            factor,
        ))
    });
    vec![gx, gw]
}

pub(crate) fn upsample_conv2d_five_halves_forward<B: Kernels>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let channels = weight.shape()[0];
    let folded = B::lower(upsample::fold_weight(B::lift(weight), 3));
    let low = B::conv2d_forward(x, folded, None, ConvShape::SAME_3X3);
    B::lower(upsample::expand_five_halves(
        B::lift(low),
        bias.map(B::lift),
        channels,
    ))
}

pub(crate) fn upsample_conv2d_five_halves_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    wanted: &[bool],
) -> Gradients<B> {
    let gradient = B::lift::<4>(gradient);
    let size = [x.shape()[2], x.shape()[3]];
    let bias = wanted.get(2).is_some_and(|wanted| *wanted);
    let gb = bias.then(|| B::lower(convolution::bias_gradient(gradient.clone())));
    let low = B::lower(upsample::expand_five_halves_backward(gradient, size));
    let mut results = folded_backward::<B>(low, x, weight, 3, wanted);
    results.push(gb);
    results
}

pub(crate) fn pixels_forward<B: Kernels>(blocks: FloatTensor<B>, factor: usize) -> FloatTensor<B> {
    let classes = upsample::classes(factor);
    let channels = blocks.shape()[1] / (classes * classes);
    B::lower(upsample::expand(B::lift(blocks), None, channels, factor))
}

pub(crate) fn pixels_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    factor: usize,
) -> FloatTensor<B> {
    B::lower(upsample::expand_backward(B::lift(gradient), factor))
}

pub(crate) fn focal_forward<B: Kernels>(
    logits: FloatTensor<B>,
    labels: &Labels,
    focal: Focal,
) -> FloatTensor<B> {
    B::lower(focal::forward(B::lift(logits), labels, focal))
}

pub(crate) fn focal_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    logits: FloatTensor<B>,
    labels: &Labels,
    focal: Focal,
) -> FloatTensor<B> {
    B::lower(focal::backward(
        B::lift(gradient),
        B::lift(logits),
        labels,
        focal,
    ))
}

pub(crate) fn soft_bce_forward<B: Kernels>(
    logits: FloatTensor<B>,
    labels: &Labels,
    bce: SoftBce,
) -> FloatTensor<B> {
    B::lower(overlap::soft_bce_forward(B::lift(logits), labels, bce))
}

pub(crate) fn soft_bce_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    logits: FloatTensor<B>,
    labels: &Labels,
    bce: SoftBce,
) -> FloatTensor<B> {
    B::lower(overlap::soft_bce_backward(
        B::lift(gradient),
        B::lift(logits),
        labels,
        bce,
    ))
}

pub(crate) fn dice_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    logits: FloatTensor<B>,
    labels: &Labels,
    dice: &Dice,
) -> FloatTensor<B> {
    B::lower(overlap::dice_backward(
        B::lift(gradient),
        B::lift(logits),
        labels,
        dice,
    ))
}

pub(crate) fn cross_entropy_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    logits: FloatTensor<B>,
    labels: &Labels,
    divisor: f64,
) -> FloatTensor<B> {
    B::lower(cross_entropy::backward(
        B::lift(gradient),
        B::lift(logits),
        labels,
        divisor,
    ))
}

pub(crate) fn class_dice_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    logits: FloatTensor<B>,
    labels: &Labels,
    dice: &ClassDice,
) -> FloatTensor<B> {
    B::lower(cross_entropy::dice_backward(
        B::lift(gradient),
        B::lift(logits),
        labels,
        dice,
    ))
}

pub(crate) fn l1_forward<B: Kernels>(
    x: FloatTensor<B>,
    target: &Image,
    divisor: f64,
) -> FloatTensor<B> {
    B::lower(l1::forward(B::lift(x), target, divisor))
}

pub(crate) fn l1_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    x: FloatTensor<B>,
    target: &Image,
    divisor: f64,
) -> FloatTensor<B> {
    B::lower(l1::backward(B::lift(gradient), B::lift(x), target, divisor))
}

pub(crate) fn affinity_forward<B: Kernels>(
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    every: usize,
    divisor: f64,
) -> FloatTensor<B> {
    B::lower(affinity::forward(B::lift(a), B::lift(b), every, divisor))
}

pub(crate) fn affinity_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    every: usize,
    divisor: f64,
) -> Gradients<B> {
    let (ga, gb) = affinity::backward(B::lift(gradient), B::lift(a), B::lift(b), every, divisor);
    vec![Some(B::lower(ga)), Some(B::lower(gb))]
}

pub(crate) fn attention_forward<B: Kernels>(
    q: FloatTensor<B>,
    kv: FloatTensor<B>,
    heads: usize,
) -> FloatTensor<B> {
    B::lower(attention::forward(B::lift(q), B::lift(kv), heads))
}

pub(crate) fn attention_backward<B: Kernels>(
    gradient: FloatTensor<B>,
    q: FloatTensor<B>,
    kv: FloatTensor<B>,
    heads: usize,
) -> Gradients<B> {
    let (gq, gkv) = attention::backward(B::lift(gradient), B::lift(q), B::lift(kv), heads);
    vec![Some(B::lower(gq)), Some(B::lower(gkv))]
}
