//! How a GeoTIFF names its reference system.
//!
//! OGC GeoTIFF 1.1, <https://docs.ogc.org/is/19-008r4/19-008r4.html>

/// The TIFF tag of the keys.
pub(crate) const TAG: u16 = 34735;

// Keys.
const MODEL_TYPE: u16 = 1024;
const RASTER_TYPE: u16 = 1025;
const GEODETIC_SYSTEM: u16 = 2048;
const PROJECTED_SYSTEM: u16 = 3072;
// Their values.
const PROJECTED: u16 = 1;
const GEOGRAPHIC: u16 = 2;
const PIXEL_IS_AREA: u16 = 1;

/// The keys of a raster whose pixels are areas, in the reference system of an EPSG code, if it has one.
pub(crate) fn directory(epsg: Option<u16>) -> Vec<u16> {
    let mut keys = Vec::new();
    match epsg {
        Some(code) if is_geographic(code) => {
            keys.push((MODEL_TYPE, GEOGRAPHIC));
            keys.push((RASTER_TYPE, PIXEL_IS_AREA));
            keys.push((GEODETIC_SYSTEM, code));
        }
        Some(code) => {
            keys.push((MODEL_TYPE, PROJECTED));
            keys.push((RASTER_TYPE, PIXEL_IS_AREA));
            keys.push((PROJECTED_SYSTEM, code));
        }
        None => keys.push((RASTER_TYPE, PIXEL_IS_AREA)),
    }
    // Version 1, revision 1.0; then for each key where its value is (0: here), how many, and the value.
    let mut directory = vec![1, 1, 0, keys.len() as u16];
    directory.extend(keys.into_iter().flat_map(|(key, value)| [key, 0, 1, value]));
    directory
}

/// Whether the coordinates of a reference system are degrees rather than lengths.
pub(crate) fn is_geographic(code: u16) -> bool {
    let at = GEOGRAPHIC_CODES.partition_point(|&(_, last)| last < code);
    GEOGRAPHIC_CODES
        .get(at)
        .is_some_and(|&(first, _)| first <= code)
}

/// First and last code of each run that holds geographic systems and no projected one, in the EPSG dataset 12.004: found by
/// asking PROJ 9.5 for every code up to 32766.
#[rustfmt::skip]
const GEOGRAPHIC_CODES: &[(u16, u16)] = &[
    (3819, 3824), (3888, 3889), (3906, 3906), (4001, 4025), (4027, 4036), (4040, 4047), (4052, 4055),
    (4074, 4081), (4120, 4216), (4218, 4388), (4463, 4466), (4469, 4470), (4472, 4472), (4475, 4483),
    (4490, 4490), (4555, 4558), (4600, 4646), (4657, 4765), (4801, 4811), (4813, 4821), (4823, 4824),
    (4883, 5013), (5132, 5132), (5228, 5233), (5245, 5246), (5251, 5252), (5263, 5264), (5323, 5324),
    (5340, 5342), (5353, 5354), (5359, 5360), (5364, 5365), (5370, 5381), (5392, 5393), (5451, 5451),
    (5464, 5464), (5467, 5467), (5488, 5489), (5524, 5527), (5545, 5546), (5560, 5561), (5592, 5593),
    (5681, 5681), (5830, 5830), (5885, 5886), (6134, 6135), (6207, 6207), (6310, 6311), (6318, 6325),
    (6364, 6365), (6667, 6668), (6705, 6706), (6782, 6783), (6881, 6883), (6892, 6894), (6979, 6983),
    (6986, 6990), (7034, 7042), (7072, 7073), (7084, 7088), (7133, 7139), (7372, 7373), (7657, 7686),
    (7797, 7798), (7816, 7816), (7843, 7844), (7880, 7881), (7885, 7886), (7900, 7931), (8042, 8043),
    (8085, 8086), (8231, 8255), (8351, 8351), (8399, 8431), (8449, 8449), (8542, 8545), (8684, 8685),
    (8694, 8818), (8860, 8902), (8906, 8907), (8916, 8949), (8972, 9019), (9053, 9140), (9147, 9148),
    (9152, 9153), (9183, 9184), (9248, 9248), (9251, 9251), (9253, 9253), (9267, 9267), (9293, 9294),
    (9299, 9299), (9308, 9309), (9332, 9333), (9364, 9364), (9372, 9372), (9379, 9384), (9403, 9403),
    (9453, 9453), (9469, 9470), (9474, 9475), (9546, 9547), (9695, 9696), (9701, 9702), (9739, 9739),
    (9754, 9758), (9763, 9763), (9776, 9784), (9866, 9866), (9871, 9871), (9893, 9893), (9939, 9939),
    (9964, 9964), (9969, 9969), (9974, 9974), (9989, 10158), (10175, 10178), (10185, 10185), (10191, 10191),
    (10196, 10196), (10204, 10204), (10209, 10209), (10214, 10214), (10219, 10219), (10224, 10224),
    (10229, 10229), (10237, 10237), (10249, 10249), (10252, 10252), (10256, 10256), (10260, 10260),
    (10265, 10265), (10268, 10268), (10272, 10272), (10277, 10277), (10283, 10284), (10298, 10305),
    (10307, 10312), (10327, 10328), (10345, 10414), (10468, 10468), (10474, 10475), (10570, 10571),
    (10605, 10606), (10623, 10623), (10628, 10628), (10635, 10639), (10670, 10673), (10689, 10690),
    (10724, 10725), (10735, 10739), (10758, 10758), (10761, 10762), (10780, 10785), (10790, 10791),
    (10799, 10800), (10806, 10807), (10830, 10831), (10849, 10849), (10860, 10860), (10874, 10898),
    (10909, 10910), (10940, 10941), (10951, 10968), (11042, 11043), (20033, 20041), (20045, 20046),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_are_told_from_metres() {
        // WGS 84, ETRS89, GDA2020 and JGD2011; and those of lengths with numbers between them: CGCS2000 and BLM zones, NTM.
        for code in [4326, 4258, 7844, 6668] {
            assert!(is_geographic(code), "{code}");
        }
        for code in [4547, 4419, 5118, 32633, 3857, 2180, 27700, 1024, u16::MAX] {
            assert!(!is_geographic(code), "{code}");
        }
        assert!(GEOGRAPHIC_CODES.is_sorted_by(|a, b| a.1 < b.0));
    }

    #[test]
    fn keys_follow_their_header() {
        assert_eq!(
            directory(Some(32633)),
            [1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633]
        );
        assert_eq!(directory(Some(4326))[4..8], [1024, 0, 1, 2]);
        assert_eq!(directory(None), [1, 1, 0, 1, 1025, 0, 1, 1]);
    }
}
