//! A model in one self-describing safetensors file.
//!
//! Keys are the names of parameters and buffers, as any safetensors reader expects. What makes a model of them stands in
//! the file's metadata, as texts:
//!
//! | key | text |
//! |---|---|
//! | `format` | `pt`, which some readers insist on |
//! | `terrashard.version` | version of this table, 1 |
//! | `terrashard.tool` | program and version that wrote it |
//! | `terrashard.architecture`, `.bands`, `.scaling`, `.threshold`, `.values` | JSON, see [`ModelDescription`] |
//! | `terrashard.buffers` | JSON list of the names that are buffers |
//! | `terrashard.tied` | JSON object: names that are not stored, to the names whose values they share |
//! | `terrashard.hashes` | JSON object: name to the BLAKE3 hashes of its chunks of 1 MiB |

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::check_interval;
use crate::chunk::{ChunkHash, Extent, hash_count};
use crate::container::{self, Entry, Header, Written};
use crate::convert::convert;
use crate::durable::{self, io};
use crate::{Checkpoint, ElementType, Error, Kind, Result, TensorSpec};

/// The newest version of the metadata that this build writes and reads.
const VERSION: u64 = 1;

const KEY_VERSION: &str = "terrashard.version";
const KEY_TOOL: &str = "terrashard.tool";
const KEY_ARCHITECTURE: &str = "terrashard.architecture";
const KEY_BANDS: &str = "terrashard.bands";
const KEY_SCALING: &str = "terrashard.scaling";
const KEY_THRESHOLD: &str = "terrashard.threshold";
const KEY_VALUES: &str = "terrashard.values";
const KEY_BUFFERS: &str = "terrashard.buffers";
const KEY_TIED: &str = "terrashard.tied";
const KEY_HASHES: &str = "terrashard.hashes";

/// What a model file says of its model beside the values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// The model's configuration, enough to build it.
    pub architecture: Value,
    /// The input's bands in order, by name.
    pub bands: Vec<String>,
    /// How pixel values become inputs.
    pub scaling: Value,
    /// The probability from which a pixel is foreground, if one was chosen.
    pub threshold: Option<f64>,
    /// Name and version of the program that wrote the file.
    pub tool: String,
    /// Whatever else its writer wants to say.
    pub values: Map<String, Value>,
}

/// Which values of the parameters become a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// The parameters as the last step left them.
    Plain,
    /// Their exponential moving averages; where a parameter has none, as a frozen one, the parameter itself.
    Ema,
}

/// A model file, open for reading.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    description: ModelDescription,
    /// Sorted by name; a tied tensor has no bytes.
    tensors: Vec<Stored>,
    /// Bytes that were read of tensors.
    read: AtomicU64,
}

#[derive(Debug)]
struct Stored {
    spec: TensorSpec,
    bytes: Range<u64>,
    hashes: Vec<ChunkHash>,
}

impl ModelFile {
    /// The entry of the metadata by which a file says that it is one: without it, [`Error::NotAModel`] names this key.
    pub const MARK: &str = KEY_VERSION;

