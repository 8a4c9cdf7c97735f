//! Reading GeoTIFF, COG and BigTIFF files, and TIFF files that carry no georeference.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use geotiff_reader::GeoTiffFile;
use tiff_reader::{Ifd, OpenOptions, RasterLayout, TiffError, TiffFile};

use crate::block_grid::{BlockGrid, PLANAR};
use crate::memory::check_window;
use crate::{
    DataType, Error, Georeference, Metadata, Raster, RasterSource, Result, Samples, Transform,
    Window, gdal_metadata,
};

/// Declared bytes per stored byte above which a file is refused: no codec reaches this on pixels.
const DECLARED_PER_STORED: u64 = 100_000;
const GDAL_NODATA: u16 = 42113;

/// How much memory reading may take.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of one decoded window, tile or strip. Default: 1 GiB.
    pub window_bytes: usize,
    /// Bytes of decoded tiles and strips kept for the next window of the same file. Default: 64 MiB.
    pub cache_bytes: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            window_bytes: 1 << 30,
            cache_bytes: 64 << 20,
        }
    }
}

/// An open GeoTIFF. Only its metadata is in memory.
pub struct GeoTiffSource {
    path: PathBuf,
    file: Handle,
    image: usize,
    layout: RasterLayout,
    limits: ReadLimits,
    sparse: Vec<(Range<usize>, Window)>,
    metadata: Metadata,
}

enum Handle {
    Georeferenced(Box<GeoTiffFile>),
    Plain(Box<TiffFile>),
}

impl Handle {
    fn tiff(&self) -> &TiffFile {
        match self {
            Self::Georeferenced(file) => file.tiff(),
            Self::Plain(file) => file,
        }
    }
}

impl fmt::Debug for GeoTiffSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeoTiffSource")
            .field("path", &self.path)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// Opens a file with the default [`ReadLimits`].
///
/// # Errors
/// As [`open_with`].
pub fn open(path: impl AsRef<Path>) -> Result<GeoTiffSource> {
    open_with(path, ReadLimits::default())
}

/// Opens a file and checks all that can be checked without decoding: that every tile or strip lies in the file, that its
/// codec is known, and that the declared size is plausible.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Empty`], [`Error::NotATiff`], [`Error::Truncated`], [`Error::Unsupported`],
/// [`Error::Implausible`], [`Error::TooLarge`], [`Error::Damaged`] and [`Error::Io`].
pub fn open_with(path: impl AsRef<Path>, limits: ReadLimits) -> Result<GeoTiffSource> {
    let path = path.as_ref();
    let stored = check_start(path)?;
    let options = OpenOptions {
        block_cache_bytes: limits.cache_bytes,
        decode_output_bytes: limits.window_bytes,
        ..OpenOptions::default()
    };
    let file = match GeoTiffFile::open_with_options(path, options) {
        Ok(file) => Handle::Georeferenced(Box::new(file)),
        Err(geotiff_reader::Error::NotGeoTiff) => {
            let file = TiffFile::open_with_options(path, options)
                .map_err(|e| decode_error(path, stored, e))?;
            Handle::Plain(Box::new(file))
        }
        Err(geotiff_reader::Error::Tiff(error)) => return Err(decode_error(path, stored, error)),
        Err(error) => {
            return Err(Error::Damaged {
                path: path.to_owned(),
                source: Box::new(error),
            });
        }
    };
    let image = match &file {
        Handle::Georeferenced(file) => file.base_ifd_index(),
        Handle::Plain(_) => 0,
    };
    let ifd = file
        .tiff()
        .ifd(image)
        .map_err(|e| decode_error(path, stored, e))?;
    check_codec(path, ifd)?;
    let layout = ifd
        .raster_layout()
        .map_err(|e| decode_error(path, stored, e))?;
    let data_type = data_type(path, &layout)?;
    let bands = layout.samples_per_pixel;

    let declared = (layout.width as u64)
        .saturating_mul(layout.height as u64)
        .saturating_mul(bands as u64)
        .saturating_mul(data_type.bytes() as u64);
    if declared > stored.saturating_mul(DECLARED_PER_STORED) {
        return Err(Error::Implausible {
            path: path.to_owned(),
            declared,
            stored,
            allowed: DECLARED_PER_STORED,
        });
    }

    let grid = BlockGrid::new(path, ifd, &layout)?;
    let per_block = if layout.planar_configuration == PLANAR {
        1
    } else {
        bands as u64
    };
    let needed = (grid.block.0 as u64)
        .saturating_mul(grid.block.1 as u64)
        .saturating_mul(per_block)
        .saturating_mul(data_type.bytes() as u64);
    if needed > limits.window_bytes as u64 {
        let (what, limit) = (format!("one {}", grid.noun), limits.window_bytes as u64);
        return Err(Error::TooLarge {
            path: path.to_owned(),
            what,
            needed,
            limit,
        });
    }
    let missing = grid.check_extent(path, stored)?;

    let nodata = ifd
        .tag(GDAL_NODATA)
        .and_then(|tag| tag.value.as_str())
        .and_then(parse_nodata);
    let text = ifd
        .tag(gdal_metadata::TAG)
        .and_then(|tag| tag.value.as_str())
        .unwrap_or_default();
    let metadata = Metadata {
        width: layout.width,
        height: layout.height,
        bands,
        data_type,
        georeference: georeference(&file),
        nodata,
        descriptions: gdal_metadata::descriptions(text, bands),
        overviews: overviews(&file, layout.width),
        block: grid.block,
    };
    // The decoder fills a block that is not stored with zeros; that is right unless the nodata value is another.
    let fills = nodata.is_some_and(|v| v != 0.0 && data_type.represents(v));
    let sparse = if fills {
        missing.into_iter().map(|index| grid.place(index)).collect()
    } else {
        Vec::new()
    };
    Ok(GeoTiffSource {
        path: path.to_owned(),
        file,
        image,
        layout,
        limits,
        sparse,
        metadata,
    })
}

