//! `ckpt`: what lies in a run's folder of checkpoints, and whether it is sound.

mod comparison;

pub use comparison::{Changed, Comparison, compare};

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use terrashard_checkpoint::{
    Checkpoint, Keep, Source, State, TensorSpec, clean, in_force, prune, ranking, remains,
    step_folder, steps, superfluous,
};

use crate::config::CheckpointSection;
use crate::error::{Error, Result};
use crate::run_directory::RunDirectory;
use crate::trained_model::saved_config;
use crate::training::VALIDATION;

/// A run's checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listing {
    /// The step that `latest` names; none where there is no checkpoint, or the pointer is damaged.
    pub in_force: Option<u64>,
    /// The step with the least score of those that are by the same metric as that of `in_force`.
    pub best: Option<u64>,
    /// What the score of `in_force` is by: `loss` or one of its terms, or a metric of validation.
    pub scored_by: Option<String>,
    /// All, by step.
    pub checkpoints: Vec<Listed>,
    /// What crashes have left.
    pub remains: Vec<String>,
    /// What is wrong with the pointer, if anything is.
    pub fault: Option<String>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    /// Its step.
    pub step: u64,
    /// Number of ranks that wrote it.
    pub ranks: Option<usize>,
    /// Number of tensors.
    pub tensors: Option<usize>,
    /// Bytes of its files.
    pub bytes: Option<u64>,
    /// By what `keep_best` ranks it, the least is the best: the mean of the loss or one of its terms over the steps since the checkpoint
    /// before, or how far a metric of validation is from 1.
    pub score: Option<f64>,
    /// IoU of the validation after its step, if there was one.
    pub iou: Option<f64>,
    /// Why it cannot be opened, if it cannot. Values are not looked at.
    pub fault: Option<String>,
}

/// Lists a run's checkpoints. Manifests and lengths of files are looked at, values are not.
///
/// # Errors
/// [`Error::NoCheckpoint`] if the run has no folder of checkpoints, [`Error::Checkpoint`] if it cannot be listed.
pub fn list(run: &Path) -> Result<Listing> {
    let root = root(run)?;
    let list = |step: u64| {
        let opened = Checkpoint::open(step_folder(&root, step)).and_then(|checkpoint| {
            let bytes = checkpoint.disk_bytes()?;
            Ok((checkpoint, bytes))
        });
        match opened {
            Ok((checkpoint, bytes)) => Listed {
                step,
                ranks: Some(checkpoint.ranks()),
                tensors: Some(checkpoint.tensors().count()),
                bytes: Some(bytes),
                score: checkpoint.state().score,
                iou: validation_iou(checkpoint.state()),
                fault: None,
            },
            Err(error) => Listed {
                step,
                ranks: None,
                tensors: None,
                bytes: None,
                score: None,
                iou: None,
                fault: Some(error.to_string()),
            },
        }
    };
    let (in_force, fault) = match in_force(&root) {
        Ok(step) => (step, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let newest = in_force.and_then(|step| Checkpoint::open(step_folder(&root, step)).ok());
    Ok(Listing {
        in_force,
        best: ranking(&root)
            .ok()
            .and_then(|ranked| ranked.first().copied()),
        scored_by: newest.and_then(|checkpoint| checkpoint.state().scored_by.clone()),
        checkpoints: steps(&root)?.into_iter().map(list).collect(),
        remains: remains(&root)?,
        fault,
    })
}

fn validation_iou(state: &State) -> Option<f64> {
    state.values.get(VALIDATION)?.get("iou")?.as_f64()
}

/// What is in a checkpoint or an exported file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspected {
    /// The folder or file.
    pub path: PathBuf,
    /// Number of ranks that wrote it; none for a file.
    pub ranks: Option<usize>,
    /// Bytes on the disk.
    pub bytes: u64,
    /// The state of the run, or what the file says of its model.
    pub state: Value,
    /// By kind, how many tensors, elements and bytes.
    pub kinds: BTreeMap<String, Total>,
    /// All tensors, by name and kind.
    pub tensors: Vec<TensorSpec>,
}

/// Of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Tensors, those that share another's values included.
    pub tensors: usize,
    /// Elements, shared ones once.
    pub elements: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Looks into a run's checkpoint in force, one checkpoint, or an exported file.
///
/// # Errors
/// [`Error::Checkpoint`] if there is none, or its manifest or header is damaged; [`Error::Read`].
pub fn inspect(path: &Path) -> Result<Inspected> {
    let source = Source::open(path)?;
    let plain = |value: Result<Value, serde_json::Error>| value.expect("plain data is JSON");
    let (ranks, bytes, state) = match &source {
        Source::Checkpoint(checkpoint) => (
            Some(checkpoint.ranks()),
            checkpoint.disk_bytes()?,
            plain(serde_json::to_value(checkpoint.state())),
        ),
        Source::Model(file) => (
            None,
            fs::metadata(path).map_err(Error::read(path))?.len(),
            plain(serde_json::to_value(file.description())),
        ),
        _ => return Err(neither(path)),
    };
    let mut kinds = BTreeMap::<String, Total>::new();
    let tensors: Vec<TensorSpec> = source.tensors().into_iter().cloned().collect();
    for tensor in &tensors {
        let total = kinds.entry(tensor.kind.to_string()).or_default();
        total.tensors += 1;
        if tensor.tied_to.is_none() {
            total.elements += tensor.numel() as u64;
            total.bytes += (tensor.numel() * tensor.dtype.bytes()) as u64;
        }
    }
    Ok(Inspected {
        path: source.path().into(),
        ranks,
        bytes,
        state,
        kinds,
        tensors,
    })
}

/// Whether a checkpoint or a file is sound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// The folder or file.
    pub path: PathBuf,
    /// Bytes of tensors that were checked.
    pub bytes: u64,
    /// What is wrong: one entry for each damaged tensor, or one that nothing can be read without. None if it is sound.
    pub faults: Vec<String>,
}

