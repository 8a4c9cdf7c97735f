//! Settings of a sharded optimizer: small policy structs, validated once.

use std::fmt::Display;

use terrashard_layout::{ElementType, Stage};

use crate::decision::LossScale;
use crate::error::{Error, Result};
use crate::parameter_group::{ParameterGroup, Select};

/// Settings of a [`crate::ZeroOptimizer`]. All ranks must use the same.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeroConfig {
    /// What is sharded. Default: stage 2.
    pub stage: Stage,
    /// Element types of computation and master weights. Default: f32.
    pub precision: Precision,
    /// Element type in which gradients are added up over ranks. Default: that of the master weights, in which micro-batches
    /// always add up.
    pub reduce_dtype: ReduceDtype,
    /// Size of a communication bucket in bytes; `None` derives it from the model.
    pub bucket_bytes: Option<usize>,
    /// At stage 3, parameters smaller than this many bytes stay whole on every rank. Default: 0.
    pub persist_bytes: usize,
    /// Shards live inside groups of this many ranks and are replicated over the groups (hybrid sharding). It divides
    /// the number of ranks. Default: one group of all ranks.
    pub shard_group: Option<usize>,
    /// Micro-batches in one optimizer step. Default: 1.
    pub accumulate: usize,
    /// What the gradients of ranks and micro-batches become together. Default: their sum.
    pub reduction: Reduction,
    /// The update rule. Default: AdamW.
    pub optimizer: Optimizer,
    /// Parameter groups; the first whose selection fits a parameter takes it. Parameters that none takes are in an
    /// implicit last group with learning-rate factor 1 and the weight decay of `optimizer`.
    pub groups: Vec<ParameterGroup>,
    /// Largest global gradient norm: gradients are multiplied by `min(1, clip_norm / (norm + 1e-6))`.
    pub clip_norm: Option<f64>,
    /// What to do when a gradient is NaN or infinite. Default: abort.
    pub nonfinite: NonFinite,
    /// What to do with a trainable parameter that got no gradient in a whole step. Default: count it as zero.
    pub unused: Unused,
    /// Decay of the exponential moving average of the weights; `None` keeps none.
    pub ema: Option<f64>,
    /// What lives in host memory. Default: nothing.
    pub offload: Offload,
    /// Which share of each shard's optimizer states is offloaded, 0 to 1. Default: 1.
    pub offload_fraction: f64,
    /// At stage 3, blocks whose parameters are gathered ahead of the one in use, 0 to 2. Default: 1.
    pub prefetch: usize,
    /// Whether communication overlaps with computation. The result is the same bit by bit. Default: `true`.
    pub overlap: bool,
    /// Dynamic loss scaling, used with [`Precision::F16`] only.
    pub loss_scale: LossScale,
}

impl Default for ZeroConfig {
    fn default() -> Self {
        Self {
            stage: Stage::Two,
            precision: Precision::F32,
            reduce_dtype: ReduceDtype::Full,
            bucket_bytes: None,
            persist_bytes: 0,
            shard_group: None,
            accumulate: 1,
            reduction: Reduction::Sum,
            optimizer: Optimizer::AdamW(AdamW::default()),
            groups: Vec::new(),
            clip_norm: None,
            nonfinite: NonFinite::Abort,
            unused: Unused::Zero,
            ema: None,
            offload: Offload::None,
            offload_fraction: 1.0,
            prefetch: 1,
            overlap: true,
            loss_scale: LossScale::default(),
        }
    }
}

/// Element types of computation and of the master weights that the optimizer updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Everything in f32.
    F32,
    /// Everything in f64: for tests of exactness.
    F64,
    /// bf16 computation over f32 master weights.
    Bf16,
    /// f16 computation over f32 master weights, with dynamic loss scaling.
    F16,
}

impl Precision {
    /// Element type of parameters and activations in forward and backward.
    pub fn compute(self) -> ElementType {
        match self {
            Precision::F32 => ElementType::F32,
            Precision::F64 => ElementType::F64,
            Precision::Bf16 => ElementType::Bf16,
            Precision::F16 => ElementType::F16,
        }
    }

    /// Element type of master weights and optimizer states.
    pub fn master(self) -> ElementType {
        match self {
            Precision::F64 => ElementType::F64,
            Precision::F32 | Precision::Bf16 | Precision::F16 => ElementType::F32,
        }
    }

    /// Whether the computation has another type than the master weights.
    pub fn is_mixed(self) -> bool {
        self.compute() != self.master()
    }
}

