//! How wide the zone along the shore is that the scores near it count, in words.

use terrashard_data::baseline::SHORE_STEPS;
use terrashard_raster::Georeference;

/// "within 10 m of the shore", or in pixels of the map where the metres are not known.
pub(super) fn near(metres: Option<f64>) -> String {
    match metres {
        Some(metres) => format!("within {} m of the shore", (metres * 10.0).round() / 10.0),
        None => format!("within {SHORE_STEPS} output pixels of the shore"),
    }
}

/// The zone's width on the map of an image, `scale` times as fine. None where the image's grid is not known to count in
/// metres, or has no square pixels.
pub(super) fn metres(image: &Georeference, scale: usize) -> Option<f64> {
    let transform = image.transform.filter(|_| image.epsg.is_some_and(is_utm))?;
    let (across, down) = (
        transform.a.hypot(transform.d),
        transform.b.hypot(transform.e),
    );
    let square = (across - down).abs() <= 1e-6 * across;
    square.then(|| across / scale as f64 * SHORE_STEPS as f64)
}

/// Zones of WGS 84 and of ETRS89; of any other system the unit would have to be looked up.
fn is_utm(epsg: u32) -> bool {
    matches!(epsg, 32601..=32660 | 32701..=32760 | 25828..=25838)
}

#[cfg(test)]
mod tests {
    use terrashard_raster::Transform;

    use super::*;

    #[track_caller]
    fn check(epsg: Option<u32>, transform: Option<Transform>, expected: &str) {
        let georeference = Georeference { epsg, transform };
        assert_eq!(near(metres(&georeference, 5)), expected);
    }

    #[test]
    fn metres_where_they_are_known() {
        let grid = |size| Some(Transform::north_up(300_000.0, 5_900_000.0, size));
        check(Some(32633), grid(10.0), "within 10 m of the shore");
        check(Some(25832), grid(7.5), "within 7.5 m of the shore");
        check(
            Some(4326),
            grid(0.0001),
            "within 5 output pixels of the shore",
        );
        check(None, grid(10.0), "within 5 output pixels of the shore");
        check(Some(32633), None, "within 5 output pixels of the shore");
    }
}
