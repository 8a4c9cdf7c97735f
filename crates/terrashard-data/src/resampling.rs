//! Values of one grid at the pixels of another.
//!
//! Pixels are areas: the centre of pixel (column, row) lies at (column + 1/2, row + 1/2), on either grid.

use serde::{Deserialize, Serialize};
use terrashard_raster::{Metadata, Transform, Window};

use crate::affine::{between, inverse};
use crate::crs::Reprojection;
use crate::{Error, Result};

/// Pixels between the points that are reprojected exactly; between them the map is straight. Over 32 m, 16 pixels of 2 m, a UTM zone bends by
/// less than a hundred-thousandth of a pixel.
const STEP: usize = 16;

/// The share of a pixel's area, or of its weight, that has to be data.
const LEAST_DATA: f64 = 0.5;

/// Rounding of coordinates is not to decide between two pixels that a centre lies just between.
const NUDGE: f64 = 1e-6;

/// How values between pixels are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resampling {
    /// The mean over the area of a pixel: of an image that is finer.
    Area,
    /// Between the four nearest centres, linearly in both directions: of an image that is coarser.
    Bilinear,
    /// The value of the pixel that the centre lies in: of classes.
    Nearest,
}

/// From pixels of a target grid to pixels of a source grid.
#[derive(Clone, Debug)]
pub(crate) enum Placement {
    /// Both lie in one reference system.
    Straight(Transform),
    /// They do not.
    Projected {
        to_map: Transform,
        reprojection: Box<Reprojection>,
        from_map: Transform,
    },
}

/// Coordinates in a source, of each pixel centre of a window, and the size of a pixel of it there.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Column and row in the source, by pixel; NaN where the reference systems do not meet.
    pub(crate) centres: Vec<(f64, f64)>,
    /// Width and height of a target pixel in source pixels.
    pub(crate) size: (f64, f64),
}

impl Placement {
    /// # Errors
    /// [`Error::Align`] where one says nothing of its ground, [`Error::Crs`].
    pub(crate) fn new(target: &Metadata, source: &Metadata) -> Result<Self> {
        let placed = |metadata: &Metadata| {
            let georeference = metadata.georeference;
            georeference
                .epsg
                .zip(georeference.transform.filter(Transform::is_invertible))
        };
        let Some(((target_epsg, to_map), (source_epsg, ground))) =
            placed(target).zip(placed(source))
        else {
            return Err(Error::Align {
                what: "one of them says nothing of its ground; give files with an EPSG code and an affine transform".to_owned(),
            });
        };
        let reprojection = Reprojection::new(target_epsg, source_epsg)?;
        Ok(match reprojection.is_identity() {
            true => Self::Straight(between(&to_map, &ground)),
            false => Self::Projected {
                to_map,
                reprojection: Box::new(reprojection),
                from_map: inverse(&ground),
            },
        })
    }

    /// Where a point of the target lies in the source, both in pixels from the corner.
    pub(crate) fn at(&self, col: f64, row: f64) -> (f64, f64) {
        match self {
            Self::Straight(transform) => transform.apply(col, row),
            Self::Projected {
                to_map,
                reprojection,
                from_map,
            } => match reprojection.apply(to_map.apply(col, row)) {
                Some((x, y)) => from_map.apply(x, y),
                None => (f64::NAN, f64::NAN),
            },
        }
    }

