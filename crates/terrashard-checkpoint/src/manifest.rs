//! The description of a checkpoint: `manifest.json`, and each rank's part of it before it is published.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chunk::{CHUNK_BYTES, ChunkHash, hash_count};
use crate::container::byte_count;
use crate::durable::io;
use crate::{Error, Kind, Result, State, TensorSpec};

/// The newest format that this build writes and reads.
pub(crate) const VERSION: u64 = 1;

/// What `format` says.
const FORMAT: &str = "terrashard-checkpoint";

/// The longest manifest that is read, in bytes. One of a 100-billion-parameter model is shorter.
const MANIFEST_MAX_BYTES: u64 = 1 << 30;

/// Everything about a checkpoint but the values.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: String,
    version: u64,
    /// Bytes under one hash.
    chunk_bytes: usize,
    /// How many ranks wrote it.
    pub(crate) ranks: usize,
    /// The hash of `state`, see [`state_hash`].
    state_hash: ChunkHash,
    /// A [`State`].
    state: Value,
    /// The data files with their lengths in bytes.
    pub(crate) files: BTreeMap<String, u64>,
    /// All tensors, sorted by name and kind.
    pub(crate) tensors: Vec<TensorEntry>,
}

/// One tensor and where its elements are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TensorEntry {
    #[serde(flatten)]
    pub(crate) spec: TensorSpec,
    /// Ascending and without gaps. None for a tied or an empty tensor.
    pub(crate) pieces: Vec<PieceEntry>,
}

/// Some elements of a tensor in a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PieceEntry {
    /// The first element.
    pub(crate) start: usize,
    /// One past the last element.
    pub(crate) end: usize,
    /// The file's name, in the folder of the manifest.
    pub(crate) file: String,
    /// The key in that safetensors file.
    pub(crate) key: String,
    /// First byte and one past the last, from the start of the file.
    pub(crate) bytes: [u64; 2],
    /// Hashes of the chunks.
    pub(crate) hashes: Vec<ChunkHash>,
}

impl PieceEntry {
    /// The elements.
    pub(crate) fn interval(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// What one rank wrote; `publish` merges all of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) step: u64,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) tensors: Vec<TensorEntry>,
}

/// What every version of the format starts with.
#[derive(Deserialize)]
struct Prologue {
    format: String,
    version: u64,
}

impl Manifest {
    /// Joins the ranks' parts and checks that together they are whole. `path` is for messages.
    pub(crate) fn merge(path: &Path, parts: Vec<Part>, state: &State) -> Result<Self> {
        let encode = |source| Error::Encode {
            what: "the state",
            source,
        };
        let state = serde_json::to_value(state).map_err(encode)?;
        let ranks = parts.len();
        let mut files = BTreeMap::new();
        let mut tensors: BTreeMap<(String, Kind), TensorEntry> = BTreeMap::new();
        for part in parts {
            files.insert(part.file, part.bytes);
            for entry in part.tensors {
                let key = (entry.spec.name.clone(), entry.spec.kind);
                match tensors.get_mut(&key) {
                    None => {
                        tensors.insert(key, entry);
                    }
                    Some(known) if known.spec.agrees(&entry.spec) => {
                        known.pieces.extend(entry.pieces);
                    }
                    Some(known) => {
                        return Err(Error::Disagreement {
                            tensor: entry.spec.label(),
                            first: known.spec.describe(),
                            second: entry.spec.describe(),
                        });
                    }
                }
            }
        }
        let mut tensors: Vec<TensorEntry> = tensors.into_values().collect();
        for entry in &mut tensors {
            entry.pieces.sort_by_key(|piece| piece.start);
        }
        let manifest = Self {
            format: FORMAT.into(),
            version: VERSION,
            chunk_bytes: CHUNK_BYTES,
            ranks,
            state_hash: state_hash(&state),
            state,
            files,
            tensors,
        };
        manifest.validate(path)?;
        Ok(manifest)
    }

