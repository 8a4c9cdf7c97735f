//! What the sink writes is what the source reads, and nothing half-written stays.

use std::path::Path;

use terrashard_raster::{
    DataType, Error, GeoTiffSink, Georeference, Raster, RasterSink, RasterSource, RasterSpec,
    Samples, Transform, Window, open,
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

fn window(data_type: DataType, bands: usize, at: Window) -> Raster {
    let pixels = (0..bands).flat_map(|b| {
        (at.row..at.row_end())
            .flat_map(move |r| (at.col..at.col_end()).map(move |c| value(b, c, r)))
    });
    let samples = match data_type {
        DataType::U8 => Samples::U8(pixels.map(|v| v as u8).collect()),
        DataType::U16 => Samples::U16(pixels.map(|v| v as u16 * 260).collect()),
        _ => Samples::F32(
            pixels
                .map(|v| {
                    if v == 250 {
                        f32::NAN
                    } else {
                        v as f32 / 7.0 - 3.0
                    }
                })
                .collect(),
        ),
    };
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
    check(RasterSpec::new(4, 4, 1, DataType::I64), "samples of int64");
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