    /// Where the pixels of a window lie.
    pub(crate) fn places(&self, window: Window) -> Places {
        let centre = |col: usize, row: usize| (col as f64 + 0.5, row as f64 + 0.5);
        let mut centres = Vec::with_capacity(window.pixels());
        let (cols, rows) = (window.width.div_ceil(STEP), window.height.div_ceil(STEP));
        match self {
            Self::Straight(transform) => {
                for row in window.row..window.row_end() {
                    centres.extend((window.col..window.col_end()).map(|col| {
                        let (x, y) = centre(col, row);
                        transform.apply(x, y)
                    }));
                }
            }
            Self::Projected { .. } => {
                let node = |col: usize, row: usize| {
                    let (x, y) = centre(window.col + col * STEP, window.row + row * STEP);
                    self.at(x, y)
                };
                let nodes: Vec<(f64, f64)> = (0..=rows)
                    .flat_map(|row| (0..=cols).map(move |col| node(col, row)))
                    .collect();
                for row in 0..window.height {
                    let (upper, down) = (row / STEP, (row % STEP) as f64 / STEP as f64);
                    for col in 0..window.width {
                        let (left, across) = (col / STEP, (col % STEP) as f64 / STEP as f64);
                        let at = upper * (cols + 1) + left;
                        let mix = |a: (f64, f64), b: (f64, f64), share: f64| {
                            (a.0 + (b.0 - a.0) * share, a.1 + (b.1 - a.1) * share)
                        };
                        let above = mix(nodes[at], nodes[at + 1], across);
                        let below = mix(nodes[at + cols + 1], nodes[at + cols + 2], across);
                        centres.push(mix(above, below, down));
                    }
                }
            }
        }
        let (x, y) = centre(
            window.col + window.width / 2,
            window.row + window.height / 2,
        );
        let (here, right, down) = (self.at(x, y), self.at(x + 1.0, y), self.at(x, y + 1.0));
        let extent =
            |here: f64, right: f64, down: f64| (right - here).abs().max((down - here).abs());
        Places {
            centres,
            // Of a grid that is turned by little, its pixel; of one that is turned by much, a square that holds half of it and more.
            size: (
                extent(here.0, right.0, down.0),
                extent(here.1, right.1, down.1),
            ),
        }
    }
}

impl Places {
    /// The window of the source that the pixels need, `None` where they need none of it.
    pub(crate) fn needs(&self, source: Window) -> Option<Window> {
        let bounds = |value: fn(&(f64, f64)) -> f64, margin: f64, length: usize| {
            let finite = || self.centres.iter().map(value).filter(|at| at.is_finite());
            let low = finite().fold(f64::INFINITY, f64::min) - margin;
            let high = finite().fold(f64::NEG_INFINITY, f64::max) + margin;
            let first = low.floor().max(0.0);
            let last = high.ceil().min(length as f64);
            (last > first).then_some((first as usize, last as usize))
        };
        // A pixel's neighbour for bilinear, half its own size for areas.
        let cols = bounds(|at| at.0, 1.0 + self.size.0 / 2.0, source.width)?;
        let rows = bounds(|at| at.1, 1.0 + self.size.1 / 2.0, source.height)?;
        Some(Window::new(
            cols.0,
            rows.0,
            cols.1 - cols.0,
            rows.1 - rows.0,
        ))
    }
}

/// One band of a window of the source.
pub(crate) struct Plane<'a> {
    /// Its samples, `[window.height, window.width]`.
    pub(crate) values: &'a [f32],
    /// Which are data.
    pub(crate) data: &'a [bool],
    /// Where it lies in the source.
    pub(crate) window: Window,
    /// The size of the source.
    pub(crate) whole: Window,
}

