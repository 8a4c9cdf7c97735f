//! `test`: a checkpoint's map of the test region against the label, and its super-resolved image against the one at high
//! resolution, beside the trivial baselines.

use std::path::Path;
use std::time::{Duration, Instant};

use terrashard_data::baseline::{self, Score, Upsampling};
use terrashard_data::{BandSelection, Comparison, ConfusionMatrix, Fidelity, Rows, Scene, bicubic};
use terrashard_layout::Offload;
use terrashard_raster::{Samples, Window};

use crate::config::{Arithmetic, Band, Config, Device, HighresSection};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::mapping::{Layers, Mapping, Receive};
use crate::record::{ClassScores, Display, ImageScores, Progress, Scores, TestRecord};
use crate::sharding::{Placement, Weights};
use crate::trained_model::TrainedModel;
use crate::training::same_scenes;

/// Measures a checkpoint on the test regions of a configuration's scenes.
///
/// Pixels are counted over all scenes together, as whole numbers, so the result does not depend on the number of ranks. Windows
/// that overlap are blended first, so that each pixel counts once.
///
/// # Errors
/// [`Error::NotSupported`], [`Error::Checkpoint`], [`Error::Data`], [`Error::InvalidValue`] if the model takes other input than the configuration gives.
pub fn test(
    config: &Config,
    checkpoint: &Path,
    device: Device,
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
    let with_image =
        trained.model.superres && data.scenes.iter().all(|scene| scene.highres.is_some());
    let dataset = match with_image {
        true => {
            check_highres(&trained, &data.highres, checkpoint)?;
            Dataset::open_with_targets(config)?
        }
        false => Dataset::open(config)?,
    };
    // Threads share the first GPU and the model on it.
    let device = device.of_rank(0, ranks, Arithmetic::default())?;
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
        layers: match with_image {
            true => Layers::ClassesAndImage,
            false => Layers::Classes,
        },
        ranks,
        tile: data.tile(),
        overlap: data.overlap,
    };
    let several = trained.model.classes > 1;
    let mut ours = Score::default();
    let mut theirs = (!several).then(Score::default);
    let mut matrix = ConfusionMatrix::new(trained.model.classes.max(2));
    let (mut image, mut enlarged) = (Fidelity::default(), Some(Fidelity::default()));
    for (scene, region) in dataset.test_regions() {
        let labels = scene.labels(region)?;
        let progress = Progress::new(
            display,
            "window",
            0,
            0,
            Duration::from_secs_f64(config.log.seconds),
        );
        let mut map = Map {
            scene: &scene,
            region,
            classes: Vec::with_capacity(region.scaled(scene.scale()).pixels()),
            segmentation: trained.model.classes,
            threshold: trained.threshold as f32,
            image: match scene.target_bands() {
                Some(bands) if with_image => {
                    Some(Images::new(&scene, region, bands, &data.highres)?)
                }
                _ => None,
            },
            progress,
        };
        mapping.run(&scene, region, &mut map)?;
        map.progress.finish();
        matrix.add_masks(&map.classes, &labels);
        if !several {
            merge(
                &mut ours,
                &Score::of(&map.classes, &labels, region.width * scene.scale()),
            );
        }
        theirs = match (theirs, several) {
            (Some(mut sum), false) => ndwi(&scene, region)?.map(|score| {
                merge(&mut sum, &score);
                sum
            }),
            _ => None,
        };
        if let Some(images) = map.image {
            image.merge(&images.model.finish());
            enlarged = match (enlarged, images.bicubic) {
                (Some(mut sum), Some((_, comparison))) => {
                    sum.merge(&comparison.finish());
                    Some(sum)
                }
                _ => None,
            };
        }
    }
    if matrix.pixels() == 0 {
        let expected = "a region with pixels that are labelled and have data";
        return Err(Error::invalid(
            "data.test",
            region(config, &trained),
            expected,
        ));
    }
    Ok(TestRecord {
        scores: match several {
            true => Scores::of_classes(&matrix),
            false => Scores::of(&ours),
        },
        threshold: (!several).then_some(trained.threshold),
        valid_pixels: matrix.pixels(),
        per_class: match several {
            true => ClassScores::of(&matrix),
            false => Vec::new(),
        },
        image: with_image.then(|| ImageScores::of(&image, enlarged.as_ref())),
        shore_pixels: ours.shore.pixels(),
        baseline: theirs.as_ref().map(Scores::of),
        checkpoint: trained.source().path().into(),
        step: trained.step,
        region: region(config, &trained),
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Refuses to compare with images that are read otherwise than those that the branch has learned.
fn check_highres(
    trained: &TrainedModel,
    highres: &HighresSection,
    checkpoint: &Path,
) -> Result<()> {
    let Some(learned) = &trained.highres else {
        return Ok(());
    };
    let shown = |section: &HighresSection| {
        let HighresSection { bands, scaling, .. } = section;
        let bands: Vec<String> = bands.iter().map(Band::to_string).collect();
        let scaling = toml::to_string(scaling).unwrap_or_default();
        format!(
            "{} with {}",
            bands.join(", "),
            scaling.trim().replace('\n', ", ")
        )
    };
    if (&learned.bands, &learned.scaling) == (&highres.bands, &highres.scaling) {
        return Ok(());
    }
    let expected = format!(
        "what {} has learned: {}",
        checkpoint.display(),
        shown(learned)
    );
    Err(Error::invalid("data.highres", shown(highres), expected))
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

/// Images of a region as they are compared with the one at high resolution.
struct Images {
    model: Comparison,
    /// The image's bands that are enlarged, if they are known.
    bicubic: Option<(Vec<usize>, Comparison)>,
}

impl Images {
    fn new(scene: &Scene, region: Window, bands: usize, highres: &HighresSection) -> Result<Self> {
        let (path, metadata) = (scene.image().path(), scene.image().metadata());
        // Each by itself: two channels may be compared with one band.
        let place = |band: &Band| -> terrashard_data::Result<usize> {
            let one = BandSelection::Pick(vec![band.clone()]);
            Ok(one.resolve(path, metadata)?[0])
        };
        let places = |bands: &[Band]| bands.iter().map(place).collect::<Result<Vec<_>, _>>();
        let places = match &highres.baseline {
            Some(bands) => Some(places(bands)?),
            // A number says nothing of another file's bands.
            None => {
                let named = |band: &Band| matches!(band, Band::Name(_));
                let names = highres.bands.iter().all(named);
                names.then(|| places(&highres.bands).ok()).flatten()
            }
        };
        let width = region.width * scene.scale();
        Ok(Self {
            model: Comparison::new(width, bands),
            bicubic: places.map(|places| (places, Comparison::new(width, bands))),
        })
    }

    /// Takes the next rows; `window` counts in pixels of the whole image.
    fn add(&mut self, scene: &Scene, window: Window, values: &[f32]) -> Result<()> {
        let truth = scene.target(window)?;
        self.model.add(values, &truth);
        if let Some((bands, comparison)) = &mut self.bicubic {
            comparison.add(&bicubic::enlarge(scene, bands, window)?, &truth);
        }
        Ok(())
    }
}

/// The classes of a region, as they come.
struct Map<'a> {
    scene: &'a Scene,
    region: Window,
    classes: Vec<u8>,
    /// Channels of the segmentation, which come first.
    segmentation: usize,
    threshold: f32,
    image: Option<Images>,
    progress: Progress,
}

impl Receive for Map<'_> {
    fn rows(&mut self, rows: Rows) -> Result<()> {
        let classes = rows.of_channels(0..self.segmentation);
        let Samples::U8(classes) = classes.classes(self.threshold)?.into_samples() else {
            unreachable!("classes are bytes")
        };
        self.classes.extend(classes);
        if let Some(images) = &mut self.image {
            let Window { col, row, .. } = self.region;
            let window = Window::new(col, row + rows.row, rows.width, rows.height);
            let channels = self.segmentation..rows.channels;
            images.add(self.scene, window, &rows.of_channels(channels).values)?;
        }
        Ok(())
    }

    fn window(&mut self, done: usize, windows: usize) {
        self.progress.set_length(windows as u64);
        self.progress.advance(done as u64, None, 1);
    }
}
