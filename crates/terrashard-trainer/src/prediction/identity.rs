//! Which prediction it is: two calls with the same identity give the same bits, so that one may go on where the other ended.

use std::fs::{self, File};
use std::path::Path;
use std::time::UNIX_EPOCH;

use blake3::Hasher;
use terrashard_raster::is_url;

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

    /// Adds an image by its place, and the lengths of its files and when they were last written: those of a folder, of a file, or of
    /// the archive that it is a member of. Of one that lies elsewhere its address alone.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub(crate) fn add_image(&mut self, path: &Path) -> Result<()> {
        self.add("image", &path);
        if is_url(path) {
            return Ok(());
        }
        let stored = match (path.exists(), path.parent()) {
            (false, Some(archive)) => archive,
            _ => path,
        };
        let place = fs::canonicalize(stored).map_err(Error::read(stored))?;
        self.add_files(&place)
    }

    fn add_files(&mut self, path: &Path) -> Result<()> {
        let found = fs::metadata(path).map_err(Error::read(path))?;
        if found.is_dir() {
            let entries = fs::read_dir(path).map_err(Error::read(path))?;
            let mut entries = entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<Result<Vec<_>, _>>()
                .map_err(Error::read(path))?;
            entries.sort();
            return entries.iter().try_for_each(|entry| self.add_files(entry));
        }
        let written = found.modified().map_err(Error::read(path))?;
        // A time before 1970 is as good as any.
        let written = written.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.add("file", &(path, found.len(), written));
        Ok(())
    }

    /// The identity as text.
    pub(crate) fn text(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}
