//! Whether the disk has room for what a run saves, asked before the first step.

use std::path::Path;

use burn::tensor::Device;
use terrashard_models::parameters;

use crate::config::{Config, OptimizerRule};
use crate::doctor::free_space;
use crate::error::{Error, Result};
use crate::run_directory::RunDirectory;

/// Bytes beside the values of a checkpoint: its manifest, metrics and the like.
const BESIDE: u64 = 1 << 20;

/// Refuses to begin where one checkpoint more does not fit the disk. Where the system does not tell what is free, nothing is refused.
///
/// # Errors
/// [`Error::DiskSpace`], [`Error::Model`].
pub(super) fn check(config: &Config, run: &RunDirectory) -> Result<()> {
    let whole = std::path::absolute(run.root()).map_err(Error::read(run.root()))?;
    let there = whole.ancestors().find(|folder| folder.is_dir());
    let Some(free) = there.and_then(free_space) else {
        return Ok(());
    };
    compare(run.root(), free, needed(config)?)
}

fn compare(path: &Path, free: u64, needed: u64) -> Result<()> {
    if needed <= free {
        return Ok(());
    }
    let path = path.to_owned();
    Err(Error::DiskSpace { path, needed, free })
}

/// Bytes of a checkpoint: parameters, the optimizer's states and averages in single precision.
fn needed(config: &Config) -> Result<u64> {
    let shapes = parameters(&config.model.init(&Device::flex())?);
    let elements: u64 = shapes
        .iter()
        .map(|(_, shape)| shape.iter().product::<usize>() as u64)
        .sum();
    let states = match config.train.optimizer {
        OptimizerRule::AdamW => 2,
        OptimizerRule::Sgd => 1,
    };
    let averages = u64::from(config.train.ema.is_some());
    Ok(4 * elements * (1 + states + averages) + BESIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_does_not_fit_is_refused_with_both_numbers() {
        let text = r#"data.scenes = [{ image = "a.tif", mask = "b.tif" }]"#;
        let of = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
            let config = Config::parse(text, Path::new("run.toml"), Path::new("/"), &settings);
            needed(&config.unwrap()).unwrap() - BESIDE
        };
        let adam = of(&["train.steps=1"]);
        assert_eq!(adam % 12, 0);
        assert_eq!(of(&["train.steps=1", "train.ema=0.9"]), adam / 3 * 4);
        assert!(compare(Path::new("runs/water"), adam, adam).is_ok());
        let told = compare(Path::new("runs/water"), 5 << 20, 7 << 20).unwrap_err();
        assert_eq!(
            told.to_string(),
            "failed to begin: a checkpoint takes 7 MiB, runs/water has 5 MiB free; free some space or choose another `--run`"
        );
        assert_eq!(told.exit_code(), 2);
    }
}
