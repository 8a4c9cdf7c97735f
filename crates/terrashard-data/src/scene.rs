//! A scene: an image, and over the same ground, on a finer grid, a mask and perhaps the image at high resolution.

use std::path::Path;
use std::sync::OnceLock;

use terrashard_raster::{Metadata, RasterSource, Samples, Window};

use crate::fine_grid::{self, Fine};
use crate::target::{Target, TargetOptions};
use crate::{BandSelection, Error, Result, Scaling, crop};

/// The mask value that is neither trained on nor counted.
pub const IGNORE: u8 = 255;

/// How a scene is read.
#[derive(Clone, Debug, PartialEq)]
pub struct SceneOptions {
    /// The bands that a model takes.
    pub bands: BandSelection,
    /// Digital numbers to model input. Default: reflectance of a product without offset.
    pub scaling: Scaling,
    /// Mask pixels per image pixel along one side. Default: 5 (10 m to 2 m).
    pub scale: usize,
    /// Number of classes of the mask, from 1 to 255. Default: 2 (background and one foreground class).
    pub classes: usize,
    /// Stands for "no data" in place of what the image declares. Default: what the image declares.
    pub nodata: Option<f64>,
    /// A scene is kept decoded in memory where that takes at most this many bytes. Default: 512 MiB.
    pub cache_bytes: usize,
}

impl SceneOptions {
    /// The defaults for these bands.
    pub fn new(bands: BandSelection) -> Self {
        Self {
            bands,
            scaling: Scaling::default(),
            scale: 5,
            classes: 2,
            nodata: None,
            cache_bytes: 512 << 20,
        }
    }
}

/// Part of an image as a model takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// Scaled samples, `[bands, height, width]`. Pixels that are not valid hold 0 in every band; no value is NaN or infinite.
    pub values: Vec<f32>,
    /// Which pixels have data in every selected band, `[height, width]`.
    pub valid: Vec<bool>,
}

/// An image and, for training and testing, its mask and perhaps its high-resolution image.
///
/// A pixel is nodata where any selected band holds the nodata value, NaN or an infinity; the mask under it is ignored.
#[derive(Debug)]
pub struct Scene {
    image: Box<dyn RasterSource>,
    mask: Option<Box<dyn RasterSource>>,
    target: Option<Target>,
    options: SceneOptions,
    /// The image's metadata, with the nodata value that is asked for.
    metadata: Metadata,
    bands: Vec<usize>,
    cache: OnceLock<Decoded>,
}

#[derive(Debug)]
struct Decoded {
    patch: Patch,
    labels: Vec<u8>,
}

impl Scene {
    /// Opens the files of a scene.
    ///
    /// # Errors
    /// Those of [`Scene::new`], and [`Error::Raster`] where a file cannot be read.
    pub fn open(
        image: impl AsRef<Path>,
        mask: Option<&Path>,
        options: SceneOptions,
    ) -> Result<Self> {
        let image = Box::new(terrashard_raster::open(image)?);
        let mask = match mask {
            Some(path) => Some(Box::new(terrashard_raster::open(path)?) as Box<dyn RasterSource>),
            None => None,
        };
        Self::new(image, mask, options)
    }

    /// Puts an image and its mask together, and decodes both where they fit [`SceneOptions::cache_bytes`].
    ///
    /// # Errors
    /// [`Error::BandCount`] or [`Error::UnknownBand`]; [`Error::Setting`]; [`Error::FineSize`] where the mask is not exactly
    /// `scale` times the image in both directions, [`Error::FineGround`] where it lies elsewhere; and, where the scene is
    /// decoded, those of [`Scene::patch`] and [`Scene::labels`].
    pub fn new(
        image: Box<dyn RasterSource>,
        mask: Option<Box<dyn RasterSource>>,
        options: SceneOptions,
    ) -> Result<Self> {
        if options.scale == 0 || options.scale > 64 {
            return Err(Error::Setting {
                key: "scale",
                what: format!("{}; choose 1 to 64", options.scale),
            });
        }
        if !(1..=255).contains(&options.classes) {
            return Err(Error::Setting {
                key: "classes",
                what: format!("{}; choose 1 to 255", options.classes),
            });
        }
        let bands = options.bands.resolve(image.path(), image.metadata())?;
        options.scaling.validate(bands.len())?;
        if let Some(mask) = &mask {
            if mask.metadata().bands != 1 {
                return Err(Error::BandCount {
                    path: mask.path().to_owned(),
                    expected: 1,
                    found: mask.metadata().bands,
                });
            }
            fine_grid::check(Fine::Mask, &*image, &**mask, options.scale)?;
        }
        let mut metadata = image.metadata().clone();
        metadata.nodata = options.nodata.or(metadata.nodata);
        let scene = Self {
            image,
            mask,
            target: None,
            options,
            metadata,
            bands,
            cache: OnceLock::new(),
        };
        if scene.decoded_bytes() <= scene.options.cache_bytes as u64 {
            let whole = scene.window();
            let patch = scene.decode_patch(whole)?;
            let labels = if scene.mask.is_some() {
                scene.decode_labels(whole, &patch.valid)?
            } else {
                Vec::new()
            };
            scene.cache.get_or_init(|| Decoded { patch, labels });
        }
        Ok(scene)
    }

