//! Where a run starts: afresh, or at a checkpoint that was saved at any rank count and stage.

use std::collections::HashSet;
use std::ops::Range;

use serde_json::Value;
use terrashard_checkpoint::{Checkpoint, ElementType, Kind, State, in_force};
use terrashard_models::S2s2Net;
use terrashard_zero::{Progress, StateKind, ZeroOptimizer};

use super::same_training::{Difference, difference};
use super::saving::{self, kind};
use crate::config::{Batch, Config, Resume};
use crate::error::{Error, Result};
use crate::run_directory::RunDirectory;
use crate::trained_model::{load_buffers, saved_config};

/// Where a run starts.
#[derive(Debug)]
pub(super) enum Start {
    /// With initial values, at the first sample.
    Afresh,
    /// With everything that a checkpoint holds.
    Checkpoint(Box<Checkpoint>),
}

impl Start {
    /// Finds the start that the configuration asks for, and checks that it is the same training.
    pub(super) fn find(config: &Config, batch: Batch, run: &RunDirectory) -> Result<Self> {
        let there = run.checkpoints().exists() && in_force(run.checkpoints())?.is_some();
        let path = match &config.checkpoint.resume {
            Resume::None if there => {
                return Err(Error::RunExists {
                    path: run.root().into(),
                });
            }
            Resume::Auto if there => run.root(),
            Resume::From(path) => path,
            Resume::Auto | Resume::None => return Ok(Start::Afresh),
        };
        let checkpoint = Checkpoint::open(path)?;
        let saved = saved_config(&checkpoint)?;
        let differs = |key: &str, ours: String, theirs: String| {
            let expected = format!(
                "{theirs}, as in {}; keep that, or choose another `--run` for another training",
                checkpoint.folder().display()
            );
            Error::invalid(key, ours, expected)
        };
        if let Some(Difference { key, ours, theirs }) = difference(config, &saved) {
            return Err(differs(&key, ours, theirs));
        }
        // It may be derived from the number of ranks, which may change.
        let global = checkpoint.state().values.get("global_batch");
        if let Some(theirs) = global.filter(|theirs| **theirs != batch.global) {
            let (ours, theirs) = (batch.global.to_string(), theirs.to_string());
            return Err(differs("train.global_batch", ours, theirs));
        }
        Ok(Start::Checkpoint(Box::new(checkpoint)))
    }

    /// Steps done before.
    pub(super) fn step(&self) -> u64 {
        self.resumed_from().unwrap_or(0)
    }

    /// Samples taken before, over all ranks.
    pub(super) fn cursor(&self) -> u64 {
        match self {
            Start::Afresh => 0,
            Start::Checkpoint(checkpoint) => checkpoint.state().cursor,
        }
    }

    /// The checkpoint's step, if there is one.
    pub(super) fn resumed_from(&self) -> Option<u64> {
        match self {
            Start::Afresh => None,
            Start::Checkpoint(checkpoint) => Some(checkpoint.state().step),
        }
    }

    /// Gives a rank what it holds of the checkpoint.
    pub(super) fn restore(&self, optimizer: &mut ZeroOptimizer, model: &S2s2Net) -> Result<()> {
        let Start::Checkpoint(checkpoint) = self else {
            return Ok(());
        };
        let saved: HashSet<(String, Kind)> = checkpoint
            .tensors()
            .map(|tensor| (tensor.name.clone(), tensor.kind))
            .collect();
        // What was switched on since begins as in a new training: an average at the parameter, moments at zero.
        let read = |name: &str, of: StateKind, interval: Range<usize>| {
            let there = |kind| saved.contains(&(name.to_string(), kind));
            let from = match kind(of) {
                Kind::Ema if !there(Kind::Ema) => Kind::Parameter,
                moment @ (Kind::M | Kind::V) if !there(moment) && there(Kind::Parameter) => {
                    return Ok(vec![0; interval.len() * ElementType::F32.bytes()]);
                }
                kind => kind,
            };
            checkpoint.read(name, from, interval).map_err(Into::into)
        };
        optimizer.load(progress(checkpoint.state(), optimizer.progress()), &read)?;
        load_buffers(model, |name, length| {
            Ok(checkpoint.read(name, Kind::Buffer, 0..length)?)
        })
    }
}

/// How far the optimizer was. What a checkpoint of an earlier version does not say is as it was then: no step was skipped, and
/// nothing was scaled.
fn progress(state: &State, fresh: Progress) -> Progress {
    let number = |name: &str| state.values.get(name).and_then(Value::as_u64);
    let small = |name: &str| number(name).and_then(|number| u32::try_from(number).ok());
    let scale = state.values.get(saving::LOSS_SCALE).and_then(Value::as_f64);
    Progress {
        steps: number(saving::APPLIED_STEPS).unwrap_or(state.step),
        skipped: small(saving::SKIPPED_IN_A_ROW).unwrap_or(0),
        loss_scale: scale.or(fresh.loss_scale),
        steady: small(saving::STEADY_STEPS).unwrap_or(0),
    }
}
