//! Reading GeoTIFF, COG and BigTIFF files, and TIFF files that carry no georeference.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use geotiff_reader::GeoTiffFile;
use tiff_reader::{Ifd, OpenOptions, TiffFile};

#[cfg(feature = "cloud")]
use crate::directories;
use crate::gdal_metadata::{self, GdalMetadata};
use crate::memory::{check_budget, check_window};
use crate::opening::{ReadLimits, file_bytes};
use crate::tiff_error::decode_error;
use crate::tiff_image::{TiffBytes, TiffImage};
use crate::{
    Annotations, Error, Georeference, Metadata, Raster, RasterSource, Result, Transform, Validity,
    Window,
};

/// Decoded blocks that are kept, whatever their size: strips of one row are many.
const CACHE_SLOTS: usize = 8192;

// TIFF tags.
const NEW_SUBFILE_TYPE: u16 = 254;
const COLOUR_MAP: u16 = 320;
const MODEL_TIE_POINT: u16 = 33922;
const GDAL_NODATA: u16 = 42113;
/// Tags of text, under the names that GDAL gives them.
const TEXTS: [(u16, &str); 3] = [
    (270, "TIFFTAG_IMAGEDESCRIPTION"),
    (305, "TIFFTAG_SOFTWARE"),
    (306, "TIFFTAG_DATETIME"),
];
// Bits of the subfile type.
const REDUCED: u64 = 1;
const MASK: u64 = 4;
/// The code that stands for "user-defined": a reference system without a number.
const USER_DEFINED: u32 = 32767;

/// An open GeoTIFF. Only its metadata is in memory.
pub struct GeoTiffSource {
    file: Arc<OpenFile>,
    image: TiffImage,
    mask: Option<StoredMask>,
    metadata: Metadata,
    annotations: Annotations,
}

/// The mask of an image.
enum StoredMask {
    /// A directory of the same file.
    Inside(Box<TiffImage>),
    /// A file of the same name with `.msk` behind it, as GDAL writes them.
    Beside(Box<GeoTiffSource>),
}

struct OpenFile {
    path: PathBuf,
    handle: Handle,
    /// Where pixels lie elsewhere than what the directories were read from.
    pixels: Option<Box<TiffFile>>,
    stored: u64,
    limits: ReadLimits,
    overviews: Vec<Ifd>,
}

enum Handle {
    Georeferenced(Box<GeoTiffFile>),
    Plain(Box<TiffFile>),
}

impl Handle {
    /// Reads the directories in the file `at`, which errors name as `path`.
    fn open(at: &Path, path: &Path, stored: u64, options: OpenOptions) -> Result<Self> {
        let damaged = |error| decode_error(path, stored, None, error);
        match GeoTiffFile::open_with_options(at, options) {
            Ok(file) => Ok(Self::Georeferenced(Box::new(file))),
            Err(geotiff_reader::Error::NotGeoTiff) => {
                let file = TiffFile::open_with_options(at, options).map_err(damaged)?;
                Ok(Self::Plain(Box::new(file)))
            }
            Err(geotiff_reader::Error::Tiff(error)) => Err(damaged(error)),
            Err(error) => Err(Error::Damaged {
                path: path.to_owned(),
                source: Box::new(error),
            }),
        }
    }
}

impl OpenFile {
    fn tiff(&self) -> &TiffFile {
        match (&self.pixels, &self.handle) {
            (Some(pixels), _) => pixels,
            (None, Handle::Georeferenced(file)) => file.tiff(),
            (None, Handle::Plain(file)) => file,
        }
    }

    fn bytes(&self) -> TiffBytes<'_> {
        TiffBytes {
            path: &self.path,
            tiff: self.tiff(),
            stored: self.stored,
        }
    }

    /// The mask that belongs to an image of this size.
    fn mask_of(&self, size: (usize, usize)) -> Result<Option<StoredMask>> {
        let belongs = |ifd: &&Ifd| {
            subfile_type(ifd) & MASK != 0
                && (ifd.width() as usize, ifd.height() as usize) == size
                && ifd.samples_per_pixel() == 1
        };
        let ifd = self.tiff().ifds().iter().find(belongs);
        let image = |ifd: &Ifd| TiffImage::new(self.bytes(), ifd.clone(), None, self.limits);
        let mask = ifd.map(image).transpose()?;
        Ok(mask.map(|mask| StoredMask::Inside(Box::new(mask))))
    }
}

