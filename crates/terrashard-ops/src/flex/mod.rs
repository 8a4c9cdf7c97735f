//! Kernels for burn's CPU backend, over `f32` and `f64`; tensors of 16 bits are computed in `f32`.
//!
//! Maps are channels last in memory (`[N, H, W, C]`), seen as `[N, C, H, W]` through strides: then tokens and maps are the same
//! bytes, linear layers and convolutions are row-major matrix products, and inner loops run over channels. The last maps, one to
//! four channels, are channels first, as labels and targets are.
//!
//! Work is cut into pieces whose size depends on the shapes alone, and partial sums are added in the order of the pieces, so
//! that results do not depend on the number of threads.

mod attention;
mod classes;
mod depthwise;
mod elementwise;
mod five_halves;
mod half;
mod losses;
mod matrix;
mod norms;
mod pixel;
mod real;
mod resize;
mod unfold;
mod upsample;

use crate::Activation;
use crate::batch_norm::BatchStatistics;
use crate::convolution::ConvShape;
use crate::cross_entropy::ClassDice;
use crate::focal::Focal;
use crate::image::{Coding, Image};
use crate::kernels::{Gradients, Kernels, portable};
use crate::labels::Labels;
use crate::overlap::{Dice, SoftBce};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};
use rayon::prelude::*;
use real::Real;
use std::ops::Range;

/// A tensor of the backend.
type Flat = FloatTensor<Flex>;

/// Elements that one piece of parallel work has at least.
const PIECE: usize = 16 * 1024;

/// The values of a contiguous tensor.
fn values<T: Real>(tensor: &Flat) -> &[T] {
    tensor
        .as_slice()
        .expect("a kernel makes its inputs contiguous first")
}

fn flat<T: Real>(values: Vec<T>, shape: impl Into<burn::tensor::Shape>) -> Flat {
    Flat::from_data(TensorData::new(values, shape))
}

/// `[N, C, H, W]` as contiguous `[N, H, W, C]`; free if that is how it lies in memory.
fn channels_last(map: &Flat) -> Flat {
    map.permute(&[0, 2, 3, 1]).to_contiguous()
}

/// `[N, H, W, C]` seen as `[N, C, H, W]`.
fn as_map(map: Flat) -> Flat {
    map.permute(&[0, 3, 1, 2])
}

/// An inner loop with its arguments.
///
/// `run` is always inlined. A closure or a function passed as a value would not do: it is called from one place for each set of
/// instructions, so the compiler keeps it apart, compiled for the oldest set.
trait Kernel {
    type Output;

    fn run(self) -> Self::Output;
}

/// Runs a kernel compiled for the vector instructions of this machine.
fn vectorised<K: Kernel>(kernel: K) -> K::Output {
    struct Call<K>(K);

    impl<K: Kernel> pulp::WithSimd for Call<K> {
        type Output = K::Output;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _simd: S) -> K::Output {
            self.0.run()
        }
    }

    pulp::Arch::new().dispatch(Call(kernel))
}

/// Fills `out` in pieces of `rows` rows of `width` values: `body` gets the first row's index and the piece.
fn fill<T: Real>(out: &mut [T], width: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    let rows = PIECE.div_ceil(width.max(1));
    if out.len() <= rows * width {
        body(0, out);
    } else {
        let pieces = out.par_chunks_mut(rows * width).enumerate();
        pieces.for_each(|(piece, chunk)| body(piece * rows, chunk));
    }
}

/// Computes one partial result for each piece of `rows` rows of `width` values, in order.
fn partial<R: Send>(rows: usize, width: usize, body: impl Fn(Range<usize>) -> R + Sync) -> Vec<R> {
    let step = (4 * PIECE).div_ceil(width.max(1));
    let pieces = rows.div_ceil(step).max(1);
    let piece = |i: usize| body(i * step..rows.min((i + 1) * step));
    if pieces == 1 {
        vec![piece(0)]
    } else {
        (0..pieces).into_par_iter().map(piece).collect()
    }
}

