//! Tensors of checkpoints that other projects wrote: a safetensors file, or what `torch.save` writes.

mod archive;
mod pickle;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::archive::Archive;
use crate::container::Header;
use crate::convert::floats;
use crate::durable::io;
use crate::{ElementType, Error, Result};

/// A pickle longer than this holds more than the names of a model's tensors. What is read of one takes up to a hundred times as much
/// memory.
const LONGEST_PICKLE: u64 = 16 << 20;

/// A checkpoint that another project wrote, open for reading. Nothing in it is run.
#[derive(Debug)]
pub struct ForeignFile {
    path: PathBuf,
    tensors: BTreeMap<String, Tensor>,
}

/// Where a tensor's values are.
#[derive(Debug)]
struct Tensor {
    place: Place,
    /// The first byte of its storage in the file; an archive's is asked for when it is read.
    start: Start,
}

#[derive(Debug)]
enum Start {
    At(u64),
    /// The name of the archive's entry is this folder's and the storage's.
    Entry(Arc<str>),
}

/// A tensor as elements of a storage.
#[derive(Debug, Clone)]
struct Place {
    /// The storage's name in an archive: one text, however many tensors share it.
    storage: Arc<str>,
    /// `None` if it is of no float type.
    dtype: Option<ElementType>,
    /// Elements of the whole storage.
    elements: u64,
    offset: usize,
    shape: Vec<usize>,
    stride: Vec<usize>,
}

fn refuse(path: &Path, reason: impl Into<String>) -> Error {
    Error::Foreign {
        path: path.into(),
        reason: reason.into(),
    }
}

impl ForeignFile {
    /// Opens a safetensors file, or a file that `torch.save` wrote since version 1.6: a dictionary of tensors, or one with such a
    /// dictionary under `state_dict`, `model_state_dict` or `model`.
    ///
    /// # Errors
    /// [`Error::Foreign`] if it is neither, or damaged; [`Error::Header`] for a safetensors file; [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(io("open", path))?;
        let mut magic = Vec::new();
        let beginning = Read::by_ref(&mut file).take(9).read_to_end(&mut magic);
        beginning.map_err(io("read", path))?;
        let tensors = match &magic[..] {
            // The header of safetensors begins here, after its length, which may be any number.
            [_, _, _, _, _, _, _, _, b'{'] => stored(path, &mut file)?,
            [b'P', b'K', ..] => archived(path)?,
            // Protocol 2 of pickle: torch's format until version 1.5.
            [0x80, _, ..] => {
                return Err(refuse(
                    path,
                    "it is in torch's format of before version 1.6: load it and save it again with a newer torch",
                ));
            }
            _ => stored(path, &mut file)?,
        };
        Ok(Self {
            path: path.into(),
            tensors,
        })
    }

    /// The file that is read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names and shapes of all tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let tensors = self.tensors.iter();
        tensors.map(|(name, tensor)| (name.as_str(), &tensor.place.shape[..]))
    }

    /// The values of a tensor in row-major order, rounded to `f32`.
    ///
    /// # Errors
    /// [`Error::Foreign`] if there is none of this name, it is of no float type, or lies outside its storage; [`Error::Io`].
    pub fn read(&self, name: &str) -> Result<Vec<f32>> {
        let wrong = |what: &str| refuse(&self.path, format!("its tensor `{name}` {what}"));
        let tensor = self.tensors.get(name).ok_or_else(|| wrong("is missing"))?;
        let place = &tensor.place;
        let dtype = place.dtype.ok_or_else(|| wrong("is of no float type"))?;
        let outside = || wrong("lies outside its storage");
        let named = |error| match error {
            Error::Foreign { reason, .. } => wrong(&format!("cannot be read: {reason}")),
            other => other,
        };
        let (count, last) = place.extent().ok_or_else(outside)?;
        // As many elements as the storage has at most, so that no memory is taken for what the file does not hold.
        if last as u64 > place.elements || count as u64 > place.elements {
            return Err(outside());
        }
        let width = dtype.bytes() as u64;
        let start = match &tensor.start {
            Start::At(start) => *start,
            Start::Entry(folder) => {
                let entry = format!("{folder}data/{}", place.storage);
                let content = Archive::open(&self.path)?.content(&entry).map_err(named)?;
                let length = content.end - content.start;
                if place
                    .elements
                    .checked_mul(width)
                    .is_none_or(|bytes| bytes > length)
                {
                    return Err(outside());
                }
                content.start
            }
        };
        let mut file = File::open(&self.path).map_err(io("open", &self.path))?;
        let first = start + place.offset as u64 * width;
        let end = start + last as u64 * width;
        let bytes = archive::bytes(&self.path, &mut file, first..end).map_err(named)?;
        Ok(place.ordered(&floats(&bytes, dtype)))
    }
}

