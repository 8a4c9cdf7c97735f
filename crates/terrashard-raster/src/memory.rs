//! A raster that lies in memory.

use std::path::{Path, PathBuf};

use crate::opening::ReadLimits;
use crate::{
    Annotations, Error, Metadata, Raster, RasterSource, Result, Samples, Validity, Window,
};

/// A whole raster in memory under the interface of a file: for computed scenes and for tests.
#[derive(Clone, Debug)]
pub struct MemorySource {
    name: PathBuf,
    metadata: Metadata,
    samples: Samples,
    mask: Option<Vec<bool>>,
}

impl MemorySource {
    /// A raster of the given samples under the given name.
    ///
    /// # Shapes
    /// `samples`: `[bands, height, width]` of `metadata`.
    ///
    /// # Errors
    /// [`Error::SampleCount`] where the samples do not fill the raster.
    pub fn new(name: impl Into<PathBuf>, metadata: Metadata, samples: Samples) -> Result<Self> {
        let samples = Raster::new(metadata.window(), metadata.bands, samples)?.into_samples();
        let metadata = Metadata {
            data_type: samples.data_type(),
            ..metadata
        };
        Ok(Self {
            name: name.into(),
            metadata,
            samples,
            mask: None,
        })
    }

    /// The raster with a mask beside its pixels: which of them are data.
    ///
    /// # Shapes
    /// `[height, width]` of the raster.
    ///
    /// # Errors
    /// [`Error::SampleCount`] where the mask does not fill the raster.
    pub fn with_mask(mut self, mask: Vec<bool>) -> Result<Self> {
        let expected = self.metadata.window().pixels();
        if mask.len() != expected {
            return Err(Error::SampleCount {
                window: self.metadata.window(),
                bands: 1,
                expected,
                got: mask.len(),
            });
        }
        self.mask = Some(mask);
        Ok(self)
    }
}

impl RasterSource for MemorySource {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn path(&self) -> &Path {
        &self.name
    }

    fn read_window(&self, window: Window) -> Result<Raster> {
        let Metadata {
            width,
            height,
            bands,
            ..
        } = self.metadata;
        check_window(&self.name, &self.metadata, window)?;
        let mut samples = Samples::filled(self.metadata.data_type, 0.0, bands * window.pixels());
        for band in 0..bands {
            for row in 0..window.height {
                let from = (band * height + window.row + row) * width + window.col;
                samples.copy_from(
                    (band * window.height + row) * window.width,
                    &self.samples,
                    from,
                    window.width,
                );
            }
        }
        Raster::new(window, bands, samples)
    }

    fn annotations(&self) -> Annotations {
        let validity = match self.mask {
            Some(_) => Validity::Mask,
            None => self.metadata.validity(),
        };
        Annotations {
            validity,
            ..Annotations::none(self.metadata.bands)
        }
    }

    fn read_mask(&self, window: Window) -> Result<Option<Vec<bool>>> {
        check_window(&self.name, &self.metadata, window)?;
        let Some(mask) = &self.mask else {
            return Ok(None);
        };
        let rows = window.row..window.row_end();
        let row = |row: usize| &mask[row * self.metadata.width + window.col..][..window.width];
        Ok(Some(rows.flat_map(row).copied().collect()))
    }
}

/// Refuses a window that is empty or not inside of the raster.
pub(crate) fn check_window(path: &Path, metadata: &Metadata, window: Window) -> Result<()> {
    let Metadata { width, height, .. } = *metadata;
    if window.is_empty() || !metadata.window().contains(&window) {
        return Err(Error::OutsideWindow {
            path: path.to_owned(),
            window,
            width,
            height,
        });
    }
    Ok(())
}

/// Refuses a window that takes more memory than the limit.
pub(crate) fn check_budget(
    path: &Path,
    metadata: &Metadata,
    window: Window,
    limits: ReadLimits,
) -> Result<()> {
    let pixel = (metadata.bands * metadata.data_type.bytes()) as u64;
    let needed = (window.pixels() as u64).saturating_mul(pixel);
    let limit = limits.window_bytes as u64;
    if needed > limit {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            what: format!("the window of {window}"),
            needed,
            limit,
        });
    }
    Ok(())
}