/// Rows that are added up in their own type before the sum goes to `f64`: adding many values one by one costs digits.
const BLOCK: usize = 32;

/// Adds up rows in blocks: `add` adds one row to the sums of its block.
fn sum_rows<T: Real>(rows: Range<usize>, sums: usize, add: impl Fn(&mut [T], usize)) -> Vec<f64> {
    let mut total = vec![0.0; sums];
    let mut block = vec![T::ZERO; sums];
    for start in rows.clone().step_by(BLOCK) {
        block.fill(T::ZERO);
        (start..rows.end.min(start + BLOCK)).for_each(|row| add(&mut block, row));
        widen(&mut total, &block);
    }
    total
}

/// Adds the sums of a block to the total.
#[inline(always)]
fn widen<T: Real>(total: &mut [f64], block: &[T]) {
    for (total, sum) in total.iter_mut().zip(block) {
        *total += sum.wide();
    }
}

/// Values in the narrower type.
fn narrowed<T: Real>(values: &[f64]) -> Vec<T> {
    values.iter().map(|value| T::real(*value)).collect()
}

/// The sums of each of `columns` columns of partial results. An empty batch has none.
fn add_up<T: Real>(parts: Vec<Vec<T>>, columns: usize) -> Vec<T> {
    let mut parts = parts.into_iter();
    let mut sum = parts.next().unwrap_or_else(|| vec![T::ZERO; columns]);
    for part in parts {
        sum.iter_mut()
            .zip(part)
            .for_each(|(sum, value)| *sum += value);
    }
    sum
}

/// Calls a kernel for the tensor's element type.
macro_rules! typed {
    ($like:expr, $kernel:ident $(:: $name:ident)* ($($argument:expr),* $(,)?)) => {
        match $like.dtype() {
            DType::F64 => $kernel $(:: $name)* ::<f64>($($argument),*),
            DType::F32 => $kernel $(:: $name)* ::<f32>($($argument),*),
            other => unreachable!("{other:?} is computed in f32"),
        }
    };
}

impl Kernels for Flex {
    fn lift<const D: usize>(tensor: Flat) -> Tensor<D> {
        Tensor::from_primitive::<Self>(tensor)
    }

    fn lower<const D: usize>(tensor: Tensor<D>) -> Flat {
        tensor
            .try_into_primitive::<Self>()
            .expect("the operation's inputs lived on this backend")
    }

    fn compute_type(dtype: DType) -> Option<FloatDType> {
        matches!(dtype, DType::F16 | DType::BF16).then_some(FloatDType::F32)
    }

    fn cast(tensor: Flat, to: FloatDType) -> Flat {
        half::cast(tensor, to)
    }

    fn linear_forward(x: Flat, weight: Flat, bias: Flat) -> Flat {
        typed!(x, matrix::linear(&x, &weight, &bias))
    }

    fn linear_backward(gradient: Flat, x: Flat, weight: Flat, wanted: &[bool]) -> Gradients<Self> {
        typed!(x, matrix::linear_backward(&gradient, &x, &weight, wanted))
    }

    fn attention_forward(q: Flat, kv: Flat, heads: usize) -> Flat {
        typed!(q, attention::forward(&q, &kv, heads))
    }

    fn attention_backward(gradient: Flat, q: Flat, kv: Flat, heads: usize) -> Gradients<Self> {
        typed!(q, attention::backward(&gradient, &q, &kv, heads))
    }

    fn conv2d_forward(x: Flat, weight: Flat, bias: Option<Flat>, shape: ConvShape) -> Flat {
        let [out, inputs, kernel] = [0, 1, 2].map(|i| weight.shape()[i]);
        if shape.groups > 1 && shape.groups == out && inputs == 1 && shape.keeps_size(kernel) {
            typed!(x, depthwise::forward(&x, &weight, bias.as_ref()))
        } else if shape.groups > 1 {
            portable::conv2d_forward::<Self>(x, weight, bias, shape)
        } else {
            typed!(x, unfold::forward(&x, &weight, bias.as_ref(), shape))
        }
    }

