//! Which prediction it is: two calls with the same identity give the same bits, so that one may go on where the other ended.

use std::fs::{self, File};
use std::path::Path;
use std::time::UNIX_EPOCH;

use blake3::Hasher;

use crate::error::{Error, Result};
use crate::trained_model::TrainedModel;

/// What a prediction depends on, hashed piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Identity(Hasher);

impl Identity {
    /// Adds something by its name and its value.
    pub(crate) fn add(&mut self, name: &str, value: &impl std::fmt::Debug) {
        self.0.update(format!("{name}: {value:?}\n").as_bytes());
    }

    /// Adds a trained model: the bytes of a model file, or the manifest of a checkpoint, which holds the hashes of its tensors.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub(crate) fn add_model(&mut self, trained: &TrainedModel) -> Result<()> {
        let path = trained.source().path();
        let file = match path.is_file() {
            true => path.to_owned(),
            false => path.join("manifest.json"),
        };
        let reader = File::open(&file).map_err(Error::read(&file))?;
        self.0.update_reader(reader).map_err(Error::read(&file))?;
        Ok(())
    }

    /// Adds an image by its place, its length and when it was last written.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub(crate) fn add_file(&mut self, path: &Path) -> Result<()> {
        let path = fs::canonicalize(path).map_err(Error::read(path))?;
        let found = fs::metadata(&path).map_err(Error::read(&path))?;
        let written = found.modified().map_err(Error::read(&path))?;
        // A time before 1970 is as good as any.
        let written = written.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.add("image", &(path, found.len(), written));
        Ok(())
    }

    /// The identity as text.
    pub(crate) fn text(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}
