//! What the sink writes is what the source reads, and nothing half-written stays.

use std::path::Path;

use terrashard_raster::{
    DataType, Error, GeoTiffSink, Georeference, Overviews, Raster, RasterSink, RasterSource,
    RasterSpec, Samples, Transform, Window, open,
};

const GROUND: Georeference = Georeference {
    epsg: Some(32633),
    transform: Some(Transform::north_up(600_000.5, 5_800_000.25, 2.0)),
};

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries
        .map(|e| {
            e.expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

/// A value that differs for every band, row and column.
fn value(band: usize, column: usize, row: usize) -> usize {
    (band * 71 + row * 13 + column * 3) % 251
}

macro_rules! samples {
    ($data_type:expr, $values:expr; $($variant:ident $rust:ident $times:literal)*) => {
        match $data_type {
            $(DataType::$variant => Samples::$variant($values.map(|v| v as $rust * $times).collect()),)*
            DataType::F32 => Samples::F32(
                $values.map(|v| if v == 250 { f32::NAN } else { v as f32 / 7.0 - 3.0 }).collect(),
            ),
            DataType::F64 => Samples::F64($values.map(|v| v as f64 / -7.0).collect()),
        }
    };
}

/// Samples that use the range of their type.
fn window(data_type: DataType, bands: usize, at: Window) -> Raster {
    let pixels = (0..bands).flat_map(|b| {
        (at.row..at.row_end())
            .flat_map(move |r| (at.col..at.col_end()).map(move |c| value(b, c, r)))
    });
    let samples = samples!(
        data_type, pixels;
        U8 u8 1 I8 i8 1 U16 u16 260 I16 i16 -130 U32 u32 17_000_000 I32 i32 -8_500_000
        U64 u64 70_000_000_000_000_000 I64 i64 -36_000_000_000_000_000
    );
    Raster::new(at, bands, samples).expect("filled")
}

fn check_round_trip(spec: RasterSpec, steps: (usize, usize)) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.tif");
    let (data_type, bands) = (spec.data_type, spec.bands);
    let mut sink = GeoTiffSink::create(&path, spec.clone()).expect("a new file");
    for row in (0..spec.height).step_by(steps.1) {
        for col in (0..spec.width).step_by(steps.0) {
            let at = Window::new(
                col,
                row,
                steps.0.min(spec.width - col),
                steps.1.min(spec.height - row),
            );
            sink.write(&window(data_type, bands, at)).expect("in order");
        }
    }
    assert!(!path.exists(), "nothing has the final name yet");
    Box::new(sink).finish().expect("every pixel was written");
    assert_eq!(files(folder.path()), ["out.tif"]);

    let source = open(&path).expect("our own file");
    let metadata = source.metadata();
    assert_eq!(
        (metadata.width, metadata.height, metadata.bands),
        (spec.width, spec.height, bands)
    );
    assert_eq!(
        (metadata.georeference, metadata.data_type),
        (spec.georeference, data_type)
    );
    let factors: Vec<usize> = (1..)
        .map(|level| 1_usize << level)
        .take_while(|factor| spec.width.max(spec.height).div_ceil(factor / 2) > spec.tile)
        .collect();
    assert_eq!(metadata.overviews.len(), factors.len(), "{spec:?}");
    assert_eq!(
        metadata.nodata.map(f64::to_bits),
        spec.nodata.map(f64::to_bits)
    );
    let read = source.read_window(spec.window()).expect("decodes");
    let expected = window(data_type, bands, spec.window());
    for index in 0..read.samples().len() {
        let (a, b) = (read.samples().get(index), expected.samples().get(index));
        assert!(
            a == b || (a.is_nan() && b.is_nan()),
            "sample {index}: {a} instead of {b}"
        );
    }
}

#[test]
fn reads_what_was_written() {
    let spec = |width, height, bands, data_type| {
        RasterSpec::new(width, height, bands, data_type)
            .georeference(GROUND)
            .tile(32)
    };
    check_round_trip(spec(100, 70, 1, DataType::U8).nodata(255.0), (100, 7));
    check_round_trip(spec(100, 70, 1, DataType::U8).nodata(255.0), (33, 40));
    check_round_trip(spec(31, 1, 6, DataType::U16).nodata(0.0), (10, 1));
    check_round_trip(spec(65, 33, 2, DataType::F32).nodata(f64::NAN), (65, 33));
    for data_type in [
        DataType::I8,
        DataType::I16,
        DataType::U32,
        DataType::I32,
        DataType::U64,
        DataType::I64,
        DataType::F64,
    ] {
        check_round_trip(spec(45, 20, 3, data_type), (45, 20));
    }
    check_round_trip(RasterSpec::new(1, 1, 1, DataType::U8), (1, 1));
    let rotated = Transform {
        a: 1.75,
        b: -1.0,
        c: 366_612.0,
        d: -1.0,
        e: -1.75,
        f: 1_984_090.0,
    };
    let ground = Georeference {
        epsg: Some(4326),
        transform: Some(rotated),
    };
    check_round_trip(spec(20, 20, 1, DataType::U16).georeference(ground), (20, 5));
}

#[test]
fn a_dropped_sink_leaves_nothing_and_an_old_file_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.tif");
    std::fs::write(&path, "old").expect("writes");
    let spec = RasterSpec::new(64, 64, 1, DataType::U8).tile(32);
    let mut sink = GeoTiffSink::create(&path, spec.clone()).expect("a new file");
    sink.write(&window(DataType::U8, 1, Window::new(0, 0, 64, 40)))
        .expect("in order");
    assert_eq!(
        files(folder.path()).len(),
        2,
        "the old file and the temporary one"
    );
    drop(sink);
    assert_eq!(files(folder.path()), ["out.tif"]);

    let mut sink = GeoTiffSink::create(&path, spec.clone()).expect("a new file");
    sink.write(&window(DataType::U8, 1, Window::new(0, 0, 64, 40)))
        .expect("in order");
    let error = Box::new(sink).finish().expect_err("24 rows are missing");
    assert!(
        matches!(
            error,
            Error::Incomplete {
                missing: 24,
                rows: 64,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(files(folder.path()), ["out.tif"]);
    assert_eq!(std::fs::read(&path).expect("reads"), b"old");

    let mut sink = GeoTiffSink::create(&path, spec.clone()).expect("a new file");
    sink.write(&window(DataType::U8, 1, spec.window()))
        .expect("in order");
    Box::new(sink).finish().expect("complete");
    assert_eq!(open(&path).expect("replaced").metadata().width, 64);
}

#[test]
fn windows_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.tif");
    let mut sink = GeoTiffSink::create(&path, RasterSpec::new(40, 400, 1, DataType::U8).tile(16))
        .expect("a new file");
    let mut check = |data_type: DataType, at: Window, expected: &str| {
        let error = sink
            .write(&window(data_type, 1, at))
            .map_err(|e| e.to_string());
        match error {
            Ok(()) => assert_eq!(expected, "", "{at} was taken"),
            Err(message) => assert!(
                !expected.is_empty() && message.contains(expected),
                "{message}"
            ),
        }
    };
    check(
        DataType::U8,
        Window::new(0, 0, 41, 1),
        "not inside of the 40 x 400 raster",
    );
    check(
        DataType::U16,
        Window::new(0, 0, 40, 1),
        "1 bands of uint16, the file has 1 of uint8",
    );
    check(DataType::U8, Window::new(0, 0, 40, 20), "");
    check(
        DataType::U8,
        Window::new(0, 3, 1, 1),
        "row 3 were written before",
    );
    check(
        DataType::U8,
        Window::new(5, 19, 1, 1),
        "row 19 were written before",
    );
    check(
        DataType::U8,
        Window::new(0, 20, 20, 380),
        "more than 64 rows are incomplete",
    );
}

#[test]
fn specs_that_no_file_can_have_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.tif");
    let check = |spec: RasterSpec, expected: &str| {
        let message = GeoTiffSink::create(&path, spec)
            .expect_err("refused")
            .to_string();
        assert!(
            message.contains(expected) && message.contains("out.tif"),
            "{message}"
        );
        assert!(files(folder.path()).is_empty());
    };
    let spec = RasterSpec::new(4, 4, 1, DataType::U8);
    check(
        spec.clone().nodata(-1.0),
        "nodata -1 is not a value of uint8",
    );
    check(
        spec.clone().nodata(f64::NAN),
        "nodata NaN is not a value of uint8",
    );
    check(spec.clone().tile(20), "choose a multiple of 16");
    check(RasterSpec::new(0, 4, 1, DataType::U8), "0 x 4 pixels");
    check(
        RasterSpec::new(4, 4, 2, DataType::U8).descriptions(["B02"]),
        "1 descriptions for 2 bands",
    );
    check(
        RasterSpec::new(4, 4, 1, DataType::F32).colours([[0, 0, 0]]),
        "colours for float32",
    );
    check(
        RasterSpec::new(4, 4, 2, DataType::U8).colours([[0, 0, 0]]),
        "1 colours for 256 values of 2 bands",
    );
    check(
        spec.clone().georeference(Georeference {
            epsg: Some(1_000_001),
            transform: None,
        }),
        "EPSG:1000001",
    );
    let flat = Georeference {
        epsg: None,
        transform: Some(Transform::north_up(0.0, 0.0, 0.0)),
    };
    check(spec.clone().georeference(flat), "has no inverse");
    let error = GeoTiffSink::create(folder.path().join("absent/out.tif"), spec)
        .expect_err("no such folder");
    assert!(
        error.to_string().contains("absent: no such file"),
        "{error}"
    );
}

fn written(folder: &Path, spec: RasterSpec) -> Box<dyn RasterSource> {
    let path = folder.join("out.tif");
    let mut sink = GeoTiffSink::create(&path, spec.clone()).expect("a new file");
    for row in (0..spec.height).step_by(24) {
        let at = Window::new(0, row, spec.width, 24.min(spec.height - row));
        sink.write(&window(spec.data_type, spec.bands, at))
            .expect("in order");
    }
    Box::new(sink).finish().expect("complete");
    open(&path).expect("our own file")
}

/// User problem: the output's band order was unknown.
#[test]
fn geo_39_bands_scales_colours_and_tags_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = RasterSpec::new(20, 10, 2, DataType::U16)
        .georeference(GROUND)
        .descriptions(["B04", "B08 & more"])
        .scaling([(1e-4, -0.1), (1.0, 0.0)])
        .tag("PROCESSING_BASELINE", "04.00")
        .tile(16);
    let source = written(folder.path(), spec);
    assert_eq!(source.metadata().band_named("b08 & more"), Some(1));
    assert_eq!(source.metadata().band_named("B04"), Some(0));
    let said = source.annotations();
    assert_eq!(
        (said.scales, said.offsets),
        (vec![1e-4, 1.0], vec![-0.1, 0.0])
    );
    assert_eq!(said.tags["PROCESSING_BASELINE"], "04.00");
    assert_eq!(said.tags["AREA_OR_POINT"], "Area");

    let colours = [[0, 0, 0], [30, 144, 255], [255, 255, 255]];
    let spec = RasterSpec::new(20, 10, 1, DataType::U8)
        .colours(colours)
        .tile(16);
    let said = written(folder.path(), spec).annotations();
    assert_eq!(
        (said.colours.len(), &said.colours[..3]),
        (256, &colours[..])
    );
}

