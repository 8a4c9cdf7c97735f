//! `test`: a checkpoint's map of the test region against the label, and its super-resolved image against the one at high
//! resolution, beside the trivial baselines.

use std::path::Path;
use std::time::{Duration, Instant};

use terrashard_data::baseline::{self, Score, Truth, Upsampling};
use terrashard_data::{
    BandSelection, Block, Comparison, ConfusionMatrix, Fidelity, Scene, bicubic,
};
use terrashard_layout::Offload;
use terrashard_raster::{ReadLimits, Samples, Window};

use crate::config::{Band, Config, Device, HighresSection};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::footprint::Request;
use crate::mapping::{Layers, Mapping, Receive};
use crate::record::{ClassScores, Display, ImageScores, Progress, Scores, TestRecord};
use crate::sharding::{Placement, Weights};
use crate::trained_model::TrainedModel;
use crate::training::same_scenes;

/// How a test is run.
#[derive(Debug, Clone, Copy)]
pub struct TestOptions {
    /// Where tensors are.
    pub device: Device,
    /// Ranks, each a thread.
    pub ranks: usize,
    /// Bytes that the process stays below; none sets no limit.
    pub memory: Option<u64>,
    /// How progress is shown.
    pub display: Display,
}

/// Measures a checkpoint on the test regions of a configuration's scenes.
///
/// Pixels are counted over all scenes together, as whole numbers, so the result does not depend on the number of ranks. Windows
/// that overlap are blended first, so that each pixel counts once.
///
/// # Errors
/// [`Error::NotSupported`], [`Error::Checkpoint`], [`Error::Data`], [`Error::InvalidValue`] if the model takes other input than the configuration gives.
pub fn test(config: &Config, checkpoint: &Path, options: &TestOptions) -> Result<TestRecord> {
    let TestOptions {
        device,
        ranks,
        memory,
        display,
    } = *options;
    let began = Instant::now();
    let trained = TrainedModel::open(checkpoint)?;
    let data = &config.data;
    let was_trained = |what: String| format!("{what}, as {} was trained", checkpoint.display());
    for (key, got, expected) in [
        ("model.scale", config.model.scale, trained.model.scale),
        ("model.classes", config.model.classes, trained.model.classes),
    ] {
        if got != expected {
            return Err(Error::invalid(key, got, was_trained(expected.to_string())));
        }
    }
    if trained.bands != data.bands {
        let names = |bands: &[crate::config::Band]| {
            bands
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let expected = was_trained(names(&trained.bands));
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
    if with_image {
        check_highres(&trained, &data.highres, checkpoint)?;
    }
    let dataset = match (with_image, memory) {
        (true, None) => Dataset::open_with_targets(config)?,
        (false, None) => Dataset::open(config)?,
        (true, Some(_)) => Dataset::stream_with_targets(config)?,
        (false, Some(_)) => Dataset::stream(config)?,
    };
    let devices = device.of_ranks(ranks)?;
    let placement = Placement {
        stage: config.zero.stage,
        offload: config.zero.offload == Offload::Parameters,
        prefetch: config.zero.prefetch,
        persist_bytes: config.zero.persist_bytes,
    };
    let weights = Weights::new(&trained, placement, &devices)?;
    let layers = match with_image {
        true => Layers::ClassesAndImage,
        false => Layers::Classes,
    };
    let request = Request {
        model: &trained.model,
        layers,
        tile: data.tile(),
        overlap: data.overlap,
        ranks,
        device,
        parameters: trained.parameter_bytes(device)?,
        memory,
    };
    let several = trained.model.classes > 1;
    let mut ours = Score::default();
    let mut theirs = (!several).then(Score::default);
    let mut matrix = ConfusionMatrix::new(trained.model.classes.max(2));
    let (mut image, mut enlarged) = (Fidelity::default(), Some(Fidelity::default()));
    for (scene, region) in dataset.into_test_regions() {
        let fit = request.fit(scene.metadata(), region, &|block| {
            readers_bytes(&scene) + counted_bytes(&scene, region, block)
        })?;
        let mapping = Mapping {
            weights: &weights,
            classes: trained.model.classes,
            layers,
            ranks: fit.ranks,
            tile: fit.tile,
            overlap: data.overlap,
        };
        let progress = Progress::new(
            display,
            "window",
            0,
            0,
            Duration::from_secs_f64(config.log.seconds),
        );
        for warning in trained.unlike(&scene)? {
            let name = scene.image().path().display();
            progress.say(&format!("warning: {name}: {warning}"));
        }
        let mut map = Map {
            scene: &scene,
            region,
            segmentation: trained.model.classes,
            threshold: trained.threshold as f32,
            matrix: &mut matrix,
            score: (!several).then_some(&mut ours),
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
        let images = map.image;
        theirs = match (theirs, several) {
            (Some(mut sum), false) => ndwi(&scene, region)?.map(|score| {
                sum.merge(&score);
                sum
            }),
            _ => None,
        };
        if let Some(images) = images {
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

/// What the readers of a scene's files keep decoded.
fn readers_bytes(scene: &Scene) -> u64 {
    let files = 1 + usize::from(scene.has_mask()) + usize::from(scene.target_bands().is_some());
    (files * ReadLimits::default().cache_bytes) as u64
}

/// What counting a block takes: its truth, and for images whole rows of both, of their enlargement and of their moments.
fn counted_bytes(scene: &Scene, region: Window, (width, height): (usize, usize)) -> u64 {
    let fine = scene.scale() * scene.scale();
    let truth = 16 * width * height * fine;
    let bands = scene.target_bands().unwrap_or(0);
    let rows = region.width * (3 * 4 * height * fine + 2 * Comparison::ROW_BYTES * scene.scale());
    (truth + bands * rows) as u64
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

/// Images of a region as they are compared with the one at high resolution.
struct Images {
    model: Comparison,
    /// The image's bands that are enlarged, if they are known.
    bicubic: Option<(Vec<usize>, Comparison)>,
    /// The model's image in the row of windows at hand: rows are compared over the whole width.
    rows: Option<Strip>,
}

/// Rows of an image that fill up block by block.
struct Strip {
    /// Where the rows lie, in pixels of the image from the region's corner.
    place: Window,
    /// `[bands, rows, width]` on the fine grid.
    values: Vec<f32>,
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
            rows: None,
        })
    }

    /// Takes the next block, which counts from the corner of the region.
    fn add(&mut self, scene: &Scene, region: Window, block: &Block) -> Result<()> {
        let Window { row, height, .. } = block.image;
        let place = Window::new(0, row, region.width, height);
        let fine = place.scaled(block.scale);
        let strip = self.rows.get_or_insert_with(|| Strip {
            place,
            values: vec![0.0; block.channels * fine.pixels()],
        });
        let from = block.window();
        for (channel, plane) in block.values.chunks_exact(from.pixels()).enumerate() {
            for (row, line) in plane.chunks_exact(from.width).enumerate() {
                let at = (channel * fine.height + row) * fine.width + from.col;
                strip.values[at..at + from.width].copy_from_slice(line);
            }
        }
        // Blocks come from left to right.
        if block.image.col_end() < region.width {
            return Ok(());
        }
        let Some(Strip { place, values }) = self.rows.take() else {
            return Ok(());
        };
        let window = Window::new(
            region.col,
            region.row + place.row,
            place.width,
            place.height,
        );
        let truth = scene.target(window)?;
        self.model.add(&values, &truth);
        if let Some((bands, comparison)) = &mut self.bicubic {
            comparison.add(&bicubic::enlarge(scene, bands, window)?, &truth);
        }
        Ok(())
    }
}

/// The map of a region, counted as it comes.
struct Map<'a> {
    scene: &'a Scene,
    region: Window,
    /// Channels of the segmentation, which come first.
    segmentation: usize,
    threshold: f32,
    matrix: &'a mut ConfusionMatrix,
    /// With one class against the background.
    score: Option<&'a mut Score>,
    image: Option<Images>,
    progress: Progress,
}

impl Receive for Map<'_> {
    fn block(&mut self, block: Block, _zeros: u64) -> Result<()> {
        let classes = block.of_channels(0..self.segmentation);
        let Samples::U8(classes) = classes.classes(self.threshold)?.into_samples() else {
            unreachable!("classes are bytes")
        };
        let Window {
            col,
            row,
            width,
            height,
        } = block.image;
        let (col, row) = (self.region.col + col, self.region.row + row);
        let window = Window::new(col, row, width, height);
        match &mut self.score {
            Some(score) => {
                let truth = Truth::read(self.scene, self.region, window)?;
                self.matrix.add_masks(&classes, &truth.labels);
                score.add(&classes, &truth);
            }
            None => {
                let labels = self.scene.labels(window)?;
                self.matrix.add_masks(&classes, &labels);
            }
        }
        if let Some(images) = &mut self.image {
            let image = block.of_channels(self.segmentation..block.channels);
            images.add(self.scene, self.region, &image)?;
        }
        Ok(())
    }

    fn window(&mut self, done: usize, windows: usize, _reading: Duration) {
        self.progress.set_length(windows as u64);
        self.progress.advance(done as u64, None, 1);
    }
}
