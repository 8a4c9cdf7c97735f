//! Binary cross-entropy on softened labels, and the Dice loss that goes with it.

use crate::SumOverRanks;
use crate::enlarged::Enlarged;
use crate::focal::{check_shapes, targets, total};
use crate::graph::operate;
use crate::labels::Labels;
use crate::operation::Operation;
use burn::tensor::Tensor;
use burn::tensor::activation::{log_sigmoid, sigmoid};

/// Binary cross-entropy against `1 - softening` and `softening` instead of 1 and 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftBce {
    /// How far labels move towards each other, 0 to 0.5.
    pub softening: f64,
    /// What the sum over pixels is divided by: the number of valid pixels of the whole window.
    pub divisor: f64,
}

/// The sum over valid pixels of the cross-entropy, divided by `bce.divisor`.
///
/// # Shapes
/// logits `[N, 1, H, W]` in any layout, labels `[N, H, W]`; result `[1]`.
pub fn soft_bce(logits: impl Into<Enlarged>, labels: &Labels, bce: SoftBce) -> Tensor<1> {
    let logits = logits.into();
    check_shapes(&logits, labels);
    operate(
        vec![logits.into_values().into_dispatch()],
        Operation::SoftBce(bce, labels.clone()),
    )
}

/// Labels softened, and the logits with ignored pixels at 0.
fn softened(logits: Tensor<4>, labels: &Labels, bce: SoftBce) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
    let (target, ignored) = targets(labels, &logits);
    let valid = target.ones_like().mask_fill(ignored.clone(), 0.0);
    (
        logits.mask_fill(ignored, 0.0),
        target * (1.0 - 2.0 * bce.softening) + bce.softening,
        valid,
    )
}

pub(crate) fn soft_bce_forward(logits: Tensor<4>, labels: &Labels, bce: SoftBce) -> Tensor<1> {
    let (x, target, valid) = softened(logits, labels, bce);
    // -t log s(x) - (1 - t) log s(-x) = x (1 - t) - log s(x)
    let entropy = x.clone() * (target.neg() + 1.0) - log_sigmoid(x);
    total(entropy * valid) / bce.divisor
}

pub(crate) fn soft_bce_backward(
    gradient: Tensor<1>,
    logits: Tensor<4>,
    labels: &Labels,
    bce: SoftBce,
) -> Tensor<4> {
    let (x, target, valid) = softened(logits, labels, bce);
    (sigmoid(x) - target) * valid * (gradient / bce.divisor).unsqueeze()
}

/// The sums of a Dice ratio over all valid pixels of all ranks, and the share of a micro-batch in its window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dice {
    ratio: Ratio,
    share: Share,
}

/// `(2 intersection + smooth) / (cardinality + smooth)` of one class, as its distance from 1; 0 if no pixel is of the class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) intersection: f64,
    pub(crate) cardinality: f64,
    pub(crate) positives: f64,
    pub(crate) smooth: f64,
}

impl Ratio {
    pub(crate) fn distance(&self) -> f64 {
        if self.positives == 0.0 {
            return 0.0;
        }
        1.0 - (2.0 * self.intersection + self.smooth) / self.denominator()
    }

    fn denominator(&self) -> f64 {
        (self.cardinality + self.smooth).max(1e-7)
    }

    /// The derivative by the probability of a pixel: of another class, and of this one.
    pub(crate) fn slopes(&self) -> [f64; 2] {
        if self.positives == 0.0 {
            return [0.0; 2];
        }
        let d = self.denominator();
        let negative = (2.0 * self.intersection + self.smooth) / (d * d);
        [negative, negative - 2.0 / d]
    }
}

/// How a ratio over all ranks is shared out over ranks and micro-batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    /// Part of the loss that this rank reports: its samples by those of the window.
    pub(crate) own: f64,
    /// Part of the loss that the gradient is of: the micro-batch's samples of all ranks by those of the window.
    pub(crate) all: f64,
}

/// `1 - (2 sum(p y) + smooth) / (sum(p + y) + smooth)` over the valid pixels of this micro-batch of all ranks; 0 without a
/// positive pixel. A rank's value is its share by samples, so that values add up over ranks and micro-batches to the mean over
/// micro-batches; so do gradients.
///
/// # Shapes
/// logits `[N, 1, H, W]` in any layout, labels `[N, H, W]`; result `[1]`. `samples` is the number of samples in the whole window.
pub fn dice(
    logits: impl Into<Enlarged>,
    labels: &Labels,
    smooth: f64,
    samples: f64,
    ranks: &dyn SumOverRanks,
) -> Tensor<1> {
    let logits = logits.into();
    check_shapes(&logits, labels);
    let logits = logits.into_values();
    let dice = Dice::new(logits.clone().inner(), labels, smooth, samples, ranks);
    operate(
        vec![logits.into_dispatch()],
        Operation::Dice(dice, labels.clone()),
    )
}

impl Dice {
    fn new(
        logits: Tensor<4>,
        labels: &Labels,
        smooth: f64,
        samples: f64,
        ranks: &dyn SumOverRanks,
    ) -> Self {
        let [own, ..] = logits.dims();
        let sums: Tensor<1> = operate(
            vec![logits.into_dispatch()],
            Operation::DiceSums(labels.clone()),
        );
        let sums: Vec<f64> = sums.into_data().iter::<f64>().collect();
        let positives = labels.positive() as f64;
        let mut sums = [sums[0], sums[1] + positives, positives, own as f64];
        ranks.sum(&mut sums);
        let [intersection, cardinality, positives, all] = sums;
        Self {
            ratio: Ratio {
                intersection,
                cardinality,
                positives,
                smooth,
            },
            share: Share {
                own: own as f64 / samples.max(1.0),
                all: all / samples.max(1.0),
            },
        }
    }

    pub(crate) fn value(&self) -> f64 {
        self.share.own * self.ratio.distance()
    }

    /// The derivative by the probability of a pixel: for a negative and for a positive one.
    pub(crate) fn slopes(&self) -> [f64; 2] {
        self.ratio.slopes().map(|slope| self.share.all * slope)
    }
}

pub(crate) fn dice_sums(logits: Tensor<4>, labels: &Labels) -> Tensor<1> {
    let (target, ignored) = targets(labels, &logits);
    let p = sigmoid(logits).mask_fill(ignored, 0.0);
    Tensor::cat(vec![total(p.clone() * target), total(p)], 0)
}

pub(crate) fn dice_backward(
    gradient: Tensor<1>,
    logits: Tensor<4>,
    labels: &Labels,
    dice: &Dice,
) -> Tensor<4> {
    let (target, ignored) = targets(labels, &logits);
    let [negative, positive] = dice.slopes();
    let p = sigmoid(logits);
    let slope = target * (positive - negative) + negative;
    let gradient = slope * p.clone() * (p.neg() + 1.0) * gradient.unsqueeze();
    gradient.mask_fill(ignored, 0.0)
}