    /// The scene with its image at high resolution, which is kept in memory, as it is stored, where that fits
    /// [`SceneOptions::cache_bytes`] beside the rest.
    ///
    /// # Errors
    /// [`Error::BandCount`] or [`Error::UnknownBand`]; [`Error::Setting`] for a scaling that is none or has a mean;
    /// [`Error::FineSize`], [`Error::FineGround`]; [`Error::Raster`].
    pub fn with_target(
        mut self,
        source: Box<dyn RasterSource>,
        options: &TargetOptions,
    ) -> Result<Self> {
        fine_grid::check(Fine::Target, &*self.image, &*source, self.scale())?;
        let taken = match self.is_cached() {
            true => self.decoded_bytes(),
            false => 0,
        };
        let room = (self.options.cache_bytes as u64).saturating_sub(taken);
        self.target = Some(Target::new(source, options, room)?);
        Ok(self)
    }

    /// Columns of the image.
    pub fn width(&self) -> usize {
        self.metadata.width
    }

    /// Rows of the image.
    pub fn height(&self) -> usize {
        self.metadata.height
    }

    /// Number of selected bands.
    pub fn bands(&self) -> usize {
        self.bands.len()
    }

    /// Mask pixels per image pixel along one side.
    pub fn scale(&self) -> usize {
        self.options.scale
    }

    /// Number of classes of the mask.
    pub fn classes(&self) -> usize {
        self.options.classes
    }

    /// The window of the whole image.
    pub fn window(&self) -> Window {
        self.metadata.window()
    }

    /// What the image says of itself, with the nodata value that was asked for.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The image as it is stored.
    pub fn image(&self) -> &dyn RasterSource {
        &*self.image
    }

    /// How digital numbers become model input.
    pub fn scaling(&self) -> &Scaling {
        &self.options.scaling
    }

    /// Whether the scene has a mask.
    pub fn has_mask(&self) -> bool {
        self.mask.is_some()
    }

    /// Bands of the high-resolution image; none where the scene has no such image.
    pub fn target_bands(&self) -> Option<usize> {
        self.target.as_ref().map(Target::bands)
    }

    /// Whether the scene is kept decoded in memory.
    pub fn is_cached(&self) -> bool {
        self.cache.get().is_some()
    }

    /// The input of a model for a window of the image.
    ///
    /// # Shapes
    /// `[bands, window.height, window.width]`: reflectance, or normalised reflectance where mean and std are given.
    ///
    /// # Errors
    /// [`Error::Raster`] where the window is outside of the image or cannot be decoded.
    pub fn patch(&self, window: Window) -> Result<Patch> {
        match self.cache.get() {
            Some(decoded) if self.window().contains(&window) => {
                let size = (self.width(), self.height());
                let Patch { values, valid } = &decoded.patch;
                Ok(Patch {
                    values: crop(values, size, window),
                    valid: crop(valid, size, window),
                })
            }
            _ => self.decode_patch(window),
        }
    }

    /// The mask under a window of the image, [`IGNORE`] where the image has no data.
    ///
    /// # Shapes
    /// `[window.height * scale, window.width * scale]`, values `0..classes` and [`IGNORE`].
    ///
    /// # Errors
    /// [`Error::NoMask`]; [`Error::MaskValue`] where the mask holds another value; [`Error::Raster`].
    pub fn labels(&self, window: Window) -> Result<Vec<u8>> {
        match self.cache.get() {
            Some(decoded) if self.mask.is_some() && self.window().contains(&window) => {
                let scale = self.scale();
                let size = (self.width() * scale, self.height() * scale);
                Ok(crop(&decoded.labels, size, window.scaled(scale)))
            }
            _ => {
                if self.mask.is_none() {
                    return Err(self.no_mask());
                }
                let valid = self.decode_patch(window)?.valid;
                self.decode_labels(window, &valid)
            }
        }
    }

