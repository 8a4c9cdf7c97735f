//! The sections of a configuration, with their defaults.

use std::path::PathBuf;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use terrashard_data::{Band, IgnoreFrom, Jitter, Offset, OnUnreadable, Region, Scaling, Selection};
use terrashard_models::ModelConfig;

use super::{TrainSection, ZeroSection};
use crate::training::LOSS;

/// A whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What is trained.
    pub model: ModelConfig,
    /// What it is trained and tested on.
    pub data: DataSection,
    /// How it is trained.
    pub train: TrainSection,
    /// How its states are sharded.
    pub zero: ZeroSection,
    /// When it is saved.
    pub checkpoint: CheckpointSection,
    /// What is told on the way.
    pub log: LogSection,
}

/// `[data]`: scenes, and how they become samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSection {
    /// Images with their labels.
    pub scenes: Vec<SceneEntry>,
    /// An index of chips that `terrashard chip` has cut, to train on its chips for training and test on those for test, in place of
    /// `train`, `validation`, `test` and `stride`; it names the scenes. Default: none.
    pub chips: Option<PathBuf>,
    /// The bands of the images in the order of the model's channels, by name or by number
    /// from 1. Default: B02, B03, B04, B08, B11, B12.
    pub bands: Vec<Band>,
    /// From digital numbers to what the model takes.
    pub scaling: Scaling,
    /// Digital number that means "no data", in place of what the images declare. Default: what they declare.
    pub nodata: Option<f64>,
    /// Median reflectance of each band over what is trained on, by which `predict` notices scenes of another size; `fit` fills it in.
    pub medians: Option<Vec<f32>>,
    /// How the images at high resolution are read. Only `model.superres = true` reads them.
    pub highres: HighresSection,
    /// Part of each scene to train on. Default: `west`.
    #[serde(deserialize_with = "region")]
    pub train: Region,
    /// Part of each scene that the model is measured on while it is trained, apart from the other two; with `chips`, the index
    /// has them. Default: none.
    #[serde(
        deserialize_with = "some_region",
        skip_serializing_if = "Option::is_none"
    )]
    pub validation: Option<Region>,
    /// Part of each scene to test on. Default: `east`.
    #[serde(deserialize_with = "region")]
    pub test: Region,
    /// Height and width of a sample in pixels of the image. Default: 64.
    pub chip: usize,
    /// Pixels of the image from one sample to the next. Default: 32.
    pub stride: usize,
    /// Which samples are trained on, and how often.
    pub selection: Selection,
    /// Whether samples are flipped and turned at random. Default: `true`.
    pub augment: bool,
    /// How the images of samples are disturbed at random. Default: not.
    pub jitter: Jitter,
    /// Classes of a scene classification or cloud mask whose pixels are not trained on and not counted, such as `SCL:3,8,9,10`: of
    /// `classification` beside the image, or of a band of the image itself. Default: none.
    pub ignore_from: Option<IgnoreFrom>,
    /// Bytes of decoded tiles that are kept in memory, over all scenes. Default: 1 GiB.
    pub cache_bytes: usize,
    /// What becomes of a chip that is trained on and cannot be read, such as one of a damaged tile. Default: `abort`.
    pub on_unreadable: OnUnreadable,
    /// Height and width of the windows of test and predict in pixels of the image. Default: `chip`.
    pub tile: Option<usize>,
    /// Pixels of the image that neighbouring windows share in test and predict. Default: 16.
    pub overlap: usize,
    /// What a reader of the report should know about the NDWI baseline on these data. Default: nothing.
    pub baseline_note: Option<String>,
}

impl Default for DataSection {
    fn default() -> Self {
        let bands = ["B02", "B03", "B04", "B08", "B11", "B12"];
        Self {
            scenes: Vec::new(),
            chips: None,
            bands: bands.map(|name| Band::Name(name.into())).to_vec(),
            scaling: Scaling::default(),
            nodata: None,
            medians: None,
            highres: HighresSection::default(),
            train: Region::West,
            validation: None,
            test: Region::East,
            chip: 64,
            stride: 32,
            selection: Selection::default(),
            augment: true,
            jitter: Jitter::default(),
            ignore_from: None,
            cache_bytes: 1 << 30,
            on_unreadable: OnUnreadable::Abort,
            tile: None,
            overlap: 16,
            baseline_note: None,
        }
    }
}

fn some_region<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Region>, D::Error> {
    region(deserializer).map(Some)
}

/// A region, with all its forms in the message where it is none of them.
fn region<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Region, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    value.clone().try_into().map_err(|_| {
        de::Error::custom(format!(
            "{value} is no region, write \"all\", \"west\", \"east\", \"north\", \"south\", \
             {{ pixels = [column, row, width, height] }} or {{ fraction = [left, top, right, bottom] }}"
        ))
    })
}

