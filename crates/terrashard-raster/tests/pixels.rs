//! Values at positions, windows, and files damaged in every way that bytes allow.
//!
//! The values of the `crop_*` files were found by decoding their tiles with Python's zlib and an LZW decoder; the
//! Zstandard file holds the same pixels.

use std::path::{Path, PathBuf};

use terrashard_raster::{
    DataType, Error, RasterSource, ReadLimits, Transform, Validity, Window, open, open_with,
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn check_pixels(name: &str, pixels: &[(usize, usize, usize, f64)]) {
    let source = open(data(name)).expect(name);
    let whole = source.read_window(source.metadata().window()).expect(name);
    for &(band, column, row, value) in pixels {
        assert_eq!(
            whole.at(band, column, row),
            value,
            "{name}: band {band}, column {column}, row {row}"
        );
        let one = source
            .read_window(Window::new(column, row, 1, 1))
            .expect(name);
        assert_eq!(
            one.at(band, 0, 0),
            value,
            "{name}: the same as a window of one pixel"
        );
    }
}

#[test]
fn every_layout_gives_the_same_pixels() {
    let pixels = [
        (0, 0, 0, 319.0),
        (0, 63, 63, 300.0),
        (1, 10, 20, 441.0),
        (3, 40, 7, 1436.0),
        (5, 63, 0, 407.0),
        (5, 17, 50, 523.0),
    ];
    check_pixels("crop_u16_6b_lzw_be_bigtiff.tif", &pixels);
    check_pixels("crop_u16_6b_zstd_planar.tif", &pixels);
    check_pixels(
        "crop_u16_rotated30.tif",
        &[(0, 0, 0, 319.0), (0, 172, 22, 596.0)],
    );
}

#[test]
fn a_window_is_cut_from_all_bands() {
    for name in [
        "crop_u16_6b_lzw_be_bigtiff.tif",
        "crop_u16_6b_zstd_planar.tif",
    ] {
        let source = open(data(name)).expect(name);
        let whole = source.read_window(source.metadata().window()).expect(name);
        let window = Window::new(5, 17, 9, 4);
        let part = source.read_window(window).expect(name);
        assert_eq!((part.bands(), part.samples().len()), (6, 6 * 36));
        for (band, row, column) in
            (0..6).flat_map(|b| (0..4).flat_map(move |r| (0..9).map(move |c| (b, r, c))))
        {
            assert_eq!(
                part.at(band, column, row),
                whole.at(band, column + 5, row + 17)
            );
        }
    }
}

/// User problem: a cast to a signed type turned 40000 into -25536.
#[test]
fn geo_27_unsigned_values_above_32767_survive() {
    check_pixels(
        "crop_u16_gt32767.tif",
        &[
            (0, 49, 49, 298.0),
            (0, 50, 50, 40_000.0),
            (0, 79, 79, 40_000.0),
            (0, 80, 79, 428.0),
            (1, 50, 50, 499.0),
        ],
    );
    let source = open(data("crop_u16_gt32767.tif")).expect("reads");
    let corner = source
        .read_window(Window::new(127, 127, 1, 1))
        .expect("inside")
        .band_f32(5);
    assert_eq!(corner, [2247.0]);
}

/// User problem: nodata -9999 declared on a file of bytes made pixels of 255 or 241 disappear.
#[test]
fn nodata_outside_of_the_type_hides_no_pixel() {
    let source = open(data("edited_u8_nodata_out_of_range.tif")).expect("reads");
    let metadata = source.metadata();
    assert_eq!(
        (metadata.nodata, metadata.data_type),
        (Some(-9999.0), DataType::U8)
    );
    assert!((0..=255).all(|v| !metadata.is_nodata(f64::from(v))));
    let float = open(data("rio_float_nodata.tif")).expect("reads");
    let pixels = float
        .read_window(float.metadata().window())
        .expect("decodes")
        .band_f32(0);
    // Their mean is 58 / 156 of the declared value: the other pixels are small beside it.
    assert_eq!(
        pixels
            .iter()
            .filter(|v| float.metadata().is_nodata(f64::from(**v)))
            .count(),
        58
    );
}

/// User problem: pixel centres taken for corners shift an image by half a pixel.
#[test]
fn geo_32_points_and_areas_differ_by_half_a_pixel() {
    let corner = |name: &str| {
        let transform = open(data(name))
            .expect(name)
            .metadata()
            .georeference
            .transform
            .expect("georeferenced");
        transform.apply(0.0, 0.0)
    };
    assert_eq!(corner("gg_area.tif"), (4_302_000.0, 2_811_000.0));
    assert_eq!(corner("gg_point.tif"), (4_301_500.0, 2_811_500.0));
    let rotated = open(data("rio_rotated.tif"))
        .expect("reads")
        .metadata()
        .georeference
        .transform
        .expect("georeferenced");
    let (x, y) = rotated.apply(10.0, 0.0);
    assert!(
        (x - 273.205).abs() < 1e-3 && (y - 300.0).abs() < 1e-3,
        "({x}, {y})"
    );
}

#[test]
fn a_sparse_tile_reads_as_nodata() {
    let path = data("gen_u16_sparse.tif");
    let source = open(&path).expect("reads");
    let far = source
        .read_window(Window::new(900, 900, 100, 100))
        .expect("inside");
    assert!((0..2).all(|band| far.band_f32(band).iter().all(|&v| v == 0.0)));

    // The same file with the nodata value 7 written over its 0: what is not stored is nodata, not zero.
    let mut bytes = std::fs::read(&path).expect("reads");
    let tag = bytes
        .windows(8)
        .position(|w| w == [0x81, 0xa4, 2, 0, 2, 0, 0, 0])
        .expect("a nodata tag of two bytes");
    assert_eq!(bytes[tag + 8], b'0');
    bytes[tag + 8] = b'7';
    let folder = tempfile::tempdir().expect("a folder");
    let edited = folder.path().join("seven.tif");
    std::fs::write(&edited, bytes).expect("writes");
    let edited = open(&edited).expect("reads");
    let (mut stored, mut absent) = (0, 0);
    for (col, row) in (0..16).map(|tile| (tile % 4 * 256, tile / 4 * 256)) {
        let tile = Window::new(col, row, 256, 256);
        let (was, is) = (
            source.read_window(tile).expect("inside"),
            edited.read_window(tile).expect("inside"),
        );
        if was.band_f32(0).iter().any(|&v| v != 0.0) {
            assert!(
                was == is,
                "the tile at {tile} is stored and keeps its zeros"
            );
            stored += 1;
        } else {
            assert!(
                (0..2).all(|band| is.band_f32(band).iter().all(|&v| v == 7.0)),
                "the tile at {tile} is not stored"
            );
            absent += 1;
        }
    }
    assert!(
        stored > 0 && absent > 0,
        "{stored} stored tiles, {absent} absent"
    );
}

#[test]
fn limits_hold_before_memory_is_asked_for() {
    let limits = ReadLimits {
        window_bytes: 64 * 64 * 12,
        cache_bytes: 0,
        ..ReadLimits::default()
    };
    let source = open_with(data("crop_u16_6b_lzw_be_bigtiff.tif"), limits).expect("one tile fits");
    assert!(source.read_window(Window::new(0, 0, 64, 64)).is_ok());
    let tight = ReadLimits {
        window_bytes: 64 * 64 * 12 - 1,
        ..limits
    };
    let error = open_with(data("crop_u16_6b_lzw_be_bigtiff.tif"), tight)
        .expect_err("one tile does not fit");
    assert!(
        matches!(
            error,
            Error::TooLarge {
                needed: 49_152,
                limit: 49_151,
                ..
            }
        ),
        "{error}"
    );
    let limits = ReadLimits {
        window_bytes: 2 * 256 * 256 * 2,
        cache_bytes: 0,
        ..ReadLimits::default()
    };
    let source = open_with(data("gen_u16_sparse.tif"), limits).expect("one tile fits");
    let error = source
        .read_window(Window::new(0, 0, 257, 256))
        .expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    for outside in [
        Window::new(1000, 0, 25, 1),
        Window::new(0, 0, 0, 1),
        Window::new(usize::MAX, 0, 2, 2),
    ] {
        assert!(
            matches!(
                source.read_window(outside),
                Err(Error::OutsideWindow { .. })
            ),
            "{outside}"
        );
    }
}

#[test]
fn missing_files_and_folders_are_named() {
    let message = |path: PathBuf| open(path).expect_err("nothing to read").to_string();
    assert!(message(data("absent.tif")).ends_with("absent.tif: no such file; check the path"));
    assert!(message("/dev/null".into()).contains("a folder or device in place of a file"));
}

/// Cut anywhere or with any byte of its directory changed, a file gives pixels or an error, never a panic.
#[test]
fn no_damage_makes_the_reader_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.tif");
    let limits = ReadLimits {
        window_bytes: 1 << 20,
        cache_bytes: 0,
        ..ReadLimits::default()
    };
    let attempt = |bytes: &[u8]| -> Result<(), Error> {
        // A new file each time: some file systems flush one that is cut to nothing and written again.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).expect("writes");
        let source = open_with(&path, limits)?;
        let whole = source.metadata().window();
        source.read_window(Window::new(0, 0, whole.width.min(64), whole.height.min(64)))?;
        source.read_window(whole).map(|_| ())
    };
    for name in ["rio_float64.tif", "it_u16_be.tif"] {
        let bytes = std::fs::read(data(name)).expect("reads");
        attempt(&bytes).expect(name);
        for end in 0..bytes.len() {
            let _ = attempt(&bytes[..end]);
        }
        for at in 0..bytes.len() {
            for value in [1, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = attempt(&damaged);
            }
        }
    }
}

