//! A file that is open only while it is read.

use std::path::{Path, PathBuf};

use terrashard_raster::{Annotations, Metadata, Raster, RasterSource, Window};

/// A raster whose file is opened for each window: for thousands of small files, of which a system lets no program hold all.
#[derive(Debug)]
pub struct Reopened {
    path: PathBuf,
    metadata: Metadata,
    annotations: Annotations,
}

impl Reopened {
    /// Reads what the file says of itself.
    ///
    /// # Errors
    /// Those of [`terrashard_raster::open`].
    pub fn new(path: impl Into<PathBuf>) -> terrashard_raster::Result<Self> {
        let path = path.into();
        let source = terrashard_raster::open(&path)?;
        Ok(Self {
            metadata: source.metadata().clone(),
            annotations: source.annotations(),
            path,
        })
    }
}

impl RasterSource for Reopened {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_window(&self, window: Window) -> terrashard_raster::Result<Raster> {
        terrashard_raster::open(&self.path)?.read_window(window)
    }

    fn annotations(&self) -> Annotations {
        self.annotations.clone()
    }

    fn read_mask(&self, window: Window) -> terrashard_raster::Result<Option<Vec<bool>>> {
        terrashard_raster::open(&self.path)?.read_mask(window)
    }

    fn overview(&self, level: usize) -> terrashard_raster::Result<Option<Box<dyn RasterSource>>> {
        terrashard_raster::open(&self.path)?.overview(level)
    }
}
