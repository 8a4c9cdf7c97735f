//! Settings of a sharded optimizer: small policy structs, validated once.

use terrashard_layout::{ElementType, Stage};

use crate::error::{Error, Result};

/// Settings of a [`crate::ZeroOptimizer`]. All ranks must use the same.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeroConfig {
    /// What is sharded. Default: stage 2.
    pub stage: Stage,
    /// Element type of parameters, gradients and optimizer states. Default: f32.
    pub dtype: ElementType,
    /// Size of a communication bucket in bytes; `None` derives it from the model.
    pub bucket_bytes: Option<usize>,
    /// Micro-batches in one optimizer step. Default: 1.
    pub accumulate: usize,
    /// What the gradients of ranks and micro-batches become together. Default: their sum.
    pub reduction: Reduction,
    /// The update rule.
    pub adamw: AdamW,
    /// Parameter groups; the first whose selection fits a parameter takes it. Parameters that none takes are in an
    /// implicit last group with learning-rate factor 1 and the weight decay of `adamw`.
    pub groups: Vec<ParameterGroup>,
    /// Largest global gradient norm: gradients are multiplied by `min(1, clip_norm / (norm + 1e-6))`.
    pub clip_norm: Option<f64>,
    /// What to do when a gradient is NaN or infinite. Default: abort.
    pub nonfinite: NonFinite,
}

impl Default for ZeroConfig {
    fn default() -> Self {
        Self {
            stage: Stage::Two,
            dtype: ElementType::F32,
            bucket_bytes: None,
            accumulate: 1,
            reduction: Reduction::Sum,
            adamw: AdamW::default(),
            groups: Vec::new(),
            clip_norm: None,
            nonfinite: NonFinite::Abort,
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

/// Parameters that are treated alike.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGroup {
    /// Which parameters belong to it.
    pub select: Select,
    /// Factor on the learning rate.
    pub lr_factor: f64,
    /// Weight decay of the group.
    pub weight_decay: f64,
    /// Frozen parameters have no gradient and no optimizer state, and are not updated.
    pub frozen: bool,
}

/// A rule that picks parameters by name or shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Tensors of two and more dimensions: what weight decay is usually meant for.
    Matrices,
    /// Scalars and vectors: biases and norm weights.
    Vectors,
    /// Names that match a pattern, where `*` stands for any run of characters: `stages.0.*`, `*.bias`.
    Name(String),
}

impl Select {
    /// Whether the rule picks the parameter `name` of shape `shape`.
    pub fn picks(&self, name: &str, shape: &[usize]) -> bool {
        match self {
            Select::Matrices => shape.len() >= 2,
            Select::Vectors => shape.len() < 2,
            Select::Name(pattern) => matches(pattern, name),
        }
    }
}

/// Whether `name` matches `pattern`, where `*` stands for any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(tail, &rest[at..]))
        }),
    }
}

/// What to do when a gradient is NaN or infinite on any rank. Every rank decides the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFinite {
    /// Return an error; parameters and states stay as they were.
    Abort,
    /// Skip the step; parameters and states stay as they were and the step is not counted.
    Skip,
}

impl ZeroConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`Error::Setting`] for a value out of range, [`Error::Stage`] for a stage that is not supported.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, key, value: String, expected| {
            if ok {
                Ok(())
            } else {
                Err(Error::Setting {
                    key,
                    value,
                    expected,
                })
            }
        };
        let AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } = self.adamw;
        check(
            (0.0..1.0).contains(&beta1),
            "beta1",
            beta1.to_string(),
            "at least 0 and below 1",
        )?;
        check(
            (0.0..1.0).contains(&beta2),
            "beta2",
            beta2.to_string(),
            "at least 0 and below 1",
        )?;
        check(epsilon > 0.0, "epsilon", epsilon.to_string(), "above 0")?;
        check(
            weight_decay >= 0.0,
            "weight_decay",
            weight_decay.to_string(),
            "0 or more",
        )?;
        check(
            self.accumulate > 0,
            "accumulate",
            self.accumulate.to_string(),
            "1 or more",
        )?;
        if let Some(norm) = self.clip_norm {
            check(norm > 0.0, "clip_norm", norm.to_string(), "above 0")?;
        }
        check(
            matches!(self.dtype, ElementType::F32 | ElementType::F64),
            "dtype",
            format!("{:?}", self.dtype),
            "F32 or F64",
        )?;
        if self.stage.shards_parameters() {
            return Err(Error::Stage { stage: self.stage });
        }
        Ok(())
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
            weight_decay: self.adamw.weight_decay,
            frozen: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let check = |pattern: &str, name: &str, expected| {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        };
        check("*", "", true);
        check("*.bias", "stages.0.bias", true);
        check("*.bias", "stages.0.bias.x", false);
        check(
            "stages.*.norm*.weight",
            "stages.3.blocks.1.norm2.weight",
            true,
        );
        check("stages.0", "stages.00", false);
    }

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
        let config = ZeroConfig {
            accumulate: 0,
            ..ZeroConfig::default()
        };
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains("accumulate = 0"), "{message}");
        let config = ZeroConfig {
            stage: Stage::Three,
            ..ZeroConfig::default()
        };
        assert!(matches!(config.validate(), Err(Error::Stage { .. })));
    }
}