    /// The image at high resolution over a window of the image.
    ///
    /// # Shapes
    /// `[target_bands, window.height * scale, window.width * scale]`: reflectance. A pixel that lacks one band, or has no image
    /// pixel with data under it, is NaN in all.
    ///
    /// # Errors
    /// [`Error::NoTarget`]; [`Error::Raster`].
    pub fn target(&self, window: Window) -> Result<Vec<f32>> {
        let target = self.target.as_ref().ok_or_else(|| Error::NoTarget {
            image: self.image.path().to_owned(),
        })?;
        let fine = window.scaled(self.scale());
        let mut values = target.read(fine)?;
        let valid = self.patch(window)?.valid;
        if !valid.iter().all(|&ok| ok) {
            for plane in values.chunks_exact_mut(fine.pixels()) {
                self.blank(plane, window, &valid, f32::NAN);
            }
        }
        Ok(values)
    }

    /// Fills in what lies over image pixels that are not valid.
    fn blank<T: Copy>(&self, plane: &mut [T], window: Window, valid: &[bool], with: T) {
        let scale = self.scale();
        for (row, line) in plane.chunks_exact_mut(window.width * scale).enumerate() {
            let coarse = &valid[row / scale * window.width..][..window.width];
            for (block, _) in line
                .chunks_exact_mut(scale)
                .zip(coarse)
                .filter(|(_, ok)| !**ok)
            {
                block.fill(with);
            }
        }
    }

    fn no_mask(&self) -> Error {
        Error::NoMask {
            image: self.image.path().to_owned(),
        }
    }

    fn decoded_bytes(&self) -> u64 {
        let pixels = (self.width() as u64).saturating_mul(self.height() as u64);
        let mask = if self.mask.is_some() {
            (self.scale() * self.scale()) as u64
        } else {
            0
        };
        pixels.saturating_mul(4 * self.bands() as u64 + 1 + mask)
    }

    fn decode_patch(&self, window: Window) -> Result<Patch> {
        let raster = self.image.read_window(window)?;
        let mut values = Vec::with_capacity(self.bands() * window.pixels());
        let mut valid = vec![true; window.pixels()];
        for (place, &band) in self.bands.iter().enumerate() {
            let mut samples = raster.band_f32(band);
            for (ok, &sample) in valid.iter_mut().zip(&samples) {
                *ok &= sample.is_finite() && !self.metadata.is_nodata(f64::from(sample));
            }
            self.options.scaling.apply(place, &mut samples);
            values.append(&mut samples);
        }
        // After all bands: a pixel that lacks one band lacks all.
        for plane in values.chunks_exact_mut(window.pixels()) {
            plane
                .iter_mut()
                .zip(&valid)
                .filter(|(_, ok)| !**ok)
                .for_each(|(value, _)| *value = 0.0);
        }
        Ok(Patch { values, valid })
    }

    fn decode_labels(&self, window: Window, valid: &[bool]) -> Result<Vec<u8>> {
        let mask = self.mask.as_deref().ok_or_else(|| self.no_mask())?;
        let fine = window.scaled(self.scale());
        let samples = mask.read_window(fine)?.into_samples();
        let mut labels =
            to_classes(samples, self.classes()).map_err(|(at, value)| Error::MaskValue {
                path: mask.path().to_owned(),
                value,
                column: fine.col + at % fine.width,
                row: fine.row + at / fine.width,
                classes: self.classes(),
            })?;
        if !valid.iter().all(|&ok| ok) {
            self.blank(&mut labels, window, valid, IGNORE);
        }
        Ok(labels)
    }
}

/// Checks that each value is a class or [`IGNORE`]; otherwise the first place and value that is neither.
fn to_classes(samples: Samples, classes: usize) -> Result<Vec<u8>, (usize, f64)> {
    let is_class = |value: f64| {
        value == f64::from(IGNORE)
            || (value >= 0.0 && value < classes as f64 && value.fract() == 0.0)
    };
    let wrong = (0..samples.len()).find(|&at| !is_class(samples.get(at)));
    match (wrong, samples) {
        (Some(at), samples) => Err((at, samples.get(at))),
        (None, Samples::U8(labels)) => Ok(labels),
        (None, samples) => Ok((0..samples.len()).map(|at| samples.get(at) as u8).collect()),
    }
}
