//! Reading JPEG 2000 files by their tiles, as Sentinel-2 products hold them.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use geotiff_reader::GeoTiffFile;
use hayro_jpeg2000::{DecodeSettings, DecoderContext, Image};
use rayon::prelude::*;

use crate::codestream::{Codestream, Refusal};
use crate::memory::{check_budget, check_window};
use crate::opening::{DECLARED_PER_STORED, ReadLimits};
use crate::tile_cache::TileCache;
use crate::xml::{attribute, elements, text_of};
use crate::{
    DataType, Error, Georeference, Metadata, Raster, RasterSource, Result, Samples, Transform,
    Window, geo_keys,
};

/// How a JP2 file begins.
pub(crate) const SIGNATURE: &[u8] = b"\0\0\0\x0cjP  \r\n\x87\n";
/// How a bare codestream begins.
pub(crate) const CODESTREAM: &[u8] = b"\xff\x4f\xff\x51";

/// GeoJP2: a GeoTIFF without pixels in a box.
const GEO_TIFF: [u8; 16] = [
    0xb1, 0x4b, 0xf8, 0xbd, 0x08, 0x3d, 0x4b, 0x43, 0xa5, 0xae, 0x8c, 0xd7, 0xd5, 0xa6, 0xce, 0x03,
];
/// Bytes of a box that is read for its georeference.
const MAX_BOX: u64 = 4 << 20;
/// Boxes that are looked at.
const MAX_BOXES: usize = 1000;
/// Bytes that decoding takes for each sample of a tile, beside the samples: two floats.
const SCRATCH_PER_SAMPLE: u64 = 8;

/// An open JPEG 2000 file. Only its metadata and the tiles read last are in memory.
pub struct Jp2Source {
    path: PathBuf,
    file: Mutex<File>,
    stream: Codestream,
    limits: ReadLimits,
    metadata: Metadata,
    cache: TileCache,
}

impl fmt::Debug for Jp2Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jp2Source")
            .field("path", &self.path)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

impl Jp2Source {
    /// Opens a file of `stored` bytes and finds its tiles; none is decoded.
    pub(crate) fn open(path: &Path, stored: u64, limits: ReadLimits) -> Result<Self> {
        let mut file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        let refuse = |refusal| refused(path, stored, refusal);
        let contents = Contents::find(&mut file, stored).map_err(refuse)?;
        let (begin, end) = contents.codestream;
        let stream = Codestream::read(&mut file, begin, end).map_err(refuse)?;
        let data_type = match stream.precision {
            (..=8, false) => DataType::U8,
            (_, false) => DataType::U16,
            (..=8, true) => DataType::I8,
            (_, true) => DataType::I16,
        };
        let samples = |width: usize, height: usize| {
            (width as u64)
                .saturating_mul(height as u64)
                .saturating_mul(stream.components as u64)
        };
        let declared =
            samples(stream.width, stream.height).saturating_mul(data_type.bytes() as u64);
        if declared > stored.saturating_mul(DECLARED_PER_STORED) {
            return Err(Error::Implausible {
                path: path.to_owned(),
                declared,
                stored,
                allowed: DECLARED_PER_STORED,
            });
        }
        let tile = (
            stream.tile.0.min(stream.width),
            stream.tile.1.min(stream.height),
        );
        let needed =
            samples(tile.0, tile.1).saturating_mul(SCRATCH_PER_SAMPLE + data_type.bytes() as u64);
        let limit = limits.window_bytes as u64;
        if needed > limit {
            return Err(Error::TooLarge {
                path: path.to_owned(),
                what: "one tile".to_owned(),
                needed,
                limit,
            });
        }
        let metadata = Metadata {
            width: stream.width,
            height: stream.height,
            bands: stream.components,
            data_type,
            georeference: contents.georeference,
            nodata: None,
            descriptions: vec![None; stream.components],
            overviews: Vec::new(),
            block: tile,
        };
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(file),
            stream,
            limits,
            metadata,
            cache: TileCache::new(limits.cache_bytes),
        })
    }

    /// The same file under what its product says of it.
    pub(crate) fn described(mut self, georeference: Georeference, nodata: Option<f64>) -> Self {
        self.metadata.georeference = georeference;
        self.metadata.nodata = nodata;
        self
    }

    fn decode(&self, index: usize) -> Result<Samples> {
        let bytes = {
            // A thread that panicked while it held the lock left the file at some place; every read begins with a seek.
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            self.stream.tile_stream(&mut *file, index)
        };
        let stored = || self.stream.stored(index);
        let bytes = bytes.map_err(|refusal| refused(&self.path, stored(), refusal))?;
        let place = self.stream.place(index);
        let (across, down) = self.stream.tiles();
        let undecodable = |reason: String| Error::Undecodable {
            path: self.path.clone(),
            block: format!("tile {} of {} ({place})", index + 1, across * down),
            reason,
        };
        let settings = DecodeSettings {
            resolve_palette_indices: false,
            strict: true,
            target_resolution: None,
        };
        let image = Image::new(&bytes, &settings).map_err(|e| undecodable(e.to_string()))?;
        let mut context = DecoderContext::default();
        let decoded = image
            .decode(&mut context)
            .map_err(|e| undecodable(e.to_string()))?;
        let components = decoded.components();
        let whole = components.len() == self.metadata.bands
            && components
                .iter()
                .all(|c| c.samples().len() == place.pixels());
        if !whole {
            return Err(undecodable("it holds another number of samples".to_owned()));
        }
        let mut samples = Samples::with_capacity(
            self.metadata.data_type,
            place.pixels() * self.metadata.bands,
        );
        for component in components {
            samples.extend_rounded(component.samples());
        }
        Ok(samples)
    }
}