#[test]
fn inverted_bytes_in_the_pixels_are_found() {
    let mut bytes = std::fs::read(data("crop_u16_6b_zstd_planar.tif")).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64]
        .iter_mut()
        .for_each(|b| *b ^= 0xff);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.tif");
    std::fs::write(&path, &bytes).expect("writes");
    let source = open(&path).expect("its directory is whole");
    let error = source
        .read_window(source.metadata().window())
        .expect_err("one tile does not decode");
    assert!(
        matches!(&error, Error::Undecodable { block, .. } if block.contains("of 6 (band "))
            && error.to_string().contains("damaged.tif"),
        "{error}"
    );
}

/// The numbers are rasterio's: `dataset_mask()` of the file and of its first overview.
#[test]
fn a_stored_mask_says_which_pixels_are_data() {
    let valid = |source: &dyn RasterSource| -> Vec<bool> {
        let whole = source.metadata().window();
        source.read_mask(whole).expect("decodes").expect("a mask")
    };
    let count = |mask: &[bool]| mask.iter().filter(|valid| **valid).count();

    let source = open(data("rt_uint8_rgb_internal_mask.tif")).expect("reads");
    assert_eq!(source.annotations().validity, Validity::Mask);
    let mask = valid(&source);
    assert_eq!((mask.len(), count(&mask)), (256 * 256, 49_152));
    assert!(!mask[0]);
    let part = Window::new(60, 70, 130, 80);
    let cut = source.read_mask(part).expect("decodes").expect("a mask");
    for (at, valid) in cut.iter().enumerate() {
        let (column, row) = (part.col + at % part.width, part.row + at / part.width);
        assert_eq!(
            *valid,
            mask[row * 256 + column],
            "column {column}, row {row}"
        );
    }
    let half = source.overview(0).expect("whole").expect("two overviews");
    assert_eq!(count(&valid(&half)), 12_415);

    let alpha = open(data("rio_rgba_uint16.tif")).expect("reads");
    assert_eq!(alpha.annotations().validity, Validity::Alpha);
    assert_eq!(count(&valid(&alpha)), 127_316);
    let plain = open(data("rio_byte.tif")).expect("reads");
    assert_eq!(
        plain.read_mask(Window::new(0, 0, 1, 1)).expect("reads"),
        None
    );
}

