//! From the pixels of one grid to those of another.

use terrashard_raster::Transform;

/// The way back: map coordinates to pixel corners. The transform has to be invertible.
pub(crate) fn inverse(t: &Transform) -> Transform {
    let determinant = t.a * t.e - t.b * t.d;
    let (a, b) = (t.e / determinant, -t.b / determinant);
    let (d, e) = (-t.d / determinant, t.a / determinant);
    Transform {
        a,
        b,
        c: -(a * t.c + b * t.f),
        d,
        e,
        f: -(d * t.c + e * t.f),
    }
}

/// Pixels of `from` to pixels of `to`, both over one map.
pub(crate) fn between(from: &Transform, to: &Transform) -> Transform {
    let back = inverse(to);
    // Differences first: map coordinates have seven digits before the point.
    let (x, y) = (from.c - to.c, from.f - to.f);
    Transform {
        a: back.a * from.a + back.b * from.d,
        b: back.a * from.b + back.b * from.e,
        c: back.a * x + back.b * y,
        d: back.d * from.a + back.e * from.d,
        e: back.d * from.b + back.e * from.e,
        f: back.d * x + back.e * y,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let rotated = Transform {
            a: 8.75,
            b: -5.0,
            c: 366_612.0,
            d: -5.0,
            e: -8.75,
            f: 1_984_090.0,
        };
        let (x, y) = rotated.apply(12.5, 7.25);
        let (col, row) = inverse(&rotated).apply(x, y);
        assert!((col - 12.5).abs() < 1e-8 && (row - 7.25).abs() < 1e-8);
        let fine = Transform::north_up(600_000.4, 5_800_000.0, 2.0);
        let coarse = Transform::north_up(600_000.0, 5_800_010.0, 10.0);
        let (col, row) = between(&fine, &coarse).apply(0.5, 0.5);
        assert!(
            (col - 0.14).abs() < 1e-9 && (row - 1.1).abs() < 1e-9,
            "{col}, {row}"
        );
    }
}