impl fmt::Debug for GeoTiffSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeoTiffSource")
            .field("path", &self.file.path)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

impl GeoTiffSource {
    /// Opens a TIFF file of `stored` bytes and checks all that can be checked without decoding: that every tile or strip
    /// lies in the file, that its codec is known, and that the declared size is plausible.
    pub(crate) fn open(path: &Path, stored: u64, limits: ReadLimits) -> Result<Self> {
        let handle = Handle::open(path, path, stored, options(limits))?;
        let mut source = Self::from_handle(path, handle, None, stored, limits)?;
        if source.mask.is_none() {
            source.mask = source.mask_beside(limits)?.map(StoredMask::Beside);
            if source.mask.is_some() {
                source.annotations.validity = Validity::Mask;
            }
        }
        Ok(source)
    }

    /// The same for a file that lies elsewhere, of which a mask in a file beside it is not looked for.
    #[cfg(feature = "cloud")]
    pub(crate) fn open_remote(
        file: crate::remote_file::RemoteFile,
        path: &Path,
        limits: ReadLimits,
    ) -> Result<Self> {
        let (stored, file) = (file.bytes(), Arc::new(file));
        let tiff = TiffFile::from_source_with_options(Arc::clone(&file) as _, options(limits));
        let tiff = tiff.map_err(|e| decode_error(path, stored, None, e))?;
        directories::visit(&tiff).map_err(|e| decode_error(path, stored, None, e))?;
        let sketch = directories::sketch(&file.noted(), stored)
            .map_err(|e| Error::io(path, "note the directories of", e))?;
        let handle = Handle::open(sketch.path(), path, stored, options(limits))?;
        Self::from_handle(path, handle, Some(Box::new(tiff)), stored, limits)
    }

    /// The mask in a file beside this one, if there is one.
    fn mask_beside(&self, limits: ReadLimits) -> Result<Option<Box<Self>>> {
        const ENDING: &str = ".msk";
        let mut name = self.file.path.as_os_str().to_owned();
        if name.as_encoded_bytes().ends_with(ENDING.as_bytes()) {
            return Ok(None);
        }
        name.push(ENDING);
        let path = PathBuf::from(name);
        if !path.is_file() {
            return Ok(None);
        }
        let mask = Self::open(&path, file_bytes(&path)?, limits)?;
        let shape =
            |m: &Metadata| format!("{} x {} pixels of {} bands", m.width, m.height, m.bands);
        let expected = Metadata {
            bands: 1,
            ..self.metadata.clone()
        };
        if shape(&mask.metadata) != shape(&expected) {
            return Err(Error::Misfit {
                got: shape(&mask.metadata),
                expected: shape(&expected),
                first: self.file.path.clone(),
                remedy: "remove it or make it anew",
                path,
            });
        }
        Ok(Some(Box::new(mask)))
    }

