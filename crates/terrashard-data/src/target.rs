//! The image at high resolution that a super-resolution branch learns.

use terrashard_raster::{DataType, Metadata, Raster, RasterSource, Samples, Window};

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

    /// Which pixels lack a band: those of `planes` with a sample that is none, and those that a mask leaves out.
    fn missing<'a, S: Copy + 'a>(
        &self,
        planes: impl Iterator<Item = &'a [S]>,
        is_none: impl Fn(S) -> bool,
    ) -> Vec<bool> {
        let mut missing = match &self.mask {
            Some(data) => data.iter().map(|data| !data).collect(),
            None => vec![false; self.raster.window().pixels()],
        };
        for plane in planes {
            for (missing, &sample) in missing.iter_mut().zip(plane) {
                *missing |= is_none(sample);
            }
        }
        missing
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

    /// A window as it is stored.
    pub(crate) fn stored(&self, window: Window) -> Result<Stored> {
        Ok(Stored {
            raster: self.source.read_window(window)?,
            mask: self.source.read_mask(window)?,
        })
    }

    /// Whether the image is of whole numbers of at most 16 bits, none below 0, which batches take as they are.
    pub(crate) fn is_of_numbers(&self) -> bool {
        matches!(self.metadata.data_type, DataType::U8 | DataType::U16)
    }

    /// Digital numbers to reflectance.
    pub(crate) fn scaling(&self) -> &Scaling {
        &self.scaling
    }

    /// Reflectance, `[bands, height, width]`; a pixel that lacks one band is NaN in all.
    pub(crate) fn reflectance(&self, stored: &Stored) -> Vec<f32> {
        let raster = &stored.raster;
        let pixels = raster.window().pixels();
        let mut values = Vec::with_capacity(self.bands.len() * pixels);
        for band in &self.bands {
            values.append(&mut raster.band_f32(*band));
        }
        let missing = stored.missing(values.chunks_exact(pixels), |sample: f32| {
            !sample.is_finite() || self.metadata.is_nodata(f64::from(sample))
        });
        for (place, plane) in values.chunks_exact_mut(pixels).enumerate() {
            self.scaling.apply(place, plane);
            fill(plane, &missing, f32::NAN);
        }
        values
    }

    /// The numbers as they are stored, each as `of` takes it, `[bands, height, width]`; a pixel that lacks one band is `missing`
    /// in all.
    ///
    /// # Panics
    /// Where the image [is of no numbers](Self::is_of_numbers).
    pub(crate) fn numbers<T: Copy>(
        &self,
        stored: &Stored,
        missing: T,
        of: impl Fn(u16) -> T,
    ) -> Vec<T> {
        match stored.raster.samples() {
            Samples::U8(samples) => self.numbers_of(stored, samples, missing, of),
            Samples::U16(samples) => self.numbers_of(stored, samples, missing, of),
            _ => unreachable!("asked of an image of numbers"),
        }
    }

    fn numbers_of<S: Copy + Into<u16>, T: Copy>(
        &self,
        stored: &Stored,
        samples: &[S],
        missing: T,
        of: impl Fn(u16) -> T,
    ) -> Vec<T> {
        let pixels = stored.raster.window().pixels();
        let plane = |band: &usize| &samples[band * pixels..][..pixels];
        // A declared value that no sample can have says nothing.
        let nodata = self.metadata.nodata;
        let nodata = nodata.filter(|nodata| DataType::U16.represents(*nodata));
        let nodata = nodata.map(|nodata| nodata as u16);
        let gaps = stored.missing(self.bands.iter().map(plane), |sample: S| {
            Some(sample.into()) == nodata
        });
        let mut values = Vec::with_capacity(self.bands.len() * pixels);
        for band in &self.bands {
            let begin = values.len();
            values.extend(plane(band).iter().map(|sample| of((*sample).into())));
            fill(&mut values[begin..], &gaps, missing);
        }
        values
    }
}

/// Overwrites what is missing.
fn fill<T: Copy>(plane: &mut [T], missing: &[bool], with: T) {
    let gaps = plane.iter_mut().zip(missing);
    gaps.filter(|(_, missing)| **missing)
        .for_each(|(value, _)| *value = with);
}
