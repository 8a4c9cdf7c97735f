//! A folder of reference values: what to run and what should come out. `fixtures/README.md` describes the format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use terrashard_models::{FeedForward, HeadNorm, ModelConfig};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a comparison could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the set cannot be read.
    #[error("failed to read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system reports.
        #[source]
        source: std::io::Error,
    },
    /// `parity.json` is not what the format says.
    #[error("failed to parse {path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A safetensors file is damaged or holds an unexpected type.
    #[error("failed to parse {path}: {reason}")]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A set of a kind that is not compared yet.
    #[error("sets of kind {kind} are not compared yet: dual and clip are")]
    Kind {
        /// The kind in `parity.json`.
        kind: String,
    },
    /// A reference value that this program does not compute.
    #[error("the set expects {key}, which is not computed")]
    Unknown {
        /// Key in the expected file.
        key: String,
    },
    /// The model's configuration is refused.
    #[error("failed to build the model: {source}")]
    Model {
        /// Why.
        #[from]
        source: terrashard_models::Error,
    },
    /// Training failed.
    #[error("failed to train: {source}")]
    Train {
        /// Why.
        #[from]
        source: terrashard_zero::Error,
    },
    /// A rank failed.
    #[error("{reason}")]
    Ranks {
        /// Which and why.
        reason: String,
    },
}

/// A tensor as doubles, with its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Its shape; empty for a scalar.
    pub shape: Vec<usize>,
    /// Its elements in row-major order.
    pub values: Vec<f64>,
}

/// Tensors by key.
pub type Tensors = BTreeMap<String, Values>;

/// `parity.json`. Only what the comparison uses.
#[derive(Clone, Debug, Deserialize)]
pub struct Parity {
    /// What is compared.
    pub kind: String,
    dims: Option<[usize; 4]>,
    depths: Option<[usize; 4]>,
    heads: Option<[usize; 4]>,
    sr_ratios: Option<[usize; 4]>,
    head_channels: Option<usize>,
    head_norm: Option<String>,
    activation: Option<String>,
    /// Bands of the image.
    pub bands: Option<usize>,
    /// Input height and width in pixels.
    pub size: serde_json::Value,
    /// Samples in a step, over all ranks.
    pub batch: usize,
    /// Ranks of the run with several.
    pub ranks: usize,
    /// Micro-batches of a rank in a step.
    pub accumulate: usize,
    /// Global index of the first sample.
    pub first_sample: u64,
    /// Whether every step has new samples.
    pub fresh_samples: bool,
    /// A factor on the images for each step.
    pub image_scale: Option<Vec<f64>>,
    /// Optimizer steps.
    pub steps: usize,
    /// Learning rate.
    pub lr: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// `all` or `matrices`.
    pub decay_on: String,
    /// Largest global gradient norm.
    pub clip_norm: Option<f64>,
    /// Role of a file to its name.
    pub files: BTreeMap<String, String>,
    /// Role of a run to the prefix of its keys.
    pub prefix: BTreeMap<String, String>,
    /// What is allowed.
    pub tolerance: Tolerance,
    /// Elements whose gradient is zero in mathematics.
    pub zero_gradient: Option<ZeroGradient>,
}

/// What is allowed.
#[derive(Clone, Debug, Deserialize)]
pub struct Tolerance {
    /// What a tensor whose expected norm is 0 may have.
    pub floor: f64,
    /// By group.
    pub groups: BTreeMap<String, Allowed>,
}

/// What a group of tensors is allowed.
#[derive(Clone, Debug, Deserialize)]
pub struct Allowed {
    /// All its tensors as one vector.
    pub all: f64,
    /// A tensor that is not in `tensors`.
    pub each: f64,
    /// Tensors by name.
    #[serde(default)]
    pub tensors: BTreeMap<String, f64>,
    /// Whether changes since the start are compared.
    #[serde(default)]
    pub minus_init: bool,
}

/// Elements whose gradient is zero in mathematics: rounding noise decides how AdamW moves them.
#[derive(Clone, Debug, Deserialize)]
pub struct ZeroGradient {
    /// Parameter to the first and the end of its flattened elements.
    pub elements: BTreeMap<String, [usize; 2]>,
    /// Group to what each element may differ by.
    pub allowance: BTreeMap<String, f64>,
}

/// A set: its description, the common tensors and the expected ones.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// `parity.json`.
    pub parity: Parity,
    /// Initial parameters under `init/`, perhaps inputs.
    pub common: Tensors,
    /// The reference.
    pub expected: Tensors,
}

impl Fixture {
    /// Reads the set in `dir`.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Json`], [`Error::Tensors`], [`Error::Kind`].
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("parity.json");
        let text = read(&path)?;
        let parity: Parity = serde_json::from_slice(&text).map_err(|source| Error::Json {
            path: path.clone(),
            source,
        })?;
        if !["dual", "clip"].contains(&parity.kind.as_str()) {
            return Err(Error::Kind { kind: parity.kind });
        }
        let file = |role: &str| match parity.files.get(role) {
            Some(name) => tensors(&dir.join(name)),
            None => Err(Error::Tensors {
                path: path.clone(),
                reason: format!("files.{role} is missing"),
            }),
        };
        Ok(Self {
            common: file("common")?,
            expected: file("expected")?,
            parity,
        })
    }

    /// Input height and width in pixels.
    pub fn size(&self) -> usize {
        self.parity.size.as_u64().unwrap_or(64) as usize
    }

    /// The model that the set describes.
    pub fn model(&self) -> ModelConfig {
        let parity = &self.parity;
        let default = ModelConfig::b0();
        ModelConfig {
            dims: parity.dims.unwrap_or(default.dims),
            depths: parity.depths.unwrap_or(default.depths),
            heads: parity.heads.unwrap_or(default.heads),
            sr_ratios: parity.sr_ratios.unwrap_or(default.sr_ratios),
            bands: parity.bands.unwrap_or(default.bands),
            head_channels: parity.head_channels.unwrap_or(default.head_channels),
            head_norm: match parity.head_norm.as_deref() {
                Some("none") => HeadNorm::None,
                _ => HeadNorm::Batch,
            },
            activation: match parity.activation.as_deref() {
                Some("silu") => FeedForward::Silu,
                _ => FeedForward::Gelu,
            },
            ..default
        }
    }

    /// The first value of a parameter.
    pub fn initial(&self, name: &str) -> Option<&Values> {
        self.common.get(&format!("init/{name}"))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::Read {
        path: path.into(),
        source,
    })
}

/// All tensors of a safetensors file.
fn tensors(path: &Path) -> Result<Tensors> {
    let bytes = read(path)?;
    let fail = |reason: String| Error::Tensors {
        path: path.into(),
        reason,
    };
    let file = SafeTensors::deserialize(&bytes).map_err(|error| fail(error.to_string()))?;
    let mut found = Tensors::new();
    for (key, view) in file.tensors() {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F64 => data
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| f64::from_le_bytes(*b))
                .collect(),
            Dtype::F32 => data
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f64::from(f32::from_le_bytes(*b)))
                .collect(),
            Dtype::U8 => data.iter().map(|b| f64::from(*b)).collect(),
            Dtype::I64 => data
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| i64::from_le_bytes(*b) as f64)
                .collect(),
            other => return Err(fail(format!("{key} has the type {other:?}"))),
        };
        found.insert(
            key,
            Values {
                shape: view.shape().to_vec(),
                values,
            },
        );
    }
    Ok(found)
}
