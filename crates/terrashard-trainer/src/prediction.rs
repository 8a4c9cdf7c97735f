//! `predict`: whole scenes to GeoTIFFs, written as they are computed, and gone on with where an earlier call ended.

mod histogram;
mod identity;
mod journal;
mod products;
mod scene_map;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use terrashard_data::{BandSelection, Scene, SceneOptions};
use terrashard_layout::Stage;
use terrashard_raster::{Metadata, RasterSource, RasterSpec, ReadLimits};

use crate::band_stack::{self, BandFile};
use crate::config::Device;
use crate::dataset::scene_options;
use crate::error::{Error, Result};
use crate::footprint::{self, Fit, Request};
use crate::mapping::{Layers, Mapping};
use crate::output_file;
use crate::process_memory::peak_rss_bytes;
use crate::record::{Display, Progress};
use crate::sharding::{HeldParameters, Placement, Weights};
use crate::trained_model::TrainedModel;

pub use histogram::Histogram;
use identity::Identity;
use journal::Journal;
pub use products::ProbabilityType;
use products::{Output, Product};
use scene_map::SceneMap;

/// What `predict` is asked for.
#[derive(Debug, Clone)]
pub struct PredictOptions {
    /// Scenes.
    pub inputs: Vec<PathBuf>,
    /// One scene from files of single bands, instead of `inputs`.
    pub bands: Vec<BandFile>,
    /// Where the map of classes goes, if it is wanted: a file, or a folder for several inputs.
    pub output: Option<PathBuf>,
    /// Where the probabilities go, if they are wanted: a file, or a folder for several inputs.
    pub probability: Option<PathBuf>,
    /// How probabilities are stored.
    pub probability_type: ProbabilityType,
    /// Where the super-resolved image goes, if it is wanted: a file, or a folder for several inputs.
    pub image: Option<PathBuf>,
    /// Run directory, checkpoint or exported file.
    pub checkpoint: PathBuf,
    /// Bytes that the process stays below: it decides how large windows are, how many ranks run and what is kept decoded.
    pub memory: Option<u64>,
    /// Pixels of the image that neighbouring windows share, in place of the checkpoint's.
    pub overlap: Option<usize>,
    /// Side of the windows in pixels of the image, in place of the checkpoint's.
    pub tile: Option<usize>,
    /// Digital number that means "no data", in place of what the images declare and the checkpoint says.
    pub nodata: Option<f64>,
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
    /// The maps of classes written.
    pub files: Vec<PathBuf>,
    /// The probabilities written, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probabilities: Vec<PathBuf>,
    /// The super-resolved images written, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<PathBuf>,
    /// For each scene, the pixels of each class.
    pub classes: Vec<Histogram>,
    /// What the reader of the maps should know.
    pub warnings: Vec<String>,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Millions of pixels of the map by that time.
    pub megapixels_per_second: f64,
    /// Windows that earlier calls had finished.
    pub resumed_windows: usize,
    /// Bytes that were planned with, at most, for one scene.
    pub planned_bytes: u64,
    /// The most memory that the program held, where the system tells it.
    pub peak_rss_bytes: Option<u64>,
    /// With sharded weights, what a rank held of them at most, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_parameters: Option<HeldParameters>,
}

/// The share of pixels that are zero in every band above which a user is told that no value is declared for no data.
const ZEROS_WARNED_OF: f64 = 0.01;

