//! `predict`: whole scenes to GeoTIFFs of classes, written as they are computed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use serde::Serialize;
use terrashard_data::{BandSelection, Rows, Scene, SceneOptions, image_spec, prediction_spec};
use terrashard_models::SUPERRES_CHANNELS;
use terrashard_raster::{GeoTiffSink, RasterSink, RasterSpec};

use crate::band_stack::{self, BandFile};
use crate::config::{Arithmetic, Device};
use crate::dataset::scene_options;
use crate::error::{Error, Result};
use crate::mapping::{Layers, Mapping, Receive};
use crate::output_file;
use crate::process_memory::peak_rss_bytes;
use crate::record::{Display, Progress};
use crate::sharding::{HeldParameters, Placement, Weights};
use crate::trained_model::TrainedModel;

/// What `predict` is asked for.
#[derive(Debug, Clone)]
pub struct PredictOptions {
    /// Scenes.
    pub inputs: Vec<PathBuf>,
    /// One scene from files of single bands, instead of `inputs`.
    pub bands: Vec<BandFile>,
    /// Output file, or a folder for several inputs.
    pub output: PathBuf,
    /// Where the super-resolved image goes, if it is wanted: a file, or a folder for several inputs.
    pub image: Option<PathBuf>,
    /// Run directory, checkpoint or exported file.
    pub checkpoint: PathBuf,
    /// Bytes to stay below, roughly: it decides whether a scene is kept decoded and how many threads run.
    pub memory: Option<u64>,
    /// Pixels of the image that neighbouring windows share, in place of the checkpoint's.
    pub overlap: Option<usize>,
    /// Where tensors are.
    pub device: Device,
    /// Ranks, each a thread.
    pub ranks: usize,
    /// Where the weights are kept.
    pub placement: Placement,
    /// How progress is shown.
    pub display: Display,
}

/// What was predicted: what `predict --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Prediction {
    /// The maps written.
    pub files: Vec<PathBuf>,
    /// The super-resolved images written, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<PathBuf>,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Millions of pixels of the map by that time.
    pub megapixels_per_second: f64,
    /// The most memory that the program held, where the system tells it.
    pub peak_rss_bytes: Option<u64>,
    /// With sharded weights, what a rank held of them at most, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_parameters: Option<HeldParameters>,
}

/// Bytes that one window takes while a model runs, by pixel of the image: measured with B0, generous for others.
const WINDOW_BYTES_PER_PIXEL: u64 = 12 << 10;

/// Side of the tiles of a super-resolved image: its samples are 16 times those of a map, and rows of tiles are kept in memory.
const IMAGE_TILE: usize = 128;

/// Predicts every input.
///
/// # Errors
/// [`Error::InvalidValue`] for arguments that do not fit together, [`Error::Checkpoint`], [`Error::Data`]; [`Error::Raster`] and
/// [`Error::Write`] where a map cannot be written. No file appears for a scene that fails.
pub fn predict(options: &PredictOptions) -> Result<Prediction> {
    let began = Instant::now();
    let trained = TrainedModel::open(&options.checkpoint)?;
    let outputs = outputs(options, "--output", &options.output)?;
    let images = match &options.image {
        None => Vec::new(),
        Some(image) if !trained.model.superres => {
            let expected =
                "a model with a super-resolution branch, trained with `model.superres = true`";
            return Err(Error::invalid("--image", image.display(), expected));
        }
        Some(image) => self::outputs(options, "--image", image)?,
    };
    let read = || {
        let bands = options.bands.iter().map(|band| band.path.as_path());
        let inputs = options.inputs.iter().map(PathBuf::as_path);
        inputs.chain(bands).chain([options.checkpoint.as_path()])
    };
    for output in &outputs {
        output_file::check("--output", output, read())?;
    }
    for image in &images {
        output_file::check("--image", image, read())?;
        if outputs
            .iter()
            .any(|output| output_file::same(output, image))
        {
            let expected = "another file than the map, or another folder";
            return Err(Error::invalid("--image", image.display(), expected));
        }
    }
    // Threads share the first GPU and the model on it.
    let device = options
        .device
        .of_rank(0, options.ranks, Arithmetic::default())?;
    let weights = Weights::new(&trained, options.placement, &device)?;
    let overlap = options.overlap.unwrap_or(trained.overlap);
    if overlap >= trained.tile {
        let expected = format!("less than the {} pixels of a window", trained.tile);
        return Err(Error::invalid("--overlap", overlap, expected));
    }
    let mapping = Mapping {
        weights: &weights,
        device: &device,
        classes: trained.model.classes,
        layers: match images.is_empty() {
            true => Layers::Classes,
            false => Layers::ClassesAndImage,
        },
        ranks: affordable(options, trained.tile)?,
        tile: trained.tile,
        overlap,
    };
    let mut pixels = 0;
    for (index, output) in outputs.iter().enumerate() {
        let scene = open(options, index, &trained)?;
        let sink = create(output, prediction_spec(scene.metadata(), scene.scale()))?;
        let image = match images.get(index) {
            Some(path) => {
                let spec = image_spec(scene.metadata(), scene.scale(), SUPERRES_CHANNELS);
                Some(create(path, spec.tile(IMAGE_TILE))?)
            }
            None => None,
        };
        let progress = Progress::new(options.display, "window", 0, 0, Duration::from_secs(5));
        let mut map = Map {
            sink,
            image,
            classes: trained.model.classes,
            threshold: trained.threshold as f32,
            progress,
        };
        mapping.run(&scene, scene.window(), &mut map)?;
        map.progress.finish();
        map.sink.finish().map_err(unwritten)?;
        if let Some(image) = map.image {
            image.finish().map_err(unwritten)?;
        }
        pixels += scene.window().scaled(scene.scale()).pixels();
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Prediction {
        files: outputs,
        images,
        seconds,
        megapixels_per_second: pixels as f64 / 1e6 / seconds,
        peak_rss_bytes: peak_rss_bytes(),
        held_parameters: weights.held(),
    })
}

