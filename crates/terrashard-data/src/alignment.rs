//! An image or a label onto the fine grid over an image: at an exact multiple, streamed, with what has no data told as such.

use std::path::{Path, PathBuf};

use serde::Serialize;
use terrashard_raster::{
    DataType, GeoTiffSink, Metadata, Overviews, Raster, RasterSink, RasterSource, RasterSpec,
    Samples, Validity, Window,
};

use crate::resampling::{Placement, Plane, Resampling};
use crate::{Error, IGNORE, Result};

/// Side of the windows that are made at once, and of the tiles of the file.
const SIDE: usize = 256;

/// Bytes of the source that one window may need: 100 source pixels for one of four bands of 16 bits take 52 MB.
const SOURCE_BYTES: usize = 512 << 20;

/// What is laid onto a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Measured values: areas are averaged, or values interpolated where the source is coarser.
    Image,
    /// Classes: none is made up, and what is beyond is ignored (255).
    Label,
}

/// How something is laid onto the fine grid of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct AlignOptions {
    /// Fine pixels per image pixel along one side.
    pub scale: usize,
    /// What it is.
    pub content: Content,
    /// How values are made, in place of what suits the content.
    pub resampling: Option<Resampling>,
    /// The value that stands for "no data", in place of what the source declares.
    pub nodata: Option<f64>,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Aligned {
    /// The file.
    pub file: PathBuf,
    /// What it is made from.
    pub source: PathBuf,
    /// What it is.
    pub content: Content,
    /// EPSG code of the source.
    pub from_epsg: u32,
    /// EPSG code of the grid.
    pub to_epsg: u32,
    /// Side of a pixel of the source in pixels of the grid.
    pub source_pixel: f64,
    /// How values were made.
    pub resampling: Resampling,
    /// The nodata value of the file, as text since NaN is no number in JSON.
    pub nodata: Option<String>,
    /// The share of its pixels that has data in every band.
    pub valid: f64,
}

/// Lays `source` onto the grid of `image`, `scale` times as fine, and writes it to `path`: exactly its ground, all bands with their
/// names, samples of the source's type. Memory does not grow with either.
///
/// # Errors
/// [`Error::Align`] where one says nothing of its ground, they do not meet, or a nodata value is needed that nobody has given;
/// [`Error::Crs`], [`Error::BandCount`], [`Error::MaskValue`] for a label, [`Error::Raster`].
pub fn align(
    image: &Metadata,
    source: &dyn RasterSource,
    path: &Path,
    options: &AlignOptions,
) -> Result<Aligned> {
    let target = fine(image, options.scale);
    let of_source = |error: Error| match error {
        Error::Align { what } => Error::Align {
            what: format!("{}: {what}", source.path().display()),
        },
        other => other,
    };
    let placement = Placement::new(&target, source.metadata()).map_err(of_source)?;
    let (right, down) = (target.width / 2, target.height / 2);
    let size = placement.places(Window::new(right, down, 1, 1)).size;
    let finer = size.0.min(size.1) >= 1.0;
    let resampling = options.resampling.unwrap_or(match options.content {
        Content::Label => Resampling::Nearest,
        Content::Image if finer => Resampling::Area,
        Content::Image => Resampling::Bilinear,
    });
    if options.content == Content::Label {
        check_label(source, resampling)?;
    }
    let mut work = Work {
        source,
        placement: &placement,
        resampling,
        metadata: source.metadata().clone(),
        nodata: None,
        data_type: source.metadata().data_type,
        valid: 0,
    };
    work.metadata.nodata = options.nodata.or(source.metadata().nodata);
    if options.content == Content::Label {
        work.data_type = DataType::U8;
    }
    work.nodata = work.choose_nodata(options, &target).map_err(of_source)?;
    let bands = source.metadata().bands;
    let mut spec = RasterSpec::new(target.width, target.height, bands, work.data_type)
        .georeference(target.georeference)
        .tile(SIDE)
        .overviews(match options.content {
            Content::Image => Overviews::Average,
            Content::Label => Overviews::Nearest,
        });
    spec.nodata = work.nodata;
    spec.descriptions = source.metadata().descriptions.clone();
    let annotations = source.annotations();
    let scaling: Vec<(f64, f64)> = annotations
        .scales
        .into_iter()
        .zip(annotations.offsets)
        .collect();
    if scaling.iter().any(|scaling| *scaling != (1.0, 0.0)) {
        spec.scaling = scaling;
    }
    spec.tags = annotations.tags;
    let mut sink = GeoTiffSink::create(path, spec)?;
    for row in (0..target.height).step_by(SIDE) {
        for col in (0..target.width).step_by(SIDE) {
            let window = Window::new(
                col,
                row,
                SIDE.min(target.width - col),
                SIDE.min(target.height - row),
            );
            sink.write(&work.window(window)?)?;
        }
    }
    if work.valid == 0 {
        return Err(Error::Align {
            what: format!(
                "{}: it has no data over the ground of the image; check that they show the same place",
                source.path().display()
            ),
        });
    }
    Box::new(sink).finish()?;
    Ok(Aligned {
        file: path.to_owned(),
        source: source.path().to_owned(),
        content: options.content,
        from_epsg: source.metadata().georeference.epsg.unwrap_or_default(),
        to_epsg: target.georeference.epsg.unwrap_or_default(),
        source_pixel: 1.0 / size.0.max(size.1),
        resampling,
        nodata: work.nodata.map(|nodata| nodata.to_string().to_lowercase()),
        valid: work.valid as f64 / target.window().pixels() as f64,
    })
}