    fn from_handle(
        path: &Path,
        handle: Handle,
        pixels: Option<Box<TiffFile>>,
        stored: u64,
        limits: ReadLimits,
    ) -> Result<Self> {
        let (index, overviews) = match &handle {
            Handle::Georeferenced(file) => (
                file.base_ifd_index(),
                (0..file.overview_count())
                    .filter_map(|i| file.overview_ifd(i).ok())
                    .filter(|ifd| subfile_type(ifd) & MASK == 0)
                    .cloned()
                    .collect(),
            ),
            Handle::Plain(file) => (
                0,
                file.ifds()
                    .iter()
                    .skip(1)
                    .filter(|ifd| subfile_type(ifd) & (REDUCED | MASK) == REDUCED)
                    .cloned()
                    .collect(),
            ),
        };
        let file = OpenFile {
            path: path.to_owned(),
            handle,
            pixels,
            stored,
            limits,
            overviews,
        };
        let ifd = file
            .tiff()
            .ifd(index)
            .map_err(|e| decode_error(path, stored, None, e))?
            .clone();
        let nodata = ifd
            .tag(GDAL_NODATA)
            .and_then(|tag| tag.value.as_str())
            .and_then(parse_nodata);
        let image = TiffImage::new(file.bytes(), ifd, nodata, limits)?;
        let bands = image.bands();
        let said = GdalMetadata::parse(
            image
                .ifd()
                .tag(gdal_metadata::TAG)
                .and_then(|tag| tag.value.as_str())
                .unwrap_or_default(),
            bands,
        );
        let georeference = georeference(&file.handle);
        let factor =
            |ifd: &Ifd| (image.size().0 as f64 / f64::from(ifd.width().max(1))).round() as usize;
        let metadata = Metadata {
            width: image.size().0,
            height: image.size().1,
            bands,
            data_type: image.data_type(),
            georeference,
            nodata,
            descriptions: said.descriptions,
            overviews: file.overviews.iter().map(factor).collect(),
            block: image.block(),
        };
        let mask = file.mask_of(image.size())?;
        let validity = match metadata.validity() {
            _ if mask.is_some() => Validity::Mask,
            Validity::AllValid if has_alpha(image.ifd()) => Validity::Alpha,
            other => other,
        };
        let control_points = match georeference.transform {
            Some(_) => 0,
            None => control_points(image.ifd()),
        };
        let annotations = Annotations {
            validity,
            scales: said.scales,
            offsets: said.offsets,
            tags: tags(said.tags, image.ifd(), &file.handle),
            control_points,
            colours: colours(image.ifd()),
        };
        Ok(Self {
            file: Arc::new(file),
            image,
            mask,
            metadata,
            annotations,
        })
    }

    /// A stored overview.
    fn level(&self, level: usize) -> Result<Option<Self>> {
        // An overview is opened from its raster, which knows where it lies.
        let Some(ifd) = self
            .file
            .overviews
            .get(level)
            .filter(|_| !self.metadata.overviews.is_empty())
        else {
            return Ok(None);
        };
        let file = &self.file;
        let image = TiffImage::new(file.bytes(), ifd.clone(), self.metadata.nodata, file.limits)?;
        let (width, height) = image.size();
        let ratio = |fine: usize, coarse: usize| fine as f64 / coarse as f64;
        let (across, down) = (
            ratio(self.metadata.width, width),
            ratio(self.metadata.height, height),
        );
        let stretched = |t: Transform| Transform {
            a: t.a * across,
            b: t.b * down,
            d: t.d * across,
            e: t.e * down,
            ..t
        };
        let metadata = Metadata {
            width,
            height,
            bands: image.bands(),
            data_type: image.data_type(),
            georeference: Georeference {
                transform: self.metadata.georeference.transform.map(stretched),
                ..self.metadata.georeference
            },
            overviews: Vec::new(),
            block: image.block(),
            ..self.metadata.clone()
        };
        let mask = match &self.mask {
            Some(StoredMask::Beside(mask)) => mask
                .level(level)?
                .filter(|mask| mask.image.size() == image.size())
                .map(|mask| StoredMask::Beside(Box::new(mask))),
            _ => file.mask_of(image.size())?,
        };
        let validity = match self.annotations.validity {
            Validity::Mask if mask.is_none() => Validity::AllValid,
            other => other,
        };
        Ok(Some(Self {
            file: Arc::clone(file),
            image,
            mask,
            metadata,
            annotations: Annotations {
                validity,
                ..self.annotations.clone()
            },
        }))
    }
}

impl RasterSource for GeoTiffSource {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn path(&self) -> &Path {
        &self.file.path
    }

    fn read_window(&self, window: Window) -> Result<Raster> {
        check_window(&self.file.path, &self.metadata, window)?;
        check_budget(&self.file.path, &self.metadata, window, self.file.limits)?;
        self.image.read(self.file.bytes(), window)
    }

