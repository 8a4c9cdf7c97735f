//! Opening a raster, whatever holds it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::geotiff_source::GeoTiffSource;
use crate::{Error, RasterSource, Result};

/// How much memory reading may take.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of one decoded window, tile or strip. Default: 1 GiB.
    pub window_bytes: usize,
    /// Bytes of decoded tiles and strips kept for the next window of the same file. Default: 160 MiB, which two rows of tiles
    /// of 512 pixels of a whole Sentinel-2 scene of six bands take.
    pub cache_bytes: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            window_bytes: 1 << 30,
            cache_bytes: 160 << 20,
        }
    }
}

/// Opens a raster with the default [`ReadLimits`].
///
/// # Errors
/// As [`open_with`].
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn RasterSource>> {
    open_with(path, ReadLimits::default())
}

/// Opens a raster and checks all that can be checked without decoding pixels.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Empty`], [`Error::NotATiff`], [`Error::Truncated`], [`Error::Unsupported`],
/// [`Error::Implausible`], [`Error::TooLarge`], [`Error::Damaged`] and [`Error::Io`].
pub fn open_with(path: impl AsRef<Path>, limits: ReadLimits) -> Result<Box<dyn RasterSource>> {
    let path = path.as_ref();
    let stored = check_start(path)?;
    Ok(Box::new(GeoTiffSource::open(path, stored, limits)?))
}

/// Refuses what is no file, is empty or does not begin like a TIFF; returns the file's length.
fn check_start(path: &Path) -> Result<u64> {
    let info = std::fs::metadata(path).map_err(|e| Error::io(path, "read", e))?;
    if !info.is_file() {
        let (what, remedy) = (
            "a folder or device in place of a file".to_owned(),
            "name one .tif file",
        );
        return Err(Error::Unsupported {
            path: path.to_owned(),
            what,
            remedy,
        });
    }
    let mut start = Vec::with_capacity(16);
    let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
    file.take(16)
        .read_to_end(&mut start)
        .map_err(|e| Error::io(path, "read", e))?;
    match start.get(..4) {
        _ if start.is_empty() => Err(Error::Empty {
            path: path.to_owned(),
        }),
        Some(b"II*\0" | b"MM\0*" | b"II+\0" | b"MM\0+") => Ok(info.len()),
        _ => Err(Error::NotATiff {
            path: path.to_owned(),
            start: String::from_utf8_lossy(&start).into_owned(),
        }),
    }
}