/// The numbers are rasterio's: `dataset_mask()` of the file, whose mask is in `made_u16_msk.tif.msk`.
#[test]
fn a_mask_in_a_file_beside_the_raster_says_which_pixels_are_data() {
    let source = open(data("made_u16_msk.tif")).expect("reads");
    assert_eq!(source.annotations().validity, Validity::Mask);
    let count = |window: Window| {
        let mask = source.read_mask(window).expect("decodes").expect("a mask");
        assert_eq!(mask.len(), window.pixels());
        mask.iter().filter(|valid| **valid).count()
    };
    assert_eq!(count(source.metadata().window()), 1680);
    assert_eq!(count(Window::new(5, 10, 25, 10)), 215);
    assert_eq!(
        (
            count(Window::new(7, 0, 1, 1)),
            count(Window::new(8, 0, 1, 1))
        ),
        (0, 1)
    );

    // One of another raster is told, not guessed at.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.tif");
    std::fs::copy(data("rio_byte.tif"), &path).expect("copied");
    let beside = folder.path().join("other.tif.msk");
    std::fs::copy(data("made_u16_msk.tif.msk"), &beside).expect("copied");
    let error = open(&path).expect_err("of another size");
    assert!(
        matches!(&error, Error::Misfit { path, .. } if *path == beside),
        "{error}"
    );
}