/// Each level against the definition: its pixel covers a square of the raster.
#[test]
fn overviews_are_nearest_for_classes_and_means_for_images() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = RasterSpec::new(75, 50, 2, DataType::U8).tile(16);
    let source = written(folder.path(), spec.clone());
    assert_eq!(source.metadata().overviews, [2, 4, 8]);
    for (level, factor) in [(0, 2), (1, 4), (2, 8)] {
        let overview = source.overview(level).expect("whole").expect("stored");
        let size = overview.metadata().window();
        assert_eq!(
            (size.width, size.height),
            (75_usize.div_ceil(factor), 50_usize.div_ceil(factor))
        );
        let raster = overview.read_window(size).expect("decodes");
        for band in 0..2 {
            for row in 0..size.height {
                for column in 0..size.width {
                    let expected = value(band, column * factor, row * factor) as f64;
                    assert_eq!(raster.at(band, column, row), expected);
                }
            }
        }
    }

    let spec = spec.overviews(Overviews::Average).nodata(0.0);
    let source = written(folder.path(), spec.clone());
    let half = source.overview(0).expect("whole").expect("stored");
    let raster = half.read_window(half.metadata().window()).expect("decodes");
    for (column, row) in [(0, 0), (37, 0), (3, 24), (37, 24), (20, 11)] {
        let values = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(x, y)| (2 * column + x, 2 * row + y));
        let inside = values.into_iter().filter(|(x, y)| *x < 75 && *y < 50);
        let data: Vec<f64> = inside
            .map(|(x, y)| value(1, x, y) as f64)
            .filter(|v| *v != 0.0)
            .collect();
        let mean = (data.iter().sum::<f64>() / data.len() as f64).round();
        assert_eq!(
            raster.at(1, column, row),
            mean,
            "column {column}, row {row}"
        );
    }
    let none = written(folder.path(), spec.overviews(Overviews::None));
    assert!(none.metadata().overviews.is_empty());
}

