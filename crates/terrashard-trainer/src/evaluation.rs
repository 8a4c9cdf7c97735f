//! `test`: a checkpoint's map of the test region against the label, beside the NDWI baseline's.

use std::path::Path;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use terrashard_data::baseline::{self, Score, Upsampling};
use terrashard_data::{Rows, Scene};
use terrashard_layout::Offload;
use terrashard_raster::{Samples, Window};

use crate::config::Config;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::mapping::{Mapping, Receive};
use crate::record::{Display, Progress, Scores, TestRecord};
use crate::sharding::{Placement, Weights};
use crate::trained_model::TrainedModel;
use crate::training::same_scenes;

/// Measures a checkpoint on the test regions of a configuration's scenes.
///
/// Pixels are counted over all scenes together, as whole numbers, so the result does not depend on the number of ranks.
///
/// # Errors
/// [`Error::NotSupported`], [`Error::Checkpoint`], [`Error::Data`], [`Error::InvalidValue`] if the model takes other input than the configuration gives.
pub fn test(
    config: &Config,
    checkpoint: &Path,
    ranks: usize,
    display: Display,
) -> Result<TestRecord> {
    let began = Instant::now();
    let trained = TrainedModel::open(checkpoint)?;
    let data = &config.data;
    if trained.bands != data.bands || trained.model.scale != config.model.scale {
        let names = |bands: &[crate::config::Band]| {
            bands
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let expected = format!(
            "what {} was trained on: {} at {} pixels per pixel",
            checkpoint.display(),
            names(&trained.bands),
            trained.model.scale
        );
        return Err(Error::invalid("data.bands", names(&data.bands), expected));
    }
    if trained.scaling != data.scaling {
        let shown = |scaling| {
            toml::to_string(scaling)
                .unwrap_or_default()
                .trim()
                .replace('\n', ", ")
        };
        let expected = format!(
            "what {} was trained with: {}",
            checkpoint.display(),
            shown(&trained.scaling)
        );
        return Err(Error::invalid(
            "data.scaling",
            shown(&data.scaling),
            expected,
        ));
    }
    let dataset = Dataset::open(config)?;
    let device = Device::flex();
    let placement = Placement {
        stage: config.zero.stage,
        offload: config.zero.offload == Offload::Parameters,
        prefetch: config.zero.prefetch,
        persist_bytes: config.zero.persist_bytes,
    };
    let weights = Weights::new(&trained, placement, &device)?;
    let mapping = Mapping {
        weights: &weights,
        device: &device,
        classes: trained.model.classes,
        ranks,
        tile: data.tile(),
        overlap: data.overlap,
    };
    let (mut ours, mut theirs) = (Score::default(), Some(Score::default()));
    for (scene, region) in dataset.test_regions() {
        let labels = scene.labels(region)?;
        let mut map = Map::new(
            &scene,
            region,
            trained.threshold,
            display,
            Duration::from_secs_f64(config.log.seconds),
        );
        mapping.run(&scene, region, &mut map)?;
        map.progress.finish();
        merge(
            &mut ours,
            &Score::of(&map.classes, &labels, region.width * scene.scale()),
        );
        theirs = match (theirs, ndwi(&scene, region)?) {
            (Some(mut sum), Some(score)) => {
                merge(&mut sum, &score);
                Some(sum)
            }
            _ => None,
        };
    }
    if ours.all.pixels() == 0 {
        let expected = "a region with pixels that are labelled and have data";
        return Err(Error::invalid(
            "data.test",
            region(config, &trained),
            expected,
        ));
    }
    Ok(TestRecord {
        scores: Scores::of(&ours),
        threshold: trained.threshold,
        valid_pixels: ours.all.pixels(),
        shore_pixels: ours.shore.pixels(),
        baseline: theirs.as_ref().map(Scores::of),
        checkpoint: trained.source().path().into(),
        step: trained.step,
        region: region(config, &trained),
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// What is measured on, in words: `east`, or `east of other.tif` where the model was trained on other scenes.
fn region(config: &Config, trained: &TrainedModel) -> String {
    let data = &config.data;
    let value = toml::Value::try_from(data.test).expect("a region is a plain value");
    let part = value
        .as_str()
        .map_or_else(|| value.to_string(), ToString::to_string);
    if trained.scenes.is_empty() || same_scenes(&data.scenes, &trained.scenes) {
        return part;
    }
    let names = data.scenes.iter().map(|scene| {
        let name = scene.image.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    });
    format!("{part} of {}", names.collect::<Vec<_>>().join(", "))
}

/// The baseline's score, or none where the image does not name the bands that it needs.
fn ndwi(scene: &Scene, region: Window) -> Result<Option<Score>> {
    match baseline::score(scene, region, Upsampling::Nearest) {
        Ok(score) => Ok(Some(score)),
        Err(
            terrashard_data::Error::UnknownBand { .. } | terrashard_data::Error::BandCount { .. },
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn merge(sum: &mut Score, part: &Score) {
    sum.all.merge(&part.all);
    sum.shore.merge(&part.shore);
}

/// The classes of a region, as they come.
struct Map {
    classes: Vec<u8>,
    threshold: f32,
    progress: Progress,
}

impl Map {
    fn new(
        scene: &Scene,
        region: Window,
        threshold: f64,
        display: Display,
        every: Duration,
    ) -> Self {
        let classes = Vec::with_capacity(region.scaled(scene.scale()).pixels());
        Self {
            classes,
            threshold: threshold as f32,
            progress: Progress::new(display, "window", 0, 0, every),
        }
    }
}

impl Receive for Map {
    fn rows(&mut self, rows: Rows) -> Result<()> {
        let Samples::U8(classes) = rows.classes(self.threshold)?.into_samples() else {
            unreachable!("classes are bytes")
        };
        self.classes.extend(classes);
        Ok(())
    }

    fn window(&mut self, done: usize, windows: usize) {
        self.progress.set_length(windows as u64);
        self.progress.advance(done as u64, None, 1);
    }
}