impl DataSection {
    /// Height and width of the windows of test and predict in pixels of the image.
    pub fn tile(&self) -> usize {
        self.tile.unwrap_or(self.chip)
    }
}

/// `[data.highres]`: how the images at high resolution are read that the super-resolution branch learns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HighresSection {
    /// Their bands in the order of the branch's channels, by name or by number from 1. Default: B04, B03, B02, B08.
    pub bands: Vec<Band>,
    /// The bands of the images that show the same, by name or number: `test` compares the branch with their bicubic
    /// enlargement. Default: those of the same names as `bands`.
    pub baseline: Option<Vec<Band>>,
    /// From digital numbers to reflectance: `offset` and `scale` alone.
    pub scaling: Scaling,
    /// Digital number that means "no data", in place of what the images declare. Default: what they declare.
    pub nodata: Option<f64>,
}

impl Default for HighresSection {
    fn default() -> Self {
        let bands = ["B04", "B03", "B02", "B08"];
        Self {
            bands: bands.map(|name| Band::Name(name.into())).to_vec(),
            baseline: None,
            scaling: Scaling::default(),
            nodata: None,
        }
    }
}

/// One entry of `data.scenes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SceneEntry {
    /// The image, a GeoTIFF with the bands of `data.bands`.
    pub image: PathBuf,
    /// The label on the fine grid: 1 foreground, 0 background, 255 neither; or a class below `model.classes`, 255 none.
    pub mask: Option<PathBuf>,
    /// The image at high resolution, a GeoTIFF with the bands of `data.highres.bands` on the label's grid.
    pub highres: Option<PathBuf>,
    /// The scene classification or cloud mask that `data.ignore_from` speaks of, on any grid over the image's ground. Default: the
    /// image's own band of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classification: Option<PathBuf>,
    /// In place of `data.scaling.offset`: a number, or `auto` for what the product's name or metadata says of its processing
    /// baseline. Default: `data.scaling.offset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<Offset>,
}

/// `[checkpoint]`: when the run is saved, and where it starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSection {
    /// Steps between two checkpoints; 0, the default, saves at the end only.
    pub every: u64,
    /// The newest checkpoints that are kept. Default: 2.
    pub keep_last: usize,
    /// The best checkpoints of all that are kept, too: those among the newest count, so that `keep_last = 1` and `keep_best = 2` keep two
    /// where the newest is one of the best, else three. Default: 0.
    pub keep_best: usize,
    /// What makes one the best: the least mean of `loss`, or of one of its terms, over the steps since one was due before; or, with
    /// validation, the most `iou`, `f1`, `precision` or `recall` there, for which each checkpoint is measured. Default: `loss`.
    pub best_by: String,
    /// Whether steps go on while a checkpoint is written from a copy in host memory. Default: `true`.
    #[serde(rename = "async")]
    pub asynchronous: bool,
    /// What becomes of the run when a checkpoint, or a line of its metrics, cannot be written. Default: `abort`.
    pub on_failure: OnFailure,
    /// Where the run starts. Default: `auto`.
    pub resume: Resume,
}

/// What becomes of a run when a checkpoint or its metrics cannot be written. The checkpoint before stays in force in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It ends.
    Abort,
    /// It goes on with a warning, unless it was to end after that checkpoint.
    Continue,
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self {
            every: 0,
            keep_last: 2,
            keep_best: 0,
            best_by: LOSS.into(),
            asynchronous: true,
            on_failure: OnFailure::Abort,
            resume: Resume::Auto,
        }
    }
}

/// Where a run starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PathBuf", into = "PathBuf")]
pub enum Resume {
    /// At the newest checkpoint of its run directory, or afresh where there is none.
    Auto,
    /// Afresh.
    None,
    /// At this run directory's newest checkpoint, or at this checkpoint.
    From(PathBuf),
}

impl From<PathBuf> for Resume {
    fn from(path: PathBuf) -> Self {
        match path.to_str() {
            Some("auto") => Resume::Auto,
            Some("none") => Resume::None,
            _ => Resume::From(path),
        }
    }
}

impl From<Resume> for PathBuf {
    fn from(resume: Resume) -> Self {
        match resume {
            Resume::Auto => "auto".into(),
            Resume::None => "none".into(),
            Resume::From(path) => path,
        }
    }
}

/// `[log]`: what is told on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSection {
    /// Where the output is no terminal, a line every this many seconds. Default: 5.
    pub seconds: f64,
    /// Whether the run directory gets event files of TensorBoard beside `metrics.jsonl`. Default: `true`.
    pub tensorboard: bool,
    /// Steps between two pictures of image, label and map, in `panels` and in the event files; 0 for none, else there is one at the end in
    /// any case. Default: `checkpoint.every`.
    pub panels: Option<u64>,
}

impl Default for LogSection {
    fn default() -> Self {
        Self {
            seconds: 5.0,
            tensorboard: true,
            panels: None,
        }
    }
}