impl RasterSource for Jp2Source {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn read_window(&self, window: Window) -> Result<Raster> {
        check_window(&self.path, &self.metadata, window)?;
        check_budget(&self.path, &self.metadata, window, self.limits)?;
        let (across, down) = self.stream.tiles();
        let touched: Vec<(usize, Window, Window)> = (0..across * down)
            .filter_map(|index| {
                let place = self.stream.place(index);
                Some((index, place, place.intersection(&window)?))
            })
            .collect();
        let bands = self.metadata.bands;
        let mut samples = Samples::filled(self.metadata.data_type, 0.0, window.pixels() * bands);
        // As many at once as there are threads: so many tiles are in memory beside the window.
        for some in touched.chunks(rayon::current_num_threads()) {
            let tiles = some
                .par_iter()
                .map(|(index, ..)| self.cache.get_or(*index, || self.decode(*index)))
                .collect::<Result<Vec<_>>>()?;
            for ((_, place, part), tile) in some.iter().zip(&tiles) {
                for band in 0..bands {
                    for row in part.row..part.row_end() {
                        let at = |of: &Window| {
                            (band * of.height + row - of.row) * of.width + part.col - of.col
                        };
                        samples.copy_from(at(&window), tile, at(place), part.width);
                    }
                }
            }
        }
        Raster::new(window, bands, samples)
    }
}

fn refused(path: &Path, stored: u64, refusal: Refusal) -> Error {
    let path = path.to_owned();
    match refusal {
        Refusal::Io(source) => Error::io(&path, "read", source),
        Refusal::Damaged(what) => Error::Damaged {
            path,
            source: what.into(),
        },
        Refusal::Unsupported(what) => Error::Unsupported {
            path,
            what,
            remedy: "convert it with gdal_translate",
        },
        Refusal::Truncated(needed) => Error::Truncated {
            path,
            what: "its codestream".to_owned(),
            needed,
            stored,
        },
    }
}

/// What the boxes of a JP2 file hold.
struct Contents {
    /// First byte, and the one behind the last.
    codestream: (u64, u64),
    georeference: Georeference,
}

