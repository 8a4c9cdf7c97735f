//! `[zero]`: who owns which model states, and where they are kept.

use std::collections::BTreeMap;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use terrashard_layout::{Offload, Stage};
use terrashard_zero::Select;

use super::{Device, size};

/// `[zero]`: who owns which model states.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeroSection {
    /// What is sharded: 0 nothing, 1 optimizer states, 2 gradients as well, 3 parameters as well. Default: 0.
    pub stage: Stage,
    /// Number of ranks. `auto`, the default, is one for each GPU, and one on the CPU, whose cores one rank can fill.
    pub ranks: Ranks,
    /// Largest bucket of gradients in bytes. Default: derived from the model.
    pub bucket_bytes: Option<usize>,
    /// Parameters below this many bytes stay whole on every rank at stage 3. Default: 0.
    pub persist_bytes: usize,
    /// What is kept in host memory: `none`, `optimizer` (its states, from stage 1), or `parameters` (these too, at stage 3).
    /// Default: `none`.
    #[serde(deserialize_with = "offload")]
    pub offload: Offload,
    /// The share of the optimizer states that `offload` moves, 0 to 1. Default: all of them.
    pub offload_fraction: Option<f64>,
    /// What becomes of activations between forward and backward: `keep`, `recompute` them from their block's input, or
    /// `offload` that input to host memory; or a table from patterns of block names to these, such as
    /// `{ "stages.0.*" = "recompute" }`. Default: `keep`.
    pub recompute: RecomputeChoice,
    /// At stage 3, blocks whose parameters are gathered ahead, 0 to 2. Default: 0.
    pub prefetch: usize,
    /// Element type in which gradients are reduced: `fp32`, or `compute`, that of `train.precision`. Default: `fp32`.
    pub reduce_dtype: ReduceDtype,
    /// From stage 1, ranks that share one set of shards, a divisor of all; such groups replicate each other. Default: all ranks.
    pub shard_group: Option<usize>,
    /// Whether buckets travel while backward goes on. Default: `true`.
    pub overlap: bool,
    /// The most memory of its GPU that a rank takes, such as `"16GiB"`. Default: what there is.
    #[serde(
        deserialize_with = "size::deserialize",
        serialize_with = "size::serialize"
    )]
    pub device_memory: Option<u64>,
}

impl Default for ZeroSection {
    fn default() -> Self {
        Self {
            stage: Stage::Zero,
            ranks: Ranks::Auto,
            bucket_bytes: None,
            persist_bytes: 0,
            offload: Offload::None,
            offload_fraction: None,
            recompute: RecomputeChoice::All(Recompute::Keep),
            prefetch: 0,
            reduce_dtype: ReduceDtype::Fp32,
            shard_group: None,
            overlap: true,
            device_memory: None,
        }
    }
}

/// What is kept in host memory, with all its forms in the message where it is none of them.
fn offload<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Offload, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    value.clone().try_into().map_err(|_| {
        de::Error::custom(format!(
            "{value} is nothing that can be kept in host memory, write \"none\", \"optimizer\" (from stage 1) or \"parameters\" \
             (at stage 3)"
        ))
    })
}

/// Element type in which gradients are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceDtype {
    /// 32-bit floats.
    Fp32,
    /// That of the computation.
    Compute,
}

/// What becomes of a block's activations between forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// They are kept.
    Keep,
    /// They are computed again from the block's input.
    Recompute,
    /// The same, and the input is kept in host memory.
    Offload,
}

/// What becomes of the activations of all blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub enum RecomputeChoice {
    /// The same for every block.
    All(Recompute),
    /// By pattern of the block's name. The longest pattern that matches decides; where none does, activations are kept.
    ByBlock(BTreeMap<String, Recompute>),
}

impl RecomputeChoice {
    /// What becomes of the activations of `block`.
    pub fn of(&self, block: &str) -> Recompute {
        match self {
            RecomputeChoice::All(one) => *one,
            RecomputeChoice::ByBlock(patterns) => {
                let matching = patterns
                    .iter()
                    .filter(|(pattern, _)| Select::Name(pattern.to_string()).picks(block, &[]));
                let longest = matching.max_by_key(|(pattern, _)| pattern.len());
                longest.map_or(Recompute::Keep, |(_, one)| *one)
            }
        }
    }

    /// The first pattern that none of `blocks` matches.
    pub(crate) fn unmatched<'a>(&'a self, blocks: &[String]) -> Option<&'a str> {
        let RecomputeChoice::ByBlock(patterns) = self else {
            return None;
        };
        let matches = |pattern: &str| {
            let select = Select::Name(pattern.to_string());
            blocks.iter().any(|block| select.picks(block, &[]))
        };
        let mut patterns = patterns.keys().map(String::as_str);
        patterns.find(|pattern| !matches(pattern))
    }

    /// Whether every block keeps its activations.
    pub fn keeps_all(&self) -> bool {
        match self {
            RecomputeChoice::All(one) => *one == Recompute::Keep,
            RecomputeChoice::ByBlock(patterns) => {
                patterns.values().all(|one| *one == Recompute::Keep)
            }
        }
    }
}

impl TryFrom<toml::Value> for RecomputeChoice {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let choice = match value.clone() {
            toml::Value::Table(table) => toml::Value::Table(table)
                .try_into()
                .map(RecomputeChoice::ByBlock),
            word => word.try_into().map(RecomputeChoice::All),
        };
        choice.map_err(|_| {
            format!(
                "got {value}, expected \"keep\", \"recompute\", \"offload\", or a table from patterns of block names to \
                 these, such as {{ \"stages.0.*\" = \"recompute\" }}"
            )
        })
    }
}

impl From<RecomputeChoice> for toml::Value {
    fn from(choice: RecomputeChoice) -> Self {
        let value = match choice {
            RecomputeChoice::All(one) => toml::Value::try_from(one),
            RecomputeChoice::ByBlock(patterns) => toml::Value::try_from(patterns),
        };
        value.expect("words and tables of words are TOML")
    }
}

/// Number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub enum Ranks {
    /// One for each GPU; one on the CPU.
    Auto,
    /// This many.
    Count(usize),
}

impl Ranks {
    /// The number on `device`.
    pub fn count(self, device: Device) -> usize {
        match (self, device) {
            (Ranks::Count(count), _) => count,
            (Ranks::Auto, _) => device.gpus().max(1),
        }
    }
}

impl TryFrom<toml::Value> for Ranks {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        match &value {
            toml::Value::String(word) if word == "auto" => Ok(Ranks::Auto),
            toml::Value::Integer(count) if *count >= 0 => Ok(Ranks::Count(*count as usize)),
            _ => Err(format!(
                "got {value}, expected \"auto\" or a number of ranks"
            )),
        }
    }
}

impl From<Ranks> for toml::Value {
    fn from(ranks: Ranks) -> Self {
        match ranks {
            Ranks::Auto => toml::Value::String("auto".into()),
            Ranks::Count(count) => toml::Value::Integer(count as i64),
        }
    }
}