/// The numbers are rasterio's, with `overview_level=1`.
#[test]
fn an_overview_is_a_raster_of_its_own() {
    let source = open(data("gd_byte_with_ovr.tif")).expect("reads");
    assert_eq!(source.metadata().overviews, [2, 4]);
    let quarter = source.overview(1).expect("whole").expect("two overviews");
    let metadata = quarter.metadata();
    assert_eq!((metadata.width, metadata.height), (5, 5));
    let transform = metadata.georeference.transform.expect("georeferenced");
    assert_eq!((transform.a, transform.e), (240.0, -240.0));
    let pixels = quarter.read_window(metadata.window()).expect("decodes");
    assert_eq!(
        pixels.band_f32(0)[..10],
        [
            107.0, 132.0, 132.0, 107.0, 123.0, 132.0, 132.0, 115.0, 165.0, 107.0
        ]
    );
    assert!(source.overview(2).expect("whole").is_none());
    assert!(quarter.overview(0).expect("whole").is_none());
}

#[test]
fn scales_and_offsets_are_told_and_not_applied() {
    let source = open(data("gr_scale_offset.tif")).expect("reads");
    let said = source.annotations();
    assert_eq!((said.scales, said.offsets), (vec![1.2; 3], vec![12.0; 3]));
    assert_eq!(source.metadata().data_type, DataType::U8);
    assert_eq!(said.tags["AREA_OR_POINT"], "Area");
    let point = open(data("gg_point.tif")).expect("reads").annotations();
    assert_eq!(point.tags["AREA_OR_POINT"], "Point");
}

/// User problem: neighbouring rasters cut with one box gave different rows.
#[test]
fn geo_18_grids_that_share_an_origin_share_their_rows() {
    let left = Transform::north_up(300_000.0, 5_800_020.0, 10.0);
    let right = left.offset(10_980, 0);
    for row in [0, 1, 4321, 10_980] {
        assert_eq!(
            left.offset(0, row).f.to_bits(),
            right.offset(7, row).f.to_bits()
        );
    }
}

/// User problem: 16-bit images were refused at prediction; complex ones failed late.
#[test]
fn geo_29_complex_samples_are_refused_in_one_line() {
    let mut bytes = std::fs::read(data("rio_float64.tif")).expect("reads");
    // Sample format 3, floats, becomes 6, complex floats: tag 339, type 3, one value.
    let tag = bytes
        .windows(10)
        .position(|w| w == [0x53, 1, 3, 0, 1, 0, 0, 0, 3, 0])
        .expect("a little-endian file of floats");
    bytes[tag + 8] = 6;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("complex.tif");
    std::fs::write(&path, &bytes).expect("writes");
    let message = open(&path).expect_err("refused").to_string();
    assert!(
        message.contains("complex.tif: a raster of complex numbers is not supported"),
        "{message}"
    );
    assert!(!message.contains('\n'));
}