impl RasterSource for GeoTiffSource {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_window(&self, window: Window) -> Result<Raster> {
        check_window(&self.path, &self.metadata, window)?;
        let Metadata {
            bands, data_type, ..
        } = self.metadata;
        let needed = (window.pixels() as u64).saturating_mul((bands * data_type.bytes()) as u64);
        let limit = self.limits.window_bytes as u64;
        if needed > limit {
            let what = format!("the window of {window}");
            return Err(Error::TooLarge {
                path: self.path.clone(),
                what,
                needed,
                limit,
            });
        }
        let mut samples = Samples::with_capacity(data_type, window.pixels() * bands);
        let Window {
            col,
            row,
            width,
            height,
        } = window;
        let (tiff, image) = (self.file.tiff(), self.image);
        let stored = || std::fs::metadata(&self.path).map_or(0, |m| m.len());
        let failed = |error: TiffError| decode_error(&self.path, stored(), error);
        if self.layout.planar_configuration == PLANAR {
            for band in 0..bands {
                let bytes = tiff
                    .read_band_window_bytes(image, band, row, col, height, width)
                    .map_err(failed)?;
                samples.extend_from_bytes(&bytes, 0, 1);
            }
        } else {
            // One call for all bands: band by band, each interleaved block would be decoded once per band.
            let bytes = tiff
                .read_window_bytes(image, row, col, height, width)
                .map_err(failed)?;
            for band in 0..bands {
                samples.extend_from_bytes(&bytes, band, bands);
            }
        }
        let mut raster = Raster::new(window, bands, samples)?;
        self.fill_sparse(&mut raster);
        Ok(raster)
    }
}

