//! Opening a raster, whatever holds it.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crate::geotiff_source::GeoTiffSource;
use crate::jp2_source::{self, Jp2Source};
use crate::npy_source::{self, NpySource};
use crate::{Error, RasterSource, Result, address, band_files, npz_archive, safe_product};

/// Declared bytes per stored byte above which a file is refused: no codec reaches this on pixels.
pub(crate) const DECLARED_PER_STORED: u64 = 100_000;

/// How much memory reading may take.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of one decoded window, tile or strip. Default: 1 GiB.
    pub window_bytes: usize,
    /// Bytes of decoded tiles and strips kept for the next window of the same file. Default: 160 MiB, which two rows of tiles
    /// of 512 pixels of a whole Sentinel-2 scene of six bands take. Bands in files of their own share it.
    pub cache_bytes: usize,
    /// How long a range of a scene that lies elsewhere is waited for and asked for again. Default: one minute.
    pub patience: Duration,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            window_bytes: 1 << 30,
            cache_bytes: 160 << 20,
            patience: Duration::from_secs(60),
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

/// Opens a raster and checks all that can be checked without decoding pixels. What it is shows in the content:
///
/// - a GeoTIFF, COG or BigTIFF file, with or without georeference;
/// - a JPEG 2000 file, read tile by tile;
/// - a `.npy` file; a `.npz` file that holds one array, or `FILE.npz/NAME` for one of several;
/// - a `.SAFE` folder of Sentinel-2, its metadata file, or the folder of one granule: all bands, each on the finest grid
///   that there is of it, with reflectance's scale and offset, `PROCESSING_BASELINE` and the like as annotations;
/// - any other folder of single-band files with the bands' names in theirs;
/// - with the feature `cloud`, a GeoTIFF or COG at `s3://`, `gs://`, `az://`, `http://` or `https://`, of which only the
///   directories and the tiles that are needed are read. Errors show the address without credentials.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Empty`], [`Error::NotARaster`], [`Error::Truncated`], [`Error::Unsupported`],
/// [`Error::Implausible`], [`Error::TooLarge`], [`Error::Damaged`], [`Error::Ambiguous`], [`Error::Misfit`],
/// [`Error::Remote`] and [`Error::Io`].
pub fn open_with(path: impl AsRef<Path>, limits: ReadLimits) -> Result<Box<dyn RasterSource>> {
    let path = path.as_ref();
    if address::is_url(path) {
        return open_url(&address::keep_credentials(path.to_owned()), limits);
    }
    if path.is_dir() {
        return match safe_product::is_product(path) {
            true => safe_product::open(path, limits),
            false => band_files::open(path, limits),
        };
    }
    let named = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
    let name = named(path).unwrap_or_default();
    if let Some(parent) = path.parent() {
        if name.starts_with("MTD_") && safe_product::is_product(parent) {
            return safe_product::open(parent, limits);
        }
        if parent.is_file() && named(parent).is_some_and(|n| n.ends_with(".npz")) {
            return npz_archive::open(parent, Some(&name), limits);
        }
    }
    open_file(path, limits)
}

/// Opens a raster that is one file.
pub(crate) fn open_file(path: &Path, limits: ReadLimits) -> Result<Box<dyn RasterSource>> {
    let stored = file_bytes(path)?;
    let mut start = Vec::with_capacity(16);
    let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
    (&file)
        .take(16)
        .read_to_end(&mut start)
        .map_err(|e| Error::io(path, "read", e))?;
    Ok(match start.get(..4) {
        _ if start.is_empty() => {
            return Err(Error::Empty {
                path: path.to_owned(),
            });
        }
        Some(b"II*\0" | b"MM\0*" | b"II+\0" | b"MM\0+") => {
            Box::new(GeoTiffSource::open(path, stored, limits)?)
        }
        Some(npz_archive::MAGIC) => npz_archive::open(path, None, limits)?,
        Some(jp2_source::CODESTREAM) => Box::new(Jp2Source::open(path, stored, limits)?),
        _ if start.starts_with(jp2_source::SIGNATURE) => {
            Box::new(Jp2Source::open(path, stored, limits)?)
        }
        _ if start.starts_with(npy_source::MAGIC) => {
            Box::new(NpySource::open(path, file, 0, stored, limits)?)
        }
        _ => {
            return Err(Error::NotARaster {
                path: path.to_owned(),
                start: String::from_utf8_lossy(&start).into_owned(),
            });
        }
    })
}

/// Opens a raster that lies elsewhere.
#[cfg(not(feature = "cloud"))]
fn open_url(shown: &Path, _: ReadLimits) -> Result<Box<dyn RasterSource>> {
    Err(Error::Unsupported {
        path: shown.to_owned(),
        what: "reading from a URL".to_owned(),
        remedy: "build with `--features cloud`, or download the file",
    })
}

/// Opens a raster that lies elsewhere.
#[cfg(feature = "cloud")]
fn open_url(shown: &Path, limits: ReadLimits) -> Result<Box<dyn RasterSource>> {
    use crate::remote_file::RemoteFile;
    let file = RemoteFile::open(shown, limits)?;
    let start = file
        .read(0..file.bytes().min(16))
        .map_err(|failure| failure.at(shown))?;
    match start.get(..4) {
        Some(b"II*\0" | b"MM\0*" | b"II+\0" | b"MM\0+") => {
            Ok(Box::new(GeoTiffSource::open_remote(file, shown, limits)?))
        }
        Some(npz_archive::MAGIC | jp2_source::CODESTREAM) => Err(not_by_ranges(shown)),
        _ if start.starts_with(jp2_source::SIGNATURE) || start.starts_with(npy_source::MAGIC) => {
            Err(not_by_ranges(shown))
        }
        _ => Err(Error::NotARaster {
            path: shown.to_owned(),
            start: String::from_utf8_lossy(&start).into_owned(),
        }),
    }
}

#[cfg(feature = "cloud")]
fn not_by_ranges(shown: &Path) -> Error {
    Error::Unsupported {
        path: shown.to_owned(),
        what: "reading any format but GeoTIFF from a URL".to_owned(),
        remedy: "download the file",
    }
}

/// The length of a file; refuses what is none.
pub(crate) fn file_bytes(path: &Path) -> Result<u64> {
    let info = std::fs::metadata(path).map_err(|e| Error::io(path, "read", e))?;
    if !info.is_file() {
        return Err(Error::Unsupported {
            path: path.to_owned(),
            what: "a folder or device in place of a file".to_owned(),
            remedy: "name a file",
        });
    }
    Ok(info.len())
}