/// Predicts every input.
///
/// # Errors
/// [`Error::InvalidValue`] for arguments that do not fit together, [`Error::Checkpoint`], [`Error::Data`]; [`Error::Raster`] and
/// [`Error::Write`] where a map cannot be written, [`Error::OutputBusy`] where another process does. No file appears for a scene
/// that fails, except the hidden journal of what is finished of it, which the next call goes on from.
pub fn predict(options: &PredictOptions) -> Result<Prediction> {
    let began = Instant::now();
    let trained = TrainedModel::open(&options.checkpoint)?;
    let products = products(options, &trained)?;
    let devices = match options.placement.stage {
        // Shards travel between threads of one device.
        Stage::Three => options.device.of_ranks(1)?,
        _ => options.device.of_ranks(options.ranks)?,
    };
    let weights = Weights::new(&trained, options.placement, &devices)?;
    let overlap = options.overlap.unwrap_or(trained.overlap);
    let tile = options.tile.unwrap_or(trained.tile);
    if overlap >= tile {
        let expected = format!("less than the {tile} pixels of a window");
        return Err(Error::invalid("--overlap", overlap, expected));
    }
    let wants_image = products
        .iter()
        .any(|(product, _)| *product == Product::Image);
    let request = Request {
        model: &trained.model,
        layers: match wants_image {
            true => Layers::ClassesAndImage,
            false => Layers::Classes,
        },
        tile,
        overlap,
        ranks: options.ranks,
        parameters: trained.parameter_bytes(options.device)?,
        memory: options.memory,
    };
    let mut done = Prediction {
        files: files(&products, |product| product == Product::Classes),
        probabilities: files(&products, |product| {
            matches!(product, Product::Probability(_))
        }),
        images: files(&products, |product| product == Product::Image),
        classes: Vec::new(),
        warnings: Vec::new(),
        seconds: 0.0,
        megapixels_per_second: 0.0,
        resumed_windows: 0,
        planned_bytes: 0,
        peak_rss_bytes: None,
        held_parameters: None,
    };
    let mut pixels = 0;
    for index in 0..options.inputs.len().max(1) {
        let work = SceneWork {
            options,
            trained: &trained,
            weights: &weights,
            request,
            index,
            products: products
                .iter()
                .map(|(product, paths)| (*product, paths[index].as_path()))
                .collect(),
        };
        pixels += work.predict(&mut done)?;
    }
    done.seconds = began.elapsed().as_secs_f64();
    done.megapixels_per_second = pixels as f64 / 1e6 / done.seconds;
    done.peak_rss_bytes = peak_rss_bytes();
    done.held_parameters = weights.held();
    Ok(done)
}

/// One scene, and what is made of it.
struct SceneWork<'a> {
    options: &'a PredictOptions,
    trained: &'a TrainedModel,
    weights: &'a Weights<'a>,
    request: Request<'a>,
    index: usize,
    products: Vec<(Product, &'a Path)>,
}

impl SceneWork<'_> {
    /// Predicts the scene and adds to what is done. Returns the pixels of its map.
    fn predict(&self, done: &mut Prediction) -> Result<usize> {
        let metadata = self.source(ReadLimits::default())?.metadata().clone();
        let fit = self.fit(&metadata)?;
        let scene = self.scene(fit)?;
        let mapping = Mapping {
            weights: self.weights,
            classes: self.trained.model.classes,
            layers: self.request.layers,
            ranks: fit.ranks,
            tile: fit.tile,
            overlap: self.request.overlap,
        };
        let mosaic = mapping.mosaic(scene.window(), scene.scale())?;
        let Some((_, anchor)) = self.products.first() else {
            return Ok(0);
        };
        for (_, path) in &self.products {
            products::make_folder(path)?;
        }
        let identity = self.identity(&scene, fit)?;
        let (journal, found) = Journal::open(anchor, &identity, mosaic.columns())?;
        let outputs = self.products.iter().map(|(product, path)| {
            let spec = self.spec(*product, scene.metadata());
            Output::create(*product, path, spec)
        });
        let every = Duration::from_secs(5);
        let mut map = SceneMap {
            outputs: outputs.collect::<Result<_>>()?,
            journal,
            classes: self.trained.model.classes,
            threshold: self.trained.threshold as f32,
            histogram: Histogram::new(self.trained.model.classes.max(2)),
            zeros: 0,
            done: found,
            progress: Progress::new(self.options.display, "window", 0, 0, every),
        };
        if found > 0 {
            let windows = found + mosaic.windows().len() - found;
            map.progress.say(&format!(
                "{}: {found} of {windows} windows were finished before",
                anchor.display()
            ));
            map.take_over()?;
        }
        let row = found / mosaic.columns();
        mapping.go_on(&scene, scene.window(), mosaic.from_row(row), &mut map)?;
        let (histogram, zeros) = map.finish()?;

        let name = scene.image().path().display();
        if fit.tile < self.request.tile {
            done.warnings.push(format!(
                "{name}: windows of {} pixels in place of {} to stay below `--memory`; their edges may show more",
                fit.tile, self.request.tile
            ));
        }
        let image_pixels = scene.window().pixels();
        let share = zeros as f64 / image_pixels as f64;
        if share > ZEROS_WARNED_OF {
            done.warnings.push(format!(
                "{name}: {:.1} % of the pixels are 0 in all bands and no nodata value is declared; if they have no data, give `--nodata 0`",
                100.0 * share
            ));
        }
        if let Some(warning) = histogram.warning() {
            done.warnings.push(format!("{name}: {warning}"));
        }
        done.classes.push(histogram);
        done.resumed_windows += found;
        done.planned_bytes = done.planned_bytes.max(fit.bytes);
        Ok(scene.window().scaled(scene.scale()).pixels())
    }

    /// The image, read within these limits.
    fn source(&self, limits: ReadLimits) -> Result<Box<dyn RasterSource>> {
        match self.options.inputs.get(self.index) {
            Some(path) => Ok(terrashard_raster::open_with(path, limits)?),
            None => band_stack::open(&self.options.bands, limits),
        }
    }

    fn scene(&self, fit: Fit) -> Result<Scene> {
        let limits = ReadLimits {
            cache_bytes: usize::try_from(fit.cache_bytes).unwrap_or(usize::MAX),
            ..ReadLimits::default()
        };
        let trained = self.trained;
        let selection = BandSelection::Pick(trained.bands.clone());
        let nodata = self.options.nodata.or(trained.nodata);
        let options = SceneOptions {
            // Windows are read once; decoded tiles are kept by the reader.
            cache_bytes: 0,
            ..scene_options(&trained.model, selection, &trained.scaling, nodata)
        };
        Ok(Scene::new(self.source(limits)?, None, options)?)
    }

    fn spec(&self, product: Product, image: &Metadata) -> RasterSpec {
        product.spec(image, self.trained)
    }

    fn fit(&self, image: &Metadata) -> Result<Fit> {
        let specs: Vec<RasterSpec> = self
            .products
            .iter()
            .map(|(product, _)| self.spec(*product, image))
            .collect();
        let scale = self.trained.model.scale;
        let outputs = |block: (usize, usize)| -> u64 {
            let pixels = (block.0 * block.1 * scale * scale) as u64;
            let sinks = specs
                .iter()
                .map(|spec| footprint::sink_bytes(spec, block.1 * scale));
            let kinds = specs.iter().map(|spec| (spec.bands, spec.data_type));
            sinks.sum::<u64>() + journal::record_bytes(kinds, pixels)
        };
        self.request.fit(image, image.window(), &outputs)
    }

    /// All that the bits of the files depend on.
    fn identity(&self, scene: &Scene, fit: Fit) -> Result<String> {
        let (options, trained) = (self.options, self.trained);
        let mut identity = Identity::default();
        identity.add("version", &env!("CARGO_PKG_VERSION"));
        identity.add_model(trained)?;
        match options.inputs.get(self.index) {
            Some(path) => identity.add_file(path)?,
            None => {
                identity.add("files", &options.bands);
                for band in &options.bands {
                    identity.add_file(&band.path)?;
                }
            }
        }
        identity.add("bands", &trained.bands);
        identity.add("scaling", &trained.scaling);
        identity.add("metadata", scene.metadata());
        identity.add("threshold", &trained.threshold);
        identity.add("windows", &(fit.tile, self.request.overlap));
        identity.add("device", &options.device);
        for (product, path) in &self.products {
            identity.add("product", &(product, path));
            identity.add("raster", &self.spec(*product, scene.metadata()));
        }
        Ok(identity.text())
    }
}