impl Place {
    /// Its elements, and the end of those of the storage; `None` if they cannot be counted.
    fn extent(&self) -> Option<(usize, usize)> {
        if self.shape.len() != self.stride.len() {
            return None;
        }
        let mut sizes = self.shape.iter();
        let count = sizes.try_fold(1usize, |count, size| count.checked_mul(*size))?;
        if count == 0 {
            return Some((0, self.offset));
        }
        let mut axes = self.shape.iter().zip(&self.stride);
        let last = axes.try_fold(self.offset, |last, (size, stride)| {
            last.checked_add((size - 1).checked_mul(*stride)?)
        })?;
        Some((count, last.checked_add(1)?))
    }

    /// The elements in row-major order, of those from the first one on.
    fn ordered(&self, values: &[f32]) -> Vec<f32> {
        // Sizes beside a zero may be any, so that neither their product nor a list of places is for counting.
        if self.shape.contains(&0) {
            return Vec::new();
        }
        let mut dense = 1;
        let is_dense = self
            .shape
            .iter()
            .zip(&self.stride)
            .rev()
            .all(|(size, stride)| {
                let fits = *size == 1 || *stride == dense;
                dense *= size;
                fits
            });
        if is_dense {
            return values.to_vec();
        }
        let mut places = vec![0];
        for (size, stride) in self.shape.iter().zip(&self.stride) {
            places = places
                .iter()
                .flat_map(|place| (0..*size).map(move |i| place + i * stride))
                .collect();
        }
        places.into_iter().map(|place| values[place]).collect()
    }
}

/// The tensors of a safetensors file.
fn stored(path: &Path, file: &mut File) -> Result<BTreeMap<String, Tensor>> {
    let header = Header::read(file, path)?;
    let tensor = |name: String| {
        let (dtype, shape, bytes) = header.tensor(&name)?;
        let elements: usize = shape.iter().product();
        let mut stride = vec![1_usize; shape.len()];
        for axis in (1..shape.len()).rev() {
            // What is beside a zero may be too large; nothing lies there.
            stride[axis - 1] = stride[axis].saturating_mul(shape[axis]);
        }
        let place = Place {
            storage: Arc::default(),
            dtype,
            elements: elements as u64,
            offset: 0,
            shape: shape.to_vec(),
            stride,
        };
        let start = Start::At(bytes.start);
        Some((name, Tensor { place, start }))
    };
    Ok(header.keys().into_iter().filter_map(tensor).collect())
}

/// The tensors of a file that `torch.save` wrote.
fn archived(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let archive = Archive::open(path)?;
    let pickled = archive
        .names()
        .find_map(|name| name.strip_suffix("data.pkl"));
    let no_pickle = || refuse(path, "it has no `data.pkl`, as what torch.save writes has");
    let folder = pickled.ok_or_else(no_pickle)?.to_owned();
    let mut file = File::open(path).map_err(io("open", path))?;
    let order = format!("{folder}byteorder");
    if archive.names().any(|name| name == order) {
        let content = archive.content(&order)?;
        if content.end - content.start != 6
            || archive::bytes(path, &mut file, content)? != b"little"
        {
            return Err(refuse(
                path,
                "its numbers do not begin with their low bytes",
            ));
        }
    }
    let content = archive.content(&format!("{folder}data.pkl"))?;
    if content.end - content.start > LONGEST_PICKLE {
        return Err(refuse(
            path,
            "its `data.pkl` is longer than any model's names",
        ));
    }
    let pickle = archive::bytes(path, &mut file, content)?;
    let tensors = pickle::tensors(&pickle).map_err(|problem| refuse(path, problem))?;
    let folder: Arc<str> = folder.into();
    let located = |(name, place): (String, Place)| {
        let start = Start::Entry(folder.clone());
        (name, Tensor { place, start })
    };
    Ok(tensors.into_iter().map(located).collect())
}