    /// Writes a model file, asking for the little-endian bytes of one tensor at a time. Tied tensors are not asked
    /// for. The file appears at once and whole, or not at all.
    ///
    /// # Errors
    /// [`Error::Fetch`] with the error of `fetch`, [`Error::Length`], [`Error::Malformed`] for a tensor that is given
    /// twice, is neither parameter nor buffer or is tied to none of the others, [`Error::Encode`], [`Error::Io`].
    pub fn write<'a, E>(
        path: impl AsRef<Path>,
        description: &ModelDescription,
        tensors: &[TensorSpec],
        mut fetch: impl FnMut(&TensorSpec) -> Result<Cow<'a, [u8]>, E>,
    ) -> Result<()>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = path.as_ref();
        check_writable(path, tensors)?;
        let stored: Vec<&TensorSpec> = tensors
            .iter()
            .filter(|spec| spec.tied_to.is_none())
            .collect();
        let entries: Vec<Entry> = stored
            .iter()
            .map(|spec| Entry {
                key: spec.name.clone(),
                shape: spec.shape.clone(),
                dtype: spec.dtype,
                label: spec.label(),
            })
            .collect();
        durable::create_folder(durable::parent(path))?;
        durable::replace_file(path, |path| {
            let fetch = |index: usize| {
                fetch(stored[index]).map_err(|error| Error::Fetch {
                    tensor: stored[index].label(),
                    source: error.into(),
                })
            };
            let metadata = |written: &[Written]| metadata(description, tensors, &entries, written);
            container::write(path, &entries, fetch, metadata)?;
            Ok(())
        })
    }

    /// Opens a model file: reads and checks its header. Contents are checked as they are read.
    ///
    /// # Errors
    /// [`Error::Header`] if it is no safetensors file, [`Error::NotAModel`] if it says nothing of its model,
    /// [`Error::NewerVersion`], [`Error::Malformed`], [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(io("open", path))?;
        let header = Header::read(&mut file, path)?;
        let version: u64 = decode(path, &header, KEY_VERSION)?;
        if version > VERSION {
            return Err(Error::NewerVersion {
                path: path.to_owned(),
                found: version,
                supported: VERSION,
            });
        }
        let tool = header.metadata(KEY_TOOL).unwrap_or_default().to_owned();
        let description = ModelDescription {
            architecture: decode(path, &header, KEY_ARCHITECTURE)?,
            bands: decode(path, &header, KEY_BANDS)?,
            scaling: decode(path, &header, KEY_SCALING)?,
            threshold: decode(path, &header, KEY_THRESHOLD)?,
            tool,
            values: decode(path, &header, KEY_VALUES)?,
        };
        Ok(Self {
            path: path.to_owned(),
            description,
            tensors: stored(path, &header)?,
            read: AtomicU64::new(0),
        })
    }

    /// The file that is read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file says of its model.
    pub fn description(&self) -> &ModelDescription {
        &self.description
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.iter().map(|stored| &stored.spec)
    }

    /// A tensor by name and kind.
    pub fn tensor(&self, name: &str, kind: Kind) -> Option<&TensorSpec> {
        Some(&self.find(name, kind)?.spec)
    }

    /// Reads elements `interval` of a tensor as [`Checkpoint::read`] does.
    ///
    /// # Errors
    /// [`Error::UnknownTensor`], [`Error::Interval`], [`Error::Damaged`], [`Error::Io`].
    pub fn read(&self, name: &str, kind: Kind, interval: Range<usize>) -> Result<Vec<u8>> {
        let stored = self
            .find(name, kind)
            .and_then(|stored| match &stored.spec.tied_to {
                Some(owner) => self.find(owner, kind),
                None => Some(stored),
            })
            .ok_or_else(|| Error::UnknownTensor {
                path: self.path.clone(),
                name: name.to_owned(),
                kind,
            })?;
        check_interval(&self.path, &stored.spec, &interval)?;
        let width = stored.spec.dtype.bytes();
        let mut out = vec![0; interval.len() * width];
        let mut file = File::open(&self.path).map_err(io("open", &self.path))?;
        self.extent(stored)
            .read(&mut file, interval.start * width, &mut out)?;
        Ok(out)
    }

    /// Checks each chunk of each tensor against its hash. Returns the bytes that were checked.
    ///
    /// # Errors
    /// [`Error::Damaged`] naming the first damaged tensor, [`Error::Io`].
    pub fn verify(&self) -> Result<u64> {
        let mut file = File::open(&self.path).map_err(io("open", &self.path))?;
        let mut checked = 0;
        let mut buffer = Vec::new();
        for stored in &self.tensors {
            let extent = self.extent(stored);
            for chunk in 0..stored.hashes.len() {
                extent.verify(&mut file, chunk, &mut buffer)?;
            }
            checked += stored.bytes.end - stored.bytes.start;
        }
        Ok(checked)
    }

    fn find(&self, name: &str, kind: Kind) -> Option<&Stored> {
        let index = self
            .tensors
            .binary_search_by(|stored| stored.spec.name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[index]).filter(|stored| stored.spec.kind == kind)
    }

    fn extent<'a>(&'a self, stored: &'a Stored) -> Extent<'a> {
        Extent {
            path: self.path.clone(),
            bytes: stored.bytes.clone(),
            hashes: &stored.hashes,
            label: stored.spec.label(),
            read: &self.read,
        }
    }
}