    fn annotations(&self) -> Annotations {
        self.annotations.clone()
    }

    fn read_mask(&self, window: Window) -> Result<Option<Vec<bool>>> {
        check_window(&self.file.path, &self.metadata, window)?;
        check_budget(&self.file.path, &self.metadata, window, self.file.limits)?;
        let (raster, band) = match (self.annotations.validity, &self.mask) {
            (Validity::Mask, Some(StoredMask::Inside(mask))) => {
                (mask.read(self.file.bytes(), window)?, 0)
            }
            (Validity::Mask, Some(StoredMask::Beside(mask))) => (mask.read_window(window)?, 0),
            (Validity::Alpha, _) => (self.read_window(window)?, self.metadata.bands - 1),
            _ => return Ok(None),
        };
        let mut valid = Vec::with_capacity(window.pixels());
        raster
            .samples()
            .for_each(raster.band_range(band), |v| valid.push(v != 0.0));
        Ok(Some(valid))
    }

    fn overview(&self, level: usize) -> Result<Option<Box<dyn RasterSource>>> {
        Ok(self.level(level)?.map(|level| Box::new(level) as _))
    }
}

fn options(limits: ReadLimits) -> OpenOptions {
    OpenOptions {
        block_cache_bytes: limits.cache_bytes,
        block_cache_slots: CACHE_SLOTS,
        decode_output_bytes: limits.window_bytes,
        ..OpenOptions::default()
    }
}

fn subfile_type(ifd: &Ifd) -> u64 {
    ifd.tag(NEW_SUBFILE_TYPE)
        .and_then(|tag| tag.value.as_u64())
        .unwrap_or(0)
}

/// Whether the last band is one of opacity.
fn has_alpha(ifd: &Ifd) -> bool {
    use tiff_reader::ExtraSample::{AssociatedAlpha, UnassociatedAlpha};
    let extra = ifd.extra_samples().unwrap_or_default();
    matches!(extra.last(), Some(AssociatedAlpha | UnassociatedAlpha))
}

/// GDAL writes the value as text, padded with spaces or a zero byte; text that is no number means none.
fn parse_nodata(text: &str) -> Option<f64> {
    text.trim_matches(|c: char| c == '\0' || c.is_whitespace())
        .parse()
        .ok()
}

/// A file with tie points alone has no transform, and its reference system then says nothing of its pixels.
fn georeference(handle: &Handle) -> Georeference {
    let Handle::Georeferenced(file) = handle else {
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
    Georeference {
        epsg: file.epsg().filter(|&code| code != USER_DEFINED),
        transform: Some(transform),
    }
}

fn control_points(ifd: &Ifd) -> usize {
    ifd.tag(MODEL_TIE_POINT)
        .and_then(|tag| tag.value.as_f64_vec())
        .map_or(0, |numbers| numbers.len() / 6)
}

/// Reds, then greens, then blues, of 16 bits each.
fn colours(ifd: &Ifd) -> Vec<[u8; 3]> {
    let Some(map) = ifd.tag(COLOUR_MAP).and_then(|tag| tag.value.as_u16_slice()) else {
        return Vec::new();
    };
    let count = map.len() / 3;
    let eight = |index: usize| (map[index] >> 8) as u8;
    (0..count)
        .map(|i| [eight(i), eight(count + i), eight(2 * count + i)])
        .collect()
}

fn tags(
    mut said: BTreeMap<String, String>,
    ifd: &Ifd,
    handle: &Handle,
) -> BTreeMap<String, String> {
    for (code, name) in TEXTS {
        if let Some(text) = ifd.tag(code).and_then(|tag| tag.value.as_str()) {
            said.insert(name.to_owned(), text.trim_end_matches('\0').to_owned());
        }
    }
    if let Handle::Georeferenced(file) = handle {
        let point = file.crs().raster_type == 2;
        let pixel = if point { "Point" } else { "Area" };
        said.insert("AREA_OR_POINT".to_owned(), pixel.to_owned());
    }
    said
}
