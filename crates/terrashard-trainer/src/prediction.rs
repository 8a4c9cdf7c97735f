//! `predict`: whole scenes to GeoTIFFs, written as they are computed, and gone on with where an earlier call ended.

mod histogram;
mod identity;
mod journal;
mod lonlat;
mod polygons;
mod products;
mod scene_map;
mod stac;
mod targets;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use terrashard_data::{
    BandSelection, Offset, Overlay, ProductOffset, Scaling, Scene, SceneOptions,
};
use terrashard_layout::Stage;
use terrashard_raster::{Metadata, RasterSource, RasterSpec, ReadLimits};

use crate::band_stack::{self, BandFile};
use crate::config::Device;
use crate::dataset::scene_options;
use crate::error::{Error, Result};
use crate::footprint::{self, Fit, Request};
use crate::mapping::{Layers, Mapping};
use crate::process_memory::peak_rss_bytes;
use crate::record::{Display, Progress};
use crate::sharding::{HeldParameters, Placement, Weights};
use crate::trained_model::TrainedModel;

pub use histogram::Histogram;
use identity::Identity;
use journal::Journal;
use lonlat::LonLat;
pub use products::ProbabilityType;
use products::{Output, Product};
use scene_map::SceneMap;
use targets::Targets;

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
    /// Where the areas of each class go as GeoJSON, if they are wanted: a file, or a folder for several inputs.
    pub polygons: Option<PathBuf>,
    /// Where the map over all scenes goes, if it is wanted.
    pub mosaic: Option<PathBuf>,
    /// Whether a STAC item is written beside each scene's first file.
    pub stac: bool,
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
    /// What is added to digital numbers, in place of what the checkpoint says.
    pub offset: Option<Offset>,
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
    /// The areas written, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub polygons: Vec<PathBuf>,
    /// The STAC items written, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<PathBuf>,
    /// The map over all scenes, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mosaic: Option<PathBuf>,
    /// For each scene, the pixels of each class.
    pub classes: Vec<Histogram>,
    /// What the reader of the maps should know.
    pub warnings: Vec<String>,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Of these, what threads took to read and decode windows, added up over them.
    pub reading_seconds: f64,
    /// And what was taken to write: the journal, the files, their overviews.
    pub writing_seconds: f64,
    /// Of the wall time, what reading and writing take where nothing else goes on beside them: the reading shared by the ranks, and the
    /// writing.
    pub input_output_share: f64,
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
    let targets = Targets::new(options, &trained)?;
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
    let wants_image = !targets
        .files(|product| product == Product::Image)
        .is_empty();
    let request = Request {
        model: &trained.model,
        layers: match wants_image {
            true => Layers::ClassesAndImage,
            false => Layers::Classes,
        },
        tile,
        overlap,
        ranks: options.ranks,
        device: options.device,
        parameters: trained.parameter_bytes(options.device)?,
        memory: options.memory,
    };
    let mut done = Prediction {
        files: targets.files(|product| product == Product::Classes),
        probabilities: targets.files(|product| matches!(product, Product::Probability(_))),
        images: targets.files(|product| product == Product::Image),
        polygons: targets.polygons.clone(),
        items: targets.items.clone(),
        mosaic: targets.mosaic.clone(),
        classes: Vec::new(),
        warnings: Vec::new(),
        seconds: 0.0,
        reading_seconds: 0.0,
        writing_seconds: 0.0,
        input_output_share: 0.0,
        megapixels_per_second: 0.0,
        resumed_windows: 0,
        planned_bytes: 0,
        peak_rss_bytes: None,
        held_parameters: None,
    };
    let scene = |index| SceneWork {
        options,
        trained: &trained,
        weights: &weights,
        request,
        index,
        targets: &targets,
    };
    let scenes: Vec<SceneWork<'_>> = (0..options.inputs.len().max(1)).map(scene).collect();
    // Whatever does not fit is told before the first window.
    let images = scenes.iter().map(SceneWork::check);
    let images: Vec<Metadata> = images.collect::<Result<_>>()?;
    if targets.mosaic.is_some() {
        let names = done.files.iter().map(|file| file.display().to_string());
        let names: Vec<String> = names.collect();
        let maps = names.iter().map(String::as_str).zip(&images);
        Overlay::check(&maps.collect::<Vec<_>>(), trained.model.scale)?;
    }
    if overlap < trained.overlap {
        done.warnings.push(format!(
            "windows share {overlap} pixels in place of the {} that the model is tested with; their edges may show",
            trained.overlap
        ));
    }
    let mut pixels = 0;
    for (scene, image) in scenes.iter().zip(&images) {
        pixels += scene.predict(image, &mut done)?;
    }
    if let Some(mosaic) = &targets.mosaic {
        overlay(&done.files, mosaic, &trained)?;
    }
    done.seconds = began.elapsed().as_secs_f64();
    let reading = done.reading_seconds / options.ranks as f64;
    done.input_output_share = (reading + done.writing_seconds) / done.seconds;
    done.megapixels_per_second = pixels as f64 / 1e6 / done.seconds;
    done.peak_rss_bytes = peak_rss_bytes();
    done.held_parameters = weights.held();
    Ok(done)
}

/// Bytes of a map over all scenes that are put together at once.
const OVERLAY_BYTES: usize = 16 << 20;

