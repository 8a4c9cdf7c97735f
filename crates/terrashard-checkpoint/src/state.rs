//! The state of a training run that is not a tensor.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Where a run stands, independent of its rank count. Numbers come back with the bits they had; JSON has no
/// infinities and NaNs, keep those out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Optimizer steps done.
    pub step: u64,
    /// Samples drawn since the start, over all ranks: the global sample cursor.
    pub cursor: u64,
    /// The seed from which all generators are keyed.
    pub seed: u64,
    /// The learning-rate schedule's own state; `null` for a pure function of the step.
    #[serde(default)]
    pub schedule: Value,
    /// The effective configuration, as TOML text.
    #[serde(default)]
    pub config: String,
    /// Name and version of the program that wrote this.
    #[serde(default)]
    pub tool: String,
    /// How good the model is, where the run ranks its checkpoints by a metric: the least is the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// What that metric is called: scores are compared with those of the same one, or of none that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored_by: Option<String>,
    /// Whatever else the trainer needs back: bands and scaling, loss scale.
    #[serde(default)]
    pub values: Map<String, Value>,
}
