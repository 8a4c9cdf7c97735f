//! A folder of reference values: what to run and what should come out. `fixtures/README.md` describes the format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use terrashard_models::{FeedForward, HeadNorm, LevelActivation, ModelConfig, Upsampling};

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
    #[error("sets of kind {kind} are not known: dual, single, clip, ignore, losses and import are")]
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
    /// A checkpoint of another project cannot be read.
    #[error("failed to import: {source}")]
    Import {
        /// Why.
        #[from]
        source: terrashard_checkpoint::Error,
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
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Parity {
    /// What is compared.
    pub kind: Kind,
    /// Which net: two branches or one, or the backbone and head alone.
    pub net: Option<String>,
    dims: Option<[usize; 4]>,
    depths: Option<[usize; 4]>,
    heads: Option<[usize; 4]>,
    sr_ratios: Option<[usize; 4]>,
    head_channels: Option<usize>,
    head_norm: Option<String>,
    head_level_activation: Option<LevelActivation>,
    activation: Option<String>,
    /// Channels of the head's output, in sets of checkpoints.
    labels: Option<usize>,
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
    /// The last axis of `loss`, in order.
    pub terms: Vec<String>,
    /// Names of what is compared by itself.
    pub cases: Vec<String>,
    /// Epsilons of the layer norms of each answer.
    pub variants: BTreeMap<String, Epsilons>,
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

/// What is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A training of the net with two branches.
    #[default]
    Dual,
    /// A training of the net with one branch.
    Single,
    /// A training with accumulation and clipping.
    Clip,
    /// Losses over the valid pixels of two ranks.
    Ignore,
    /// Losses by themselves.
    Losses,
    /// Checkpoints of other projects.
    Import,
}

/// What is added to variances in layer norms.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Epsilons {
    /// Everywhere else.
    pub layer_norm_eps: f64,
    /// Behind patch embeddings.
    pub embed_norm_eps: Option<f64>,
    /// Behind the reduction of keys and values.
    pub attn_norm_eps: Option<f64>,
}

/// What is allowed.
#[derive(Clone, Debug, Default, Deserialize)]
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
    /// Where it is.
    pub dir: PathBuf,
    /// Initial parameters under `init/`, perhaps inputs. Empty where the set has none.
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
        let json = |source| Error::Json {
            path: path.clone(),
            source,
        };
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(json)?;
        let kind = value["kind"].as_str().unwrap_or_default();
        if serde_json::from_value::<Kind>(kind.into()).is_err() {
            return Err(Error::Kind { kind: kind.into() });
        }
        let parity: Parity = serde_json::from_value(value).map_err(json)?;
        let file = |role: &str| match parity.files.get(role) {
            Some(name) => tensors(&dir.join(name)),
            None => Err(Error::Tensors {
                path: path.clone(),
                reason: format!("files.{role} is missing"),
            }),
        };
        let common = match parity.files.contains_key("common") {
            true => file("common")?,
            false => Tensors::new(),
        };
        Ok(Self {
            dir: dir.into(),
            common,
            expected: file("expected")?,
            parity,
        })
    }

    /// Input height and width in pixels.
    pub fn size(&self) -> usize {
        self.parity.size.as_u64().unwrap_or(64) as usize
    }

    /// Whether a stage makes a difference.
    pub fn trains(&self) -> bool {
        !matches!(self.parity.kind, Kind::Losses | Kind::Import)
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
            head_activation: parity.head_level_activation,
            head_outputs: parity.labels.unwrap_or(default.head_outputs),
            activation: match parity.activation.as_deref() {
                Some("silu") => FeedForward::Silu,
                _ => FeedForward::Gelu,
            },
            upsampling: match parity.net.as_deref() {
                Some("single") => Upsampling::Progressive,
                _ => Upsampling::Direct,
            },
            superres: parity.net.as_deref() == Some("dual"),
            ..default
        }
    }

    /// The file of this role.
    ///
    /// # Errors
    /// [`Error::Tensors`] if the set has none.
    pub fn file(&self, role: &str) -> Result<PathBuf> {
        match self.parity.files.get(role) {
            Some(name) => Ok(self.dir.join(name)),
            None => Err(Error::Tensors {
                path: self.dir.join("parity.json"),
                reason: format!("files.{role} is missing"),
            }),
        }
    }

    /// An expected tensor, or another of the expected file.
    ///
    /// # Errors
    /// [`Error::Tensors`] if the set has none of this name.
    pub fn stored(&self, key: &str) -> Result<&Values> {
        self.expected.get(key).ok_or_else(|| Error::Tensors {
            path: self.dir.clone(),
            reason: format!("{key} is missing"),
        })
    }

    /// The first value of a parameter.
    pub fn initial(&self, name: &str) -> Option<&Values> {
        self.common.get(&format!("init/{name}"))
    }
}

/// The bytes of a file.
///
/// # Errors
/// [`Error::Read`].
pub fn read(path: &Path) -> Result<Vec<u8>> {
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
