//! The sections of a configuration, with their defaults.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrashard_layout::Stage;

use super::Region;

/// A whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What is trained.
    pub model: ModelSection,
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

/// `[model]`: the network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSection {
    /// Channels of the four encoder stages. Default: B0's 32, 64, 160, 256.
    pub dims: Vec<usize>,
    /// Blocks of the four stages. Default: 2, 2, 2, 2.
    pub depths: Vec<usize>,
    /// Attention heads of the four stages. Default: 1, 2, 5, 8.
    pub heads: Vec<usize>,
    /// Spatial reduction of the keys and values of the four stages. Default: 8, 4, 2, 1.
    pub sr_ratios: Vec<usize>,
    /// Channels of the decoding head. Default: 256.
    pub head_channels: usize,
    /// Normalisation in the head. Default: `batch`.
    pub head_norm: HeadNorm,
    /// Activation of the feed-forward layers. Default: `gelu`.
    pub activation: Activation,
    /// Whether the super-resolution branch is trained beside the segmentation. Default: `true`.
    pub superres: bool,
    /// Channels of the segmentation map; 1 is a binary task. Default: 1.
    pub classes: usize,
    /// Pixels of the map per pixel of the image, along each axis. Default: 5.
    pub scale: usize,
    /// Channels of the image. Default: 6.
    pub bands: usize,
}

impl Default for ModelSection {
    fn default() -> Self {
        Self {
            dims: vec![32, 64, 160, 256],
            depths: vec![2; 4],
            heads: vec![1, 2, 5, 8],
            sr_ratios: vec![8, 4, 2, 1],
            head_channels: 256,
            head_norm: HeadNorm::Batch,
            activation: Activation::Gelu,
            superres: true,
            classes: 1,
            scale: 5,
            bands: 6,
        }
    }
}

/// Normalisation in the decoding head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadNorm {
    /// Batch normalisation, each rank with its own statistics.
    Batch,
    /// None: the result does not depend on how samples are shared among ranks.
    None,
}

/// Activation of the feed-forward layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// Gaussian error linear unit, by the error function.
    Gelu,
    /// Sigmoid linear unit.
    Silu,
}

/// `[data]`: scenes, and how they become samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSection {
    /// Images with their labels.
    pub scenes: Vec<SceneEntry>,
    /// Names of the bands in the order of the model's channels. Default: B02, B03, B04, B08, B11, B12.
    pub bands: Vec<String>,
    /// From digital numbers to reflectance.
    pub scaling: ScalingSection,
    /// Per band, subtracted from the reflectance. Default: nothing is.
    pub mean: Option<Vec<f64>>,
    /// Per band, what the centred reflectance is divided by. Default: 1.
    pub std: Option<Vec<f64>>,
    /// Part of each scene to train on. Default: `west`.
    pub train: Region,
    /// Part of each scene to test on. Default: `east`.
    pub test: Region,
    /// Height and width of a sample in pixels of the image. Default: 64.
    pub chip: usize,
    /// Pixels of the image from one sample to the next. Default: 32.
    pub stride: usize,
    /// Pixels of the image that neighbouring windows share in test and predict. Default: 16.
    pub overlap: usize,
    /// Whether samples are flipped and turned at random. Default: `true`.
    pub augment: bool,
    /// Samples with fewer labelled foreground pixels (of the label) are left out of training. Default: 0.
    pub min_foreground: u64,
    /// Pixels of the label within this many steps of the foreground's edge count as shore in test. Default: 5.
    pub shore: usize,
    /// The baseline calls a pixel water where its NDWI, (green - nir) / (green + nir), is above this. Default: -0.04.
    pub ndwi_threshold: f64,
    /// What a reader of the report should know about the baseline on these data. Default: nothing.
    pub baseline_note: Option<String>,
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            scenes: Vec::new(),
            bands: ["B02", "B03", "B04", "B08", "B11", "B12"]
                .map(String::from)
                .to_vec(),
            scaling: ScalingSection::default(),
            mean: None,
            std: None,
            train: Region::WEST,
            test: Region::EAST,
            chip: 64,
            stride: 32,
            overlap: 16,
            augment: true,
            min_foreground: 0,
            shore: 5,
            ndwi_threshold: -0.04,
            baseline_note: None,
        }
    }
}

/// One entry of `data.scenes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SceneEntry {
    /// The image, a GeoTIFF with the bands of `data.bands`.
    pub image: PathBuf,
    /// The label on the fine grid: 1 foreground, 0 background, 255 neither.
    pub mask: Option<PathBuf>,
}

/// `data.scaling`: reflectance = digital number x scale + offset.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScalingSection {
    /// Reflectance of one digital number. Default: 0.0001.
    pub scale: f64,
    /// Reflectance of digital number 0; -0.1 for Sentinel-2 baseline 04.00 and later. Default: 0.
    pub offset: f64,
}

