//! `chip`: scenes to a list of chips that `fit` trains on.

use std::path::{Path, PathBuf};

use serde::Serialize;
use terrashard_data::{
    ChipFiles, CutOptions, CutReport, Selection, Shares, SplitRule, cut, write_files,
};
use terrashard_raster::is_url;

use crate::config::{Config, SceneEntry};
use crate::dataset::{Dataset, entry_scaling};
use crate::error::{Error, Result};
use crate::output_file;
use crate::run_directory::replace_with;

/// How scenes are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitBy {
    /// By `data.train` and `data.test`.
    Regions,
    /// By whole scenes.
    Scenes,
    /// By squares of ground, of this side in pixels of an image.
    Blocks(usize),
}

/// What `chip` is asked for.
#[derive(Debug, Clone)]
pub struct ChipRequest {
    /// The index to be written.
    pub output: PathBuf,
    /// The folder for chips as files of their own; none for windows into the scenes.
    pub files: Option<PathBuf>,
    /// How scenes are split.
    pub split: SplitBy,
    /// How much train, validation and test get, where scenes or blocks are split.
    pub shares: [f64; 3],
    /// Pixels from one chip for training to the next; none where each pixel is in one chip.
    pub stride: Option<usize>,
}

/// What was cut: what `chip --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Chipped {
    /// The index.
    pub file: PathBuf,
    /// Scenes.
    pub scenes: usize,
    /// Side of a chip in pixels of an image.
    pub chip: usize,
    /// Chips, and what was left out and why; the index lists each.
    #[serde(flatten)]
    pub report: CutReport,
}

/// Cuts the scenes of a configuration, with its bands, classes, `data.chip`, `data.selection`, `data.ignore_from` and seed.
///
/// # Errors
/// [`Error::Data`]; [`Error::InvalidValue`] for an output that would replace what is read; [`Error::Write`].
pub fn chip(config: &Config, request: &ChipRequest) -> Result<Chipped> {
    let data = &config.data;
    if let Some(chips) = &data.chips {
        let expected = "scenes, which are cut: it is cut already";
        return Err(Error::invalid("data.chips", chips.display(), expected));
    }
    let read = data.scenes.iter().flat_map(|scene| {
        let others = [&scene.mask, &scene.highres, &scene.classification];
        let others = others.into_iter().flatten();
        others.chain([&scene.image]).map(PathBuf::as_path)
    });
    output_file::check("--output", &request.output, read)?;
    let shares = Shares {
        shares: request.shares,
        seed: config.train.seed,
    };
    let options = CutOptions {
        chip: data.chip,
        stride: request.stride,
        selection: Selection { ..data.selection },
        rule: match request.split {
            SplitBy::Regions => SplitRule::Regions(terrashard_data::Split {
                train: data.train,
                validation: data.validation,
                test: data.test,
            }),
            SplitBy::Scenes => SplitRule::Scenes(shares),
            SplitBy::Blocks(side) => SplitRule::Blocks { side, shares },
        },
    };
    // Without a mask there is nothing to train on, but images may be wanted beside it. Each window is read about once and block after
    // block, so that little is kept of it.
    let dataset = match data.scenes.iter().any(|scene| scene.highres.is_some()) {
        true => Dataset::pass_with_targets(config)?,
        false => Dataset::pass(config)?,
    };
    let mut scenes = Vec::with_capacity(data.scenes.len());
    for (entry, opened) in data.scenes.iter().zip(dataset.scenes()) {
        scenes.push((
            files(config, entry, opened.scene.image())?,
            opened.scene.clone(),
        ));
    }
    let mut index = cut(&scenes, &options)?;
    if let Some(folder) = &request.files {
        write_files(&mut index, &scenes, folder)?;
    }
    let folder = request
        .output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder).map_err(Error::write(folder))?;
    }
    replace_with(&request.output, |file| {
        index.write_geojson(&request.output, file)
    })?;
    Ok(Chipped {
        file: request.output.clone(),
        scenes: scenes.len(),
        chip: data.chip,
        report: CutReport::of(&index),
    })
}

/// The files of a scene as an index names them, with the offset that `auto` stands for.
fn files(
    config: &Config,
    entry: &SceneEntry,
    image: &dyn terrashard_raster::RasterSource,
) -> Result<ChipFiles> {
    let whole = |path: &Path| match is_url(path) {
        true => Ok(path.to_owned()),
        false => std::path::absolute(path).map_err(Error::read(path)),
    };
    let some = |path: &Option<PathBuf>| path.as_deref().map(whole).transpose();
    let offset = match entry.offset {
        Some(_) => Some(entry_scaling(&config.data.scaling, entry, image)?.offset),
        None => None,
    };
    Ok(ChipFiles {
        image: whole(&entry.image)?,
        mask: some(&entry.mask)?,
        highres: some(&entry.highres)?,
        classification: some(&entry.classification)?,
        offset,
    })
}
