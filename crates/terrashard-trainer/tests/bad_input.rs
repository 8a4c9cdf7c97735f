//! Bad input is one line that names the file or key and the remedy, exit code 2, and no output left.

mod job;

use std::path::Path;

use job::{configuration, label, scene, terrashard, text};
use terrashard_raster::{DataType, GeoTiffSink, Raster, RasterSink, RasterSpec, Samples, Window};

/// Runs `arguments`, which have to be refused in one line that contains all of `parts`.
fn refused(arguments: &[&str], parts: &[&str]) {
    let output = terrashard(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(2),
        "terrashard {arguments:?}: {errors}"
    );
    let first = errors.lines().next().unwrap_or_default();
    assert!(first.starts_with("error: "), "{errors}");
    for part in parts {
        assert!(first.contains(part), "`{part}` is not in: {first}");
    }
    assert_eq!(
        errors.trim().lines().count(),
        1,
        "more than one line: {errors}"
    );
}

/// Runs `fit` on a configuration with `settings`.
fn fit_refused(dir: &Path, config: &Path, settings: &[&str], parts: &[&str]) {
    let run = dir.join("run");
    let place = ["fit", text(config), "--run", text(&run), "--quiet"];
    refused(&[&place[..], settings].concat(), parts);
    assert!(!run.exists(), "a refused run leaves nothing");
}

fn write_mask(path: &Path, width: usize, height: usize, value: impl Fn(usize) -> u8) {
    let spec = RasterSpec::new(width, height, 1, DataType::U8);
    let mut sink = Box::new(GeoTiffSink::create(path, spec).expect("writable"));
    let samples = Samples::U8((0..width * height).map(value).collect());
    sink.write(&Raster::new(Window::new(0, 0, width, height), 1, samples).expect("consistent"))
        .expect("writable");
    sink.finish().expect("finished");
}

#[test]
fn files_that_are_not_there_or_broken() {
    let dir = tempfile::tempdir().expect("a folder");
    let missing = dir.path().join("missing.tif");
    fit_refused(
        dir.path(),
        &configuration(dir.path(), &missing, &label()),
        &[],
        &["missing.tif"],
    );
    let config = dir.path().join("absent.toml");
    fit_refused(dir.path(), &config, &[], &["absent.toml"]);
    let truncated = dir.path().join("truncated.tif");
    let bytes = std::fs::read(scene()).expect("shipped");
    std::fs::write(&truncated, &bytes[..bytes.len() * 6 / 10]).expect("writable");
    fit_refused(
        dir.path(),
        &configuration(dir.path(), &truncated, &label()),
        &[],
        &["truncated.tif"],
    );
}

#[test]
fn images_and_masks_that_do_not_fit() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = configuration(dir.path(), &scene(), &label());
    let bands = ["--set", "data.bands=[\"B02\", \"B03\", \"B05\"]"];
    fit_refused(dir.path(), &config, &bands, &["6band.tif", "B05"]);
    let count = ["--set", "data.bands=[1, 2, 3]"];
    fit_refused(dir.path(), &config, &count, &["bands", "3", "6"]);
    let small = dir.path().join("small.tif");
    write_mask(&small, 100, 100, |_| 0);
    fit_refused(
        dir.path(),
        &configuration(dir.path(), &scene(), &small),
        &[],
        &["small.tif", "100"],
    );
    let strange = dir.path().join("strange.tif");
    write_mask(
        &strange,
        7680,
        3840,
        |pixel| if pixel == 5000 { 7 } else { 0 },
    );
    fit_refused(
        dir.path(),
        &configuration(dir.path(), &scene(), &strange),
        &[],
        &["strange.tif", "7"],
    );
}

#[test]
fn settings_that_cannot_be_used() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = configuration(dir.path(), &scene(), &label());
    let check =
        |settings: &[&str], parts: &[&str]| fit_refused(dir.path(), &config, settings, parts);
    check(&["--set", "train.stepps=3"], &["train.stepps", "steps"]);
    check(&["--set", "zero.stage=7"], &["stage", "7"]);
    check(
        &["--set", "train.micro_batch=5"],
        &["global_batch", "micro_batch"],
    );
    check(&["--ranks", "0"], &["ranks"]);
    let ranks = [
        "--ranks",
        "64",
        "--set",
        "data.train=[0, 0, 32, 32]",
        "--set",
        "train.global_batch=64",
    ];
    check(&ranks, &["64", "ranks", "sample"]);
}

#[test]
fn a_prediction_that_fails_leaves_no_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = configuration(dir.path(), &scene(), &label());
    let run = dir.path().join("run");
    job::succeed(&[
        "fit",
        text(&config),
        "--run",
        text(&run),
        "--quiet",
        "--stop-after",
        "1",
    ]);
    let truncated = dir.path().join("truncated.tif");
    let bytes = std::fs::read(scene()).expect("shipped");
    std::fs::write(&truncated, &bytes[..bytes.len() * 6 / 10]).expect("writable");
    let out = dir.path().join("out");
    std::fs::create_dir(&out).expect("a folder");
    let map = out.join("map.tif");
    let predict = |input: &Path, parts: &[&str]| {
        let what = [
            "predict",
            text(input),
            "-o",
            text(&map),
            "--checkpoint",
            text(&run),
            "--quiet",
        ];
        refused(&what, parts);
        assert_eq!(
            std::fs::read_dir(&out).expect("a folder").count(),
            0,
            "nothing is left, not even temporary"
        );
    };
    predict(&truncated, &["truncated.tif"]);
    predict(&dir.path().join("missing.tif"), &["missing.tif"]);
    let one_band = label();
    predict(&one_band, &["osm_water_mask_2m_ignore255.tif"]);
}
