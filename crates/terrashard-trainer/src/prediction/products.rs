//! What is made of a scene, and the files that it goes to.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::ValueEnum;
use terrashard_data::{Band, Block, IGNORE, PROBABILITY_STEPS, image_spec, prediction_spec};
use terrashard_models::SUPERRES_CHANNELS;
use terrashard_raster::{
    DataType, GeoTiffSink, Metadata, Overviews, Raster, RasterSink, RasterSpec,
};

use crate::error::{Error, Result};
use crate::trained_model::TrainedModel;

/// Colours of classes, the background first.
const COLOURS: [[u8; 3]; 10] = [
    [235, 235, 225],
    [31, 120, 180],
    [51, 160, 44],
    [227, 26, 28],
    [255, 127, 0],
    [106, 61, 154],
    [255, 225, 80],
    [177, 89, 40],
    [251, 154, 153],
    [166, 206, 227],
];

/// Sides of the tiles of rasters with one byte a pixel, and of others: rows of tiles are kept in memory.
const TILE: usize = 256;
const NARROW_TILE: usize = 128;

/// How probabilities are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ProbabilityType {
    /// Bytes: 0 to 200 for 0 to 1, 255 for no data
    #[default]
    U8,
    /// Single precision, NaN for no data
    F32,
}

/// One kind of file that is made of a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Product {
    /// The class of each pixel.
    Classes,
    /// The probability of each class, or of the one foreground class.
    Probability(ProbabilityType),
    /// The super-resolved image.
    Image,
}

impl Product {
    /// The flag that asks for it.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Classes => "--output",
            Self::Probability(_) => "--probability",
            Self::Image => "--image",
        }
    }

    /// What it is called in a catalogue.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Classes => "classes",
            Self::Probability(_) => "probability",
            Self::Image => "image",
        }
    }

    /// Its raster for an image, at the model's scale.
    pub(crate) fn spec(self, image: &Metadata, trained: &TrainedModel) -> RasterSpec {
        let (scale, classes) = (trained.model.scale, trained.model.classes);
        match self {
            Self::Classes => coloured(prediction_spec(image, scale), trained),
            Self::Probability(kind) => {
                let (data_type, nodata) = match kind {
                    ProbabilityType::U8 => (DataType::U8, f64::from(IGNORE)),
                    ProbabilityType::F32 => (DataType::F32, f64::NAN),
                };
                let (width, height) = (image.width * scale, image.height * scale);
                let names = (0..classes).map(|class| match classes {
                    1 => "probability".to_string(),
                    _ => format!("probability of class {class}"),
                });
                let spec = RasterSpec::new(width, height, classes, data_type)
                    .georeference(image.georeference.scaled(scale as f64))
                    .nodata(nodata)
                    .descriptions(names)
                    .overviews(Overviews::Average);
                let spec = match kind {
                    ProbabilityType::U8 => {
                        let step = 1.0 / f64::from(PROBABILITY_STEPS);
                        spec.scaling(vec![(step, 0.0); classes])
                    }
                    ProbabilityType::F32 => spec,
                };
                match classes * data_type.bytes() {
                    1 => spec.tile(TILE),
                    _ => spec.tile(NARROW_TILE),
                }
            }
            Self::Image => {
                let spec = image_spec(image, scale, SUPERRES_CHANNELS)
                    .tile(NARROW_TILE)
                    .overviews(Overviews::Average);
                let bands = trained.highres.as_ref().map(|highres| &highres.bands);
                match bands {
                    Some(bands) if bands.len() == SUPERRES_CHANNELS => {
                        let name = |band: &Band| match band {
                            Band::Name(name) => Some(name.clone()),
                            // A number says where a band was in another file.
                            Band::Number(_) => None,
                        };
                        RasterSpec {
                            descriptions: bands.iter().map(name).collect(),
                            ..spec
                        }
                    }
                    _ => spec,
                }
            }
        }
    }

    /// Its pixels of a block whose first `classes` channels are the segmentation.
    pub(crate) fn raster(self, block: &Block, classes: usize, threshold: f32) -> Result<Raster> {
        let segmentation = || block.of_channels(0..classes);
        Ok(match self {
            Self::Classes => segmentation().classes(threshold)?,
            Self::Probability(ProbabilityType::U8) => segmentation().probability_steps()?,
            Self::Probability(ProbabilityType::F32) => segmentation().values()?,
            Self::Image => block.of_channels(classes..block.channels).values()?,
        })
    }
}

/// The raster of classes with its name and colours.
pub(crate) fn coloured(spec: RasterSpec, trained: &TrainedModel) -> RasterSpec {
    let colours = &COLOURS[..trained.model.classes.clamp(2, COLOURS.len())];
    spec.tile(TILE).descriptions(["class"]).colours(colours)
}

/// A product on its way into a file.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) product: Product,
    pub(crate) sink: Box<dyn RasterSink>,
}

impl Output {
    /// Begins the file, for windows of at most `rows` rows. What an earlier prediction that was killed has left of it goes.
    ///
    /// # Errors
    /// [`Error::Write`], [`Error::Raster`].
    pub(crate) fn create(
        product: Product,
        path: &Path,
        spec: RasterSpec,
        rows: usize,
    ) -> Result<Self> {
        remove_leftovers(path);
        let sink = GeoTiffSink::create(path, spec).map_err(unwritten)?;
        Ok(Self {
            product,
            sink: Box::new(sink.windows_of(rows)),
        })
    }

    /// Writes the pixels of a block.
    ///
    /// # Errors
    /// [`Error::Write`], [`Error::Raster`].
    pub(crate) fn write(&mut self, raster: &Raster) -> Result<()> {
        self.sink.write(raster).map_err(unwritten)
    }

    /// Puts the finished file in place.
    ///
    /// # Errors
    /// [`Error::Write`], [`Error::Raster`].
    pub(crate) fn finish(self) -> Result<()> {
        self.sink.finish().map_err(unwritten)
    }
}

/// Makes the folder that a file will be in.
///
/// # Errors
/// [`Error::Write`].
pub(crate) fn make_folder(output: &Path) -> Result<()> {
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) => fs::create_dir_all(folder).map_err(Error::write(folder)),
        None => Ok(()),
    }
}

/// Removes temporary files of an output that a killed process could not. The output's journal is locked, so that no other process
/// writes one now.
fn remove_leftovers(output: &Path) {
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!(".{name}.");
    let Ok(entries) = fs::read_dir(folder.unwrap_or(Path::new("."))) else {
        return;
    };
    let left = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(&prefix) && file.ends_with(".partial")
    };
    let paths = entries.flatten().map(|entry| entry.path());
    for path in paths.filter(left) {
        // Best effort: what stays does no harm.
        let _ = fs::remove_file(path);
    }
}

/// What a sink says, where the system refuses, as a failure to write: the words for reading are the same.
pub(crate) fn unwritten(error: terrashard_raster::Error) -> Error {
    match error {
        terrashard_raster::Error::Io { path, source, .. } => Error::Write { path, source },
        terrashard_raster::Error::NotFound { path } => {
            Error::write(path)(io::ErrorKind::NotFound.into())
        }
        other => other.into(),
    }
}