impl Default for ScalingSection {
    fn default() -> Self {
        Self {
            scale: 1e-4,
            offset: 0.0,
        }
    }
}

/// `[train]`: the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainSection {
    /// Optimizer steps. Default: 1000.
    pub steps: u64,
    /// Samples of one forward pass on one rank; with the next two, any two give the third.
    pub micro_batch: Option<usize>,
    /// Samples of one step over all ranks.
    pub global_batch: Option<usize>,
    /// Micro-batches of one rank in one step.
    pub accumulate: Option<usize>,
    /// Peak learning rate. Default: 6e-5.
    pub lr: f64,
    /// Decoupled weight decay of AdamW. Default: 0.01.
    pub weight_decay: f64,
    /// How the learning rate falls. Default: `constant`.
    pub schedule: Schedule,
    /// Steps over which the learning rate rises from 0 first. Default: 0.
    pub warmup_steps: u64,
    /// Largest global norm of a step's gradient. Default: no clipping.
    pub clip_norm: Option<f64>,
    /// Seed of initial values, sample order and augmentation. Default: 0.
    pub seed: u64,
    /// What the segmentation map is trained with. Default: `focal`.
    pub loss: Loss,
    /// Element type of the computation. Default: `fp32`.
    pub precision: Precision,
    /// What happens at a loss or gradient that is not finite. Default: `abort`.
    pub nonfinite: NonFinite,
}

impl Default for TrainSection {
    fn default() -> Self {
        Self {
            steps: 1000,
            micro_batch: None,
            global_batch: None,
            accumulate: None,
            lr: 6e-5,
            weight_decay: 0.01,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            clip_norm: None,
            seed: 0,
            loss: Loss::Focal,
            precision: Precision::Fp32,
            nonfinite: NonFinite::Abort,
        }
    }
}

/// How the learning rate falls after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Not at all.
    Constant,
    /// In a straight line to 0, as SegFormer was trained.
    Poly,
    /// Along half a cosine to 0.
    Cosine,
}

/// The loss of the segmentation map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Focal loss with alpha 0.75 and gamma 2.
    Focal,
    /// Binary cross-entropy.
    Bce,
}

/// Element type of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    Fp32,
}

/// What happens at a loss or gradient that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NonFinite {
    /// The run ends with an error.
    Abort,
}

/// `[zero]`: who owns which model states.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeroSection {
    /// What is sharded: 0 nothing, 1 optimizer states, 2 gradients as well. Default: 0.
    pub stage: Stage,
    /// Number of ranks. `auto`, the default, is one for each GPU, and one on the CPU, whose cores one rank can fill.
    pub ranks: Ranks,
    /// Largest bucket of gradients in bytes. Default: derived from the model.
    pub bucket_bytes: Option<usize>,
    /// Parameters below this many bytes stay whole on every rank at stage 3. Default: 0.
    pub persist_bytes: usize,
}

impl Default for ZeroSection {
    fn default() -> Self {
        Self {
            stage: Stage::Zero,
            ranks: Ranks::Auto,
            bucket_bytes: None,
            persist_bytes: 0,
        }
    }
}

/// Number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub enum Ranks {
    /// One for each GPU; one on the CPU.
    Auto,
    /// This many.
    Count(usize),
}

impl Ranks {
    /// The number on `device`.
    pub fn count(self, device: Device) -> usize {
        match (self, device) {
            (Ranks::Count(count), _) => count,
            (Ranks::Auto, Device::Cpu) => 1,
        }
    }
}

impl TryFrom<toml::Value> for Ranks {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        match &value {
            toml::Value::String(word) if word == "auto" => Ok(Ranks::Auto),
            toml::Value::Integer(count) if *count >= 0 => Ok(Ranks::Count(*count as usize)),
            _ => Err(format!(
                "got {value}, expected \"auto\" or a number of ranks"
            )),
        }
    }
}

impl From<Ranks> for toml::Value {
    fn from(ranks: Ranks) -> Self {
        match ranks {
            Ranks::Auto => toml::Value::String("auto".into()),
            Ranks::Count(count) => toml::Value::Integer(count as i64),
        }
    }
}

/// Where the tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The processor.
    Cpu,
}

/// `[checkpoint]`: when the run is saved, and where it starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSection {
    /// Steps between two checkpoints; 0, the default, saves at the end only.
    pub every: u64,
    /// The newest checkpoints that are kept. Default: 2.
    pub keep_last: usize,
    /// Where the run starts. Default: `auto`.
    pub resume: Resume,
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self {
            every: 0,
            keep_last: 2,
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
}

impl Default for LogSection {
    fn default() -> Self {
        Self { seconds: 5.0 }
    }
}