/// What is asked for, each with a file for each scene; none is read by the same call, and no two are one.
fn products(
    options: &PredictOptions,
    trained: &TrainedModel,
) -> Result<Vec<(Product, Vec<PathBuf>)>> {
    let probability = Product::Probability(options.probability_type);
    let asked = [
        (Product::Classes, &options.output),
        (probability, &options.probability),
        (Product::Image, &options.image),
    ];
    let mut products: Vec<(Product, Vec<PathBuf>)> = Vec::new();
    for (product, path) in asked {
        let Some(path) = path else { continue };
        if product == Product::Image && !trained.model.superres {
            let expected =
                "a model with a super-resolution branch, trained with `model.superres = true`";
            return Err(Error::invalid(product.flag(), path.display(), expected));
        }
        let files = outputs(options, product.flag(), path)?;
        for file in &files {
            let bands = options.bands.iter().map(|band| band.path.as_path());
            let inputs = options.inputs.iter().map(PathBuf::as_path);
            let read = inputs.chain(bands).chain([options.checkpoint.as_path()]);
            output_file::check(product.flag(), file, read)?;
            let others = products.iter().flat_map(|(_, files)| files);
            if others.clone().any(|other| output_file::same(other, file)) {
                let expected = "another file than the map, or another folder";
                return Err(Error::invalid(product.flag(), file.display(), expected));
            }
        }
        products.push((product, files));
    }
    match products.is_empty() {
        true => Err(Error::invalid(
            "--output",
            "nothing",
            "at least one of `--output`, `--probability` and `--image`",
        )),
        false => Ok(products),
    }
}

fn files(products: &[(Product, Vec<PathBuf>)], is: impl Fn(Product) -> bool) -> Vec<PathBuf> {
    let of = products.iter().filter(|(product, _)| is(*product));
    of.flat_map(|(_, files)| files.clone()).collect()
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
