//! Cross-entropy of several classes, and the Dice loss that goes with it.

use crate::graph::operate;
use crate::labels::Labels;
use crate::operation::Operation;
use crate::overlap::{Ratio, Share};
use crate::{Enlarged, IGNORE, SumOverRanks};
use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};

/// The sum over valid pixels of `-log softmax(logits)[label]`, divided by `divisor`: the number of valid pixels of the whole window.
///
/// # Shapes
/// logits `[N, classes, H, W]` in any layout, labels `[N, H, W]`; result `[1]`.
///
/// # Panics
/// If a pixel is labelled as of a class that has no logit.
pub fn cross_entropy(logits: impl Into<Enlarged>, labels: &Labels, divisor: f64) -> Tensor<1> {
    let logits = logits.into().pixels();
    check_classes(&logits, labels);
    operate(
        vec![logits.into_dispatch()],
        Operation::CrossEntropy(divisor, labels.clone()),
    )
}

/// The mean over classes of `1 - (2 sum(p y) + smooth) / (sum(p + y) + smooth)`, p the softmax, over the valid pixels of this
/// micro-batch of all ranks. A class that no pixel has counts as 0 and still as one of the classes, as in the `DiceLoss` of
/// [segmentation_models.pytorch](https://github.com/qubvel-org/segmentation_models.pytorch): the mean over a batch that lacks classes is less. Values and gradients are shared out over ranks and
/// micro-batches as those of [`dice`](crate::dice) are.
///
/// # Shapes
/// logits `[N, classes, H, W]` in any layout, labels `[N, H, W]`; result `[1]`. `samples` is the number of samples in the whole window.
///
/// # Panics
/// If a pixel is labelled as of a class that has no logit.
pub fn class_dice(
    logits: impl Into<Enlarged>,
    labels: &Labels,
    smooth: f64,
    samples: f64,
    ranks: &dyn SumOverRanks,
) -> Tensor<1> {
    let logits = logits.into().pixels();
    check_classes(&logits, labels);
    let dice = ClassDice::new(logits.clone().inner(), labels, smooth, samples, ranks);
    operate(
        vec![logits.into_dispatch()],
        Operation::ClassDice(dice, labels.clone()),
    )
}

fn check_classes(logits: &Tensor<4>, labels: &Labels) {
    let [n, classes, h, w] = logits.dims();
    assert_eq!(
        [n, h, w],
        labels.shape(),
        "logits and labels cover the same pixels"
    );
    let largest = labels.largest().map_or(0, usize::from);
    assert!(
        largest < classes,
        "a pixel is labelled {largest} where there are {classes} classes"
    );
}

/// The ratios of all classes over the valid pixels of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClassDice {
    ratios: Vec<Ratio>,
    share: Share,
}

impl ClassDice {
    fn new(
        logits: Tensor<4>,
        labels: &Labels,
        smooth: f64,
        samples: f64,
        ranks: &dyn SumOverRanks,
    ) -> Self {
        let [own, classes, ..] = logits.dims();
        let sums: Tensor<1> = operate(
            vec![logits.into_dispatch()],
            Operation::ClassSums(labels.clone()),
        );
        let mut sums: Vec<f64> = sums.into_data().iter::<f64>().collect();
        sums.extend((0..classes).map(|class| labels.of(class as u8) as f64));
        sums.push(own as f64);
        ranks.sum(&mut sums);
        let [all] = sums[3 * classes..] else {
            unreachable!("three sums a class and one more")
        };
        let ratio = |class: usize| {
            let positives = sums[2 * classes + class];
            Ratio {
                intersection: sums[class],
                cardinality: sums[classes + class] + positives,
                positives,
                smooth,
            }
        };
        Self {
            ratios: (0..classes).map(ratio).collect(),
            share: Share {
                own: own as f64 / samples.max(1.0),
                all: all / samples.max(1.0),
            },
        }
    }

    pub(crate) fn value(&self) -> f64 {
        let sum: f64 = self.ratios.iter().map(Ratio::distance).sum();
        self.share.own * sum / self.ratios.len() as f64
    }

    /// For each class the derivative by its probability in a pixel: of another class, and of this one.
    pub(crate) fn slopes(&self) -> Vec<[f64; 2]> {
        let factor = self.share.all / self.ratios.len() as f64;
        let slopes = self.ratios.iter().map(Ratio::slopes);
        slopes
            .map(|slopes| slopes.map(|slope| factor * slope))
            .collect()
    }
}

/// The logits with ignored pixels at 0, since those may hold anything, 1 where a pixel is of a class, and 1 where it is valid.
fn prepared(logits: Tensor<4>, labels: &Labels) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
    let [n, classes, h, w] = logits.dims();
    let dtype = logits.dtype();
    let label = labels.tensor().clone().reshape([n, 1, h, w]);
    let ignored = label.clone().equal_elem(IGNORE);
    let numbers: Vec<u8> = (0..classes as u8).collect();
    let numbers = Tensor::<4, Int>::from_data(
        TensorData::new(numbers, [1, classes, 1, 1]),
        (&logits.device(), DType::U8),
    );
    let shape = [n, classes, h, w];
    let own = label.expand(shape).equal(numbers.expand(shape));
    let number = |mask: Tensor<4, Bool>| mask.float().cast(dtype);
    (
        logits.mask_fill(ignored.clone().expand(shape), 0.0),
        number(own),
        number(ignored.bool_not()),
    )
}

/// The sum of each channel, by rows first: adding a whole map value by value costs digits in `f32`.
fn channel_sums(map: Tensor<4>) -> Tensor<1> {
    let [_, channels, ..] = map.dims();
    map.sum_dim(3).sum_dims(&[0, 2]).reshape([channels])
}

pub(crate) fn forward(logits: Tensor<4>, labels: &Labels, divisor: f64) -> Tensor<1> {
    let (x, own, _) = prepared(logits, labels);
    channel_sums(log_softmax(x, 1) * own).sum() * (-1.0 / divisor)
}

pub(crate) fn backward(
    gradient: Tensor<1>,
    logits: Tensor<4>,
    labels: &Labels,
    divisor: f64,
) -> Tensor<4> {
    let (x, own, valid) = prepared(logits, labels);
    (softmax(x, 1) - own) * valid * (gradient / divisor).unsqueeze()
}

/// See [`Kernels::class_sums`](crate::kernels::Kernels::class_sums).
pub(crate) fn sums(logits: Tensor<4>, labels: &Labels) -> Tensor<1> {
    let (x, own, valid) = prepared(logits, labels);
    let p = softmax(x, 1) * valid;
    Tensor::cat(vec![channel_sums(p.clone() * own), channel_sums(p)], 0)
}

pub(crate) fn dice_backward(
    gradient: Tensor<1>,
    logits: Tensor<4>,
    labels: &Labels,
    dice: &ClassDice,
) -> Tensor<4> {
    let (x, own, valid) = prepared(logits, labels);
    let slopes = dice.slopes();
    let channels = |values: Vec<f64>| {
        let data = TensorData::new(values, [1, slopes.len(), 1, 1]);
        Tensor::<4>::from_data(data, (&x.device(), x.dtype()))
    };
    let other = channels(slopes.iter().map(|[other, _]| *other).collect());
    let more = channels(slopes.iter().map(|[other, own]| own - other).collect());
    let p = softmax(x, 1);
    let slope = own * more + other;
    let along = (p.clone() * slope.clone()).sum_dim(1);
    p * (slope - along) * valid * gradient.unsqueeze()
}