impl GeoTiffSource {
    /// Writes the nodata value into blocks that the file leaves out.
    fn fill_sparse(&self, raster: &mut Raster) {
        let Some(nodata) = self.metadata.nodata else {
            return;
        };
        let window = raster.window();
        for (bands, block) in &self.sparse {
            let Some(part) = block.intersection(&window) else {
                continue;
            };
            for band in bands.clone() {
                for row in part.row..part.row_end() {
                    let at = (band * window.height + row - window.row) * window.width + part.col
                        - window.col;
                    raster.samples_mut().fill(at, part.width, nodata);
                }
            }
        }
    }
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

/// Says what an error of the decoder means to the owner of the file.
fn decode_error(path: &Path, stored: u64, error: TiffError) -> Error {
    let path = path.to_owned();
    match error {
        TiffError::Truncated { offset, needed, .. } => Error::Truncated {
            path,
            what: "its directory".to_owned(),
            needed: offset.saturating_add(needed),
            stored,
        },
        TiffError::OffsetOutOfBounds { offset, length, .. } => Error::Truncated {
            path,
            what: "its directory".to_owned(),
            needed: offset.saturating_add(length),
            stored,
        },
        TiffError::Io(source, _) => Error::io(&path, "read", source),
        TiffError::UnsupportedCompression(_)
        | TiffError::UnsupportedPredictor(_)
        | TiffError::UnsupportedPlanarConfiguration(_)
        | TiffError::UnsupportedBitsPerSample(_)
        | TiffError::UnsupportedSampleFormat(5 | 6) => Error::Unsupported {
            path,
            what: complaint(&error),
            remedy: "convert it with gdal_translate",
        },
        error => Error::Damaged {
            path,
            source: Box::new(error),
        },
    }
}

/// The decoder's words for what it does not support, without the word "unsupported".
fn complaint(error: &TiffError) -> String {
    match error {
        TiffError::UnsupportedSampleFormat(5 | 6) => "a raster of complex numbers".to_owned(),
        error => error
            .to_string()
            .trim_start_matches("unsupported ")
            .to_owned(),
    }
}

/// Refuses a codec that is not built in before a window needs it.
fn check_codec(path: &Path, ifd: &Ifd) -> Result<()> {
    let name = match ifd.compression() {
        // None, LZW, Deflate (two codes), PackBits, LERC, Zstandard.
        1 | 5 | 8 | 32946 | 32773 | 34887 | 50000 => return Ok(()),
        6 | 7 => "JPEG".to_owned(),
        34925 => "LZMA".to_owned(),
        34712 => "JPEG 2000".to_owned(),
        50001 => "WebP".to_owned(),
        code => format!("the codec of TIFF number {code}"),
    };
    let (what, remedy) = (
        format!("compression by {name}"),
        "convert it with gdal_translate -co COMPRESS=DEFLATE",
    );
    Err(Error::Unsupported {
        path: path.to_owned(),
        what,
        remedy,
    })
}

fn data_type(path: &Path, layout: &RasterLayout) -> Result<DataType> {
    Ok(match (layout.sample_format, layout.bits_per_sample) {
        (1, 1..=8) => DataType::U8,
        (1, 9..=16) => DataType::U16,
        (1, 32) => DataType::U32,
        (1, 64) => DataType::U64,
        (2, 8) => DataType::I8,
        (2, 16) => DataType::I16,
        (2, 32) => DataType::I32,
        (2, 64) => DataType::I64,
        (3, 32) => DataType::F32,
        (3, 64) => DataType::F64,
        (format, bits) => {
            let (what, remedy) = (
                format!("a {bits}-bit sample of format {format}"),
                "convert it with gdal_translate -ot",
            );
            return Err(Error::Unsupported {
                path: path.to_owned(),
                what,
                remedy,
            });
        }
    })
}

/// GDAL writes the value as text, padded with spaces or a zero byte; text that is no number means none.
fn parse_nodata(text: &str) -> Option<f64> {
    text.trim_matches(|c: char| c == '\0' || c.is_whitespace())
        .parse()
        .ok()
}

/// A file with tie points alone has no transform, and its reference system then says nothing of its pixels.
fn georeference(file: &Handle) -> Georeference {
    let Handle::Georeferenced(file) = file else {
        return Georeference::default();
    };
    let Some(t) = file.transform() else {
        return Georeference::default();
    };
    let transform = Transform {
        a: t.pixel_width,
        b: t.skew_x,
        c: t.origin_x,
        d: t.skew_y,
        e: t.pixel_height,
        f: t.origin_y,
    };
    // 32767 is "user-defined": a reference system without a code.
    Georeference {
        epsg: file.epsg().filter(|&code| code != 32767),
        transform: Some(transform),
    }
}

fn overviews(file: &Handle, width: usize) -> Vec<usize> {
    let Handle::Georeferenced(file) = file else {
        return Vec::new();
    };
    let factor = |ifd: &Ifd| (width as f64 / f64::from(ifd.width().max(1))).round() as usize;
    (0..file.overview_count())
        .filter_map(|i| file.overview_ifd(i).ok())
        .map(factor)
        .collect()
}