    /// Reads a manifest and checks all of it that can be checked without the data files.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let prologue: Prologue = parse(path, &text)?;
        if prologue.format != FORMAT {
            return Err(malformed(
                path,
                "format",
                "it must be terrashard-checkpoint",
            ));
        }
        if prologue.version == 0 {
            return Err(malformed(path, "version", "it must be 1 or more"));
        }
        if prologue.version > VERSION {
            return Err(Error::NewerVersion {
                path: path.to_owned(),
                found: prologue.version,
                supported: VERSION,
            });
        }
        let mut manifest: Self = parse(path, &text)?;
        manifest
            .tensors
            .sort_by(|a, b| order(&a.spec).cmp(&order(&b.spec)));
        manifest.validate(path)?;
        Ok(manifest)
    }

    /// The manifest as the text of its file.
    pub(crate) fn text(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|source| Error::Encode {
            what: "the manifest",
            source,
        })
    }

    /// The state of the run.
    pub(crate) fn state(&self, path: &Path) -> Result<State> {
        if state_hash(&self.state) != self.state_hash {
            return Err(malformed(
                path,
                "state",
                "it must have the hash it was written with",
            ));
        }
        State::deserialize(&self.state).map_err(|source| Error::Manifest {
            path: path.to_owned(),
            source,
        })
    }

    /// A tensor's entry.
    pub(crate) fn tensor(&self, name: &str, kind: Kind) -> Option<&TensorEntry> {
        let index = self
            .tensors
            .binary_search_by(|entry| order(&entry.spec).cmp(&(name, kind)))
            .ok()?;
        Some(&self.tensors[index])
    }

    /// The tensors with elements in a file: the first one and how many others.
    pub(crate) fn held_by(&self, file: &str) -> (String, usize) {
        let mut held = self
            .tensors
            .iter()
            .filter(|entry| entry.pieces.iter().any(|piece| piece.file == file));
        let first = held
            .next()
            .map_or_else(|| "no tensor".into(), |entry| entry.spec.label());
        (first, held.count())
    }

    fn validate(&self, path: &Path) -> Result<()> {
        if self.chunk_bytes != CHUNK_BYTES {
            return Err(malformed(path, "chunk_bytes", "it must be 1048576"));
        }
        for name in self.files.keys() {
            // The manifest names files, it does not lead out of its folder.
            if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', ':', '\0']) {
                return Err(malformed(
                    path,
                    &format!("file {name:?}"),
                    "it must be a plain name in the checkpoint's folder",
                ));
            }
        }
        for pair in self.tensors.windows(2) {
            if order(&pair[0].spec) == order(&pair[1].spec) {
                return Err(malformed(
                    path,
                    &pair[0].spec.label(),
                    "it must be listed once",
                ));
            }
        }
        for entry in &self.tensors {
            self.validate_tie(path, entry)?;
            self.validate_pieces(path, entry)?;
        }
        self.validate_bytes(path)
    }

    fn validate_tie(&self, path: &Path, entry: &TensorEntry) -> Result<()> {
        let Some(owner) = &entry.spec.tied_to else {
            return Ok(());
        };
        let fits = self.tensor(owner, entry.spec.kind).is_some_and(|owner| {
            owner.spec.tied_to.is_none()
                && owner.spec.shape == entry.spec.shape
                && owner.spec.dtype == entry.spec.dtype
        });
        if fits && entry.pieces.is_empty() {
            return Ok(());
        }
        Err(malformed(
            path,
            &entry.spec.label(),
            "a tied tensor must have no elements of its own and an owner of the same shape and type that is not tied",
        ))
    }

    /// Checks that the pieces cover the tensor once, and that each has the bytes and hashes it needs.
    fn validate_pieces(&self, path: &Path, entry: &TensorEntry) -> Result<()> {
        let fault = |rule| Err(malformed(path, &entry.spec.label(), rule));
        let numel = entry.spec.numel();
        if entry.spec.name.is_empty() || byte_count(&entry.spec.shape, entry.spec.dtype).is_none() {
            return fault("it must have a name, and a shape whose bytes can be counted");
        }
        if entry.spec.tied_to.is_some() {
            return Ok(());
        }
        let width = entry.spec.dtype.bytes() as u64;
        let mut covered = 0;
        for piece in &entry.pieces {
            if piece.start >= piece.end || piece.end > numel {
                return fault("its intervals must be ascending and within its shape");
            }
            let tensor = entry.spec.label();
            if piece.start > covered {
                let interval = covered..piece.start;
                return Err(Error::Gap { tensor, interval });
            }
            if piece.start < covered {
                let interval = piece.start..covered.min(piece.end);
                return Err(Error::Overlap { tensor, interval });
            }
            covered = piece.end;
            let [start, end] = piece.bytes;
            let Some(&length) = self.files.get(&piece.file) else {
                return fault("its files must be listed under `files`");
            };
            // The product cannot overflow: the whole tensor's bytes can be counted.
            if end > length || end.checked_sub(start) != Some(piece.interval().len() as u64 * width)
            {
                return fault(
                    "its bytes must lie within the file and be as many as its elements need",
                );
            }
            if piece.hashes.len() as u64 != hash_count(end - start) {
                return fault("it must have one hash for each chunk");
            }
        }
        if covered < numel {
            return Err(Error::Gap {
                tensor: entry.spec.label(),
                interval: covered..numel,
            });
        }
        Ok(())
    }

    /// Checks that no byte is used twice. With it, what is read of a checkpoint is never more than its files hold,
    /// whatever shapes the manifest declares.
    fn validate_bytes(&self, path: &Path) -> Result<()> {
        let mut used: Vec<(&str, [u64; 2], &TensorEntry)> = self
            .tensors
            .iter()
            .flat_map(|entry| {
                entry
                    .pieces
                    .iter()
                    .map(move |piece| (piece.file.as_str(), piece.bytes, entry))
            })
            .collect();
        used.sort_by_key(|&(file, bytes, _)| (file, bytes));
        for pair in used.windows(2) {
            let ((file, before, _), (next, bytes, entry)) = (pair[0], pair[1]);
            if file == next && bytes[0] < before[1] {
                return Err(malformed(
                    path,
                    &entry.spec.label(),
                    "no two tensors may share bytes of a file",
                ));
            }
        }
        Ok(())
    }
}

