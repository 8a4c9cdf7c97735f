//! Longitude and latitude of the pixels of a map, in which GeoJSON and catalogues tell places.

use std::path::Path;

use terrashard_data::{LONGITUDE_LATITUDE, Reprojection};
use terrashard_raster::{Georeference, Transform};

use crate::error::{Error, Result};

/// From pixel corners of a map to degrees.
#[derive(Debug)]
pub(crate) struct LonLat {
    pixels: Transform,
    reprojection: Reprojection,
}

impl LonLat {
    /// That of a map.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] for `key` where the map says not where it lies, or its reference system is not known.
    pub(crate) fn new(key: &str, map: &Path, ground: &Georeference) -> Result<Self> {
        let refuse = |got: String| {
            let expected = "an image with a transform and an EPSG code that is known";
            Error::invalid(key, format!("{} {got}", map.display()), expected)
        };
        let (Some(epsg), Some(pixels)) = (ground.epsg, ground.transform) else {
            return Err(refuse("without georeference".into()));
        };
        let reprojection = Reprojection::new(epsg, LONGITUDE_LATITUDE)
            .map_err(|error| refuse(format!("in EPSG:{epsg}, {error}")))?;
        Ok(Self {
            pixels,
            reprojection,
        })
    }

    /// Longitude and latitude of a pixel corner in degrees.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] for `key` where the reference system does not reach there.
    pub(crate) fn at(&self, key: &str, (column, row): (usize, usize)) -> Result<[f64; 2]> {
        let (x, y) = self.pixels.apply(column as f64, row as f64);
        let (longitude, latitude) = self.reprojection.apply((x, y)).ok_or_else(|| {
            let expected = "a map within its reference system";
            Error::invalid(key, format!("{x}, {y}"), expected)
        })?;
        Ok([longitude, latitude])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of pyproj 3.7 (PROJ 9.5).
    #[test]
    fn agrees_with_proj() {
        let ground = |epsg, transform| Georeference {
            epsg: Some(epsg),
            transform: Some(transform),
        };
        let at = |ground: &Georeference, pixel| {
            let lonlat = LonLat::new("--stac", Path::new("map.tif"), ground).unwrap();
            lonlat.at("--stac", pixel).unwrap()
        };
        let near = |[lon, lat]: [f64; 2], expected: [f64; 2]| {
            let apart = (lon - expected[0]).abs().max((lat - expected[1]).abs());
            assert!(apart < 1e-9, "{lon}, {lat} in place of {expected:?}");
        };
        // The central meridian of zone 33 at the equator.
        let utm = ground(32633, Transform::north_up(499_990.0, 10.0, 10.0));
        near(at(&utm, (1, 1)), [15.0, 0.0]);
        let degrees = ground(4326, Transform::north_up(8.0, 47.0, 0.25));
        near(at(&degrees, (2, 4)), [8.5, 46.0]);
        let error = LonLat::new("--stac", Path::new("map.tif"), &Georeference::default());
        let told = error.unwrap_err().to_string();
        assert!(told.contains("map.tif without georeference"), "{told}");
    }
}
