//! Writing a tiled, compressed GeoTIFF as its windows are computed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use geotiff_writer::{Compression, GeoTiffBuilder, GeoTransform, Predictor, StreamingTileWriter};
use tempfile::NamedTempFile;

use crate::stripe::Stripe;
use crate::{DataType, Error, Raster, RasterSink, RasterSpec, Result, Samples, Window};

/// Rows of tiles that may be incomplete at once; each takes width x tile x bands samples of memory.
const OPEN_STRIPES: usize = 4;

/// A GeoTIFF being written: tiles, Deflate, one plane per pixel.
///
/// The bytes go to a hidden `.partial` file in the folder of the target. [`RasterSink::finish`] flushes it to the disk
/// and renames it, so that whatever has the final name is complete; dropping the sink removes it. Memory is a few rows of
/// tiles, whatever the height of the raster.
pub struct GeoTiffSink {
    path: PathBuf,
    spec: RasterSpec,
    encoder: Encoder,
    open: BTreeMap<usize, Stripe>,
    done: Vec<bool>,
}

type Output = BufWriter<NamedTempFile>;

enum Encoder {
    U8(Box<StreamingTileWriter<u8, Output>>),
    U16(Box<StreamingTileWriter<u16, Output>>),
    F32(Box<StreamingTileWriter<f32, Output>>),
}

impl fmt::Debug for GeoTiffSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeoTiffSink")
            .field("path", &self.path)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl GeoTiffSink {
    /// Begins a file that will be at `path`. A file that is there stays untouched until [`RasterSink::finish`].
    ///
    /// # Errors
    /// [`Error::Nodata`] where the nodata value is not a value of the sample type, [`Error::Spec`] where the sample type is
    /// not one of uint8, uint16 and float32, a size is zero or above 2^32 - 1, the tile's side is no multiple of 16, the
    /// transform has no inverse or the EPSG code no place in a GeoTIFF (above 65535); [`Error::NotFound`] and
    /// [`Error::Io`] where the folder cannot be written to.
    pub fn create(path: impl AsRef<Path>, spec: RasterSpec) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let builder = builder(&path, &spec)?;
        let file = temporary(&path)?;
        let failed = |e: geotiff_writer::Error| Error::Write {
            path: path.clone(),
            source: Box::new(e),
        };
        let encoder = match spec.data_type {
            DataType::U8 => Encoder::U8(Box::new(builder.tile_writer(file).map_err(failed)?)),
            DataType::U16 => Encoder::U16(Box::new(builder.tile_writer(file).map_err(failed)?)),
            DataType::F32 => Encoder::F32(Box::new(builder.tile_writer(file).map_err(failed)?)),
            other => {
                let what = format!("samples of {other}; choose uint8, uint16 or float32");
                return Err(Error::Spec { path, what });
            }
        };
        let done = vec![false; spec.height.div_ceil(spec.tile)];
        Ok(Self {
            path,
            spec,
            encoder,
            open: BTreeMap::new(),
            done,
        })
    }

    fn stripe_window(&self, index: usize) -> Window {
        let row = index * self.spec.tile;
        Window::new(
            0,
            row,
            self.spec.width,
            self.spec.tile.min(self.spec.height - row),
        )
    }

    fn misplaced(&self, window: Window, what: impl Into<String>) -> Error {
        Error::Misplaced {
            path: self.path.clone(),
            window,
            what: what.into(),
        }
    }

    /// Encodes the tiles of a complete stripe.
    fn encode(&mut self, stripe: &Stripe) -> Result<()> {
        let side = self.spec.tile;
        let bands = self.spec.bands;
        let result = match (&mut self.encoder, stripe.samples()) {
            (Encoder::U8(writer), Samples::U8(samples)) => {
                encode(writer, stripe.window(), samples, bands, side)
            }
            (Encoder::U16(writer), Samples::U16(samples)) => {
                encode(writer, stripe.window(), samples, bands, side)
            }
            (Encoder::F32(writer), Samples::F32(samples)) => {
                encode(writer, stripe.window(), samples, bands, side)
            }
            _ => unreachable!("a stripe has the sample type of its sink"),
        };
        result.map_err(|e| Error::Write {
            path: self.path.clone(),
            source: Box::new(e),
        })
    }
}

