//! Where pixels lie on the ground.

/// The six numbers that map pixel corners to map coordinates, in the units of the reference system (metres for UTM):
///
/// ```text
/// | x |   | a  b  c |   | column |
/// | y | = | d  e  f | * | row    |
/// | 1 |   | 0  0  1 |   | 1      |
/// ```
///
/// Column 0, row 0 is the outer corner of the upper left pixel (`PixelIsArea`), whatever the file's own convention is.
/// The order of the letters is that of rasterio's `Affine`; GDAL's is `c a b f d e`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transform {
    /// Change of x for one column to the right: the pixel's width where the image is not rotated.
    pub a: f64,
    /// Change of x for one row down; zero where the image is not rotated.
    pub b: f64,
    /// x of the upper left corner.
    pub c: f64,
    /// Change of y for one column to the right; zero where the image is not rotated.
    pub d: f64,
    /// Change of y for one row down: minus the pixel's height where north is up.
    pub e: f64,
    /// y of the upper left corner.
    pub f: f64,
}

impl Transform {
    /// Square pixels of `size`, north up, with the upper left corner at (`x`, `y`).
    pub const fn north_up(x: f64, y: f64, size: f64) -> Self {
        Self {
            a: size,
            b: 0.0,
            c: x,
            d: 0.0,
            e: -size,
            f: y,
        }
    }

    /// The letters in order: `[a, b, c, d, e, f]`.
    pub const fn coefficients(&self) -> [f64; 6] {
        [self.a, self.b, self.c, self.d, self.e, self.f]
    }

    /// Map coordinates of a pixel corner.
    pub const fn apply(&self, column: f64, row: f64) -> (f64, f64) {
        (
            self.a * column + self.b * row + self.c,
            self.d * column + self.e * row + self.f,
        )
    }

    /// The grid `factor` times as fine over the same ground: the corner stays exactly, each step is divided.
    ///
    /// `scaled(5.0)` of a 10 m grid is its 2 m grid.
    pub fn scaled(&self, factor: f64) -> Self {
        Self {
            a: self.a / factor,
            b: self.b / factor,
            d: self.d / factor,
            e: self.e / factor,
            ..*self
        }
    }

    /// The same grid counted from another pixel: the transform of a window that begins there.
    pub const fn offset(&self, column: usize, row: usize) -> Self {
        let (c, f) = self.apply(column as f64, row as f64);
        Self { c, f, ..*self }
    }

    /// Map coordinates of the outer corners: upper left, upper right, lower left, lower right.
    pub const fn corners(&self, width: usize, height: usize) -> [(f64, f64); 4] {
        let (w, h) = (width as f64, height as f64);
        [
            self.apply(0.0, 0.0),
            self.apply(w, 0.0),
            self.apply(0.0, h),
            self.apply(w, h),
        ]
    }

    /// The largest distance, along x or y, between corresponding corners of two grids over the same ground.
    ///
    /// Sizes are (width, height) in pixels of each grid. Zero where both cover exactly the same ground, NaN where a corner is.
    pub fn corner_distance(
        &self,
        size: (usize, usize),
        other: &Transform,
        other_size: (usize, usize),
    ) -> f64 {
        let ours = self.corners(size.0, size.1);
        let theirs = other.corners(other_size.0, other_size.1);
        let distances = ours
            .iter()
            .zip(&theirs)
            .flat_map(|(p, q)| [(p.0 - q.0).abs(), (p.1 - q.1).abs()]);
        // Not `f64::max`, which would hide a corner that is NaN.
        distances.fold(0.0, |largest, d| {
            if d > largest || d.is_nan() {
                d
            } else {
                largest
            }
        })
    }

    /// The length of the shorter side of a pixel on the ground.
    pub fn pixel_size(&self) -> f64 {
        self.a.hypot(self.d).min(self.b.hypot(self.e))
    }

    /// Whether all six numbers are finite and the pixel has an area.
    pub fn is_invertible(&self) -> bool {
        let determinant = self.a * self.e - self.b * self.d;
        self.coefficients().iter().all(|v| v.is_finite())
            && determinant != 0.0
            && determinant.is_finite()
    }
}

/// The reference system and the transform of a raster. Both may be missing; without a transform there is no georeference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Georeference {
    /// EPSG code of the coordinate reference system.
    pub epsg: Option<u32>,
    /// Pixel corners to map coordinates.
    pub transform: Option<Transform>,
}

impl Georeference {
    /// The same reference system with [`Transform::scaled`].
    pub fn scaled(&self, factor: f64) -> Self {
        Self {
            epsg: self.epsg,
            transform: self.transform.map(|t| t.scaled(factor)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_keeps_the_corners() {
        let grid = Transform {
            a: 8.75,
            b: -5.0,
            c: 366_612.0,
            d: -5.0,
            e: -8.75,
            f: 1_984_090.0,
        };
        let fine = grid.scaled(5.0);
        assert_eq!(
            fine.coefficients(),
            [1.75, -1.0, 366_612.0, -1.0, -1.75, 1_984_090.0]
        );
        assert!(grid.corner_distance((173, 201), &fine, (865, 1005)) < 1e-9);
        assert!((grid.corner_distance((173, 201), &fine, (864, 1005)) - 1.75).abs() < 1e-9);
    }

    #[test]
    fn a_window_has_its_own_corner() {
        let grid = Transform::north_up(600_000.0, 5_800_000.0, 10.0);
        assert_eq!(
            grid.offset(3, 4).coefficients(),
            [10.0, 0.0, 600_030.0, 0.0, -10.0, 5_799_960.0]
        );
        assert_eq!(grid.corners(2, 1)[3], (600_020.0, 5_799_990.0));
        assert_eq!(grid.pixel_size(), 10.0);
        assert!(grid.is_invertible());
        assert!(!Transform { a: 0.0, ..grid }.is_invertible());
        let broken = Transform {
            a: f64::NAN,
            ..grid
        };
        assert!(grid.corner_distance((2, 1), &broken, (2, 1)).is_nan());
    }
}