/// Checks every byte of all of a run's checkpoints, of one checkpoint, or of an exported file.
///
/// # Errors
/// [`Error::Checkpoint`] if there is nothing to check.
pub fn verify(path: &Path) -> Result<Vec<Verified>> {
    let paths = match root(path) {
        Ok(root) => steps(&root)?
            .into_iter()
            .map(|step| step_folder(&root, step))
            .collect(),
        Err(_) => vec![path.to_path_buf()],
    };
    if paths.is_empty() {
        return Err(terrashard_checkpoint::Error::NoCheckpoint { path: path.into() }.into());
    }
    paths.into_iter().map(verify_one).collect()
}

fn verify_one(path: PathBuf) -> Result<Verified> {
    let found = |bytes, faults| Verified {
        path: path.clone(),
        bytes,
        faults,
    };
    if path.is_file() {
        let checked = Source::open(&path).and_then(|source| source.verify());
        return Ok(match checked {
            Ok(bytes) => found(bytes, Vec::new()),
            Err(error) => found(0, vec![error.to_string()]),
        });
    }
    let checkpoint = match Checkpoint::open_damaged(&path) {
        Ok(checkpoint) => checkpoint,
        Err(error @ terrashard_checkpoint::Error::NoCheckpoint { .. }) => return Err(error.into()),
        Err(error) => return Ok(found(0, vec![error.to_string()])),
    };
    let faults = checkpoint.faults();
    let named = faults
        .iter()
        .map(|fault| format!("{} `{}`: {}", fault.kind, fault.name, fault.error));
    Ok(match checkpoint.verify() {
        Ok(bytes) => found(bytes, Vec::new()),
        // A header that other readers stumble over, where all values are as they were.
        Err(error) if faults.is_empty() => found(0, vec![error.to_string()]),
        Err(_) => found(0, named.collect()),
    })
}