    fn conv2d_backward(
        gradient: Flat,
        x: Flat,
        weight: Flat,
        shape: ConvShape,
        wanted: &[bool],
    ) -> Gradients<Self> {
        let [out, inputs, kernel] = [0, 1, 2].map(|i| weight.shape()[i]);
        if shape.groups > 1 && shape.groups == out && inputs == 1 && shape.keeps_size(kernel) {
            typed!(x, depthwise::backward(&gradient, &x, &weight, wanted))
        } else if shape.groups > 1 {
            portable::conv2d_backward::<Self>(gradient, x, weight, shape, wanted)
        } else {
            typed!(x, unfold::backward(&gradient, &x, &weight, shape, wanted))
        }
    }

    fn layer_norm_forward(x: Flat, weight: Flat, bias: Flat, epsilon: f64) -> Flat {
        typed!(x, norms::layer_norm(&x, &weight, &bias, epsilon))
    }

    fn layer_norm_backward(gradient: Flat, x: Flat, weight: Flat, epsilon: f64) -> Gradients<Self> {
        typed!(
            x,
            norms::layer_norm_backward(&gradient, &x, &weight, epsilon)
        )
    }

    fn batch_sums(x: Flat) -> Flat {
        typed!(x, norms::batch_sums(&x))
    }

    fn batch_norm_forward(x: Flat, weight: Flat, bias: Flat, statistics: &BatchStatistics) -> Flat {
        typed!(x, norms::batch_norm(&x, &weight, &bias, statistics))
    }

    fn batch_norm_backward(
        gradient: Flat,
        x: Flat,
        weight: Flat,
        statistics: &BatchStatistics,
    ) -> Gradients<Self> {
        typed!(
            x,
            norms::batch_norm_backward(&gradient, &x, &weight, statistics)
        )
    }

    fn activate_forward(x: Flat, kind: Activation) -> Flat {
        match (x.dtype(), kind) {
            (DType::F32, _) => elementwise::activate(&x, kind),
            (_, Activation::Relu) => typed!(x, elementwise::relu(&x)),
            (_, Activation::Mish) => typed!(x, elementwise::mish(&x)),
            _ => portable::activate_forward::<Self>(x, kind),
        }
    }

    fn activate_backward(gradient: Flat, x: Flat, kind: Activation) -> Flat {
        match (x.dtype(), kind) {
            (DType::F32, _) => elementwise::activate_backward(&gradient, &x, kind),
            (_, Activation::Relu) => typed!(x, elementwise::relu_backward(&gradient, &x)),
            (_, Activation::Mish) => typed!(x, elementwise::mish_backward(&gradient, &x)),
            _ => portable::activate_backward::<Self>(gradient, x, kind),
        }
    }

    fn resize_forward(x: Flat, size: [usize; 2]) -> Flat {
        typed!(x, resize::forward(&x, size))
    }

    fn resize_backward(gradient: Flat, from: [usize; 2]) -> Flat {
        typed!(gradient, resize::backward(&gradient, from))
    }

    fn upsample_conv2d_forward(x: Flat, weight: Flat, bias: Option<Flat>, factor: usize) -> Flat {
        typed!(x, upsample::forward(&x, &weight, bias.as_ref(), factor))
    }

    fn upsample_conv2d_backward(
        gradient: Flat,
        x: Flat,
        weight: Flat,
        factor: usize,
        wanted: &[bool],
    ) -> Gradients<Self> {
        typed!(
            x,
            upsample::backward(&gradient, &x, &weight, factor, wanted)
        )
    }

    fn upsample_conv2d_five_halves_forward(x: Flat, weight: Flat, bias: Option<Flat>) -> Flat {
        typed!(x, five_halves::forward(&x, &weight, bias.as_ref()))
    }

