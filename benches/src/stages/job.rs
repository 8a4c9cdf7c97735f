//! One measurement's settings, as they travel to the processes that make it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a benchmark cannot be run as it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model that there is not.
    #[error("unknown model `{name}`: use tiny, b0 to b5, xl, or xl-N with N from 1 to 1000")]
    Model {
        /// What was given.
        name: String,
    },
    /// A sharding that there is not.
    #[error(
        "unknown sharding `{text}`: use a stage from 0 to 3, with `+recompute`, `+offload` or `+group4` behind it"
    )]
    Sharding {
        /// What was given.
        text: String,
    },
    /// A job that cannot be planned.
    #[error("failed to plan: {reason}")]
    Plan {
        /// Why.
        reason: String,
    },
    /// A device that this build has not.
    #[error(
        "this build has no {device}: build with `--features {feature}`, `cargo xtask libtorch` says how"
    )]
    Device {
        /// What was asked for.
        device: Device,
        /// What has it.
        feature: &'static str,
    },
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// burn's own backend on the CPU.
    Flex,
    /// LibTorch on the CPU.
    Tch,
    /// LibTorch on GPUs, one for each rank.
    Cuda,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flex => "cpu-flex",
            Self::Tch => "cpu-tch",
            Self::Cuda => "cuda",
        })
    }
}

/// Element types of the computation; master weights are in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits everywhere.
    Fp32,
    /// 32 bits, of which matrix products on GPUs read 19.
    Tf32,
    /// 16 bits with the exponent of 32.
    Bf16,
    /// 16 bits with loss scaling.
    Fp16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

/// What is sharded, offloaded and recomputed: `2`, `3+recompute`, `2+offload`, `3+group4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharding {
    /// ZeRO stage.
    pub stage: u8,
    /// Optimizer states in host memory, at stage 3 parameters too.
    pub offload: bool,
    /// Blocks run again in backward.
    pub recompute: bool,
    /// Ranks that shard together, where that is not all; groups of so many hold the same.
    #[serde(default)]
    pub group: Option<usize>,
}

impl FromStr for Sharding {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Sharding { text: text.into() };
        let mut parts = text.split('+');
        let stage = parts.next().and_then(|stage| stage.parse().ok());
        let mut sharding = Self {
            stage: stage.filter(|stage| *stage <= 3).ok_or_else(wrong)?,
            offload: false,
            recompute: false,
            group: None,
        };
        for part in parts {
            match part {
                "offload" if sharding.stage > 0 => sharding.offload = true,
                "recompute" => sharding.recompute = true,
                _ => {
                    let ranks = part.strip_prefix("group").and_then(|n| n.parse().ok());
                    let group = ranks.filter(|&ranks| ranks > 0 && sharding.stage > 0);
                    sharding.group = Some(group.ok_or_else(wrong)?);
                }
            }
        }
        Ok(sharding)
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |there: bool, name| if there { name } else { "" };
        let (offload, recompute) = (
            part(self.offload, "+offload"),
            part(self.recompute, "+recompute"),
        );
        write!(f, "{}{offload}{recompute}", self.stage)?;
        match self.group {
            Some(ranks) => write!(f, "+group{ranks}"),
            None => Ok(()),
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The model's name.
    pub model: String,
    /// Input height and width in pixels.
    pub px: usize,
    /// Samples of a rank's batch.
    pub batch: usize,
    /// Element type of the computation.
    pub precision: Precision,
    /// What is sharded.
    pub sharding: Sharding,
    /// Ranks.
    pub ranks: usize,
    /// What computes.
    pub device: Device,
    /// Steps that are timed.
    pub steps: usize,
    /// Steps before those.
    pub warm_up: usize,
    /// Whether communication overlaps with computation.
    pub overlap: bool,
    /// At stage 3 a parameter of fewer bytes stays whole.
    pub persist_bytes: usize,
    /// What a rank may take of its GPU in bytes, where it is to be seen whether that is enough: nothing but the steps is measured then.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Whether one more step is profiled after those that are timed.
    #[serde(default)]
    pub profile: bool,
    /// Whether GPUs run what comes again by graphs of its kernels.
    pub graphs: bool,
}

impl Job {
    /// The arguments of a process of ours that runs it.
    pub(super) fn arguments(&self) -> Vec<String> {
        let job = serde_json::to_string(self).expect("a job is plain data");
        vec!["stages-rank".into(), job]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shardings_are_read_as_they_are_written() {
        for text in ["0", "1", "3+recompute", "2+offload", "3+offload+recompute"] {
            assert_eq!(text.parse::<Sharding>().unwrap().to_string(), text);
        }
        for text in ["4", "", "2+", "0+offload", "x+offload", "2+Offload"] {
            let message = text.parse::<Sharding>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{text}`")), "{message}");
        }
    }
}
