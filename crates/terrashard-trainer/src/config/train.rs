//! `[train]`: how long, how fast, in which types and by which rule.

use serde::de::{self, Deserializer};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrashard_models::Loss;

use super::Arithmetic;

/// `[train]`: the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainSection {
    /// Optimizer steps. Default: 1000, unless `epochs` is given.
    pub steps: Option<u64>,
    /// In place of `steps`: how often each sample is taken. The last step may have fewer samples than the others.
    pub epochs: Option<u64>,
    /// Steps between two validations, where there is a part for it; there is one at the end in any case. Default: one after each
    /// epoch where `epochs` is given, else at the end only.
    pub validate_every: Option<u64>,
    /// Samples of one forward pass on one rank; with the next two, any two give the third.
    pub micro_batch: Option<usize>,
    /// Samples of one step over all ranks.
    pub global_batch: Option<usize>,
    /// Micro-batches of one rank in one step.
    pub accumulate: Option<usize>,
    /// The update rule. Default: `adamw`.
    pub optimizer: OptimizerRule,
    /// Peak learning rate. Default: 6e-5.
    pub lr: f64,
    /// Decoupled weight decay of AdamW; for SGD, what is added to the gradient, times the parameter. Default: 0.01.
    pub weight_decay: f64,
    /// Decay of AdamW's first and second moment. Default: 0.9 and 0.999.
    pub betas: Option<[f64; 2]>,
    /// Added to the root of AdamW's second moment. Default: 1e-8.
    pub eps: Option<f64>,
    /// Momentum of SGD, 0 for none. Default: 0.9.
    pub momentum: Option<f64>,
    /// Whether SGD looks ahead by its momentum (Nesterov). Default: `false`.
    pub nesterov: Option<bool>,
    /// How the learning rate falls. Default: `constant`.
    pub schedule: Schedule,
    /// Steps over which the learning rate rises from 0 first. Default: 0.
    pub warmup_steps: u64,
    /// Exponent of the schedule `poly`. Default: 1, a straight line.
    pub power: Option<f64>,
    /// What the schedules `poly` and `cosine` fall to. Default: 0.
    pub min_lr: f64,
    /// Largest global norm of a step's gradient. Default: no clipping.
    pub clip_norm: Option<f64>,
    /// Parameters that are treated apart; the first entry that matches a parameter's name takes it. Default: none.
    pub groups: Vec<GroupEntry>,
    /// Decay of the moving average of the parameters, which is kept beside them. Default: no average.
    pub ema: Option<f64>,
    /// Where initial values come from: a file of `terrashard import` or `export`, or a run or checkpoint. What it lacks, or has in
    /// another shape behind the encoder, is drawn by the seed. Default: all are drawn.
    pub init: Option<PathBuf>,
    /// Seed of initial values, sample order and augmentation. Default: 0.
    pub seed: u64,
    /// What the segmentation map is trained with: `focal` or `bce_dice`, of several classes `cross_entropy_dice`. Default: `focal`.
    pub loss: Loss,
    /// Weight of the super-resolved image's L1 loss beside that of the segmentation, where there is a super-resolution branch.
    /// Default: 0.001, as S2S2Net was trained.
    pub l1_weight: Option<f64>,
    /// Element type of the computation; optimizer states are in 32 bits in any case. Default: `fp32`.
    pub precision: Precision,
    /// What happens at a loss or gradient that is not finite: `abort`, `skip`, or `{ skip_then_abort = 3 }`. Default: `abort`.
    #[serde(deserialize_with = "nonfinite")]
    pub nonfinite: NonFinite,
    /// What happens where a parameter gets no gradient in a step. Default: `zero`.
    pub unused: Unused,
    /// Which samples the statistics of batch normalisation are of. Default: `sync`.
    pub batch_norm: BatchNormStatistics,
    /// Whether LibTorch takes only algorithms that give the same bits each time, and fails where it has none. Burn's own backend
    /// always does. Default: `false`.
    pub deterministic: bool,
    /// Whether a GPU runs the small blocks of a model by graphs of their kernels, which costs the host a fraction of the time and at most a
    /// thirty-second of the GPU's memory. The results are the same. Default: `true`.
    pub graphs: bool,
}