impl Part {
    /// Reads a rank's part.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        parse(path, &read_text(path)?)
    }

    /// The part as the text of its file.
    pub(crate) fn text(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|source| Error::Encode {
            what: "a rank's part",
            source,
        })
    }
}

/// The hash of a state's JSON without spaces and with sorted keys: a manifest may be formatted anew.
fn state_hash(state: &Value) -> ChunkHash {
    let mut sorted = state.clone();
    sorted.sort_all_objects();
    ChunkHash::of(sorted.to_string().as_bytes())
}

/// What tensors are sorted by.
fn order(spec: &TensorSpec) -> (&str, Kind) {
    (&spec.name, spec.kind)
}

fn malformed(path: &Path, subject: &str, rule: &'static str) -> Error {
    Error::Malformed {
        path: path.to_owned(),
        subject: subject.to_owned(),
        rule,
    }
}

fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|source| Error::Manifest {
        path: path.to_owned(),
        source,
    })
}

fn read_text(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(io("open", path))?;
    let mut text = Vec::new();
    file.take(MANIFEST_MAX_BYTES)
        .read_to_end(&mut text)
        .map_err(io("read", path))?;
    Ok(text)
}

/// The key of a piece in its safetensors file, unique among all.
pub(crate) fn piece_key(name: &str, kind: Kind, start: usize) -> String {
    format!("{kind}/{name}@{start}")
}
