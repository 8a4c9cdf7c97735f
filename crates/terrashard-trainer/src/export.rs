//! `export`: a checkpoint's parameters and running statistics as one file that describes itself.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::Serialize;
pub use terrashard_checkpoint::{Export, Weights};
use terrashard_checkpoint::{Kind, Source};

use crate::error::{Error, Result};
use crate::output_file;
use crate::trained_model::TrainedModel;

/// What was exported: what `export --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Exported {
    /// The file.
    pub file: PathBuf,
    /// Tensors in it.
    pub matched: Vec<String>,
    /// Tensors that the model has and the checkpoint lacks: none, or it would be an error.
    pub missing: Vec<String>,
    /// Tensors of the checkpoint that the model lacks: none, or it would be an error.
    pub unexpected: Vec<String>,
}

/// Writes the model of a run's checkpoint in force, or of one checkpoint: the parameters, or their moving averages, in any element type.
///
/// # Errors
/// [`Error::Checkpoint`] if there is none, it is damaged, or its tensors are not those of the model that its configuration describes, [`Error::NoCheckpoint`] if it is a model file already,
/// [`Error::InvalidValue`] if the output is part of what is read, or the run has no moving average, [`Error::Save`].
pub fn export(checkpoint: &Path, output: &Path, wanted: Export) -> Result<Exported> {
    let trained = TrainedModel::open(checkpoint)?;
    let Source::Checkpoint(source) = trained.source() else {
        return Err(Error::NoCheckpoint {
            path: checkpoint.into(),
            remedy: "it is an exported file already; give a run directory or a checkpoint".into(),
        });
    };
    let has_average = || {
        let tensors = trained.source().tensors();
        tensors.iter().any(|tensor| tensor.kind == Kind::Ema)
    };
    if wanted.weights == Weights::Ema && !has_average() {
        let expected = "a run with a moving average, which `train.ema` switches on";
        return Err(Error::invalid("--ema", checkpoint.display(), expected));
    }
    output_file::check("--output", output, [checkpoint])?;
    // The file says which model it is of, and whoever opens it takes that for true.
    trained.skeleton(&Device::flex())?;
    terrashard_checkpoint::export(source, output, &trained.description(), wanted)
        .map_err(Error::save)?;
    let written = TrainedModel::open(output)?;
    let matched = written
        .source()
        .tensors()
        .iter()
        .map(|tensor| tensor.name.clone())
        .collect();
    Ok(Exported {
        file: output.into(),
        matched,
        missing: Vec::new(),
        unexpected: Vec::new(),
    })
}