impl Contents {
    fn find(file: &mut File, stored: u64) -> Result<Self, Refusal> {
        let mut start = [0; 4];
        file.read_exact(&mut start)?;
        if start == *CODESTREAM {
            return Ok(Self {
                codestream: (0, stored),
                georeference: Georeference::default(),
            });
        }
        let mut georeference = Georeference::default();
        let mut at = 0;
        for _ in 0..MAX_BOXES {
            let mut head = [0; 16];
            file.seek(SeekFrom::Start(at))?;
            // The last box may be as short as its header of 8 bytes.
            let got = file.take(16).read(&mut head)?;
            if got < 8 {
                break;
            }
            let short = u64::from(u32::from_be_bytes([head[0], head[1], head[2], head[3]]));
            let (header, length) = match short {
                0 => (8, stored - at),
                1 if got == 16 => {
                    let long = <[u8; 8]>::try_from(&head[8..]).expect("8 of 16 bytes");
                    (16, u64::from_be_bytes(long))
                }
                length => (8, length),
            };
            if length < header {
                return Err(Refusal::Damaged(format!(
                    "a box without length at byte {at}"
                )));
            }
            let end = at.saturating_add(length);
            let begin = at + header;
            match &head[4..8] {
                b"jp2c" => {
                    return Ok(Self {
                        // A cut file shows at the tile that it is cut in.
                        codestream: (begin, end.min(stored)),
                        georeference,
                    });
                }
                b"asoc" | b"uuid" if length <= MAX_BOX && end <= stored => {
                    let mut content = Vec::new();
                    file.seek(SeekFrom::Start(begin))?;
                    file.take(length - header).read_to_end(&mut content)?;
                    let found = match content.strip_prefix(&GEO_TIFF) {
                        Some(tiff) => from_tiff(tiff),
                        None => from_gml(&String::from_utf8_lossy(&content)),
                    };
                    if georeference.transform.is_none() {
                        georeference = found.unwrap_or_default();
                    }
                }
                _ => {}
            }
            at = end;
        }
        Err(Refusal::Truncated(stored + 1))
    }
}

fn from_tiff(bytes: &[u8]) -> Option<Georeference> {
    let file = GeoTiffFile::from_bytes(bytes.to_vec()).ok()?;
    let t = file.transform()?;
    Some(Georeference {
        epsg: file.epsg(),
        transform: Some(Transform {
            a: t.pixel_width,
            b: t.skew_x,
            c: t.origin_x,
            d: t.skew_y,
            e: t.pixel_height,
            f: t.origin_y,
        }),
    })
}

/// GML in JPEG 2000, <https://docs.ogc.org/is/08-085r8/08-085r8.html>: the centre of the first pixel and two steps.
fn from_gml(text: &str) -> Option<Georeference> {
    let (_, grid) = elements(text, "gml:RectifiedGrid").next()?;
    let pair = |text: &str| -> Option<(f64, f64)> {
        let mut numbers = text.split_whitespace().map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let (attributes, _) = elements(grid, "gml:Point").next()?;
    let name = attribute(attributes, "srsName")
        .or_else(|| attribute(elements(text, "gml:Envelope").next()?.0, "srsName"))?;
    let epsg = name
        .contains("EPSG")
        .then(|| name.rsplit([':', '/']).next()?.parse::<u32>().ok())
        .flatten();
    // Degrees are written latitude first.
    let swapped = epsg
        .and_then(|code| u16::try_from(code).ok())
        .is_some_and(geo_keys::is_geographic);
    let order = |(x, y)| if swapped { (y, x) } else { (x, y) };
    let (x, y) = order(pair(text_of(grid, "gml:pos")?)?);
    let mut steps = elements(grid, "gml:offsetVector").map(|(_, content)| pair(content));
    let (a, d) = order(steps.next()??);
    let (b, e) = order(steps.next()??);
    let transform = Transform {
        a,
        b,
        c: x - (a + b) / 2.0,
        d,
        e,
        f: y - (d + e) / 2.0,
    };
    transform.is_invertible().then_some(Georeference {
        epsg,
        transform: Some(transform),
    })
}
