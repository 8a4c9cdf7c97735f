//! Where a run starts: afresh, or at a checkpoint that was saved at any rank count and stage.
//!
//! Nothing of the run is changed before all of the checkpoint has been read and agrees with its hashes and with the model.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;

use burn::tensor::Device;
use serde_json::Value;
use terrashard_checkpoint::{
    Checkpoint, ElementType, Kind, Matching, State, TensorSpec, in_force, step_folder, steps,
};
use terrashard_models::{S2s2Net, initial_value, parameters};
use terrashard_zero::{Progress, StateKind, ZeroOptimizer};

use super::readers::Readers;
use super::same_training::{Difference, changes, difference};
use super::saving::{self, kind};
use super::score::Score;
use crate::config::{Batch, Config, Resume};
use crate::error::{Error, Result};
use crate::record::counted;
use crate::run_directory::RunDirectory;
use crate::trained_model::{load_buffers, saved_config};

/// What becomes of a checkpoint that is damaged, or does not have all that the model has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Partial {
    /// It is refused by name; of a run's own, the newest that is whole is taken instead.
    #[default]
    Refused,
    /// What there is of it is taken, and the rest begins as in a new training.
    Allowed,
}

/// Tensors of a damaged checkpoint that are told each by its name.
const LOSSES_TOLD: usize = 8;

/// Where a run starts.
#[derive(Debug)]
pub(super) enum Start {
    /// With initial values, at the first sample.
    Afresh,
    /// With everything that a checkpoint holds.
    Checkpoint(Box<Resumed>),
}

/// A checkpoint that a run goes on from.
#[derive(Debug)]
pub(super) struct Resumed {
    checkpoint: Checkpoint,
    /// Tensors that it lacks or that are damaged.
    lost: HashSet<(String, Kind)>,
    /// The model's parameters with their shapes.
    shapes: BTreeMap<String, Vec<usize>>,
}

/// A start, with what a reader should know of how it was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) start: Start,
    /// Settings that the checkpoint was saved with and that are others now, in one line; none where it is the same.
    pub(super) changed: Option<String>,
    pub(super) warnings: Vec<String>,
}

impl From<Start> for Found {
    fn from(start: Start) -> Self {
        Self {
            start,
            changed: None,
            warnings: Vec::new(),
        }
    }
}

impl Start {
    /// Finds the start that the configuration asks for, reads all of it, and checks that it is the same training. Changes nothing.
    /// Collective among the processes of a run.
    pub(super) fn find(
        config: &Config,
        batch: Batch,
        run: &RunDirectory,
        partial: Partial,
        readers: &Readers,
    ) -> Result<Found> {
        let root = run.checkpoints();
        let saved = match root.exists() {
            true => steps(&root)?,
            false => Vec::new(),
        };
        readers.agree(&root, saved.last().copied())?;
        let there = !saved.is_empty();
        let mut warnings = Vec::new();
        let checkpoint = match (&config.checkpoint.resume, partial) {
            (Resume::None, _) if there => {
                return Err(Error::RunExists {
                    path: run.root().into(),
                });
            }
            (Resume::Auto | Resume::None, _) if !there => {
                // A pointer at a checkpoint that has gone is no new run.
                let gone = root.exists().then(|| in_force(&root)).transpose();
                return gone.map(|_| Start::Afresh.into()).map_err(Into::into);
            }
            (Resume::Auto | Resume::None, Partial::Refused) => {
                readers.newest_sound(&root, &mut warnings)?
            }
            (Resume::Auto | Resume::None, Partial::Allowed) => {
                newest_damaged(&root, &saved, &mut warnings)?
            }
            (Resume::From(path), Partial::Refused) => readers.sound(path)?,
            (Resume::From(path), Partial::Allowed) => Checkpoint::open_damaged(path)?,
        };
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
        let changed = told(&changes(config, &saved), checkpoint.state().step);
        let resumed = Resumed::new(config, checkpoint, partial, &mut warnings)?;
        Ok(Found {
            start: Start::Checkpoint(Box::new(resumed)),
            changed,
            warnings,
        })
    }

    /// Steps done before.
    pub(super) fn step(&self) -> u64 {
        self.resumed_from().unwrap_or(0)
    }

    /// Samples taken before, over all ranks.
    pub(super) fn cursor(&self) -> u64 {
        match self {
            Start::Afresh => 0,
            Start::Checkpoint(resumed) => resumed.checkpoint.state().cursor,
        }
    }

    /// The checkpoint's step, if there is one.
    pub(super) fn resumed_from(&self) -> Option<u64> {
        match self {
            Start::Afresh => None,
            Start::Checkpoint(resumed) => Some(resumed.checkpoint.state().step),
        }
    }

    /// What checkpoints are ranked by, as far as it was added up before.
    pub(super) fn score(&self, metric: &str) -> Score {
        match self {
            Start::Afresh => Score::new(metric),
            Start::Checkpoint(resumed) => {
                Score::carried(metric, &resumed.checkpoint.state().values)
            }
        }
    }

    /// Gives a rank what it holds of the checkpoint.
    pub(super) fn restore(&self, optimizer: &mut ZeroOptimizer, model: &S2s2Net) -> Result<()> {
        match self {
            Start::Afresh => Ok(()),
            Start::Checkpoint(resumed) => resumed.restore(optimizer, model),
        }
    }
}