    fn upsample_conv2d_five_halves_backward(
        gradient: Flat,
        x: Flat,
        weight: Flat,
        wanted: &[bool],
    ) -> Gradients<Self> {
        typed!(x, five_halves::backward(&gradient, &x, &weight, wanted))
    }

    fn focal_forward(logits: Flat, labels: &Labels, focal: Focal) -> Flat {
        typed!(logits, losses::focal(&logits, &bytes(labels), focal))
    }

    fn focal_backward(gradient: Flat, logits: Flat, labels: &Labels, focal: Focal) -> Flat {
        typed!(
            logits,
            losses::focal_backward(&gradient, &logits, &bytes(labels), focal)
        )
    }

    fn soft_bce_forward(logits: Flat, labels: &Labels, bce: SoftBce) -> Flat {
        typed!(logits, losses::soft_bce(&logits, &bytes(labels), bce))
    }

    fn soft_bce_backward(gradient: Flat, logits: Flat, labels: &Labels, bce: SoftBce) -> Flat {
        typed!(
            logits,
            losses::soft_bce_backward(&gradient, &logits, &bytes(labels), bce)
        )
    }

    fn dice_sums(logits: Flat, labels: &Labels) -> Flat {
        typed!(logits, losses::dice_sums(&logits, &bytes(labels)))
    }

    fn dice_backward(gradient: Flat, logits: Flat, labels: &Labels, dice: &Dice) -> Flat {
        typed!(
            logits,
            losses::dice_backward(&gradient, &logits, &bytes(labels), dice)
        )
    }

    fn cross_entropy_forward(logits: Flat, labels: &Labels, divisor: f64) -> Flat {
        typed!(
            logits,
            classes::cross_entropy(&logits, &bytes(labels), divisor)
        )
    }

    fn cross_entropy_backward(gradient: Flat, logits: Flat, labels: &Labels, divisor: f64) -> Flat {
        typed!(
            logits,
            classes::cross_entropy_backward(&gradient, &logits, &bytes(labels), divisor)
        )
    }

    fn class_sums(logits: Flat, labels: &Labels) -> Flat {
        typed!(logits, classes::class_sums(&logits, &bytes(labels)))
    }

    fn class_dice_backward(
        gradient: Flat,
        logits: Flat,
        labels: &Labels,
        dice: &ClassDice,
    ) -> Flat {
        typed!(
            logits,
            classes::dice_backward(&gradient, &logits, &bytes(labels), dice)
        )
    }

    fn l1_forward(x: Flat, target: &Image, divisor: f64) -> Flat {
        let (target, coding) = stored(target, x.dtype());
        typed!(x, losses::l1(&x, &target, coding, divisor))
    }

    fn l1_backward(gradient: Flat, x: Flat, target: &Image, divisor: f64) -> Flat {
        let (target, coding) = stored(target, x.dtype());
        typed!(
            x,
            losses::l1_backward(&gradient, &x, &target, coding, divisor)
        )
    }
}

/// An image as the backend's tensor: of reflectance in this type, or of numbers in `i16` with what they mean.
fn stored(image: &Image, dtype: DType) -> (Flat, Option<Coding>) {
    match image {
        Image::Reflectance(values) => {
            let values = Flex::lower(values.clone().cast(dtype));
            (values.to_contiguous(), None)
        }
        Image::Numbers(bits, coding) => {
            let bits: Flat = bits
                .clone()
                .try_into_primitive::<Flex>()
                .expect("the target lives where the map does");
            (bits.to_contiguous(), Some(*coding))
        }
    }
}

/// Labels as the backend's tensor, whose bytes are the labels.
fn bytes(labels: &Labels) -> Flat {
    let labels: Tensor<3, Int> = labels.tensor().clone();
    labels
        .try_into_primitive::<Flex>()
        .expect("labels live where the logits do")
        .to_contiguous()
}

#[cfg(test)]
mod agreement;
