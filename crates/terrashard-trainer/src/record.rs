//! What a run tells about itself: a line per step for programs, a progress display for people.

mod progress;

pub use progress::{Display, Progress};

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrashard_layout::{RankBytes, Stage};

use crate::error::{Error, Result};
use crate::run_directory::RunDirectory;

/// One optimizer step, a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, counted from 1.
    pub step: u64,
    /// The loss over all ranks and micro-batches.
    pub loss: f64,
    /// The learning rate.
    pub lr: f64,
    /// Samples per second over all ranks, this step.
    pub images_s: f64,
    /// The global norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// Whether the update was left out.
    pub skipped: bool,
    /// Wall time of the step in seconds.
    pub seconds: f64,
    /// The terms of the loss, unweighted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, f64>,
}

impl StepRecord {
    /// The record as one line.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("a record is plain data") + "\n"
    }
}

/// One call of `fit`, a line of `sessions.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The checkpoint's step that this call started from; none if it started afresh.
    pub resumed_from_step: Option<u64>,
    /// The last step it made.
    pub last_step: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// ZeRO stage.
    pub stage: Stage,
    /// Samples in a step over all ranks.
    pub global_batch: usize,
    /// Wall time in seconds, from reading the configuration to the last checkpoint.
    pub seconds: f64,
    /// Samples of the training region.
    pub samples: usize,
    /// Elements of all parameters.
    pub parameters: u64,
    /// Predicted bytes on each rank at stages 0, 1, 2 and 3.
    pub predicted: Vec<RankBytes>,
    /// Bytes that the largest rank really held, at this call's stage.
    pub counted: Option<RankBytes>,
}

/// Appends to `metrics.jsonl`, a line at a time, so that a killed run leaves whole lines.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
}

impl Metrics {
    /// Opens the file of a run for appending.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn open(run: &RunDirectory) -> Result<Self> {
        let path = run.metrics();
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::write(&path))?;
        Ok(Self { path, file })
    }

    /// Appends one step.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append(&mut self, record: &StepRecord) -> Result<()> {
        self.file
            .write_all(record.to_line().as_bytes())
            .map_err(Error::write(&self.path))
    }
}
