//! Everything that can go wrong in a run, told in one line that names the file or key and the remedy.

use std::path::PathBuf;

use crate::device_memory;
use crate::record::counted;

/// The result of the trainer's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, and by that which exit code the program ends with ([`Error::exit_code`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Training as configured parted from plain training.
    #[error(
        "training as configured differs from plain training by {rel:.1e} of a parameter's norm, allowed are {bound:.0e}"
    )]
    NotEqual {
        /// The largest relative difference.
        rel: f64,
        /// What was allowed.
        bound: f64,
    },
    /// Files of a configuration are not as they have to be.
    #[error("{}: {} wrong and {suspicious} suspicious in its files", path.display(), counted(*wrong, "thing"))]
    Findings {
        /// The configuration.
        path: PathBuf,
        /// Findings that are wrong.
        wrong: usize,
        /// Findings that are suspicious.
        suspicious: usize,
    },
    /// A file that has to be there cannot be read.
    #[error("failed to read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file or folder cannot be written.
    #[error("failed to write {}: {source}; check the free space and the permissions of its folder", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A configuration or a record is not in its format.
    #[error("failed to parse {}: {message}", path.display())]
    Syntax {
        /// The file, or the `--set` of the command line.
        path: PathBuf,
        /// Where and why, in one line.
        message: String,
    },
    /// A configuration holds a key that nothing reads.
    #[error("failed to use {}: unknown key `{key}`; {}", path.display(), nearest_or_none(nearest))]
    UnknownKey {
        /// The configuration, or the `--set` of the command line.
        path: PathBuf,
        /// The key, with its section.
        key: String,
        /// The known key with the most similar name, if one is similar.
        nearest: Option<String>,
    },
    /// A key or flag has a value that it cannot take.
    #[error("failed to use `{key}`: got {got}, expected {expected}")]
    InvalidValue {
        /// The key with its section, or the flag.
        key: String,
        /// The value.
        got: String,
        /// What it may be.
        expected: String,
    },
    /// A required key is missing.
    #[error("failed to use {}: `{key}` is missing; {remedy}", path.display())]
    MissingKey {
        /// The configuration.
        path: PathBuf,
        /// The key, with its section.
        key: String,
        /// What to write.
        remedy: String,
    },
    /// A known option that this version does not offer.
    #[error("`{key}` is not supported yet; {remedy}")]
    NotSupported {
        /// The key with its section, or the flag.
        key: String,
        /// What to do instead.
        remedy: String,
    },
    /// A flag for what this build was built without.
    #[error(
        "`{flag}` is not in this build; build it with `--features terrashard-trainer/nccl`, and `cargo xtask libtorch` sets up \
         what that needs"
    )]
    NotInBuild {
        /// The flag with its value.
        flag: String,
    },
    /// LibTorch refuses how it is to compute.
    #[error("failed to set how LibTorch computes: {0}")]
    LibTorch(String),
    /// LibTorch finds no GPU.
    #[error(
        "`--device cuda` finds no gpu: check that `nvidia-smi` lists one, that CUDA_VISIBLE_DEVICES does not hide it, and that \
         the LibTorch in LD_LIBRARY_PATH is one for CUDA"
    )]
    NoGpu,
    /// Another process trains into the same run directory.
    #[error("failed to start in {}: another `fit` is running there; wait for it or choose another `--run`", path.display())]
    RunBusy {
        /// The run directory.
        path: PathBuf,
    },
    /// Another process writes the same output.
    #[error("failed to write {}: another `predict` is writing it; wait for it or choose another output", path.display())]
    OutputBusy {
        /// The output.
        path: PathBuf,
    },
    /// The three batch settings contradict each other.
    #[error(
        "failed to use `train.global_batch`, `train.micro_batch`, `train.accumulate` on {}: {reason}; \
         global_batch = micro_batch x accumulate x ranks, give two of the three",
        counted(*ranks, "rank")
    )]
    Batch {
        /// Number of ranks.
        ranks: usize,
        /// Which settings do not fit.
        reason: String,
    },
    /// The training region has fewer samples than there are ranks.
    #[error(
        "failed to share {} among {}; lower `zero.ranks`, or get more samples by a smaller {smaller}",
        counted(*samples, "training sample"),
        counted(*ranks, "rank")
    )]
    TooFewSamples {
        /// Number of chips in the training region.
        samples: usize,
        /// Number of ranks.
        ranks: usize,
        /// Settings that leave samples out.
        smaller: String,
    },
    /// The run directory holds another run's checkpoints.
    #[error("failed to start in {}: it already holds checkpoints; continue with `--resume auto` or choose another `--run`", path.display())]
    RunExists {
        /// The run directory.
        path: PathBuf,
    },
    /// No checkpoint was found where one was asked for.
    #[error("failed to find a checkpoint at {}; {remedy}", path.display())]
    NoCheckpoint {
        /// The path given.
        path: PathBuf,
        /// What to give instead.
        remedy: String,
    },
    /// Ranks on several nodes see other files under the same name.
    #[error(
        "rank {rank} does not see the same in {} as the others; put the run into a folder that all nodes share, and check that one's disk",
        path.display()
    )]
    UnlikeFiles {
        /// A run's checkpoints, or one of them.
        path: PathBuf,
        /// The first rank that sees something else.
        rank: usize,
    },
    /// A checkpoint of another project makes no model.
    #[error("failed to import {}: {source}", path.display())]
    Import {
        /// Its weights.
        path: PathBuf,
        /// Why not.
        #[source]
        source: terrashard_models::Error,
    },
    /// A checkpoint of another project lacks tensors of the encoder.
    #[error(
        "failed to import {}: it has no `{missing}`{}; import what it has with `--allow-partial`",
        path.display(), and_more(*others)
    )]
    PartialEncoder {
        /// The checkpoint.
        path: PathBuf,
        /// The first tensor of the model's encoder that it lacks.
        missing: String,
        /// How many others it lacks.
        others: usize,
    },
    /// A loss or gradient is not finite.
    #[error("the loss is {loss} at step {step}; lower `train.lr` or set `train.clip_norm`")]
    NonFinite {
        /// The step, counted from 1.
        step: u64,
        /// The loss.
        loss: f64,
    },
    /// A gradient is not finite, and the policy is to stop.
    #[error(
        "a gradient is not finite at step {step}{}: {origin}; lower `train.lr`, set `train.clip_norm`, or skip such steps with `train.nonfinite`",
        if *skipped > 0 { format!(", after {} before it", crate::record::counted(*skipped as usize, "skipped step")) } else { String::new() }
    )]
    NonFiniteGradient {
        /// The step, counted from 1.
        step: u64,
        /// Rank, micro-batch, parameter and chips.
        origin: String,
        /// Steps skipped in a row before it.
        skipped: u32,
    },
    /// Scenes or labels cannot be used.
    #[error(transparent)]
    Data(#[from] terrashard_data::Error),
    /// A raster cannot be read or written.
    #[error(transparent)]
    Raster(#[from] terrashard_raster::Error),
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] terrashard_models::Error),
    /// The parameters cannot be laid out.
    #[error(transparent)]
    Layout(#[from] terrashard_layout::Error),
    /// Sharding, reducing or updating failed.
    #[error(transparent)]
    Zero(#[from] terrashard_zero::Error),
    /// The ranks could not talk.
    #[error(transparent)]
    Collective(#[from] terrashard_collectives::Error),
    /// Two ranks do not exchange bytes, as `doctor` has found.
    #[error(
        "ranks {first} and {second} cannot exchange bytes: {verb} of {bytes} bytes: {source}; NCCL_P2P_DISABLE=1 goes around a direct \
         path that is broken, NCCL_SOCKET_IFNAME names the network interface"
    )]
    Link {
        /// The lower of the two.
        first: usize,
        /// The other.
        second: usize,
        /// What was called.
        verb: &'static str,
        /// Bytes of the buffer.
        bytes: u64,
        /// What the communicator reports.
        source: Box<terrashard_collectives::Error>,
    },
    /// A checkpoint or model file cannot be used.
    #[error(transparent)]
    Checkpoint(Box<terrashard_checkpoint::Error>),
    /// A checkpoint or model file could not be written.
    #[error("failed to save: {source}")]
    Save {
        /// What went wrong.
        #[source]
        source: Box<terrashard_checkpoint::Error>,
    },
    /// The disk has no room for a checkpoint.
    #[error(
        "failed to begin: a checkpoint takes {} MiB, {} has {} MiB free; free some space or choose another `--run`",
        needed.div_ceil(1 << 20), path.display(), free >> 20
    )]
    DiskSpace {
        /// The run directory.
        path: PathBuf,
        /// Bytes of a checkpoint.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Checkpoints that were looked at are damaged.
    #[error(
        "{damaged} of {checked} checkpoints are damaged, the first is {first}; {}",
        what_is_left(*damaged, *checked)
    )]
    DamagedCheckpoints {
        /// How many.
        damaged: usize,
        /// Of how many.
        checked: usize,
        /// The folder or file of the first.
        first: String,
    },
    /// Two checkpoints that were compared differ.
    #[error("the checkpoints differ in {}", counted(*differences, "place"))]
    CheckpointsDiffer {
        /// In how many tensors and values.
        differences: usize,
    },
    /// The system hands no signals over.
    #[error("failed to listen to signals: {source}")]
    Signals {
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A rank failed; the others gave up because of it.
    #[error("rank {rank}: {source}")]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// Its error.
        #[source]
        source: Box<Error>,
    },
    /// A collective operation failed in a step.
    #[error("step {step}: {source}")]
    Step {
        /// The step, counted from 1.
        step: u64,
        /// Why.
        #[source]
        source: Box<Error>,
    },
    /// The memory of a GPU is used up.
    #[error(
        "{who} ran out of gpu memory: {told}; `terrashard plan --memory` tells what fits: a smaller `train.micro_batch`, \
         `zero.recompute = \"recompute\"`, a higher `zero.stage`, or smaller tiles"
    )]
    DeviceMemory {
        /// The rank.
        who: String,
        /// The sizes.
        told: String,
    },
    /// The memory of a GPU cannot be limited.
    #[error("failed to limit a gpu's memory to {bytes} bytes by `zero.device_memory`: {reason}")]
    DeviceLimit {
        /// The limit.
        bytes: u64,
        /// What LibTorch said.
        reason: String,
    },
    /// `doctor` has found what will not work.
    #[error("{} found; the remedies stand beside them", counted(*count, "problem"))]
    Problems {
        /// How many.
        count: usize,
    },
    /// A thread panicked.
    #[error("{who} panicked: {message}")]
    Panicked {
        /// The thread.
        who: String,
        /// The message of the panic.
        message: String,
    },
    /// The system refused a thread.
    #[error("failed to start {who}: {source}; use fewer ranks")]
    Spawn {
        /// The thread.
        who: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

fn and_more(others: usize) -> String {
    match others {
        0 => String::new(),
        others => format!(" and {others} more of the encoder's tensors"),
    }
}

fn nearest_or_none(nearest: &Option<String>) -> String {
    match nearest {
        Some(nearest) => format!("the nearest known one is `{nearest}`"),
        None => "no known one is similar, so remove it".into(),
    }
}

impl From<terrashard_checkpoint::Error> for Error {
    fn from(error: terrashard_checkpoint::Error) -> Self {
        Error::Checkpoint(Box::new(error))
    }
}

impl Error {
    /// 2 for wrong use or bad input, 1 for a failure while working.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Write { .. }
            | Error::NonFinite { .. }
            | Error::NonFiniteGradient { .. }
            | Error::NotEqual { .. }
            | Error::Collective(_)
            | Error::Link { .. }
            | Error::Save { .. }
            | Error::Signals { .. }
            | Error::CheckpointsDiffer { .. }
            | Error::Panicked { .. }
            | Error::DeviceMemory { .. }
            | Error::DeviceLimit { .. }
            | Error::Problems { .. }
            | Error::Spawn { .. } => 1,
            Error::Zero(source) => match source {
                terrashard_zero::Error::Setting { .. }
                | terrashard_zero::Error::HostMemory { .. }
                | terrashard_zero::Error::LoadState { .. } => 2,
                _ => 1,
            },
            Error::Raster(source) | Error::Data(terrashard_data::Error::Raster(source)) => {
                match source {
                    terrashard_raster::Error::Write { .. }
                    | terrashard_raster::Error::Incomplete { .. }
                    | terrashard_raster::Error::Misplaced { .. } => 1,
                    _ => 2,
                }
            }
            Error::Data(terrashard_data::Error::LoaderPanicked) => 1,
            Error::Rank { source, .. } | Error::Step { source, .. } => source.exit_code(),
            _ => 2,
        }
    }

    /// With the step, where it is of a collective operation, which does not know of steps.
    pub(crate) fn at_step(self, step: u64) -> Error {
        match self {
            Error::Collective(_) | Error::Zero(terrashard_zero::Error::Collective { .. }) => {
                Error::Step {
                    step,
                    source: Box::new(self),
                }
            }
            other => other,
        }
    }

    /// A closure for `map_err` on reading `path`.
    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Read { path, source }
    }

    /// A closure for `map_err` on writing `path`.
    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Write { path, source }
    }

    /// For `map_err` on writing a checkpoint or model file: [`Error::Save`], or [`Error::Checkpoint`] if one that it is made of cannot
    /// be read.
    pub(crate) fn save(source: terrashard_checkpoint::Error) -> Error {
        let source = match source {
            terrashard_checkpoint::Error::Fetch { tensor, source } => match source.downcast() {
                Ok(source) => return Error::Checkpoint(source),
                Err(source) => terrashard_checkpoint::Error::Fetch { tensor, source },
            },
            other => other,
        };
        Error::Save {
            source: Box::new(source),
        }
    }

    /// A panic, or memory of a GPU that is used up, which LibTorch tells by one.
    pub(crate) fn panicked(who: String, message: String) -> Error {
        match device_memory::used_up(&message) {
            Some(told) => Error::DeviceMemory { who, told },
            None => Error::Panicked { who, message },
        }
    }

    /// The value of a key that it cannot take.
    pub(crate) fn invalid(
        key: impl Into<String>,
        got: impl ToString,
        expected: impl Into<String>,
    ) -> Error {
        Error::InvalidValue {
            key: key.into(),
            got: got.to_string(),
            expected: expected.into(),
        }
    }
}

/// What a run goes on from where checkpoints are damaged.
fn what_is_left(damaged: usize, checked: usize) -> &'static str {
    match damaged < checked {
        true => "fit goes on from the newest that is whole",
        false => {
            "none is whole: restore one from a copy, or take what is left with `fit --allow-partial`"
        }
    }
}
