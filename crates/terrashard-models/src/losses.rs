//! The losses of both branches over the whole batch.

use crate::net::Maps;
use crate::scope::Scope;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use terrashard_ops::{
    Focal, Image, Labels, SoftBce, affinity, class_dice, cross_entropy, dice, focal, l1, soft_bce,
};

/// Every this many pixels of the maps at the input's resolution is compared by the affinity loss.
const AFFINITY_EVERY: usize = 8;

/// The loss of the segmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Focal loss, alpha 0.75 and gamma 2.
    #[default]
    Focal,
    /// Binary cross-entropy on labels softened by 0.1, plus Dice with 0.1 added above and below.
    BceDice,
    /// Of several classes: cross-entropy, plus the mean over classes of Dice with 0.1 added above and below.
    CrossEntropyDice,
}

/// Added above and below in Dice.
const SMOOTH: f64 = 0.1;

impl Loss {
    /// Whether it is of several classes, one logit each, instead of one logit for foreground against background.
    pub fn is_of_classes(self) -> bool {
        self == Self::CrossEntropyDice
    }

    /// Whether it has a ratio of sums over a whole micro-batch, which micro-batches one after another cannot share.
    pub fn has_ratio(self) -> bool {
        matches!(self, Self::BceDice | Self::CrossEntropyDice)
    }

    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Focal => "focal",
            Self::BceDice => "bce_dice",
            Self::CrossEntropyDice => "cross_entropy_dice",
        }
    }
}

/// What the losses compare a forward pass with.
#[derive(Debug, Clone)]
pub struct Targets {
    /// `[N, scale H, scale W]`.
    pub labels: Labels,
    /// The image at high resolution, `[N, 4, scale H, scale W]`, where there is one.
    pub superres: Option<Image>,
}

/// Counts of the whole window: all micro-batches of all ranks that make one step.
///
/// Sums divided by these add up over ranks and micro-batches to means over the window, and so do their gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalizers {
    /// Samples.
    pub samples: f64,
    /// Pixels that are not ignored.
    pub valid_pixels: f64,
    /// Values of the super-resolution targets that are not missing.
    pub superres_values: f64,
}

impl Normalizers {
    /// The counts of these targets by themselves.
    pub fn of(targets: &Targets) -> Self {
        let [samples, ..] = targets.labels.shape();
        Self {
            samples: samples as f64,
            valid_pixels: targets.labels.valid() as f64,
            superres_values: targets.superres.as_ref().map_or(0.0, |image| {
                let values: usize = image.dims().iter().product();
                (values as u64 - image.missing()) as f64
            }),
        }
    }
}

/// Weight of the L1 loss in the total, in the reference: S2S2Net.
pub const L1_WEIGHT: f64 = 0.001;

/// This rank's and micro-batch's shares of the losses, `[1]` each.
#[derive(Debug, Clone)]
pub struct Losses {
    /// `affinity + segmentation + weight * l1`: what is differentiated.
    pub total: Tensor<1>,
    /// How differently the branches see pairs of positions. Only with the super-resolution branch.
    pub affinity: Option<Tensor<1>>,
    /// The [`Loss`] of the segmentation.
    pub segmentation: Tensor<1>,
    /// Dice's part of the segmentation's loss. Only with a loss that has one.
    pub dice: Option<Tensor<1>>,
    /// Mean absolute difference of the super-resolved image. Only with the branch and a target for it.
    pub l1: Option<Tensor<1>>,
}

impl Loss {
    /// The losses of one micro-batch, with [`L1_WEIGHT`].
    ///
    /// Otherwise as [`Loss::weighted`].
    pub fn of(
        self,
        maps: &Maps,
        targets: &Targets,
        normalizers: &Normalizers,
        scope: &impl Scope,
    ) -> Losses {
        self.weighted(maps, targets, normalizers, L1_WEIGHT, scope)
    }

    /// The losses of one micro-batch, the L1 loss of the super-resolved image weighing `l1_weight` in the total.
    ///
    /// Each loss is an `f32` where maps are of 16 bits. It is 0 with nothing to count in the whole window, and for a rank without
    /// samples.
    pub fn weighted(
        self,
        maps: &Maps,
        targets: &Targets,
        normalizers: &Normalizers,
        l1_weight: f64,
        scope: &impl Scope,
    ) -> Losses {
        let logits = maps.segmentation.clone();
        let (labels, divisor) = (&targets.labels, normalizers.valid_pixels.max(1.0));
        let (samples, ranks) = (normalizers.samples, scope.pass().ranks);
        let (pixelwise, dice) = match self {
            Self::Focal => {
                let focal_loss = Focal {
                    alpha: 0.75,
                    gamma: 2.0,
                    divisor,
                };
                (focal(logits, labels, focal_loss), None)
            }
            Self::BceDice => {
                let softened = SoftBce {
                    softening: 0.1,
                    divisor,
                };
                (
                    soft_bce(logits.clone(), labels, softened),
                    Some(dice(logits, labels, SMOOTH, samples, &*ranks)),
                )
            }
            Self::CrossEntropyDice => (
                cross_entropy(logits.clone(), labels, divisor),
                Some(class_dice(logits, labels, SMOOTH, samples, &*ranks)),
            ),
        };
        let segmentation = match &dice {
            Some(dice) => pixelwise + dice.clone(),
            None => pixelwise,
        };
        let affinity = maps.sr_low.as_ref().map(|sr_low| {
            let [_, _, h, w] = sr_low.dims();
            let positions = (h.div_ceil(AFFINITY_EVERY) * w.div_ceil(AFFINITY_EVERY)) as f64;
            let divisor = normalizers.samples.max(1.0) * positions * positions;
            affinity(
                maps.seg_low.clone(),
                sr_low.clone(),
                AFFINITY_EVERY,
                divisor,
            )
        });
        let l1 = maps
            .superres
            .as_ref()
            .zip(targets.superres.as_ref())
            .map(|(map, target)| {
                let divisor = normalizers.superres_values.max(1.0);
                l1(map.clone(), target.clone(), divisor)
            });
        let mut total = segmentation.clone();
        if let Some(affinity) = &affinity {
            total = total + affinity.clone();
        }
        if let Some(l1) = &l1 {
            total = total + l1.clone() * l1_weight;
        }
        Losses {
            total,
            affinity,
            segmentation,
            dice,
            l1,
        }
    }
}
