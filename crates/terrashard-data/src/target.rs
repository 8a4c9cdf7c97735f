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
}

/// A window as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    raster: Raster,
    /// Which pixels are data, where a mask beside them says so.
    mask: Option<Vec<bool>>,
}

impl Stored {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let samples = self.raster.samples();
        samples.len() * samples.data_type().bytes() + self.mask.as_ref().map_or(0, Vec::len)
    }
}

impl Target {
    pub(crate) fn new(source: Box<dyn RasterSource>, options: &TargetOptions) -> Result<Self> {
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
        Ok(Self {
            source,
            metadata,
            bands,
            scaling: scaling.clone(),
        })
    }

    /// The image as it is stored.
    pub(crate) fn source(&self) -> &dyn RasterSource {
        &*self.source
    }

    /// The nodata value that the image is read with.
    pub(crate) fn nodata(&self) -> Option<f64> {
        self.metadata.nodata
    }

    /// Number of selected bands.
    pub(crate) fn bands(&self) -> usize {
        self.bands.len()
    }

    /// Reflectance over a window of the fine grid, `[bands, window.height, window.width]`; a pixel that lacks one band is NaN
    /// in all.
    pub(crate) fn read(&self, window: Window) -> Result<Vec<f32>> {
        Ok(self.reflectance(&self.stored(window)?))
    }

    /// A window as it is stored.
    pub(crate) fn stored(&self, window: Window) -> Result<Stored> {
        Ok(Stored {
            raster: self.source.read_window(window)?,
            mask: self.source.read_mask(window)?,
        })
    }

    /// What a window as it is stored holds, as [`Target::read`] gives it.
    pub(crate) fn reflectance(&self, stored: &Stored) -> Vec<f32> {
        let Stored { raster, mask } = stored;
        let window = raster.window();
        let mut values = Vec::with_capacity(self.bands.len() * window.pixels());
        for band in &self.bands {
            values.append(&mut raster.band_f32(*band));
        }
        let mut missing = match mask {
            Some(data) => data.iter().map(|data| !data).collect(),
            None => vec![false; window.pixels()],
        };
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
        values
    }
}
