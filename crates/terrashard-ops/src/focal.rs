//! Focal loss over the valid pixels of a binary mask.

use crate::IGNORE;
use crate::enlarged::Enlarged;
use crate::graph::operate;
use crate::labels::Labels;
use crate::operation::Operation;
use burn::tensor::activation::{log_sigmoid, sigmoid};
use burn::tensor::{Bool, Tensor};

/// The focal loss's parameters ([Lin et al. 2017](https://arxiv.org/abs/1708.02002)).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Focal {
    /// Weight of positive pixels; negative ones have `1 - alpha`.
    pub alpha: f64,
    /// Exponent of `1 - p` of the right class.
    pub gamma: f64,
    /// What the sum over pixels is divided by: the number of valid pixels of the whole window.
    pub divisor: f64,
}

/// The sum over valid pixels of `alpha_t (1 - p_t)^gamma (-log p_t)`, divided by `focal.divisor`.
///
/// # Shapes
/// logits `[N, 1, H, W]` in any layout, labels `[N, H, W]`; result `[1]`.
pub fn focal(logits: impl Into<Enlarged>, labels: &Labels, focal: Focal) -> Tensor<1> {
    let logits = logits.into();
    check_shapes(&logits, labels);
    operate(
        vec![logits.into_values().into_dispatch()],
        Operation::Focal(focal, labels.clone()),
    )
}

pub(crate) fn check_shapes(logits: &Enlarged, labels: &Labels) {
    let [n, channels, h, w] = logits.dims();
    assert_eq!(channels, 1, "a binary loss takes one channel of logits");
    assert_eq!(
        [n, h, w],
        labels.shape(),
        "logits and labels cover the same pixels"
    );
}

/// The labels beside `[N, 1, H, W]`: 1 or 0 in the type of `like`, and which are ignored.
pub(crate) fn targets(labels: &Labels, like: &Tensor<4>) -> (Tensor<4>, Tensor<4, Bool>) {
    let labels = labels.tensor().clone().reshape(like.dims());
    let ignored = labels.clone().equal_elem(IGNORE);
    let positive = labels.not_equal_elem(0).float().cast(like.dtype());
    (positive.mask_fill(ignored.clone(), 0.0), ignored)
}

/// The logit of the right class, its weight (0 where ignored), and the label's sign.
fn oriented(logits: Tensor<4>, labels: &Labels, focal: Focal) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
    let (target, ignored) = targets(labels, &logits);
    let sign = target.clone() * 2.0 - 1.0;
    let weight =
        (target * (2.0 * focal.alpha - 1.0) + (1.0 - focal.alpha)).mask_fill(ignored.clone(), 0.0);
    // An ignored pixel may hold anything, even NaN.
    (
        (logits * sign.clone()).mask_fill(ignored, 0.0),
        weight,
        sign,
    )
}

/// The sum of all values, by rows first: adding a whole map value by value costs digits in `f32`.
pub(crate) fn total(map: Tensor<4>) -> Tensor<1> {
    map.sum_dim(3).sum()
}

pub(crate) fn forward(logits: Tensor<4>, labels: &Labels, focal: Focal) -> Tensor<1> {
    let (z, weight, _) = oriented(logits, labels, focal);
    let modulation = sigmoid(z.clone().neg()).powf_scalar(focal.gamma);
    total(weight * modulation * log_sigmoid(z)) * (-1.0 / focal.divisor)
}

pub(crate) fn backward(
    gradient: Tensor<1>,
    logits: Tensor<4>,
    labels: &Labels,
    focal: Focal,
) -> Tensor<4> {
    let (z, weight, sign) = oriented(logits, labels, focal);
    let miss = sigmoid(z.clone().neg());
    let slope = sigmoid(z.clone()) * log_sigmoid(z) * focal.gamma - miss.clone();
    weight * sign * miss.powf_scalar(focal.gamma) * slope * (gradient / focal.divisor).unsqueeze()
}
