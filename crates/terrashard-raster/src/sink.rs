//! Where windows go.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use crate::{DataType, Georeference, Overviews, Raster, Result, Window};

/// What a raster to be written is.
#[derive(Clone, Debug, PartialEq)]
pub struct RasterSpec {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bands.
    pub bands: usize,
    /// Type of every sample.
    pub data_type: DataType,
    /// Reference system and transform. Default: none.
    pub georeference: Georeference,
    /// The value that stands for "no data". Default: none.
    pub nodata: Option<f64>,
    /// Side of a tile in pixels, a multiple of 16. Default: 512.
    pub tile: usize,
    /// What stands in the overviews, each half as large as the one before, down to one tile. Default:
    /// [`Overviews::Nearest`].
    pub overviews: Overviews,
    /// For each band, its description. Default: none.
    pub descriptions: Vec<Option<String>>,
    /// For each band, the scale and offset that make a quantity of a sample. Default: none, which is 1 and 0.
    pub scaling: Vec<(f64, f64)>,
    /// Red, green and blue of the values from 0 up, for a raster of classes. Default: none.
    pub colours: Vec<[u8; 3]>,
    /// Names and values that belong to the whole raster. Default: none.
    pub tags: BTreeMap<String, String>,
}

impl RasterSpec {
    /// A raster without georeference and nodata, in tiles of 512 pixels.
    pub const fn new(width: usize, height: usize, bands: usize, data_type: DataType) -> Self {
        let georeference = Georeference {
            epsg: None,
            transform: None,
        };
        Self {
            width,
            height,
            bands,
            data_type,
            georeference,
            nodata: None,
            tile: 512,
            overviews: Overviews::Nearest,
            descriptions: Vec::new(),
            scaling: Vec::new(),
            colours: Vec::new(),
            tags: BTreeMap::new(),
        }
    }

    /// With this reference system and transform.
    pub const fn georeference(mut self, georeference: Georeference) -> Self {
        self.georeference = georeference;
        self
    }

    /// With this value for "no data".
    pub const fn nodata(mut self, nodata: f64) -> Self {
        self.nodata = Some(nodata);
        self
    }

    /// With tiles of this side in pixels, a multiple of 16.
    pub const fn tile(mut self, side: usize) -> Self {
        self.tile = side;
        self
    }

    /// With these overviews.
    pub const fn overviews(mut self, overviews: Overviews) -> Self {
        self.overviews = overviews;
        self
    }

    /// With a description for each band.
    pub fn descriptions(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.descriptions = names.into_iter().map(|name| Some(name.into())).collect();
        self
    }

    /// With a scale and an offset for each band: a quantity is `sample * scale + offset`.
    pub fn scaling(mut self, scaling: impl IntoIterator<Item = (f64, f64)>) -> Self {
        self.scaling = scaling.into_iter().collect();
        self
    }

    /// With red, green and blue of the values from 0 up.
    pub fn colours(mut self, colours: impl Into<Vec<[u8; 3]>>) -> Self {
        self.colours = colours.into();
        self
    }

    /// With a name and a value that belong to the whole raster.
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(name.into(), value.into());
        self
    }

    /// The window of all pixels.
    pub const fn window(&self) -> Window {
        Window::new(0, 0, self.width, self.height)
    }
}

/// A raster that is written window by window.
///
/// Nothing appears under the final name before [`RasterSink::finish`]; dropping a sink instead leaves nothing behind.
pub trait RasterSink: Debug + Send {
    /// What is being written.
    fn spec(&self) -> &RasterSpec;

    /// The file to be, or the name under which messages speak of it.
    fn path(&self) -> &Path;

    /// Takes one window, of any shape. Every pixel is given exactly once, from the top down: a sink keeps a bounded number
    /// of rows that are not complete.
    ///
    /// # Errors
    /// [`Misplaced`](crate::Error::Misplaced) where the window does not fit, was given before, or leaves too many rows above
    /// it incomplete; [`Write`](crate::Error::Write) and [`Io`](crate::Error::Io).
    fn write(&mut self, raster: &Raster) -> Result<()>;

    /// Completes the raster and makes it visible.
    ///
    /// # Errors
    /// [`Incomplete`](crate::Error::Incomplete) where a pixel was never written; [`Write`](crate::Error::Write) and
    /// [`Io`](crate::Error::Io). Nothing is left under the final name then.
    fn finish(self: Box<Self>) -> Result<()>;
}
