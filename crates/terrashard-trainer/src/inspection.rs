//! `check`: everything that is wrong with the files of a configuration, before it is trained.

use serde::Serialize;
use terrashard_data::{
    BandSelection, Finding, Level, SceneFiles, SceneOptions, Split, inspect, unreadable,
};

use crate::concerns::{Concern, concerns};
use crate::config::{Config, SceneEntry};
use crate::dataset::{Dataset, entry_scaling, scene_options, target_options};
use crate::error::{Error, Result};

/// What `check --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Inspected {
    /// Whether nothing is wrong and nothing suspicious.
    pub ok: bool,
    /// Scenes that were looked at.
    pub scenes: usize,
    /// Findings that are wrong.
    pub wrong: usize,
    /// Findings that are suspicious.
    pub suspicious: usize,
    /// What was found, scene by scene.
    pub findings: Vec<Finding>,
}

/// Looks at all files of all scenes, to their last pixels, as `fit` would read them.
pub fn check(config: &Config) -> Inspected {
    let mut findings = Vec::new();
    for entry in &config.data.scenes {
        check_scene(config, entry, &mut findings);
    }
    // Of scenes that a training would refuse the parts say nothing.
    if findings.iter().all(|finding| finding.level != Level::Wrong) {
        let dataset = match config.model.superres {
            true => Dataset::stream_with_targets(config),
            false => Dataset::stream(config),
        };
        // What keeps them from being put together is told by the training, which has more to say of it.
        let concerns = dataset.and_then(|dataset| concerns(config, &dataset));
        let concerns = concerns.unwrap_or_default().into_iter();
        findings.extend(concerns.map(Concern::finding));
    }
    let of_level = |level| findings.iter().filter(|f| f.level == level).count();
    Inspected {
        ok: findings.is_empty(),
        scenes: config.data.scenes.len(),
        wrong: of_level(Level::Wrong),
        suspicious: of_level(Level::Suspicious),
        findings,
    }
}

fn check_scene(config: &Config, entry: &SceneEntry, findings: &mut Vec<Finding>) {
    let data = &config.data;
    let selection = BandSelection::Pick(data.bands.clone());
    let mut options = scene_options(&config.model, selection, &data.scaling, data.nodata);
    if let Ok(image) = terrashard_raster::open(&entry.image) {
        match entry_scaling(&data.scaling, entry, &*image) {
            Ok(scaling) => options = SceneOptions { scaling, ..options },
            Err(error) => findings.push(Finding::of_error(&entry.image, &error)),
        }
        let split = Split {
            train: data.train,
            validation: data.validation,
            test: data.test,
        };
        let metadata = image.metadata();
        if data.chips.is_none()
            && let Err(error) = split.windows(metadata.width, metadata.height)
        {
            findings.push(Finding::of_error(&entry.image, &error));
        }
    }
    let files = files(config, entry);
    let target = config.model.superres.then(|| target_options(&data.highres));
    findings.extend(inspect(&files, &options, target.as_ref()));
}

/// The files of a scene that a training reads.
fn files(config: &Config, entry: &SceneEntry) -> SceneFiles {
    let ignores = config.data.ignore_from.is_some();
    SceneFiles {
        image: entry.image.clone(),
        mask: entry.mask.clone(),
        highres: entry.highres.clone().filter(|_| config.model.superres),
        classification: entry.classification.clone().filter(|_| ignores),
    }
}

/// Leaves out the scenes of which a file is missing or does not read to its last pixel, and says of each what was found first.
///
/// # Errors
/// [`Error::InvalidValue`] where none is left.
pub fn leave_out_unreadable(config: &mut Config) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut kept = Vec::with_capacity(config.data.scenes.len());
    for entry in &config.data.scenes {
        match unreadable(&files(config, entry)) {
            Some(finding) => findings.push(finding),
            None => kept.push(entry.clone()),
        }
    }
    if let (true, Some(first)) = (kept.is_empty(), findings.first()) {
        return Err(Error::invalid(
            "data.scenes",
            format!(
                "{} scenes of which none can be read, the first for {}: {}",
                findings.len(),
                first.file.display(),
                first.message
            ),
            "at least one whose files are there and whole; `terrashard check` lists all that is wrong",
        ));
    }
    config.data.scenes = kept;
    Ok(findings)
}