/// Element type in which gradients travel and are added up over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceDtype {
    /// That of the master weights.
    Full,
    /// That of the computation: half the traffic and memory in mixed precision, at its rounding.
    Compute,
}

/// What lives in host memory instead of the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    None,
    /// Master weights and optimizer states, where they are sharded: at stages 1 to 3.
    Optimizer,
    /// Those and the parameter shards of stage 3.
    Parameters,
}

/// What to do with a trainable parameter that got no gradient in a whole step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// Its gradient is zero: weight decay and momentum act on it.
    Zero,
    /// The step ends with [`Error::Unused`].
    Error,
}

/// The update rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// AdamW.
    AdamW(AdamW),
    /// Stochastic gradient descent, with momentum if it is not 0.
    Sgd(Sgd),
}

impl Optimizer {
    /// Weight decay of parameters in no group.
    pub fn weight_decay(&self) -> f64 {
        match self {
            Optimizer::AdamW(rule) => rule.weight_decay,
            Optimizer::Sgd(rule) => rule.weight_decay,
        }
    }
}

/// Stochastic gradient descent, as PyTorch computes it: weight decay is added to the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Decay of the sum of gradients; 0 keeps none. Default: 0.9.
    pub momentum: f64,
    /// Nesterov's variant of momentum. Default: `false`.
    pub nesterov: bool,
    /// Added to the gradient as a factor of the parameter. Default: 0.
    pub weight_decay: f64,
}

impl Default for Sgd {
    fn default() -> Self {
        Self {
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
        }
    }
}

/// What the gradients of all ranks and micro-batches of a step become together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum: for losses that already divide by counts of the whole global batch.
    Sum,
    /// Their mean: for losses that are means over a micro-batch.
    Mean,
}

/// AdamW (Loshchilov & Hutter, <https://arxiv.org/abs/1711.05101>), as PyTorch computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment. Default: 0.9.
    pub beta1: f64,
    /// Decay of the second moment. Default: 0.999.
    pub beta2: f64,
    /// Added to the root of the second moment. Default: 1e-8.
    pub epsilon: f64,
    /// Decoupled weight decay, a factor on `lr * parameter`. Default: 0.01.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
        }
    }
}

/// What to do when a gradient is NaN or infinite on any rank. Every rank decides the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFinite {
    /// Return an error; parameters and states stay as they were.
    Abort,
    /// Skip the step; parameters and states stay as they were and the step is not counted.
    Skip,
    /// Skip up to this many steps in a row, then return an error.
    SkipThenAbort(u32),
}

impl ZeroConfig {
    /// Checks every setting, for a run of `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Setting`] for a value out of range or that does not fit the others.
    pub fn validate(&self, ranks: usize) -> Result<()> {
        let share = |value| (0.0..1.0).contains(&value);
        match self.optimizer {
            Optimizer::AdamW(rule) => {
                let AdamW {
                    beta1,
                    beta2,
                    epsilon,
                    weight_decay,
                } = rule;
                check(share(beta1), "beta1", beta1, "at least 0 and below 1")?;
                check(share(beta2), "beta2", beta2, "at least 0 and below 1")?;
                check(epsilon > 0.0, "epsilon", epsilon, "above 0")?;
                check(
                    weight_decay >= 0.0,
                    "weight_decay",
                    weight_decay,
                    "0 or more",
                )?;
            }
            Optimizer::Sgd(rule) => {
                let Sgd {
                    momentum,
                    nesterov,
                    weight_decay,
                } = rule;
                check(
                    share(momentum),
                    "momentum",
                    momentum,
                    "at least 0 and below 1",
                )?;
                check(
                    !nesterov || momentum > 0.0,
                    "nesterov",
                    nesterov,
                    "a momentum above 0",
                )?;
                check(
                    weight_decay >= 0.0,
                    "weight_decay",
                    weight_decay,
                    "0 or more",
                )?;
            }
        }
        check(
            self.accumulate > 0,
            "accumulate",
            self.accumulate,
            "1 or more",
        )?;
        if let Some(norm) = self.clip_norm {
            check(norm > 0.0, "clip_norm", norm, "above 0")?;
        }
        if let Some(decay) = self.ema {
            check(share(decay), "ema", decay, "at least 0 and below 1")?;
        }
        let fraction = self.offload_fraction;
        check(
            (0.0..=1.0).contains(&fraction),
            "offload_fraction",
            fraction,
            "0 to 1",
        )?;
        let offload = format!("{:?}", self.offload);
        let fits = match self.offload {
            Offload::None => true,
            Offload::Optimizer => self.stage.shards_optimizer(),
            Offload::Parameters => self.stage.shards_parameters(),
        };
        check(
            fits,
            "offload",
            offload,
            "stage 1 to 3 for optimizer states, stage 3 for parameters",
        )?;
        check(self.prefetch <= 2, "prefetch", self.prefetch, "0, 1 or 2")?;
        if let Some(group) = self.shard_group {
            check(
                group > 0 && ranks.is_multiple_of(group),
                "shard_group",
                group,
                "a divisor of the number of ranks",
            )?;
        }
        let LossScale {
            initial,
            window,
            min,
        } = self.loss_scale;
        check(min > 0.0, "loss_scale.min", min, "above 0")?;
        check(
            initial >= min,
            "loss_scale.initial",
            initial,
            "at least the minimum",
        )?;
        check(
            initial.is_finite(),
            "loss_scale.initial",
            initial,
            "a finite number",
        )?;
        let factor = |value: f64| value >= 0.0 && value.is_finite();
        for group in &self.groups {
            let (lr, decay) = (group.lr_factor, group.weight_decay);
            check(factor(lr), "lr_factor", lr, "0 or more")?;
            check(factor(decay), "weight_decay", decay, "0 or more")?;
        }
        check(window > 0, "loss_scale.window", window, "1 or more")
    }