impl Default for TrainSection {
    fn default() -> Self {
        Self {
            steps: None,
            epochs: None,
            validate_every: None,
            micro_batch: None,
            global_batch: None,
            accumulate: None,
            optimizer: OptimizerRule::AdamW,
            lr: 6e-5,
            weight_decay: 0.01,
            betas: None,
            eps: None,
            momentum: None,
            nesterov: None,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            power: None,
            min_lr: 0.0,
            clip_norm: None,
            groups: Vec::new(),
            ema: None,
            init: None,
            seed: 0,
            loss: Loss::Focal,
            l1_weight: None,
            precision: Precision::Fp32,
            nonfinite: NonFinite::Abort,
            unused: Unused::Zero,
            batch_norm: BatchNormStatistics::Sync,
            deterministic: false,
            graphs: true,
        }
    }
}

/// Steps of a run where neither `steps` nor `epochs` is given.
const DEFAULT_STEPS: u64 = 1000;

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// This many steps.
    Steps(u64),
    /// Each sample this often.
    Epochs(u64),
}

impl Length {
    /// The cursor at which the stream of samples ends, if it does.
    pub fn end(self, samples: usize) -> Option<u64> {
        match self {
            Length::Steps(_) => None,
            Length::Epochs(epochs) => Some(epochs.saturating_mul(samples as u64)),
        }
    }
}

impl TrainSection {
    /// How long the run is. Of `steps` and `epochs` one at most is given.
    pub fn length(&self) -> Length {
        match (self.steps, self.epochs) {
            (Some(steps), _) => Length::Steps(steps),
            (None, Some(epochs)) => Length::Epochs(epochs),
            (None, None) => Length::Steps(DEFAULT_STEPS),
        }
    }

    /// How LibTorch computes.
    pub fn arithmetic(&self) -> Arithmetic {
        Arithmetic {
            tf32: self.precision == Precision::Tf32,
            deterministic: self.deterministic,
            graphs: self.graphs,
        }
    }

    /// Writes out the length where it is the default.
    pub(super) fn settle(&mut self) {
        if let (None, None) = (self.steps, self.epochs) {
            self.steps = Some(DEFAULT_STEPS);
        }
    }
}

/// The update rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerRule {
    /// Adam with decoupled weight decay.
    AdamW,
    /// Gradient descent with momentum.
    Sgd,
}

/// How the learning rate falls after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Not at all.
    Constant,
    /// As a power of the share that is left, as SegFormer was trained with power 1.
    Poly,
    /// Along half a cosine.
    Cosine,
}

/// Element type of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    Fp32,
    /// 32-bit floats whose matrix products round their factors to 10 bits, on GPUs that can; elsewhere the same as `fp32`.
    Tf32,
    /// 16-bit floats with the exponent of 32-bit ones.
    Bf16,
    /// 16-bit floats after IEEE 754, with a loss scale.
    Fp16,
}

/// What happens at a loss or gradient that is not finite. Every rank does the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinite {
    /// The run ends with an error.
    Abort,
    /// The step is left out: parameters, states and learning rate stay as they were.
    Skip,
    /// The same for at most this many steps in a row; one more ends the run.
    SkipThenAbort(u32),
}

/// A rule for what is not finite, with all its forms in the message where it is none of them.
fn nonfinite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonFinite, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    value.clone().try_into().map_err(|_| {
        de::Error::custom(format!(
            "{value} is no rule, write \"abort\", \"skip\", or {{ skip_then_abort = 3 }} for at most 3 steps in a row"
        ))
    })
}

/// What happens where a parameter gets no gradient in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unused {
    /// Its gradient is zero.
    Zero,
    /// The run ends with an error that names it.
    Error,
}

/// Which samples the statistics of batch normalisation are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchNormStatistics {
    /// Those of the rank.
    Local,
    /// Those of all ranks.
    Sync,
    /// Those of the rank in training; the running ones are averaged over ranks before they are tested or saved.
    AverageAtSave,
}

/// One entry of `train.groups`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupEntry {
    /// Names of its parameters, where `*` stands for any run of characters: `stages.0.*`, `*.bias`.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Factor on the learning rate. Default: 1.
    #[serde(default = "one")]
    pub lr_factor: f64,
    /// Weight decay. Default: `train.weight_decay`.
    pub weight_decay: Option<f64>,
    /// Whether its parameters stay as they are. Default: `false`.
    #[serde(default)]
    pub frozen: bool,
}

fn one() -> f64 {
    1.0
}
