//! Where windows come from.

use std::fmt::Debug;
use std::path::Path;

use crate::{Annotations, DataType, Georeference, Raster, Result, Validity, Window};

/// What a raster says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bands.
    pub bands: usize,
    /// Type of every sample.
    pub data_type: DataType,
    /// Reference system and transform.
    pub georeference: Georeference,
    /// The value that stands for "no data", as declared: it may lie outside of the sample type, and then no pixel has it.
    pub nodata: Option<f64>,
    /// One description for each band, such as `B02`.
    pub descriptions: Vec<Option<String>>,
    /// How many times smaller each stored overview is, in order of storage.
    pub overviews: Vec<usize>,
    /// (columns, rows) of a tile or strip: windows along this grid are read fastest.
    pub block: (usize, usize),
}

impl Metadata {
    /// The window of all pixels.
    pub const fn window(&self) -> Window {
        Window::new(0, 0, self.width, self.height)
    }

    /// Whether a sample is the declared nodata value; NaN always is.
    ///
    /// Single-precision samples are compared in single precision, as the declared text has more digits than they keep.
    pub fn is_nodata(&self, sample: f64) -> bool {
        sample.is_nan()
            || self.nodata.is_some_and(|nodata| match self.data_type {
                DataType::F32 => sample as f32 == nodata as f32,
                _ => sample == nodata,
            })
    }

    /// What the declared nodata value alone says of which pixels are data: nothing where no sample can have it.
    pub fn validity(&self) -> Validity {
        match self.nodata.is_some_and(|v| self.data_type.represents(v)) {
            true => Validity::Nodata,
            false => Validity::AllValid,
        }
    }

    /// The number of the band with this description, compared without regard to case.
    pub fn band_named(&self, name: &str) -> Option<usize> {
        self.descriptions.iter().position(|d| {
            d.as_deref()
                .is_some_and(|d| d.trim().eq_ignore_ascii_case(name.trim()))
        })
    }
}

/// A raster that is read window by window.
pub trait RasterSource: Debug + Send + Sync {
    /// What the raster says of itself.
    fn metadata(&self) -> &Metadata;

    /// The file, or the name under which messages speak of the raster.
    fn path(&self) -> &Path;

    /// Reads all bands of a window.
    ///
    /// # Shapes
    /// `[bands, window.height, window.width]`, samples of [`Metadata::data_type`].
    ///
    /// # Errors
    /// [`OutsideWindow`](crate::Error::OutsideWindow), [`TooLarge`](crate::Error::TooLarge) before any memory is asked for,
    /// [`Truncated`](crate::Error::Truncated), [`Damaged`](crate::Error::Damaged) and [`Io`](crate::Error::Io).
    fn read_window(&self, window: Window) -> Result<Raster>;

    /// Reads some bands of a window, by their numbers from 0: what a raster whose bands lie apart does not read costs nothing.
    ///
    /// # Shapes
    /// `[bands.len(), window.height, window.width]`.
    ///
    /// # Panics
    /// Where a number is not below [`Metadata::bands`].
    ///
    /// # Errors
    /// Those of [`RasterSource::read_window`].
    fn read_bands(&self, window: Window, bands: &[usize]) -> Result<Raster> {
        Ok(self.read_window(window)?.select(bands))
    }

    /// What the raster says of the meaning of its samples.
    fn annotations(&self) -> Annotations {
        let metadata = self.metadata();
        Annotations {
            validity: metadata.validity(),
            ..Annotations::none(metadata.bands)
        }
    }

    /// Which pixels of a window are data, where a mask or a band of opacity beside the pixels says so; `None` where nothing
    /// but [`Metadata::nodata`] does.
    ///
    /// # Shapes
    /// `[window.height, window.width]`.
    ///
    /// # Errors
    /// Those of [`RasterSource::read_window`].
    fn read_mask(&self, _window: Window) -> Result<Option<Vec<bool>>> {
        Ok(None)
    }

    /// The stored overview number `level`, counted as in [`Metadata::overviews`], as a raster of its own; `None` where there
    /// is none.
    ///
    /// # Errors
    /// As opening a file, where the overview is damaged.
    fn overview(&self, _level: usize) -> Result<Option<Box<dyn RasterSource>>> {
        Ok(None)
    }
}

impl<S: RasterSource + ?Sized> RasterSource for Box<S> {
    fn metadata(&self) -> &Metadata {
        (**self).metadata()
    }

    fn path(&self) -> &Path {
        (**self).path()
    }

    fn read_window(&self, window: Window) -> Result<Raster> {
        (**self).read_window(window)
    }

    fn read_bands(&self, window: Window, bands: &[usize]) -> Result<Raster> {
        (**self).read_bands(window, bands)
    }

    fn annotations(&self) -> Annotations {
        (**self).annotations()
    }

    fn read_mask(&self, window: Window) -> Result<Option<Vec<bool>>> {
        (**self).read_mask(window)
    }

    fn overview(&self, level: usize) -> Result<Option<Box<dyn RasterSource>>> {
        (**self).overview(level)
    }
}