/// What has changed since a step, key by key, with what it was.
fn told(changes: &[Difference], step: u64) -> Option<String> {
    let one =
        |Difference { key, ours, theirs }: &Difference| format!("`{key}` = {ours}, was {theirs}");
    let all: Vec<String> = changes.iter().map(one).collect();
    (!all.is_empty()).then(|| format!("settings changed since step {step}: {}", all.join("; ")))
}

impl Resumed {
    /// Compares what is there with what the model has.
    fn new(
        config: &Config,
        checkpoint: Checkpoint,
        partial: Partial,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let model = config.model.init(&Device::flex())?;
        let shapes: BTreeMap<String, Vec<usize>> = parameters(&model).into_iter().collect();
        let of_parameters = shapes.iter().map(|(name, shape)| {
            TensorSpec::new(
                name.as_str(),
                Kind::Parameter,
                shape.clone(),
                ElementType::F32,
            )
        });
        let of_buffers = model.buffers().into_iter().map(|(name, values)| {
            TensorSpec::new(name, Kind::Buffer, [values.len()], ElementType::F64)
        });
        let expected: Vec<TensorSpec> = of_parameters.chain(of_buffers).collect();
        let matching = Matching::of(checkpoint.tensors(), &expected);
        let mut lost = HashSet::new();
        if partial == Partial::Refused {
            if !matching.is_exact() {
                let path = checkpoint.folder().to_owned();
                return Err(terrashard_checkpoint::Error::Mismatch { path, matching }.into());
            }
        } else {
            let path = checkpoint.folder().display();
            let begins = "begins as in a new training";
            for spec in &expected {
                let there = checkpoint.tensor(&spec.name, spec.kind);
                if there
                    .is_none_or(|there| (&there.shape, there.dtype) != (&spec.shape, spec.dtype))
                {
                    lost.insert((spec.name.clone(), spec.kind));
                }
            }
            let mut losses = Vec::new();
            let lacks = matching.missing.iter().chain(&matching.different);
            losses.extend(lacks.map(|tensor| format!("{tensor} {begins}: {path} lacks it")));
            let unused = matching.unexpected.iter();
            losses.extend(
                unused.map(|tensor| format!("{tensor} of {path} is not used: the model has none")),
            );
            for fault in checkpoint.faults() {
                losses.push(format!(
                    "{} `{}` {begins}: {}",
                    fault.kind, fault.name, fault.error
                ));
                lost.insert((fault.name, fault.kind));
            }
            // A file that is missing is a line for each tensor in it.
            if losses.len() > LOSSES_TOLD {
                let others = counted(losses.len() - LOSSES_TOLD, "other tensor");
                losses.truncate(LOSSES_TOLD);
                losses.push(format!(
                    "and so with {others}: `terrashard ckpt verify {path}` lists those that are damaged"
                ));
            }
            warnings.extend(losses);
        }
        Ok(Self {
            checkpoint,
            lost,
            shapes,
        })
    }

    fn restore(&self, optimizer: &mut ZeroOptimizer, model: &S2s2Net) -> Result<()> {
        let checkpoint = &self.checkpoint;
        let saved: HashSet<(&str, Kind)> = checkpoint
            .tensors()
            .map(|tensor| (tensor.name.as_str(), tensor.kind))
            .collect();
        let is_lost = |name: &str, kind| {
            !self.lost.is_empty() && self.lost.contains(&(name.to_owned(), kind))
        };
        let there = |name: &str, kind| saved.contains(&(name, kind)) && !is_lost(name, kind);
        let seed = checkpoint.state().seed;
        // What was switched on since, or is lost, begins as in a new training: an average at the parameter, moments at zero.
        let read = |name: &str, of: StateKind, interval: Range<usize>| {
            let from = match kind(of) {
                Kind::Ema if !there(name, Kind::Ema) => Kind::Parameter,
                moment @ (Kind::M | Kind::V) if !there(name, moment) => {
                    return Ok(vec![0; interval.len() * ElementType::F32.bytes()]);
                }
                kind => kind,
            };
            match self.shapes.get(name) {
                Some(shape) if is_lost(name, from) => {
                    let values = &initial_value(name, shape, seed)[interval];
                    Ok(values
                        .iter()
                        .flat_map(|value| value.to_le_bytes())
                        .collect())
                }
                _ => checkpoint.read(name, from, interval).map_err(Into::into),
            }
        };
        optimizer.load(progress(checkpoint.state(), optimizer.progress()), &read)?;
        let fresh: BTreeMap<String, Vec<f64>> = model.buffers().into_iter().collect();
        load_buffers(model, |name, length| match is_lost(name, Kind::Buffer) {
            true => Ok(fresh[name]
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()),
            false => Ok(checkpoint.read(name, Kind::Buffer, 0..length)?),
        })
    }
}

/// The checkpoint in force in a folder, or where the pointer is damaged the newest, with a warning; damaged as it may be.
fn newest_damaged(root: &Path, saved: &[u64], warnings: &mut Vec<String>) -> Result<Checkpoint> {
    let newest = match in_force(root) {
        Err(error @ terrashard_checkpoint::Error::Pointer { .. }) => {
            let newest = saved.last().copied();
            warnings.extend(newest.map(|step| format!("{error}; going on from step {step}")));
            newest
        }
        other => other?,
    };
    let path = newest.map_or_else(|| root.to_owned(), |step| step_folder(root, step));
    Ok(Checkpoint::open_damaged(path)?)
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
