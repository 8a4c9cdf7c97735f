//! The image at high resolution that a super-resolution branch learns.

use terrashard_raster::{Metadata, Raster, RasterSource, Window};

use crate::{BandSelection, Error, Result, Scaling};

/// How the image at high resolution is read.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetOptions {
    /// Its bands, in the order of the branch's channels.
    pub bands: BandSelection,
    /// Digital numbers to reflectance; without mean and standard deviation.
    pub scaling: Scaling,
    /// Stands for "no data" in place of what the file declares.
    pub nodata: Option<f64>,
}

/// An image on the fine grid of a scene.
#[derive(Debug)]
pub(crate) struct Target {
    source: Box<dyn RasterSource>,
    /// The file's metadata, with the nodata value that is asked for.
    metadata: Metadata,
    bands: Vec<usize>,
    scaling: Scaling,
    /// The whole image as it is stored: half the bytes of what a model takes, for samples of 16 bits.
    cache: Option<Raster>,
}

impl Target {
    /// Keeps the image in memory where it takes at most `room` bytes.
    pub(crate) fn new(
        source: Box<dyn RasterSource>,
        options: &TargetOptions,
        room: u64,
    ) -> Result<Self> {
        let TargetOptions {
            bands,
            scaling,
            nodata,
        } = options;
        let bands = bands.resolve(source.path(), source.metadata())?;
        scaling.validate(bands.len())?;
        if !scaling.mean.is_empty() {
            return Err(Error::Setting {
                key: "mean",
                what: "a high-resolution image is learned as reflectance; give its scaling neither mean nor std"
                    .to_owned(),
            });
        }
        let mut metadata = source.metadata().clone();
        metadata.nodata = nodata.or(metadata.nodata);
        let bytes = [metadata.height, metadata.bands, metadata.data_type.bytes()]
            .iter()
            .fold(metadata.width as u64, |product, &factor| {
                product.saturating_mul(factor as u64)
            });
        let cache = match bytes <= room {
            true => Some(source.read_window(metadata.window())?),
            false => None,
        };
        Ok(Self {
            source,
            metadata,
            bands,
            scaling: scaling.clone(),
            cache,
        })
    }

    /// Number of selected bands.
    pub(crate) fn bands(&self) -> usize {
        self.bands.len()
    }

    /// Reflectance over a window of the fine grid, `[bands, window.height, window.width]`; a pixel that lacks one band is NaN
    /// in all.
    pub(crate) fn read(&self, window: Window) -> Result<Vec<f32>> {
        let mut values = Vec::with_capacity(self.bands.len() * window.pixels());
        match &self.cache {
            Some(whole) if whole.window().contains(&window) => {
                let (width, height) = (whole.window().width, whole.window().height);
                for band in &self.bands {
                    for row in window.row..window.row_end() {
                        let first = (band * height + row) * width + window.col;
                        values.extend(whole.samples().to_f32(first..first + window.width));
                    }
                }
            }
            _ => {
                let raster = self.source.read_window(window)?;
                for band in &self.bands {
                    values.append(&mut raster.band_f32(*band));
                }
            }
        }
        let mut missing = vec![false; window.pixels()];
        for plane in values.chunks_exact(window.pixels()) {
            for (missing, &sample) in missing.iter_mut().zip(plane) {
                *missing |= !sample.is_finite() || self.metadata.is_nodata(f64::from(sample));
            }
        }
        for (place, plane) in values.chunks_exact_mut(window.pixels()).enumerate() {
            self.scaling.apply(place, plane);
            let gaps = plane.iter_mut().zip(&missing);
            gaps.filter(|(_, missing)| **missing)
                .for_each(|(value, _)| *value = f32::NAN);
        }
        Ok(values)
    }
}
