//! Where a run starts: afresh, or at a checkpoint that was saved at any rank count and stage.

use std::ops::Range;

use terrashard_checkpoint::{Checkpoint, Kind, in_force};
use terrashard_models::S2s2Net;
use terrashard_zero::{StateKind, ZeroOptimizer};

use super::saving::kind;
use crate::config::{Config, Resume};
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
    pub(super) fn find(config: &Config, run: &RunDirectory) -> Result<Self> {
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
                "{theirs}, as in the checkpoint {}",
                checkpoint.folder().display()
            );
            Error::invalid(key, ours, expected)
        };
        if saved.model != config.model {
            let (ours, theirs) = (format!("{:?}", config.model), format!("{:?}", saved.model));
            return Err(differs("model", ours, theirs));
        }
        let (ours, theirs) = (config.train.seed, checkpoint.state().seed);
        if ours != theirs {
            return Err(differs("train.seed", ours.to_string(), theirs.to_string()));
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
        let read = |name: &str, of: StateKind, interval: Range<usize>| {
            checkpoint
                .read(name, kind(of), interval)
                .map_err(Into::into)
        };
        optimizer.load(checkpoint.state().step, &read)?;
        load_buffers(model, |name, length| {
            Ok(checkpoint.read(name, Kind::Buffer, 0..length)?)
        })
    }
}
