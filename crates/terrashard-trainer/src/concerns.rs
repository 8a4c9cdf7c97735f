//! What is suspicious of the parts of a configuration's scenes taken together, and of what they are to learn.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use terrashard_data::{Finding, IGNORE, Kind, Level, Scene, partition};
use terrashard_raster::Window;

use crate::config::Config;
use crate::dataset::{Dataset, Split};
use crate::error::Result;

/// Side of the windows that are read, in pixels of an image.
const SIDE: usize = 256;

/// One concern and the file that it is about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Concern {
    file: PathBuf,
    message: String,
    kind: Kind,
}

impl Concern {
    /// In one line.
    pub(crate) fn line(&self) -> String {
        format!("{}: {}", self.file.display(), self.message)
    }

    /// As what `check` finds.
    pub(crate) fn finding(self) -> Finding {
        Finding {
            level: Level::Suspicious,
            kind: self.kind,
            file: self.file,
            message: self.message,
            found: None,
            expected: None,
        }
    }
}

/// Looks for what a training would run with and learn nothing or measure nothing: a validation without a pixel of any class but the
/// background, an image at high resolution without a value or of one value. Reads no further than the first pixels that tell.
///
/// # Errors
/// [`crate::Error::Data`].
pub(crate) fn concerns(config: &Config, dataset: &Dataset) -> Result<Vec<Concern>> {
    let mut found = Vec::new();
    found.extend(validation(config, dataset)?);
    let mut seen = HashSet::new();
    for split in dataset.scenes() {
        if let Some(source) = split.scene.target_source()
            && seen.insert(source.path().to_owned())
        {
            found.extend(target(split, source.path())?);
        }
    }
    Ok(found)
}

fn validation(config: &Config, dataset: &Dataset) -> Result<Option<Concern>> {
    let mut first = None;
    for (scene, region) in dataset.validation_regions() {
        if !scene.has_mask() {
            continue;
        }
        first.get_or_insert_with(|| scene.image().path().to_owned());
        for window in partition(region, SIDE)? {
            let labels = scene.labels(window)?;
            if labels.iter().any(|label| !matches!(*label, 0 | IGNORE)) {
                return Ok(None);
            }
        }
    }
    let of = match config.data.chips {
        Some(_) => "the chips for validation",
        None => "`data.validation`",
    };
    Ok(first.map(|file| Concern {
        file,
        message: format!(
            "{of} hold no pixel of any class but the background, in no scene: IoU, F1 and recall cannot be measured on them; choose \
             others"
        ),
        kind: Kind::Label,
    }))
}

/// Whether an image at high resolution has values to be learnt, where it is trained on.
fn target(split: &Split, path: &Path) -> Result<Option<Concern>> {
    let bands = split.scene.target_bands().unwrap_or(1);
    let mut first: Vec<Option<f32>> = vec![None; bands];
    for region in &split.train {
        for window in partition(*region, SIDE)? {
            if differs(&split.scene, window, &mut first)? {
                return Ok(None);
            }
        }
    }
    let message = match first.iter().all(Option::is_none) {
        _ if split.train.is_empty() => return Ok(None),
        true => {
            "the image at high resolution has not one pixel with data where it is trained on: the branch learns nothing of it"
        }
        false => {
            "every pixel of the image at high resolution has one value where it is trained on: it is blank, and the branch would learn \
             that; set `data.highres.nodata` if the value stands for no data"
        }
    };
    Ok(Some(Concern {
        file: path.to_owned(),
        message: message.to_owned(),
        kind: Kind::NoData,
    }))
}

/// Whether any band of the image at high resolution has two values, here and where it was looked at before.
fn differs(scene: &Scene, window: Window, first: &mut [Option<f32>]) -> Result<bool> {
    let values = scene.target(window)?;
    let plane = window.scaled(scene.scale()).pixels();
    Ok(values.chunks(plane).zip(first).any(|(band, first)| {
        let mut present = band.iter().copied().filter(|value| !value.is_nan());
        present.any(|value| *first.get_or_insert(value) != value)
    }))
}