/// Puts the maps of all scenes together.
fn overlay(maps: &[PathBuf], output: &Path, trained: &TrainedModel) -> Result<()> {
    let sources = maps.iter().map(|map| Ok(terrashard_raster::open(map)?));
    let overlay = Overlay::new(sources.collect::<Result<_>>()?)?;
    products::make_folder(output)?;
    let spec = overlay.spec();
    let (width, height) = (spec.width, spec.height);
    let rows = (OVERLAY_BYTES / width).clamp(1, height);
    let spec = products::coloured(spec, trained);
    let mut output = Output::create(Product::Classes, output, spec, rows)?;
    for row in (0..height).step_by(rows) {
        output.write(&overlay.rows(row, rows.min(height - row))?)?;
    }
    output.finish()
}

/// One scene, and what is made of it.
struct SceneWork<'a> {
    options: &'a PredictOptions,
    trained: &'a TrainedModel,
    weights: &'a Weights<'a>,
    request: Request<'a>,
    index: usize,
    targets: &'a Targets,
}

impl SceneWork<'_> {
    /// Reads what the image says of itself, and refuses what cannot be made of it.
    fn check(&self) -> Result<Metadata> {
        let source = self.source(ReadLimits::default())?;
        let image = source.metadata().clone();
        for (flag, files) in [
            (polygons::FLAG, &self.targets.polygons),
            (stac::FLAG, &self.targets.items),
        ] {
            if !files.is_empty() {
                LonLat::new(flag, source.path(), &image.georeference)?;
            }
        }
        self.fit(&image)?;
        Ok(image)
    }

    /// Predicts the scene and adds to what is done. Returns the pixels of its map.
    fn predict(&self, image: &Metadata, done: &mut Prediction) -> Result<usize> {
        let products = self.targets.of_scene(self.index);
        let fit = self.fit(image)?;
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
        let Some((_, anchor)) = products.first() else {
            return Ok(0);
        };
        for (_, path) in &products {
            products::make_folder(path)?;
        }
        let identity = self.identity(&scene, fit)?;
        let (journal, found) = Journal::open(anchor, &identity, mosaic.columns())?;
        let rows = mosaic.largest_block().1 * scene.scale();
        let outputs = products.iter().map(|(product, path)| {
            let spec = self.spec(*product, scene.metadata());
            Output::create(*product, path, spec, rows)
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
            reading: Duration::ZERO,
            writing: Duration::ZERO,
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
        let finished = map.finish()?;
        let (histogram, zeros) = (finished.histogram, finished.zeros);
        done.reading_seconds += finished.reading.as_secs_f64();
        done.writing_seconds += finished.writing.as_secs_f64();

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
        let used = scene.scaling().offset;
        match ProductOffset::find(scene.image())? {
            Some(product) if product.offset != used => done.warnings.push(format!(
                "{name}: {used} is added to digital numbers, but the product has an offset of {} ({}); give `--offset auto`",
                product.offset, product.told_by
            )),
            _ => {}
        }
        let unlike = self.trained.unlike(&scene)?;
        done.warnings
            .extend(unlike.iter().map(|warning| format!("{name}: {warning}")));
        if let Some(warning) = histogram.warning() {
            done.warnings.push(format!("{name}: {warning}"));
        }
        self.describe(&scene, &products)?;
        done.classes.push(histogram);
        done.resumed_windows += found;
        done.planned_bytes = done.planned_bytes.max(fit.bytes);
        Ok(scene.window().scaled(scene.scale()).pixels())
    }

    /// Writes what is made of the finished files.
    fn describe(&self, scene: &Scene, products: &[(Product, &Path)]) -> Result<()> {
        if let Some(output) = self.targets.polygons.get(self.index) {
            products::make_folder(output)?;
            let map = products.iter().find(|(p, _)| *p == Product::Classes);
            let (_, map) = map.expect("polygons are refused without a map");
            polygons::write(map, output)?;
        }
        if self.targets.items.get(self.index).is_some() {
            let assets = products.iter().map(|(product, path)| stac::Asset {
                product: *product,
                path,
                spec: self.spec(*product, scene.metadata()),
            });
            let assets: Vec<_> = assets.collect();
            let (image, model) = (scene.image().path(), self.options.checkpoint.as_path());
            stac::write(products[0].1, image, model, &assets)?;
        }
        Ok(())
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
        let source = self.source(limits)?;
        let scaling = match self.options.offset {
            Some(offset) => Scaling {
                offset: offset.resolve(&*source)?,
                ..trained.scaling.clone()
            },
            None => trained.scaling.clone(),
        };
        let selection = BandSelection::Pick(trained.bands.clone());
        let nodata = self.options.nodata.or(trained.nodata);
        let options = SceneOptions {
            // Windows are read once; decoded tiles are kept by the reader.
            cache_bytes: 0,
            ..scene_options(&trained.model, selection, &scaling, nodata)
        };
        Ok(Scene::new(source, None, options)?)
    }

    fn spec(&self, product: Product, image: &Metadata) -> RasterSpec {
        product.spec(image, self.trained)
    }

    fn fit(&self, image: &Metadata) -> Result<Fit> {
        let products = self.targets.of_scene(self.index);
        let specs = products
            .iter()
            .map(|(product, _)| self.spec(*product, image));
        let specs: Vec<RasterSpec> = specs.collect();
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
            Some(path) => identity.add_image(path)?,
            None => {
                identity.add("files", &options.bands);
                for band in &options.bands {
                    identity.add_image(&band.path)?;
                }
            }
        }
        identity.add("bands", &trained.bands);
        identity.add("scaling", scene.scaling());
        identity.add("metadata", scene.metadata());
        identity.add("threshold", &trained.threshold);
        identity.add("windows", &(fit.tile, self.request.overlap));
        identity.add("device", &options.device);
        for (product, path) in self.targets.of_scene(self.index) {
            identity.add("product", &(product, path));
            identity.add("raster", &self.spec(product, scene.metadata()));
        }
        Ok(identity.text())
    }
}