/// What makes a GeoTIFF a Cloud Optimized one: directories first, then the smallest overview, the raster last.
#[test]
fn the_file_is_cloud_optimized() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(written(
        folder.path(),
        RasterSpec::new(75, 50, 2, DataType::U8).tile(16),
    ));
    let file = tiff_reader::TiffFile::open(folder.path().join("out.tif")).expect("our own file");
    let directories: Vec<u64> = file.ifds().iter().map(|ifd| ifd.offset()).collect();
    assert!(
        directories.len() == 4 && directories.is_sorted(),
        "{directories:?}"
    );
    let tiles = |index: usize| -> Vec<u64> {
        let offsets = file.ifd(index).expect("listed").tile_offsets();
        offsets.expect("tiled")
    };
    let order: Vec<u64> = (0..4).rev().flat_map(tiles).collect();
    assert!(order.is_sorted(), "{order:?}");
    assert!(order[0] > directories[3]);
    let bytes = std::fs::read(folder.path().join("out.tif")).expect("reads");
    let said = String::from_utf8_lossy(&bytes[8..191]);
    assert!(
        said.starts_with("GDAL_STRUCTURAL_METADATA_SIZE=000140 bytes\nLAYOUT=IFDS_BEFORE_DATA\n")
            && said.ends_with("KNOWN_INCOMPATIBLE_EDITION=NO\n "),
        "{said}"
    );
    assert_eq!(directories[0], 192);
    // Each tile between its length and its last four bytes.
    let lengths = file
        .ifd(0)
        .expect("listed")
        .tile_byte_counts()
        .expect("tiled");
    for (at, len) in tiles(0).into_iter().zip(lengths) {
        let (at, end) = (at as usize, (at + len) as usize);
        assert_eq!(bytes[at - 4..at], (len as u32).to_le_bytes());
        assert_eq!(bytes[end - 4..end], bytes[end..end + 4]);
    }
}

/// User problem: -1 declared on a file of unsigned samples.
#[test]
fn geo_25_nodata_that_no_sample_can_have_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for (data_type, nodata) in [
        (DataType::U8, -1.0),
        (DataType::U8, 256.0),
        (DataType::U16, 0.5),
        (DataType::I32, f64::NAN),
        (DataType::F32, 1e39),
    ] {
        let spec = RasterSpec::new(4, 4, 1, data_type).nodata(nodata);
        let error = GeoTiffSink::create(folder.path().join("out.tif"), spec).expect_err("refused");
        assert!(matches!(error, Error::Nodata { .. }), "{error}");
    }
    assert!(files(folder.path()).is_empty());
}