/// The grid over an image that is `scale` times as fine.
fn fine(image: &Metadata, scale: usize) -> Metadata {
    Metadata {
        width: image.width * scale,
        height: image.height * scale,
        georeference: image.georeference.scaled(scale as f64),
        ..image.clone()
    }
}

fn check_label(source: &dyn RasterSource, resampling: Resampling) -> Result<()> {
    if source.metadata().bands != 1 {
        return Err(Error::BandCount {
            path: source.path().to_owned(),
            expected: 1,
            found: source.metadata().bands,
        });
    }
    if resampling != Resampling::Nearest {
        return Err(Error::Align {
            what: "a label is made by `nearest` alone: between two classes there is none"
                .to_owned(),
        });
    }
    Ok(())
}

struct Work<'a> {
    source: &'a dyn RasterSource,
    placement: &'a Placement,
    resampling: Resampling,
    /// The source's, with the nodata value that is asked for.
    metadata: Metadata,
    /// The nodata value of the result.
    nodata: Option<f64>,
    /// The type of the result.
    data_type: DataType,
    /// Pixels with data in every band.
    valid: u64,
}

impl Work<'_> {
    /// The value that pixels without data get: that of the source, NaN of floats, 255 of labels. None where no pixel can lack data.
    fn choose_nodata(&self, options: &AlignOptions, target: &Metadata) -> Result<Option<f64>> {
        if options.content == Content::Label {
            return Ok(Some(f64::from(IGNORE)));
        }
        let declared = self
            .metadata
            .nodata
            .filter(|nodata| self.data_type.represents(*nodata));
        if declared.is_some() {
            return Ok(declared);
        }
        if matches!(self.data_type, DataType::F32 | DataType::F64) {
            return Ok(Some(f64::NAN));
        }
        let masked = matches!(
            self.source.annotations().validity,
            Validity::Mask | Validity::Alpha
        );
        if !masked && self.covers(target) {
            return Ok(None);
        }
        let what = match masked {
            true => "its mask leaves pixels out",
            false => "it does not cover the whole image",
        };
        Err(Error::Align {
            what: format!(
                "{what}, and no nodata value of {} is declared for the pixels without data; give one with `--nodata`",
                self.data_type
            ),
        })
    }

    /// Whether every pixel of the target's border lies in the source.
    fn covers(&self, target: &Metadata) -> bool {
        const ROUNDING: f64 = 1e-6;
        let (width, height) = (self.metadata.width as f64, self.metadata.height as f64);
        let inside = |col: usize, row: usize| {
            let (x, y) = self.placement.at(col as f64, row as f64);
            x >= -ROUNDING && y >= -ROUNDING && x <= width + ROUNDING && y <= height + ROUNDING
        };
        let across = (0..=target.width).all(|col| inside(col, 0) && inside(col, target.height));
        across && (0..=target.height).all(|row| inside(0, row) && inside(target.width, row))
    }

    fn window(&mut self, window: Window) -> Result<Raster> {
        let places = self.placement.places(window);
        let bands = self.metadata.bands;
        let mut values = vec![self.nodata.unwrap_or(0.0); bands * window.pixels()];
        let mut lacking = vec![true; window.pixels()];
        if let Some(needed) = places.needs(self.metadata.window()) {
            let bytes = needed
                .pixels()
                .saturating_mul(bands * self.metadata.data_type.bytes());
            if bytes > SOURCE_BYTES {
                return Err(Error::Align {
                    what: format!(
                        "{}: {needed} are needed for {} x {} pixels, {bytes} bytes; average it to about the grid's resolution first",
                        self.source.path().display(),
                        window.width,
                        window.height
                    ),
                });
            }
            let raster = self.source.read_window(needed)?;
            let mask = self.source.read_mask(needed)?;
            lacking.fill(false);
            for (band, values) in values.chunks_exact_mut(window.pixels()).enumerate() {
                let samples = raster.band_f32(band);
                let has_data = |(at, sample): (usize, &f32)| {
                    let masked = mask.as_ref().is_some_and(|mask| !mask[at]);
                    sample.is_finite() && !masked && !self.metadata.is_nodata(f64::from(*sample))
                };
                let data: Vec<bool> = samples.iter().enumerate().map(has_data).collect();
                let plane = Plane {
                    values: &samples,
                    data: &data,
                    window: needed,
                    whole: self.metadata.window(),
                };
                for ((value, lacking), &place) in
                    values.iter_mut().zip(&mut lacking).zip(&places.centres)
                {
                    match plane.at(place, places.size, self.resampling) {
                        Some(got) if self.data_type.represents(self.storable(got)) => {
                            *value = self.storable(got);
                        }
                        Some(got) => {
                            return Err(Error::MaskValue {
                                path: self.source.path().to_owned(),
                                value: got,
                                column: place.0 as usize,
                                row: place.1 as usize,
                                classes: usize::from(IGNORE),
                            });
                        }
                        None => *lacking = true,
                    }
                }
            }
        }
        self.valid += lacking.iter().filter(|lacking| !**lacking).count() as u64;
        Ok(Raster::new(window, bands, self.stored(&values)?)?)
    }

    /// A value with data as one that the type has and that is not taken for nodata.
    fn storable(&self, value: f64) -> f64 {
        let whole = !matches!(self.data_type, DataType::F32 | DataType::F64);
        let value = if whole { value.round() } else { value };
        match self.nodata {
            // Made between two others, so that its neighbour is as good; a value that was there stays.
            Some(nodata) if value == nodata && whole && self.resampling != Resampling::Nearest => {
                match self.data_type.represents(nodata + 1.0) {
                    true => nodata + 1.0,
                    false => nodata - 1.0,
                }
            }
            _ => value,
        }
    }

    fn stored(&self, values: &[f64]) -> Result<Samples> {
        Ok(match self.data_type {
            DataType::U8 => Samples::U8(values.iter().map(|&v| v as u8).collect()),
            DataType::I8 => Samples::I8(values.iter().map(|&v| v as i8).collect()),
            DataType::U16 => Samples::U16(values.iter().map(|&v| v as u16).collect()),
            DataType::I16 => Samples::I16(values.iter().map(|&v| v as i16).collect()),
            DataType::F32 => Samples::F32(values.iter().map(|&v| v as f32).collect()),
            other => {
                return Err(Error::Align {
                    what: format!(
                        "{}: samples of {other}; choose a file of 8 or 16 bits or of float32, since values are computed in single precision",
                        self.source.path().display()
                    ),
                });
            }
        })
    }
}
