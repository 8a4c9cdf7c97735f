//! A scene: an image, and over the same ground, on a finer grid, a mask and perhaps the image at high resolution.

mod decoding;

use std::path::Path;
use std::sync::Arc;

use terrashard_raster::{Metadata, RasterSource, Window};

use crate::cache::TileCache;
use crate::classification::{Classification, IgnoreFrom};
use crate::fine_grid::{self, Fine};
use crate::statistics::{Statistics, picked};
use crate::sweep::sweep;
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
    /// Decoded tiles of the scene are kept in memory up to this many bytes, unless it shares a cache
    /// ([`Scene::with_cache`]). Default: 512 MiB.
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
/// A pixel is nodata where any selected band holds the nodata value, NaN or an infinity, or where the image's own mask says so; the
/// label under it is ignored. So is what a classification leaves out, whose pixels of the image stay. A pixel of the label is ignored
/// too where the label's own mask or a nodata value that is no class says that it has no data.
#[derive(Debug)]
pub struct Scene {
    image: Box<dyn RasterSource>,
    mask: Option<Box<dyn RasterSource>>,
    target: Option<Target>,
    classification: Option<Classification>,
    options: SceneOptions,
    /// The image's metadata, with the nodata value that is asked for.
    metadata: Metadata,
    bands: Vec<usize>,
    cache: Arc<TileCache>,
    /// What the cache calls the scene.
    number: u64,
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
        let mask = mask.map(terrashard_raster::open).transpose()?;
        Self::new(terrashard_raster::open(image)?, mask, options)
    }

    /// Puts an image and its mask together. Nothing is decoded yet.
    ///
    /// # Errors
    /// [`Error::BandCount`] or [`Error::UnknownBand`]; [`Error::Setting`]; [`Error::FineSize`] where the mask is not exactly
    /// `scale` times the image in both directions, [`Error::FineGround`] where it lies elsewhere.
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
        let cache = Arc::new(TileCache::new(options.cache_bytes));
        Ok(Self {
            image,
            mask,
            target: None,
            classification: None,
            options,
            metadata,
            bands,
            number: cache.enter(),
            cache,
        })
    }

    /// The scene with its image at high resolution.
    ///
    /// # Errors
    /// [`Error::BandCount`] or [`Error::UnknownBand`]; [`Error::Setting`] for a scaling that is none or has a mean;
    /// [`Error::FineSize`], [`Error::FineGround`].
    pub fn with_target(
        mut self,
        source: Box<dyn RasterSource>,
        options: &TargetOptions,
    ) -> Result<Self> {
        fine_grid::check(Fine::Target, &*self.image, &*source, self.scale())?;
        self.target = Some(Target::new(source, options)?);
        Ok(self)
    }

    /// The scene without what a classification leaves out: a raster over the image's ground, on a grid of any size, or a band of
    /// the image where there is none.
    ///
    /// # Errors
    /// [`Error::UnknownBand`], [`Error::Classification`].
    pub fn ignoring(
        mut self,
        ignore: &IgnoreFrom,
        classification: Option<Box<dyn RasterSource>>,
    ) -> Result<Self> {
        self.classification = Some(Classification::new(classification, ignore, &*self.image)?);
        Ok(self)
    }

    /// The scene with its decoded tiles in a cache that it shares with others.
    pub fn with_cache(mut self, cache: Arc<TileCache>) -> Self {
        self.number = cache.enter();
        self.cache = cache;
        self
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

    /// What the selected bands are called.
    pub fn band_titles(&self) -> Vec<String> {
        self.options.bands.titles(&self.metadata)
    }

    /// Whether the scene has a mask.
    pub fn has_mask(&self) -> bool {
        self.mask.is_some()
    }

    /// Bands of the high-resolution image; none where the scene has no such image.
    pub fn target_bands(&self) -> Option<usize> {
        self.target.as_ref().map(Target::bands)
    }

    /// The nodata value that the high-resolution image is read with.
    pub(crate) fn target_nodata(&self) -> Option<f64> {
        self.target.as_ref().and_then(Target::nodata)
    }

    /// The high-resolution image as it is stored.
    pub fn target_source(&self) -> Option<&dyn RasterSource> {
        self.target.as_ref().map(Target::source)
    }

    /// The scaling of the high-resolution image, where that is of digital numbers that batches take as they are.
    pub(crate) fn target_numbers(&self) -> Option<&Scaling> {
        let target = self.target.as_ref()?;
        target.is_of_numbers().then(|| target.scaling())
    }

    /// The cache of decoded tiles.
    pub fn cache(&self) -> &TileCache {
        &self.cache
    }

    /// The input of a model for a window of the image.
    ///
    /// # Shapes
    /// `[bands, window.height, window.width]`: reflectance, or normalised reflectance where mean and std are given.
    ///
    /// # Errors
    /// [`Error::Raster`] where the window is outside of the image or cannot be decoded.
    pub fn patch(&self, window: Window) -> Result<Patch> {
        match self.window().contains(&window) && self.keeps_tiles() {
            true => self.tiled_patch(window),
            false => self.decode_patch(window),
        }
    }

    /// The mask under a window of the image, [`IGNORE`] where the image or the mask itself has no data.
    ///
    /// # Shapes
    /// `[window.height * scale, window.width * scale]`, values `0..classes` and [`IGNORE`].
    ///
    /// # Errors
    /// [`Error::NoMask`]; [`Error::MaskValue`] where the mask holds another value; [`Error::Raster`].
    pub fn labels(&self, window: Window) -> Result<Vec<u8>> {
        if self.mask.is_none() {
            return Err(self.no_mask());
        }
        match self.window().contains(&window) && self.keeps_tiles() {
            true => self.tiled_labels(window),
            false => {
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
        self.target_as(window, f32::NAN, Target::reflectance)
    }

    /// Statistics of the selected bands over windows spread over the scene, in digital numbers: of a small scene all of it.
    ///
    /// # Errors
    /// [`Error::Raster`].
    pub fn sampled_statistics(&self) -> Result<Statistics> {
        const ACROSS: usize = 4;
        const SIDE: usize = 64;
        let each = Statistics::counts_each(self.image.metadata().data_type, 0.0);
        let mut statistics = Statistics::new(self.bands.len(), each);
        let starts = |length: usize| (0..ACROSS).map(move |at| length * at / ACROSS);
        let size = |length: usize| length.div_ceil(ACROSS).min(SIDE);
        for row in starts(self.height()) {
            for col in starts(self.width()) {
                let window = Window::new(col, row, size(self.width()), size(self.height()));
                let Some(window) = window.intersection(&self.window()) else {
                    continue;
                };
                let bands = picked(&self.image.read_window(window)?, &self.bands);
                let data = self.image.read_mask(window)?;
                let is_nodata = |sample: f32| self.metadata.is_nodata(f64::from(sample));
                statistics.add(bands, data, is_nodata, 0.0);
            }
        }
        Ok(statistics)
    }

    /// Adds the pixels of regions to statistics in one pass over the image, each to those at its number: the selected bands, with the
    /// scene's nodata value and its offset.
    ///
    /// # Errors
    /// [`Error::Raster`].
    ///
    /// # Panics
    /// Where a number has no statistics.
    pub fn add_statistics(
        &self,
        regions: &[(usize, Window)],
        statistics: &mut [Statistics],
    ) -> Result<()> {
        let is_nodata = |sample: f32| self.metadata.is_nodata(f64::from(sample));
        for window in sweep(self.window(), self.image.metadata()) {
            let shared = |region: &Window| region.intersection(&window);
            if !regions.iter().any(|(_, region)| shared(region).is_some()) {
                continue;
            }
            let bands = picked(&self.image.read_window(window)?, &self.bands);
            let data = self.image.read_mask(window)?;
            for (number, region) in regions {
                let Some(part) = shared(region) else {
                    continue;
                };
                let inside = Window::new(
                    part.col - window.col,
                    part.row - window.row,
                    part.width,
                    part.height,
                );
                let size = (window.width, window.height);
                let bands = bands.iter().map(|band| crop(band, size, inside)).collect();
                let data = data.as_ref().map(|data| crop(data, size, inside));
                statistics[*number].add(bands, data, is_nodata, self.options.scaling.offset);
            }
        }
        Ok(())
    }
}