impl Plane<'_> {
    /// The value at one place, none where there is no data.
    pub(crate) fn at(
        &self,
        (col, row): (f64, f64),
        size: (f64, f64),
        resampling: Resampling,
    ) -> Option<f64> {
        let inside = |at: f64, length: usize| at + NUDGE >= 0.0 && at < length as f64 + NUDGE;
        if !inside(col, self.whole.width) || !inside(row, self.whole.height) {
            return None;
        }
        match resampling {
            Resampling::Nearest => self.nearest(col, row),
            Resampling::Bilinear => self.bilinear(col, row),
            Resampling::Area => self.area((col, row), size),
        }
    }

    fn sample(&self, col: usize, row: usize) -> Option<f64> {
        let at = (row - self.window.row) * self.window.width + col - self.window.col;
        self.data[at].then(|| f64::from(self.values[at]))
    }

    /// The pixel that a place lies in.
    fn pixel(at: f64, length: usize) -> usize {
        ((at + NUDGE).max(0.0) as usize).min(length - 1)
    }

    fn nearest(&self, col: f64, row: f64) -> Option<f64> {
        self.sample(
            Self::pixel(col, self.whole.width),
            Self::pixel(row, self.whole.height),
        )
    }

    fn bilinear(&self, col: f64, row: f64) -> Option<f64> {
        // Where the pixel itself has no data, neither has what lies in it; neighbours without data leave their weight to the others.
        self.nearest(col, row)?;
        let sides = |at: f64, length: usize| {
            let at = (at - 0.5).clamp(0.0, (length - 1) as f64);
            let low = (at as usize).min(length - 1);
            [
                (low, 1.0 - (at - low as f64)),
                ((low + 1).min(length - 1), at - low as f64),
            ]
        };
        let (mut sum, mut weights) = (0.0, 0.0);
        for (row, down) in sides(row, self.whole.height) {
            for (col, across) in sides(col, self.whole.width) {
                let weight = down * across;
                if weight > 0.0
                    && let Some(value) = self.sample(col, row)
                {
                    sum += weight * value;
                    weights += weight;
                }
            }
        }
        Some(sum / weights)
    }

    fn area(&self, (col, row): (f64, f64), size: (f64, f64)) -> Option<f64> {
        let side = |at: f64, size: f64, length: usize| {
            let (low, high) = (at - size / 2.0, at + size / 2.0);
            let pixels = (low.max(0.0) as usize)..(high.ceil().clamp(0.0, length as f64) as usize);
            (low, high, pixels)
        };
        let (left, right, cols) = side(col, size.0, self.whole.width);
        let (top, bottom, rows) = side(row, size.1, self.whole.height);
        let overlap = |low: f64, high: f64, pixel: usize| {
            (high.min(pixel as f64 + 1.0) - low.max(pixel as f64)).max(0.0)
        };
        let (mut sum, mut weights) = (0.0, 0.0);
        for row in rows {
            let down = overlap(top, bottom, row);
            for col in cols.clone() {
                let weight = down * overlap(left, right, col);
                // Slivers are rounding.
                if weight > NUDGE * size.0 * size.1
                    && let Some(value) = self.sample(col, row)
                {
                    sum += weight * value;
                    weights += weight;
                }
            }
        }
        (weights >= LEAST_DATA * size.0 * size.1).then(|| sum / weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrashard_raster::{DataType, Georeference};

    fn grid(epsg: u32, x: f64, y: f64, pixel: f64, size: (usize, usize)) -> Metadata {
        Metadata {
            width: size.0,
            height: size.1,
            bands: 1,
            data_type: DataType::F32,
            georeference: Georeference {
                epsg: Some(epsg),
                transform: Some(Transform::north_up(x, y, pixel)),
            },
            nodata: None,
            descriptions: vec![None],
            overviews: Vec::new(),
            block: (size.0, 1),
        }
    }

    fn resampled(
        target: &Metadata,
        source: &Metadata,
        values: &[f32],
        resampling: Resampling,
    ) -> Vec<Option<f64>> {
        let places = Placement::new(target, source)
            .expect("placed")
            .places(target.window());
        let data: Vec<bool> = values.iter().map(|value| !value.is_nan()).collect();
        let plane = Plane {
            values,
            data: &data,
            window: source.window(),
            whole: source.window(),
        };
        places
            .centres
            .iter()
            .map(|&at| plane.at(at, places.size, resampling))
            .collect()
    }

    #[track_caller]
    fn near(got: &[Option<f64>], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
            match got {
                Some(got) => assert!(
                    (got - expected).abs() < 1e-5,
                    "{at}: {got} instead of {expected}"
                ),
                None => assert!(expected.is_nan(), "{at}: nothing instead of {expected}"),
            }
        }
    }

    /// Pixels are areas: of a source that begins half a target pixel further, the areas overlap by halves.
    #[test]
    fn geo_32_areas_are_exact_to_half_a_pixel() {
        let source = grid(32633, 0.0, 0.0, 1.0, (4, 2));
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        near(
            &resampled(
                &grid(32633, 0.0, 0.0, 2.0, (2, 1)),
                &source,
                &values,
                Resampling::Area,
            ),
            &[3.5, 5.5],
        );
        // One metre to the right and a half down: columns 1 and 2, rows 0.5 to 2.5, of which a quarter is beyond.
        near(
            &resampled(
                &grid(32633, 1.0, -0.5, 2.0, (1, 1)),
                &source,
                &values,
                Resampling::Area,
            ),
            &[(0.5 * 2.5 + 6.5) / 1.5],
        );
        // Of an area that lies beyond by more than half there is no mean.
        near(
            &resampled(
                &grid(32633, 2.5, 0.0, 2.0, (2, 1)),
                &source,
                &values,
                Resampling::Area,
            ),
            &[(3.0 * 0.5 + 4.0 + 7.0 * 0.5 + 8.0) / 3.0, f64::NAN],
        );
        // A gap leaves its share to the others, up to a half.
        let gap = [f32::NAN, 2.0, 3.0, f32::NAN, 5.0, 6.0, f32::NAN, f32::NAN];
        near(
            &resampled(
                &grid(32633, 0.0, 0.0, 2.0, (2, 1)),
                &source,
                &gap,
                Resampling::Area,
            ),
            &[13.0 / 3.0, f64::NAN],
        );
    }

    #[test]
    fn bilinear_goes_through_centres_and_nearest_repeats() {
        let source = grid(32633, 0.0, 0.0, 2.0, (2, 1));
        let target = grid(32633, 0.0, 0.0, 1.0, (4, 2));
        let values = [1.0, 3.0];
        let row = [1.0, 1.5, 2.5, 3.0];
        near(
            &resampled(&target, &source, &values, Resampling::Bilinear),
            &[row, row].concat(),
        );
        let row = [1.0, 1.0, 3.0, 3.0];
        near(
            &resampled(&target, &source, &values, Resampling::Nearest),
            &[row, row].concat(),
        );
        let row = [1.0, 1.0, f64::NAN, f64::NAN];
        near(
            &resampled(&target, &source, &[1.0, f32::NAN], Resampling::Bilinear),
            &[row, row].concat(),
        );
    }

    #[test]
    fn between_reference_systems_places_are_those_of_each_point() {
        let target = grid(32633, 300_000.0, 5_800_000.0, 2.0, (150, 70));
        let source = grid(32632, 708_000.0, 5_801_000.0, 0.5, (8000, 8000));
        let placement = Placement::new(&target, &source).expect("placed");
        let places = placement.places(target.window());
        let mut furthest: f64 = 0.0;
        for (at, (col, row)) in places.centres.iter().enumerate() {
            let exact = placement.at((at % 150) as f64 + 0.5, (at / 150) as f64 + 0.5);
            furthest = furthest
                .max((exact.0 - col).abs())
                .max((exact.1 - row).abs());
        }
        assert!(furthest < 1e-4, "{furthest} pixels of 0.5 m");
        // 708969.3711520352, 5800371.996879116 by PROJ 9.5 is the corner.
        let corner = placement.at(0.0, 0.0);
        assert!(
            (corner.0 - 2.0 * 969.371_152).abs() < 1e-4
                && (corner.1 - 2.0 * 628.003_121).abs() < 1e-4,
            "{corner:?}"
        );
        // A pixel of 2 m is four of 0.5 m, turned by five degrees.
        assert!((3.9..4.1).contains(&places.size.0), "{:?}", places.size);
        let needed = places.needs(source.window()).expect("over each other");
        assert!(needed.width < 700 && needed.height < 400, "{needed}");
    }

    #[test]
    fn without_a_ground_nothing_is_placed() {
        let target = grid(32633, 0.0, 0.0, 2.0, (2, 1));
        let mut nowhere = target.clone();
        nowhere.georeference = Georeference::default();
        assert!(
            Placement::new(&target, &nowhere)
                .expect_err("nowhere")
                .to_string()
                .contains("says nothing of its ground")
        );
        let far = grid(32633, 1e6, 0.0, 2.0, (2, 1));
        let places = Placement::new(&target, &far)
            .expect("placed")
            .places(target.window());
        assert_eq!(places.needs(far.window()), None);
    }
}
