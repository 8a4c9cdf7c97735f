//! Enlarged maps and their losses as the operations of the graph.

use super::losses::{self, Loss, Mask};
use super::{affinity, blocks, classes, computed, enlarge, gradients, sampled, wanted_of_three};
use crate::image::{Coding, Image};
use crate::kernels::{Gradients, Slopes};
use crate::labels::Labels;
use crate::operation::Operation;
use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Int, Tensor};
use terrashard_torch::{LibTorch, Numbers, Primitive as Torch, inner, outer, tch};

pub(super) fn upsample_forward(
    x: &Torch,
    weight: &Torch,
    bias: Option<&Torch>,
    factor: usize,
) -> Torch {
    let low = enlarge_forward(x, weight, bias, factor);
    outer(blocks::expand(inner(&low), factor as i64))
}

pub(super) fn enlarge_forward(
    x: &Torch,
    weight: &Torch,
    bias: Option<&Torch>,
    factor: usize,
) -> Torch {
    let bias = bias.map(inner);
    outer(enlarge::forward(
        inner(x),
        inner(weight),
        bias,
        factor as i64,
    ))
}

/// Gradients of x, weight and bias for that of a map by blocks.
pub(super) fn enlarge_backward(
    gradient: &Torch,
    x: &Torch,
    weight: &Torch,
    factor: usize,
    wanted: &[bool],
) -> Gradients<LibTorch> {
    let results = enlarge::backward(
        inner(gradient),
        inner(x),
        inner(weight),
        factor as i64,
        wanted_of_three(wanted),
    );
    gradients(results, wanted.len())
}

/// Runs `body` with the labels as LibTorch has them.
fn with_mask<R>(labels: &Labels, body: impl FnOnce(&Mask<'_>) -> R) -> R {
    let values: Tensor<3, Int> = labels.tensor().clone();
    let values: Torch = values
        .try_into_primitive::<LibTorch>()
        .expect("labels live where the logits do");
    body(&Mask {
        labels: &inner(&values).contiguous(),
        complete: labels.valid() as usize == labels.shape().iter().product::<usize>(),
    })
}

pub(super) fn dice_sums(logits: &Torch, labels: &Labels) -> Torch {
    outer(with_mask(labels, |mask| {
        losses::dice_sums(inner(logits), mask)
    }))
}

pub(super) fn class_sums(logits: &Torch, labels: &Labels) -> Torch {
    outer(with_mask(labels, |mask| classes::sums(inner(logits), mask)))
}

/// What a loss and its gradients are multiplied by.
fn factor(loss: &Operation) -> f64 {
    match loss {
        Operation::Focal(focal, _) => 1.0 / focal.divisor,
        Operation::SoftBce(bce, _) => 1.0 / bce.divisor,
        Operation::L1(_, divisor)
        | Operation::Affinity(_, divisor)
        | Operation::CrossEntropy(divisor, _) => 1.0 / divisor,
        _ => 1.0,
    }
}

/// A loss whose value the host knows already, and its gradient if it is asked for.
fn known(map: &tch::Tensor, value: f64, slopes: bool, slope: impl FnOnce() -> tch::Tensor) -> Loss {
    let kind = enlarge::wide(map.kind());
    Loss {
        value: tch::Tensor::full([1], value, (kind, map.device())),
        slope: slopes.then(slope),
    }
}

/// The loss without its factor, and its gradients if they are asked for; nothing for what is no loss of this kind.
fn unscaled(
    loss: &Operation,
    inputs: &[Torch],
    slopes: bool,
) -> Option<(tch::Tensor, Vec<tch::Tensor>)> {
    let map = inner(inputs.first()?);
    let Loss { value, slope } = match loss {
        Operation::Focal(focal, labels) => {
            with_mask(labels, |mask| losses::focal(map, mask, *focal, slopes))
        }
        Operation::SoftBce(bce, labels) => {
            with_mask(labels, |mask| losses::soft_bce(map, mask, *bce, slopes))
        }
        Operation::Dice(dice, labels) => known(map, dice.value(), slopes, || {
            with_mask(labels, |mask| losses::dice_slope(map, mask, dice.slopes()))
        }),
        Operation::CrossEntropy(_, labels) => {
            with_mask(labels, |mask| classes::cross_entropy(map, mask, slopes))
        }
        Operation::ClassDice(dice, labels) => known(map, dice.value(), slopes, || {
            with_mask(labels, |mask| {
                classes::dice_slope(map, mask, &dice.slopes())
            })
        }),
        Operation::L1(target, _) => {
            const WHERE: &str = "the target lives where the map does";
            let (target, numbers): (Torch, _) = match target.clone() {
                Image::Reflectance(values) => {
                    (values.try_into_primitive::<LibTorch>().expect(WHERE), None)
                }
                Image::Numbers(bits, coding) => {
                    let Coding {
                        offset,
                        scale,
                        missing,
                    } = coding;
                    let numbers = Numbers {
                        offset,
                        scale,
                        missing,
                    };
                    (
                        bits.try_into_primitive::<LibTorch>().expect(WHERE),
                        Some(numbers),
                    )
                }
            };
            losses::l1(map, inner(&target), numbers, slopes)
        }
        Operation::Affinity(every, _) => {
            let both = affinity::affinity(map, inner(inputs.get(1)?), *every, slopes);
            return Some((both.value, both.slopes.into_iter().flatten().collect()));
        }
        _ => return None,
    };
    Some((value, slope.into_iter().collect()))
}

/// A loss whose gradients nobody wants.
pub(super) fn value(loss: &Operation, inputs: &[Torch]) -> Torch {
    let (value, _) = unscaled(loss, inputs, false).expect("asked for losses alone");
    outer(value * factor(loss))
}

/// See [`Kernels::with_slopes`](crate::kernels::Kernels::with_slopes).
pub(super) fn with_slopes(loss: &Operation, inputs: &[Torch]) -> Option<(Torch, Slopes<LibTorch>)> {
    let (value, slopes) = unscaled(loss, inputs, true)?;
    let slopes = Slopes {
        tensors: slopes.into_iter().map(outer).collect(),
        inputs: inputs
            .iter()
            .map(|input| (input.shape(), input.dtype()))
            .collect(),
    };
    Some((outer(value * factor(loss)), slopes))
}

/// See [`Kernels::scale_slopes`](crate::kernels::Kernels::scale_slopes). In place: nobody else has the slopes.
pub(super) fn scale_slopes(
    loss: &Operation,
    gradient: &Torch,
    slopes: Slopes<LibTorch>,
) -> Gradients<LibTorch> {
    let scale = inner(gradient) * factor(loss);
    let results = slopes.tensors.iter().zip(&slopes.inputs);
    let results = results.map(|(slope, (shape, dtype))| match loss {
        Operation::Affinity(every, _) => {
            let whole = LibTorch::float_zeros(shape.clone(), &slope.device(), (*dtype).into());
            sampled(inner(&whole), *every).copy_(&(inner(slope) * &scale));
            Some(whole)
        }
        _ => Some(outer(computed(inner(slope).shallow_clone().f_mul_(&scale)))),
    });
    results.collect()
}
