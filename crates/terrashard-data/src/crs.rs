//! Map coordinates of one reference system in another.

use proj4rs::{Proj, transform::transform};
use terrashard_raster::{Georeference, Metadata, Window};

use crate::{Error, Result};

/// Longitude and latitude on WGS 84, what GeoJSON is in.
pub const LONGITUDE_LATITUDE: u32 = 4326;

/// Pieces that each side of a footprint is cut into, since straight lines of one system are not straight in another.
const PIECES: usize = 8;

/// Pixels of a side that is one piece.
const STRAIGHT: usize = 256;

/// From the coordinates of one reference system to those of another.
#[derive(Clone, Debug)]
pub struct Reprojection {
    from: Option<(Box<Proj>, Box<Proj>)>,
    degrees: (bool, bool),
}

impl Reprojection {
    /// From one EPSG code to another.
    ///
    /// # Errors
    /// [`Error::Crs`] where a code is not known or cannot be computed.
    pub fn new(from: u32, to: u32) -> Result<Self> {
        if from == to {
            return Ok(Self {
                from: None,
                degrees: (false, false),
            });
        }
        let (from, to) = (projection(from)?, projection(to)?);
        let degrees = (from.is_latlong(), to.is_latlong());
        Ok(Self {
            from: Some((Box::new(from), Box::new(to))),
            degrees,
        })
    }

    /// Whether both systems are the same.
    pub fn is_identity(&self) -> bool {
        self.from.is_none()
    }

    /// A point, x or longitude first; none where the systems do not meet there.
    pub fn apply(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        let Some((from, to)) = &self.from else {
            return Some((x, y));
        };
        let mut point = match self.degrees.0 {
            true => (x.to_radians(), y.to_radians()),
            false => (x, y),
        };
        transform(from, to, &mut point).ok()?;
        let (x, y) = match self.degrees.1 {
            true => (point.0.to_degrees(), point.1.to_degrees()),
            false => point,
        };
        (x.is_finite() && y.is_finite()).then_some((x, y))
    }
}

fn projection(epsg: u32) -> Result<Proj> {
    let unknown = |what: String| Error::Crs { epsg, what };
    let code = u16::try_from(epsg).map_err(|_| unknown("no such code is known".to_owned()))?;
    Proj::from_epsg_code(code).map_err(|error| unknown(error.to_string().to_lowercase()))
}

/// A ring of longitudes and latitudes around a window of a raster, closed, as GeoJSON has it; none where the raster has no georeference.
///
/// # Errors
/// [`Error::Crs`].
pub fn footprint(metadata: &Metadata, window: Window) -> Result<Option<Vec<[f64; 2]>>> {
    let Georeference {
        epsg: Some(epsg),
        transform: Some(transform),
    } = metadata.georeference
    else {
        return Ok(None);
    };
    let reprojection = Reprojection::new(epsg, LONGITUDE_LATITUDE)?;
    let (left, top) = (window.col as f64, window.row as f64);
    let (right, bottom) = (window.col_end() as f64, window.row_end() as f64);
    // Counter-clockwise where north is up.
    let corners = [(left, top), (left, bottom), (right, bottom), (right, top)];
    // The side of a chip bends by less than a tenth of a pixel of 10 m, and chips are many.
    let pieces = match window.width.max(window.height) {
        0..=STRAIGHT => 1,
        _ => PIECES,
    };
    let mut ring = Vec::with_capacity(4 * pieces + 1);
    for (place, from) in corners.iter().enumerate() {
        let to = corners[(place + 1) % 4];
        for piece in 0..pieces {
            let share = piece as f64 / pieces as f64;
            let at = |a: f64, b: f64| a + (b - a) * share;
            let point = transform.apply(at(from.0, to.0), at(from.1, to.1));
            match reprojection.apply(point) {
                Some((longitude, latitude)) => ring.push([longitude, latitude]),
                None => return Ok(None),
            }
        }
    }
    ring.push(ring[0]);
    Ok(Some(ring))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrashard_raster::{DataType, Transform};

    #[track_caller]
    fn near(got: Option<(f64, f64)>, expected: (f64, f64), tolerance: f64) {
        let got = got.expect("within both systems");
        let apart = (got.0 - expected.0).abs().max((got.1 - expected.1).abs());
        assert!(apart <= tolerance, "{got:?} instead of {expected:?}");
    }

    /// Values of pyproj 3.7.2 (PROJ 9.5.1).
    #[test]
    fn agrees_with_proj() {
        let to = |from, to| Reprojection::new(from, to).expect("known");
        near(
            to(32633, 4326).apply((300_000.0, 5_800_000.0)),
            POINTS[0],
            1e-9,
        );
        near(
            to(32633, 32632).apply((300_000.0, 5_800_000.0)),
            POINTS[1],
            1e-5,
        );
        near(to(4326, 32648).apply((105.0, -10.0)), POINTS[2], 1e-5);
        near(
            to(32633, 3857).apply((300_000.0, 5_800_000.0)),
            POINTS[3],
            1e-5,
        );
        near(to(32633, 32633).apply((1.0, 2.0)), (1.0, 2.0), 0.0);
        assert!(to(32633, 32633).is_identity());
        let error = Reprojection::new(32633, 99_999)
            .expect_err("no such code")
            .to_string();
        assert!(error.contains("EPSG:99999"), "{error}");
    }

    const POINTS: [(f64, f64); 4] = [
        (12.065810113244, 52.313843664103),
        (708969.371152, 5800371.996879),
        (500000.000000, -1105412.491301),
        (1343159.837815, 6857072.561891),
    ];

    #[test]
    fn a_footprint_goes_around() {
        let metadata = Metadata {
            width: 1000,
            height: 500,
            bands: 1,
            data_type: DataType::U8,
            georeference: Georeference {
                epsg: Some(32633),
                transform: Some(Transform::north_up(300_000.0, 5_800_000.0, 10.0)),
            },
            nodata: None,
            descriptions: vec![None],
            overviews: Vec::new(),
            block: (1000, 1),
        };
        let ring = footprint(&metadata, metadata.window())
            .expect("known")
            .expect("there");
        assert_eq!((ring.len(), ring[0]), (33, ring[32]));
        near(Some((ring[0][0], ring[0][1])), POINTS[0], 1e-9);
        // Twice the area, by the shoelace formula: above zero counter-clockwise.
        let area: f64 = ring
            .windows(2)
            .map(|p| p[0][0] * p[1][1] - p[1][0] * p[0][1])
            .sum();
        assert!(area > 0.0, "{area}");

        // Of a chip the corners do: halfway along its upper side the map is less than a metre away, 9e-6 degrees.
        let side = |width: usize| {
            let ring = footprint(&metadata, Window::new(0, 0, width, 256));
            ring.expect("known").expect("there")
        };
        let (chip, half) = (side(256), side(128));
        assert_eq!((chip.len(), chip[0]), (5, chip[4]));
        let middle = [0, 1].map(|at| (chip[0][at] + chip[3][at]) / 2.0);
        near(Some((half[3][0], half[3][1])), (middle[0], middle[1]), 9e-6);
    }
}
