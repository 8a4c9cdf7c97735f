//! Kernels for burn's LibTorch backend: LibTorch's own where it has them, with the gradients that its Rust bindings leave out.
//!
//! What LibTorch cannot do is a panic here, as it is in all that burn does on this backend: an operation of burn returns no
//! error.

mod affinity;
mod batch_norm;
mod blocks;
mod branches;
mod classes;
mod enlarge;
mod five_halves;
mod losses;
mod maps;
mod pointwise;

use crate::Activation;
use crate::batch_norm::BatchStatistics;
use crate::branch::{Backward, Branch, Saved};
use crate::convolution::ConvShape;
use crate::focal::Focal;
use crate::image::Image;
use crate::kernels::{Gradients, Kernels, Slopes, portable};
use crate::labels::Labels;
use crate::operation::Operation;
use crate::overlap::SoftBce;
use burn::backend::TensorMetadata;
use burn::tensor::{DType, FloatDType, Tensor};
use std::fmt::Display;
use terrashard_torch::{Attention, LibTorch, Primitive as Torch, inner, outer, tch};

fn computed<T>(result: Result<T, impl Display>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Gradients as burn's tensors; of LibTorch's three, those of inputs that do not exist are left out.
fn gradients(
    results: impl IntoIterator<Item = Option<tch::Tensor>>,
    inputs: usize,
) -> Gradients<LibTorch> {
    let results = results.into_iter().take(inputs);
    results.map(|result| result.map(outer)).collect()
}

/// Which of x, weight and bias are wanted.
fn wanted_of_three(wanted: &[bool]) -> [bool; 3] {
    std::array::from_fn(|i| wanted.get(i).is_some_and(|wanted| *wanted))
}

fn conv_numbers(shape: ConvShape) -> [usize; 3] {
    [shape.stride, shape.padding, shape.groups]
}

/// `[N, rows, parts dim]` as `parts` of `[N, heads, rows, dim / heads]`, without a copy.
fn split(x: &tch::Tensor, parts: i64, heads: i64) -> Vec<tch::Tensor> {
    let size = x.size();
    let (n, rows, width) = (size[0], size[1], size[2]);
    let x = x.reshape([n, rows, parts, heads, width / parts / heads]);
    (0..parts)
        .map(|part| x.select(2, part).transpose(1, 2))
        .collect()
}

/// The opposite of [`split`].
fn join(parts: &[tch::Tensor]) -> Torch {
    let size = parts[0].size();
    let (n, heads, rows, width) = (size[0], size[1], size[2], size[3]);
    let parts: Vec<_> = parts.iter().map(|part| part.transpose(1, 2)).collect();
    let count = parts.len() as i64;
    let joined = match &parts[..] {
        [part] => part.reshape([n, rows, heads * width]),
        parts => tch::Tensor::stack(parts, 2).reshape([n, rows, count * heads * width]),
    };
    outer(joined)
}

/// Every `every`-th row and column, without a copy.
fn sampled(map: &tch::Tensor, every: usize) -> tch::Tensor {
    let every = every as i64;
    map.slice(2, None, None, every).slice(3, None, None, every)
}

/// The factor of the scores.
fn scale(q: &tch::Tensor) -> f64 {
    1.0 / (q.size()[3] as f64).sqrt()
}

impl Kernels for LibTorch {
    fn lift<const D: usize>(tensor: Torch) -> Tensor<D> {
        Tensor::from_primitive::<Self>(tensor)
    }

    fn lower<const D: usize>(tensor: Tensor<D>) -> Torch {
        tensor
            .try_into_primitive::<Self>()
            .expect("the operation's inputs lived on this backend")
    }

    fn compute_type(dtype: DType) -> Option<FloatDType> {
        matches!(dtype, DType::F16 | DType::BF16).then_some(FloatDType::F32)
    }

    fn computes_narrow(operation: &Operation) -> bool {
        // Where PyTorch's autocast keeps 16 bits, and where LibTorch's kernel widens each value itself. Maps are computed in
        // their own type; losses widen a piece of a map at a time.
        matches!(
            operation,
            Operation::Linear
                | Operation::Conv2d(_)
                | Operation::LayerNorm(_)
                | Operation::Activation(_)
                | Operation::Attention(_)
                | Operation::Drop(_)
                | Operation::Resize(..)
                | Operation::UpsampleConv2d(_)
                | Operation::EnlargeConv2d(_)
                | Operation::Pixels(_)
                | Operation::Focal(..)
                | Operation::SoftBce(..)
                | Operation::DiceSums(_)
                | Operation::ClassSums(_)
                | Operation::CrossEntropy(..)
                | Operation::ClassDice(..)
                | Operation::L1(..)
                | Operation::Affinity(..)
                | Operation::FuseLevels(_)
                | Operation::BatchNorm(_)
                | Operation::BatchSums
        )
    }

    fn linear_forward(x: Torch, weight: Torch, bias: Torch) -> Torch {
        outer(computed(
            inner(&x).f_linear(inner(&weight), Some(inner(&bias))),
        ))
    }

    fn conv2d_forward(x: Torch, weight: Torch, bias: Option<Torch>, shape: ConvShape) -> Torch {
        if pointwise::is_pointwise(inner(&weight), shape) {
            let bias = bias.as_ref().map(inner);
            return outer(pointwise::forward(inner(&x), inner(&weight), bias));
        }
        let [stride, padding, groups] = conv_numbers(shape).map(|number| number as i64);
        outer(computed(inner(&x).f_conv2d(
            inner(&weight),
            bias.as_ref().map(inner),
            [stride; 2],
            [padding; 2],
            [1; 2],
            groups,
        )))
    }

    fn conv2d_backward(
        gradient: Torch,
        x: Torch,
        weight: Torch,
        shape: ConvShape,
        wanted: &[bool],
    ) -> Gradients<Self> {
        if pointwise::is_pointwise(inner(&weight), shape) {
            let wanted_of_all = wanted_of_three(wanted);
            let (gradient, x) = (inner(&gradient), inner(&x));
            let results = pointwise::backward(gradient, x, inner(&weight), wanted_of_all);
            return gradients(results, wanted.len());
        }
        let results = computed(terrashard_torch::conv2d_backward(
            inner(&gradient),
            inner(&x),
            inner(&weight),
            conv_numbers(shape),
            wanted_of_three(wanted),
        ));
        gradients(results, wanted.len())
    }

    fn layer_norm_forward(x: Torch, weight: Torch, bias: Torch, epsilon: f64) -> Torch {
        let [y, ..] = computed(terrashard_torch::layer_norm(
            inner(&x),
            inner(&weight),
            inner(&bias),
            epsilon,
        ));
        outer(y)
    }

    fn layer_norm_backward(
        gradient: Torch,
        x: Torch,
        weight: Torch,
        epsilon: f64,
    ) -> Gradients<Self> {
        let (x, weight) = (inner(&x), inner(&weight));
        // The bias does not matter for mean and deviation.
        let [_, mean, inverse] = computed(terrashard_torch::layer_norm(x, weight, weight, epsilon));
        let results = computed(terrashard_torch::layer_norm_backward(
            inner(&gradient),
            x,
            [&mean, &inverse],
            weight,
            [true; 3],
        ));
        gradients(results, 3)
    }

    fn batch_sums(x: Torch) -> Torch {
        if batch_norm::takes(&x) {
            return batch_norm::sums(&x);
        }
        Self::lower(crate::batch_norm::sums(Self::lift(x)))
    }

    fn batch_norm_forward(
        x: Torch,
        weight: Torch,
        bias: Torch,
        statistics: &BatchStatistics,
    ) -> Torch {
        if batch_norm::takes(&x) {
            return batch_norm::forward(&x, &weight, &bias, statistics);
        }
        let dtype = x.dtype();
        let [x, weight, bias] = [x, weight, bias].map(Self::widened);
        let y = portable::batch_norm_forward::<Self>(x, weight, bias, statistics);
        Self::rounded(y, dtype)
    }

    fn batch_norm_backward(
        gradient: Torch,
        x: Torch,
        weight: Torch,
        statistics: &BatchStatistics,
    ) -> Gradients<Self> {
        if batch_norm::takes(&x) {
            return batch_norm::backward(&gradient, &x, &weight, statistics);
        }
        let dtype = x.dtype();
        let [gradient, x, weight] = [gradient, x, weight].map(Self::widened);
        let results = portable::batch_norm_backward::<Self>(gradient, x, weight, statistics);
        let results = results.into_iter();
        results
            .map(|result| result.map(|result| Self::rounded(result, dtype)))
            .collect()
    }

    fn activate_forward(x: Torch, kind: Activation) -> Torch {
        outer(computed(match kind {
            Activation::Gelu => inner(&x).f_gelu("none"),
            Activation::Silu => inner(&x).f_silu(),
            Activation::Mish => inner(&x).f_mish(),
            Activation::Relu => inner(&x).f_relu(),
        }))
    }

    fn activate_backward(gradient: Torch, x: Torch, kind: Activation) -> Torch {
        outer(computed(match kind {
            Activation::Gelu => inner(&x).f_gelu_backward(inner(&gradient), "none"),
            Activation::Silu => inner(&x).f_silu_backward(inner(&gradient)),
            Activation::Mish => inner(&x).f_mish_backward(inner(&gradient)),
            Activation::Relu => inner(&x).f_threshold_backward(inner(&gradient), 0),
        }))
    }

    fn resize_forward(x: Torch, size: [usize; 2]) -> Torch {
        let size = size.map(|extent| extent as i64);
        outer(computed(terrashard_torch::resize_bilinear(inner(&x), size)))
    }

    fn resize_backward(gradient: Torch, size: [usize; 2]) -> Torch {
        let size = size.map(|extent| extent as i64);
        let gradient = inner(&gradient);
        outer(computed(terrashard_torch::resize_bilinear_backward(
            gradient, size,
        )))
    }

    fn attention_forward(q: Torch, kv: Torch, heads: usize) -> Torch {
        let q = split(inner(&q), 1, heads as i64).remove(0);
        let kv = split(inner(&kv), 2, heads as i64);
        let attention = computed(Attention::forward(&q, &kv[0], &kv[1], scale(&q)));
        join(&[attention.into_output()])
    }

    fn attention_backward(gradient: Torch, q: Torch, kv: Torch, heads: usize) -> Gradients<Self> {
        let heads = heads as i64;
        let gradient = split(inner(&gradient), 1, heads).remove(0);
        let q = split(inner(&q), 1, heads).remove(0);
        let kv = split(inner(&kv), 2, heads);
        // Result and sums are made again, as everything is that backward needs beside the inputs.
        let attention = computed(Attention::forward(&q, &kv[0], &kv[1], scale(&q)));
        let [gq, gk, gv] = computed(attention.backward(&gradient, &q, &kv[0], &kv[1]));
        vec![Some(join(&[gq])), Some(join(&[gk, gv]))]
    }

    fn upsample_conv2d_forward(
        x: Torch,
        weight: Torch,
        bias: Option<Torch>,
        factor: usize,
    ) -> Torch {
        maps::upsample_forward(&x, &weight, bias.as_ref(), factor)
    }

    fn upsample_conv2d_backward(
        gradient: Torch,
        x: Torch,
        weight: Torch,
        factor: usize,
        wanted: &[bool],
    ) -> Gradients<Self> {
        let gradient = Self::pixels_backward(gradient, factor);
        maps::enlarge_backward(&gradient, &x, &weight, factor, wanted)
    }

    fn enlarge_conv2d_forward(
        x: Torch,
        weight: Torch,
        bias: Option<Torch>,
        factor: usize,
    ) -> Torch {
        maps::enlarge_forward(&x, &weight, bias.as_ref(), factor)
    }

    fn enlarge_conv2d_backward(
        gradient: Torch,
        x: Torch,
        weight: Torch,
        factor: usize,
        wanted: &[bool],
    ) -> Gradients<Self> {
        maps::enlarge_backward(&gradient, &x, &weight, factor, wanted)
    }

    fn upsample_conv2d_five_halves_forward(x: Torch, weight: Torch, bias: Option<Torch>) -> Torch {
        let bias = bias.as_ref().map(inner);
        outer(five_halves::forward(inner(&x), inner(&weight), bias))
    }

    fn upsample_conv2d_five_halves_backward(
        gradient: Torch,
        x: Torch,
        weight: Torch,
        wanted: &[bool],
    ) -> Gradients<Self> {
        let wanted_of_all = wanted_of_three(wanted);
        let (gradient, x) = (inner(&gradient), inner(&x));
        let results = five_halves::backward(gradient, x, inner(&weight), wanted_of_all);
        gradients(results, wanted.len())
    }

    fn pixels_forward(map: Torch, factor: usize) -> Torch {
        outer(blocks::expand(inner(&map), factor as i64))
    }

    fn pixels_backward(gradient: Torch, factor: usize) -> Torch {
        outer(blocks::expand_backward(inner(&gradient), factor as i64))
    }

    fn with_slopes(loss: &Operation, inputs: &[Torch]) -> Option<(Torch, Slopes<Self>)> {
        maps::with_slopes(loss, inputs)
    }

    fn scale_slopes(loss: &Operation, gradient: Torch, slopes: Slopes<Self>) -> Gradients<Self> {
        maps::scale_slopes(loss, &gradient, slopes)
    }

    fn focal_forward(logits: Torch, labels: &Labels, focal: Focal) -> Torch {
        maps::value(&Operation::Focal(focal, labels.clone()), &[logits])
    }

    fn soft_bce_forward(logits: Torch, labels: &Labels, bce: SoftBce) -> Torch {
        maps::value(&Operation::SoftBce(bce, labels.clone()), &[logits])
    }

    fn dice_sums(logits: Torch, labels: &Labels) -> Torch {
        maps::dice_sums(&logits, labels)
    }

    fn cross_entropy_forward(logits: Torch, labels: &Labels, divisor: f64) -> Torch {
        maps::value(&Operation::CrossEntropy(divisor, labels.clone()), &[logits])
    }

    fn class_sums(logits: Torch, labels: &Labels) -> Torch {
        maps::class_sums(&logits, labels)
    }

    fn l1_forward(x: Torch, target: &Image, divisor: f64) -> Torch {
        maps::value(&Operation::L1(target.clone(), divisor), &[x])
    }

    fn affinity_forward(a: Torch, b: Torch, every: usize, divisor: f64) -> Torch {
        maps::value(&Operation::Affinity(every, divisor), &[a, b])
    }

    fn computes_narrow_branches() -> bool {
        true
    }

    fn branch_forward(branch: &Branch, x: Torch, parameters: Vec<Torch>) -> (Torch, Saved<Self>) {
        branches::forward(branch, x, parameters)
    }

    fn branch_backward(branch: &Branch, given: Backward<Self>) -> Gradients<Self> {
        branches::backward(branch, given)
    }
}