    /// Element type in which a rank holds gradients: sums over micro-batches lose nothing to rounding.
    pub(crate) fn gradient_element(&self) -> ElementType {
        match self.accumulate > 1 {
            true => self.precision.master(),
            false => self.reduce_element(),
        }
    }

    /// Element type in which gradients travel.
    pub(crate) fn reduce_element(&self) -> ElementType {
        match self.reduce_dtype {
            ReduceDtype::Full => self.precision.master(),
            ReduceDtype::Compute => self.precision.compute(),
        }
    }

    /// Index of the group of a parameter: into `groups`, or `groups.len()` for the implicit last one.
    pub(crate) fn group_of(&self, name: &str, shape: &[usize]) -> usize {
        let found = self
            .groups
            .iter()
            .position(|group| group.select.picks(name, shape));
        found.unwrap_or(self.groups.len())
    }

    /// The group with the index that [`Self::group_of`] gave.
    pub(crate) fn group(&self, index: usize) -> ParameterGroup {
        self.groups.get(index).cloned().unwrap_or(ParameterGroup {
            select: Select::Name("*".into()),
            lr_factor: 1.0,
            weight_decay: self.optimizer.weight_decay(),
            frozen: false,
        })
    }
}

fn check(ok: bool, key: &'static str, value: impl Display, expected: &'static str) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(Error::Setting {
        key,
        value: value.to_string(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_that_fits_takes_a_parameter() {
        let group = |select, weight_decay| ParameterGroup {
            select,
            lr_factor: 1.0,
            weight_decay,
            frozen: false,
        };
        let config = ZeroConfig {
            groups: vec![
                group(Select::Name("head.*".into()), 0.5),
                group(Select::Vectors, 0.0),
            ],
            ..ZeroConfig::default()
        };
        assert_eq!(config.group_of("head.bias", &[3]), 0);
        assert_eq!(config.group_of("body.bias", &[3]), 1);
        assert_eq!(config.group_of("body.weight", &[3, 3]), 2);
        assert_eq!(config.group(2).weight_decay, 0.01);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |config: ZeroConfig, ranks, expected: &str| {
            let message = config.validate(ranks).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        let config = ZeroConfig::default;
        config().validate(3).unwrap();
        refused(
            ZeroConfig {
                accumulate: 0,
                ..config()
            },
            1,
            "accumulate = 0",
        );
        refused(
            ZeroConfig {
                prefetch: 3,
                ..config()
            },
            1,
            "prefetch = 3",
        );
        refused(
            ZeroConfig {
                ema: Some(1.0),
                ..config()
            },
            1,
            "ema = 1",
        );
        refused(
            ZeroConfig {
                shard_group: Some(3),
                ..config()
            },
            4,
            "shard_group = 3",
        );
        let offload = Offload::Parameters;
        refused(
            ZeroConfig {
                offload,
                ..config()
            },
            1,
            "offload = Parameters",
        );
        let optimizer = Optimizer::Sgd(Sgd {
            momentum: 0.0,
            nesterov: true,
            weight_decay: 0.0,
        });
        refused(
            ZeroConfig {
                optimizer,
                ..config()
            },
            1,
            "nesterov = true",
        );
    }
}