/// Where the result of each input goes: `output`, the value of the flag `key`.
fn outputs(options: &PredictOptions, key: &str, output: &Path) -> Result<Vec<PathBuf>> {
    let several = options.inputs.len() > 1 || output.is_dir();
    let in_folder = |input: &PathBuf| {
        output
            .join(input.file_stem().unwrap_or_default())
            .with_extension("tif")
    };
    match (options.inputs.is_empty(), options.bands.is_empty()) {
        (true, true) => Err(Error::invalid(
            "IN",
            "nothing",
            "one or more scenes, or `--bands NAME=FILE,…`",
        )),
        (false, false) => Err(Error::invalid(
            "--bands",
            "a scene beside it",
            "either scenes or `--bands`",
        )),
        (true, false) if output.is_dir() => Err(Error::invalid(
            key,
            output.display(),
            "a file, for one scene of `--bands`",
        )),
        (true, false) => Ok(vec![output.to_owned()]),
        (false, true) if several => {
            let outputs: Vec<PathBuf> = options.inputs.iter().map(in_folder).collect();
            let twice = outputs
                .iter()
                .enumerate()
                .find(|(index, path)| outputs[..*index].contains(path));
            match twice {
                Some((_, path)) => Err(Error::invalid(
                    "IN",
                    format!("two scenes that give {}", path.display()),
                    "different names",
                )),
                None => Ok(outputs),
            }
        }
        (false, true) => Ok(vec![output.to_owned()]),
    }
}

fn open(options: &PredictOptions, index: usize, trained: &TrainedModel) -> Result<Scene> {
    let selection = BandSelection::Pick(trained.bands.clone());
    let scene = scene_options(&trained.model, selection, &trained.scaling, trained.nodata);
    let cache_bytes = options
        .memory
        .map_or(scene.cache_bytes, |memory| (memory / 4) as usize);
    let scene = SceneOptions {
        cache_bytes,
        ..scene
    };
    match options.inputs.get(index) {
        Some(path) => Ok(Scene::open(path, None, scene)?),
        None => Ok(Scene::new(band_stack::open(&options.bands)?, None, scene)?),
    }
}

fn create(output: &Path, spec: RasterSpec) -> Result<Box<dyn RasterSink>> {
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        fs::create_dir_all(folder).map_err(Error::write(folder))?;
    }
    Ok(Box::new(
        GeoTiffSink::create(output, spec).map_err(unwritten)?,
    ))
}

/// What a sink says, where the system refuses, as a failure to write: the words for reading are the same.
fn unwritten(error: terrashard_raster::Error) -> Error {
    match error {
        terrashard_raster::Error::Io { path, source, .. } => Error::Write { path, source },
        terrashard_raster::Error::NotFound { path } => {
            Error::write(path)(io::ErrorKind::NotFound.into())
        }
        other => other.into(),
    }
}

/// As many threads as asked for, or as the memory has room for.
fn affordable(options: &PredictOptions, tile: usize) -> Result<usize> {
    let Some(memory) = options.memory else {
        return Ok(options.ranks);
    };
    let window = (tile * tile) as u64 * WINDOW_BYTES_PER_PIXEL;
    match memory / 2 / window {
        0 => Err(Error::invalid(
            "--memory",
            format!("{memory} bytes"),
            format!("at least {} bytes for one window", 2 * window),
        )),
        room => Ok(options.ranks.min(room as usize)),
    }
}

/// A map on its way into a file, perhaps with the super-resolved image.
struct Map {
    sink: Box<dyn RasterSink>,
    image: Option<Box<dyn RasterSink>>,
    /// Channels of the segmentation, which come first.
    classes: usize,
    threshold: f32,
    progress: Progress,
}

impl Receive for Map {
    fn rows(&mut self, rows: Rows) -> Result<()> {
        let Some(image) = &mut self.image else {
            return self
                .sink
                .write(&rows.classes(self.threshold)?)
                .map_err(unwritten);
        };
        let classes = rows.of_channels(0..self.classes).classes(self.threshold)?;
        self.sink.write(&classes).map_err(unwritten)?;
        let values = rows.of_channels(self.classes..rows.channels).values()?;
        image.write(&values).map_err(unwritten)
    }

    fn window(&mut self, done: usize, windows: usize) {
        self.progress.set_length(windows as u64);
        self.progress.advance(done as u64, None, 1);
    }
}