/// What of a checkpoint becomes a model file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// Which values of the parameters.
    pub weights: Weights,
    /// Their element type; that of the checkpoint where `None`. Buffers keep theirs.
    pub dtype: Option<ElementType>,
}

/// Writes the model of a checkpoint, parameters and buffers, as a model file. One tensor at a time is in memory.
///
/// # Errors
/// [`Error::UnknownTensor`] if averages are wanted and the checkpoint has none, [`Error::OutOfRange`] for a parameter
/// with values that are too large for the element type, and those of [`ModelFile::write`].
pub fn export(
    checkpoint: &Checkpoint,
    path: impl AsRef<Path>,
    description: &ModelDescription,
    wanted: Export,
) -> Result<()> {
    let average = |spec: &TensorSpec| match (wanted.weights, spec.kind) {
        (Weights::Ema, Kind::Parameter) => checkpoint.tensor(&spec.name, Kind::Ema),
        _ => None,
    };
    let model: Vec<&TensorSpec> = checkpoint
        .tensors()
        .filter(|spec| matches!(spec.kind, Kind::Parameter | Kind::Buffer))
        .collect();
    if wanted.weights == Weights::Ema && model.iter().all(|spec| average(spec).is_none()) {
        return Err(Error::UnknownTensor {
            path: checkpoint.folder().to_owned(),
            name: model.first().map_or("*", |spec| &spec.name).to_owned(),
            kind: Kind::Ema,
        });
    }
    let stored = |spec: &TensorSpec| average(spec).unwrap_or(spec).dtype;
    let tensors: Vec<TensorSpec> = model
        .iter()
        .map(|spec| TensorSpec {
            dtype: match spec.kind {
                Kind::Buffer => stored(spec),
                _ => wanted.dtype.unwrap_or(stored(spec)),
            },
            ..(*spec).clone()
        })
        .collect();
    ModelFile::write(path, description, &tensors, |spec| {
        let source = checkpoint.tensor(&spec.name, spec.kind);
        let source = source.expect("the file's tensors are those of the checkpoint");
        let from = average(source).unwrap_or(source);
        let bytes = checkpoint.read(&spec.name, from.kind, 0..spec.numel())?;
        match from.dtype == spec.dtype {
            true => Ok(Cow::from(bytes)),
            false => convert(&bytes, from.dtype, spec.dtype)
                .map(Cow::from)
                .ok_or_else(|| Error::OutOfRange {
                    tensor: from.label(),
                    dtype: spec.dtype,
                }),
        }
    })
}

fn check_writable(path: &Path, tensors: &[TensorSpec]) -> Result<()> {
    let refuse = |spec: &TensorSpec, rule| {
        Err(Error::Malformed {
            path: path.to_owned(),
            subject: spec.label(),
            rule,
        })
    };
    let mut names = BTreeSet::new();
    for spec in tensors {
        if !matches!(spec.kind, Kind::Parameter | Kind::Buffer) {
            return refuse(spec, "a model file holds parameters and buffers only");
        }
        if !names.insert(&spec.name) {
            return refuse(spec, "a model file holds each name once");
        }
        let owned = spec.tied_to.as_ref().is_none_or(|owner| {
            tensors.iter().any(|other| {
                &other.name == owner
                    && TensorSpec {
                        name: spec.name.clone(),
                        ..other.clone()
                    } == TensorSpec {
                        tied_to: None,
                        ..spec.clone()
                    }
            })
        });
        if !owned {
            return refuse(
                spec,
                "its owner must be there, untied, with the same shape and type",
            );
        }
    }
    Ok(())
}

