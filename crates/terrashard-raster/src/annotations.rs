//! What a raster says of the meaning of its samples.

use std::collections::BTreeMap;

/// Which pixels a raster declares to be data. The names are those of GDAL's mask flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validity {
    /// All of them.
    #[default]
    AllValid,
    /// Those that differ from [`Metadata::nodata`](crate::Metadata::nodata).
    Nodata,
    /// Those that a mask stored beside the pixels says.
    Mask,
    /// Those that the last band, which is one of opacity, says.
    Alpha,
}

impl Validity {
    /// GDAL's flags, by the names that rasterio gives them.
    pub const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::AllValid => &["all_valid"],
            Self::Nodata => &["nodata"],
            Self::Mask => &["per_dataset"],
            Self::Alpha => &["per_dataset", "alpha"],
        }
    }
}

/// What a raster says of itself beyond its [`Metadata`](crate::Metadata): nothing here changes a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Annotations {
    /// Which pixels are data.
    pub validity: Validity,
    /// For each band, by what a sample is multiplied to become a quantity. 1 where the raster says nothing.
    pub scales: Vec<f64>,
    /// For each band, what is added after that. 0 where the raster says nothing.
    pub offsets: Vec<f64>,
    /// Names and values that belong to the whole raster, such as `PROCESSING_BASELINE`.
    pub tags: BTreeMap<String, String>,
    /// Number of ground control points, where there is no transform.
    pub control_points: usize,
    /// Red, green and blue of each value, where the raster has a colour table.
    pub colours: Vec<[u8; 3]>,
}

impl Annotations {
    /// Those of a raster of `bands` bands that says nothing.
    pub fn none(bands: usize) -> Self {
        Self {
            validity: Validity::AllValid,
            scales: vec![1.0; bands],
            offsets: vec![0.0; bands],
            tags: BTreeMap::new(),
            control_points: 0,
            colours: Vec::new(),
        }
    }
}
