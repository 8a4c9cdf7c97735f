//! A checkpoint or a model file, read alike.

use std::ops::Range;
use std::path::Path;

use crate::convert::{doubles, floats};
use crate::{Checkpoint, ElementType, Error, Kind, Matching, ModelFile, Result, TensorSpec};

/// Where tensors come from.
#[derive(Debug)]
#[non_exhaustive]
pub enum Source {
    /// A training run's checkpoint.
    Checkpoint(Checkpoint),
    /// An exported model.
    Model(ModelFile),
}

impl Source {
    /// Opens a model file, if `path` is a file, or else a checkpoint.
    ///
    /// # Errors
    /// Those of [`ModelFile::open`] and [`Checkpoint::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        match path.is_file() {
            true => ModelFile::open(path).map(Self::Model),
            false => Checkpoint::open(path).map(Self::Checkpoint),
        }
    }

    /// The folder or file that is read.
    pub fn path(&self) -> &Path {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.folder(),
            Self::Model(model) => model.path(),
        }
    }

    /// All tensors, sorted by name and kind.
    pub fn tensors(&self) -> Vec<&TensorSpec> {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.tensors().collect(),
            Self::Model(model) => model.tensors().collect(),
        }
    }

    /// A tensor by name and kind.
    pub fn tensor(&self, name: &str, kind: Kind) -> Option<&TensorSpec> {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.tensor(name, kind),
            Self::Model(model) => model.tensor(name, kind),
        }
    }

    /// Reads elements `interval` of a tensor, flattened in row-major order, as little-endian bytes.
    ///
    /// # Errors
    /// Those of [`Checkpoint::read`].
    pub fn read(&self, name: &str, kind: Kind, interval: Range<usize>) -> Result<Vec<u8>> {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.read(name, kind, interval),
            Self::Model(model) => model.read(name, kind, interval),
        }
    }

    /// Reads elements `interval` of a tensor in single precision, each value rounded to the nearest.
    ///
    /// # Errors
    /// Those of [`Checkpoint::read`].
    pub fn read_f32(&self, name: &str, kind: Kind, interval: Range<usize>) -> Result<Vec<f32>> {
        let bytes = self.read(name, kind, interval)?;
        Ok(floats(&bytes, self.dtype(name, kind)))
    }

    /// Reads elements `interval` of a tensor in double precision, which holds the values of all element types.
    ///
    /// # Errors
    /// Those of [`Checkpoint::read`].
    pub fn read_f64(&self, name: &str, kind: Kind, interval: Range<usize>) -> Result<Vec<f64>> {
        let bytes = self.read(name, kind, interval)?;
        Ok(doubles(&bytes, self.dtype(name, kind)))
    }

    /// The element type of a tensor that was read.
    fn dtype(&self, name: &str, kind: Kind) -> ElementType {
        let tensor = self.tensor(name, kind);
        tensor.expect("a tensor that was read is there").dtype
    }

    /// Checks all hashes. Returns the bytes that were checked.
    ///
    /// # Errors
    /// Those of [`Checkpoint::verify`] and [`ModelFile::verify`].
    pub fn verify(&self) -> Result<u64> {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.verify(),
            Self::Model(model) => model.verify(),
        }
    }

    /// Compares what is there with what is expected, by name.
    pub fn matching(&self, expected: &[TensorSpec]) -> Matching {
        Matching::of(self.tensors(), expected)
    }

    /// Refuses a source that lacks an expected tensor, or has others of the expected kinds.
    ///
    /// # Errors
    /// [`Error::Mismatch`] naming them.
    pub fn require(&self, expected: &[TensorSpec]) -> Result<()> {
        let matching = self.matching(expected);
        if matching.is_exact() {
            return Ok(());
        }
        Err(Error::Mismatch {
            path: self.path().to_owned(),
            matching,
        })
    }
}