fn metadata(
    description: &ModelDescription,
    tensors: &[TensorSpec],
    entries: &[Entry],
    written: &[Written],
) -> Result<BTreeMap<String, String>> {
    let buffers: Vec<&str> = tensors
        .iter()
        .filter(|spec| spec.kind == Kind::Buffer)
        .map(|spec| spec.name.as_str())
        .collect();
    let tied: BTreeMap<&str, &str> = tensors
        .iter()
        .filter_map(|spec| Some((spec.name.as_str(), spec.tied_to.as_deref()?)))
        .collect();
    let hashes: BTreeMap<&str, &[ChunkHash]> = entries
        .iter()
        .zip(written)
        .map(|(entry, written)| (entry.key.as_str(), written.hashes.as_slice()))
        .collect();
    let texts = [
        ("format", "pt".to_owned()),
        (KEY_VERSION, VERSION.to_string()),
        (KEY_TOOL, description.tool.clone()),
        (KEY_ARCHITECTURE, description.architecture.to_string()),
        (KEY_BANDS, encode(&description.bands)?),
        (KEY_SCALING, description.scaling.to_string()),
        (KEY_THRESHOLD, encode(&description.threshold)?),
        (KEY_VALUES, encode(&description.values)?),
        (KEY_BUFFERS, encode(&buffers)?),
        (KEY_TIED, encode(&tied)?),
        (KEY_HASHES, encode(&hashes)?),
    ];
    Ok(texts.map(|(key, text)| (key.to_owned(), text)).into())
}

/// The tensors that a header and its metadata tell of.
fn stored(path: &Path, header: &Header) -> Result<Vec<Stored>> {
    let malformed = |name: &str, rule| Error::Malformed {
        path: path.to_owned(),
        subject: format!("`{name}`"),
        rule,
    };
    let buffers: BTreeSet<String> = decode(path, header, KEY_BUFFERS)?;
    let tied: BTreeMap<String, String> = decode(path, header, KEY_TIED)?;
    let mut hashes: BTreeMap<String, Vec<ChunkHash>> = decode(path, header, KEY_HASHES)?;
    let kind = |name: &str| match buffers.contains(name) {
        true => Kind::Buffer,
        false => Kind::Parameter,
    };
    let mut tensors = BTreeMap::new();
    for name in header.keys() {
        let (dtype, shape, bytes) = header.tensor(&name).expect("a key of this header");
        let dtype = dtype.ok_or_else(|| {
            malformed(&name, "its elements must be of type F32, F64, BF16 or F16")
        })?;
        let hashes = hashes.remove(&name).unwrap_or_default();
        if hashes.len() as u64 != hash_count(bytes.end - bytes.start) {
            return Err(malformed(&name, "it must have one hash for each chunk"));
        }
        let spec = TensorSpec::new(name.clone(), kind(&name), shape, dtype);
        tensors.insert(
            name,
            Stored {
                spec,
                bytes,
                hashes,
            },
        );
    }
    let aliases = tied
        .into_iter()
        .map(|(name, owner)| {
            let Some(values) = tensors.get(&owner).filter(|_| !tensors.contains_key(&name)) else {
                return Err(malformed(
                    &name,
                    "a tied name must not be stored, and its owner must be",
                ));
            };
            let spec = TensorSpec {
                name: name.clone(),
                ..values.spec.clone()
            };
            let alias = Stored {
                spec: spec.tied_to(owner),
                bytes: 0..0,
                hashes: Vec::new(),
            };
            Ok((name, alias))
        })
        .collect::<Result<Vec<_>>>()?;
    tensors.extend(aliases);
    Ok(tensors.into_values().collect())
}

fn encode<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|source| Error::Encode {
        what: "the model's description",
        source,
    })
}

fn decode<T: DeserializeOwned>(path: &Path, header: &Header, key: &'static str) -> Result<T> {
    header
        .metadata(key)
        .and_then(|text| serde_json::from_str(text).ok())
        .ok_or_else(|| Error::NotAModel {
            path: path.to_owned(),
            key,
        })
}