impl RasterSink for GeoTiffSink {
    fn spec(&self) -> &RasterSpec {
        &self.spec
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, raster: &Raster) -> Result<()> {
        let window = raster.window();
        let RasterSpec {
            bands,
            data_type,
            tile,
            ..
        } = self.spec;
        if window.is_empty() || !self.spec.window().contains(&window) {
            let what = format!(
                "it is empty or not inside of the {} x {} raster",
                self.spec.width, self.spec.height
            );
            return Err(self.misplaced(window, what));
        }
        if raster.bands() != bands || raster.samples().data_type() != data_type {
            let (got_bands, got_type) = (raster.bands(), raster.samples().data_type());
            let what = format!(
                "it has {got_bands} bands of {got_type}, the file has {bands} of {data_type}"
            );
            return Err(self.misplaced(window, what));
        }
        let stripes = window.row / tile..=(window.row_end() - 1) / tile;
        let again = |row: usize| format!("pixels of row {row} were written before");
        for index in stripes.clone() {
            let part = self
                .stripe_window(index)
                .intersection(&window)
                .expect("the window reaches into this stripe");
            let row = if self.done[index] {
                Some(part.row)
            } else {
                self.open.get(&index).and_then(|s| s.overlap(part))
            };
            if let Some(row) = row {
                return Err(self.misplaced(window, again(row)));
            }
        }
        for index in stripes {
            let place = self.stripe_window(index);
            let part = place
                .intersection(&window)
                .expect("the window reaches into this stripe");
            let stripe = self
                .open
                .entry(index)
                .or_insert_with(|| Stripe::new(place, bands, data_type));
            stripe.take(raster, part);
            if stripe.is_complete() {
                let stripe = self.open.remove(&index).expect("it was just filled");
                self.encode(&stripe)?;
                self.done[index] = true;
            } else if self.open.len() > OPEN_STRIPES {
                let rows = OPEN_STRIPES * tile;
                let what = format!(
                    "more than {rows} rows are incomplete; write windows row by row from the top"
                );
                return Err(self.misplaced(window, what));
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self {
            path,
            spec,
            encoder,
            open,
            done,
        } = *self;
        let untouched = (0..done.len()).filter(|index| !done[*index] && !open.contains_key(index));
        let rows = |index: usize| spec.tile.min(spec.height - index * spec.tile);
        let missing = untouched.map(rows).sum::<usize>()
            + open.values().map(Stripe::incomplete_rows).sum::<usize>();
        if missing > 0 {
            return Err(Error::Incomplete {
                path,
                missing,
                rows: spec.height,
            });
        }
        let output = match encoder {
            Encoder::U8(writer) => writer.finish(),
            Encoder::U16(writer) => writer.finish(),
            Encoder::F32(writer) => writer.finish(),
        };
        let output = output.map_err(|e| Error::Write {
            path: path.clone(),
            source: Box::new(e),
        })?;
        let mut file = output
            .into_inner()
            .map_err(|e| Error::io(&path, "write", e.into_error()))?;
        file.flush()
            .and_then(|()| file.as_file().sync_all())
            .map_err(|e| Error::io(&path, "write", e))?;
        file.persist(&path)
            .map_err(|e| Error::io(&path, "rename its temporary file", e.error))?;
        // The rename itself is on the disk only when the folder is.
        #[cfg(unix)]
        File::open(folder(&path))
            .and_then(|f| f.sync_all())
            .map_err(|e| Error::io(&path, "flush its folder", e))?;
        Ok(())
    }
}

/// Interleaves the bands of each tile of a stripe and hands it to the encoder, which pads tiles at the border.
fn encode<T: geotiff_writer::NumericSample>(
    writer: &mut StreamingTileWriter<T, Output>,
    stripe: Window,
    samples: &[T],
    bands: usize,
    side: usize,
) -> geotiff_writer::Result<()> {
    for col in (0..stripe.width).step_by(side) {
        let width = side.min(stripe.width - col);
        let tile =
            ndarray::Array3::from_shape_fn((stripe.height, width, bands), |(row, column, band)| {
                samples[(band * stripe.height + row) * stripe.width + col + column]
            });
        writer.write_tile_3d(col, stripe.row, &tile.view())?;
    }
    Ok(())
}

fn builder(path: &Path, spec: &RasterSpec) -> Result<GeoTiffBuilder> {
    let refuse = |what: String| Error::Spec {
        path: path.to_owned(),
        what,
    };
    let side = |n: usize| u32::try_from(n).ok().filter(|&n| n > 0);
    let sizes = side(spec.width)
        .zip(side(spec.height))
        .zip(side(spec.bands).filter(|&b| b <= 65_535));
    let Some(((width, height), bands)) = sizes else {
        return Err(refuse(format!(
            "{} x {} pixels of {} bands",
            spec.width, spec.height, spec.bands
        )));
    };
    let Some(tile) = side(spec.tile).filter(|t| t.is_multiple_of(16) && *t <= 16_384) else {
        return Err(refuse(format!(
            "tiles of {} pixels; choose a multiple of 16 up to 16384",
            spec.tile
        )));
    };
    let predictor = if spec.data_type == DataType::F32 {
        Predictor::FloatingPoint
    } else {
        Predictor::Horizontal
    };
    let mut builder = GeoTiffBuilder::new(width, height)
        .bands(bands)
        .compression(Compression::Deflate)
        .predictor(predictor)
        .tile_size(tile, tile);
    if let Some(t) = spec.georeference.transform {
        if !t.is_invertible() {
            return Err(refuse(format!(
                "the transform {:?} has no inverse",
                t.coefficients()
            )));
        }
        builder = builder.transform(GeoTransform {
            origin_x: t.c,
            pixel_width: t.a,
            skew_x: t.b,
            origin_y: t.f,
            skew_y: t.d,
            pixel_height: t.e,
        });
    }
    if let Some(epsg) = spec.georeference.epsg {
        let code = u16::try_from(epsg)
            .map_err(|_| refuse(format!("EPSG:{epsg} has no place in a GeoTIFF")))?;
        builder = builder.epsg(code);
    }
    if let Some(nodata) = spec.nodata {
        if !spec.data_type.represents(nodata) {
            return Err(Error::Nodata {
                path: path.to_owned(),
                nodata,
                data_type: spec.data_type,
            });
        }
        let text = if nodata.is_nan() {
            "nan".to_owned()
        } else {
            nodata.to_string()
        };
        builder = builder.nodata(&text);
    }
    Ok(builder)
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// A new hidden file beside `path`, with the permissions of any new file.
fn temporary(path: &Path) -> Result<Output> {
    let Some(name) = path.file_name() else {
        return Err(Error::Spec {
            path: path.to_owned(),
            what: "the path names no file".to_owned(),
        });
    };
    if path.is_dir() {
        return Err(Error::Spec {
            path: path.to_owned(),
            what: "a folder has this name".to_owned(),
        });
    }
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{}.", name.to_string_lossy());
    builder.prefix(&prefix).suffix(".partial");
    // A temporary file is for its owner alone by default; this one becomes the result.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder
        .tempfile_in(folder(path))
        .map_err(|e| Error::io(folder(path), "create a file in", e))?;
    Ok(BufWriter::with_capacity(1 << 20, file))
}