/// What to clear away.
#[derive(Debug, Clone, Copy, Default)]
pub struct GcOptions {
    /// The newest to keep; what the run says where `None`.
    pub keep_last: Option<usize>,
    /// The best to keep; what the run says where `None`.
    pub keep_best: Option<usize>,
    /// Whether nothing is to be removed.
    pub dry_run: bool,
}

/// What was cleared away, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cleared {
    /// Steps of checkpoints.
    pub removed: Vec<u64>,
    /// What crashes had left.
    pub remains: Vec<String>,
    /// Bytes of all that.
    pub bytes: u64,
    /// Steps that are still there.
    pub kept: Vec<u64>,
}

/// Removes old checkpoints of a run and what crashes have left. That in force stays.
///
/// # Errors
/// [`Error::RunBusy`] while the run trains, [`Error::InvalidValue`], [`Error::Checkpoint`] if the pointer or the checkpoint in force is
/// damaged (nothing is removed then), [`Error::Save`].
pub fn gc(run: &Path, options: GcOptions) -> Result<Cleared> {
    if options.keep_last == Some(0) {
        return Err(Error::invalid("--keep-last", 0, "at least 1"));
    }
    let root = root(run)?;
    // Whoever trains there removes what is old by itself, and writes what would look like remains.
    let whole = std::path::absolute(&root).unwrap_or_else(|_| root.clone());
    let _lock = match whole.parent() {
        Some(run) if run.join("config.toml").is_file() => Some(RunDirectory::new(run).lock()?),
        _ => None,
    };
    // What is older is what remains of the run where the newest is damaged.
    if let Some(newest) = in_force(&root)? {
        Checkpoint::open(step_folder(&root, newest))?.verify()?;
    }
    let settings = settings(&root);
    let keep = Keep {
        last: options.keep_last.unwrap_or(settings.keep_last),
        best: options.keep_best.unwrap_or(settings.keep_best),
    };
    let removed = superfluous(&root, keep)?;
    let remains = remains(&root)?;
    let folders = removed.iter().map(|step| step_folder(&root, *step));
    let bytes = folders
        .chain(remains.iter().map(|name| root.join(name)))
        .map(|path| bytes_of(&path))
        .sum();
    if !options.dry_run {
        clean(&root).map_err(Error::save)?;
        prune(&root, keep).map_err(Error::save)?;
    }
    let mut kept = steps(&root)?;
    kept.retain(|step| !removed.contains(step));
    Ok(Cleared {
        removed,
        remains,
        bytes,
        kept,
    })
}

/// What a run's newest checkpoint says of how many are kept.
fn settings(root: &Path) -> CheckpointSection {
    let newest = Checkpoint::open(root).map_err(Into::into);
    let config = newest.and_then(|checkpoint| saved_config(&checkpoint));
    config.map(|config| config.checkpoint).unwrap_or_default()
}

/// Bytes of a file, or of the files in a folder; what has gone meanwhile has none.
fn bytes_of(path: &Path) -> u64 {
    let size = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| size(&entry.path())).sum(),
        Err(_) => size(path),
    }
}

/// The folder of checkpoints that a path means: a run's, or itself.
fn root(path: &Path) -> Result<PathBuf> {
    let inner = path.join(terrashard_checkpoint::FOLDER);
    let is_root = path
        .file_name()
        .is_some_and(|name| name == terrashard_checkpoint::FOLDER);
    match (inner.is_dir(), is_root && path.is_dir()) {
        (true, _) => Ok(inner),
        (false, true) => Ok(path.into()),
        (false, false) => Err(Error::NoCheckpoint {
            path: path.into(),
            remedy: "give a run directory, which has a folder `checkpoints`".into(),
        }),
    }
}

fn neither(path: &Path) -> Error {
    Error::NoCheckpoint {
        path: path.into(),
        remedy: "give a run directory, a checkpoint or an exported file".into(),
    }
}
