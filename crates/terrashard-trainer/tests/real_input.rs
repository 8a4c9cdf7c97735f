//! What is trained on and predicted is the scene that was given.

mod job;

use std::path::Path;

use job::{configuration, label, scene, succeed, text};
use terrashard_raster::{
    GeoTiffSink, Raster, RasterSink, RasterSource, RasterSpec, Samples, Transform, Window,
};

/// The loss of the first step.
fn first_loss(dir: &Path, image: &Path) -> f64 {
    let config = configuration(dir, image, &label());
    let run = dir.join("run");
    let place = [
        "fit",
        text(&config),
        "--run",
        text(&run),
        "--resume",
        "none",
        "--quiet",
    ];
    succeed(&[&place[..], &["--stop-after", "1"]].concat());
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).expect("the run has a log");
    let first: serde_json::Value =
        serde_json::from_str(log.lines().next().expect("a step")).expect("JSON");
    std::fs::remove_dir_all(run).expect("removable");
    first["loss"].as_f64().expect("a number")
}

/// Writes a window of the shipped scene, its digital numbers changed by `change`.
fn write_scene(path: &Path, window: Window, change: impl Fn(u16) -> u16) {
    let source = terrashard_raster::open(&scene()).expect("shipped");
    let metadata = source.metadata();
    let georeference = metadata.georeference.clone();
    let transform = georeference
        .transform
        .map(|transform| transform.offset(window.col as f64, window.row as f64));
    let raster = source.read_window(window).expect("readable");
    let Samples::U16(samples) = raster.into_samples() else {
        panic!("the scene is uint16")
    };
    let samples = Samples::U16(samples.into_iter().map(change).collect());
    let spec = RasterSpec::new(
        window.width,
        window.height,
        metadata.bands,
        metadata.data_type,
    )
    .georeference(terrashard_raster::Georeference {
        transform,
        ..georeference
    });
    let mut sink = Box::new(GeoTiffSink::create(path, spec).expect("writable"));
    let whole = Window::new(0, 0, window.width, window.height);
    sink.write(&Raster::new(whole, metadata.bands, samples).expect("consistent"))
        .expect("writable");
    sink.finish().expect("finished");
}

#[test]
fn changing_the_pixels_changes_the_loss() {
    let dir = tempfile::tempdir().expect("a folder");
    let whole = terrashard_raster::open(&scene())
        .expect("shipped")
        .metadata()
        .window();
    let (same, changed) = (dir.path().join("same.tif"), dir.path().join("changed.tif"));
    write_scene(&same, whole, |number| number);
    write_scene(&changed, whole, |number| number.saturating_add(300));
    let original = first_loss(dir.path(), &scene());
    assert_eq!(
        first_loss(dir.path(), &same),
        original,
        "the same pixels from another file"
    );
    let loss = first_loss(dir.path(), &changed);
    assert!(
        (loss - original).abs() > 1e-6 * original,
        "{loss} and {original}"
    );
}

#[test]
fn the_predictions_corners_are_the_scenes_corners() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = configuration(dir.path(), &scene(), &label());
    let run = dir.path().join("run");
    succeed(&[
        "fit",
        text(&config),
        "--run",
        text(&run),
        "--quiet",
        "--stop-after",
        "1",
    ]);
    let model = dir.path().join("model.safetensors");
    succeed(&["export", text(&run), "-o", text(&model)]);
    // An odd piece of the scene, off its corner.
    let image = dir.path().join("piece.tif");
    let window = Window::new(201, 77, 101, 67);
    write_scene(&image, window, |number| number);
    for (checkpoint, ranks) in [(&run, "1"), (&run, "2"), (&model, "2")] {
        let map = dir.path().join(format!("map-{ranks}.tif"));
        let what = [
            "predict",
            text(&image),
            "-o",
            text(&map),
            "--checkpoint",
            text(checkpoint),
        ];
        succeed(&[&what[..], &["--ranks", ranks, "--quiet"]].concat());
        let (map, image) = (
            terrashard_raster::open(&map),
            terrashard_raster::open(&image),
        );
        let (map, image) = (map.expect("written"), image.expect("written"));
        let (fine, coarse) = (map.metadata(), image.metadata());
        assert_eq!((fine.width, fine.height, fine.bands), (505, 335, 1));
        assert_eq!(fine.nodata, Some(255.0));
        assert_eq!(fine.georeference.epsg, coarse.georeference.epsg);
        let corners =
            |transform: Option<Transform>, w, h| transform.expect("georeferenced").corners(w, h);
        let found = corners(fine.georeference.transform, fine.width, fine.height);
        let expected = corners(coarse.georeference.transform, coarse.width, coarse.height);
        for (found, expected) in found.iter().zip(&expected) {
            let apart = (found.0 - expected.0).hypot(found.1 - expected.1);
            assert!(apart <= 1e-9, "{found:?} is {apart} m from {expected:?}");
        }
        let Samples::U8(classes) = map
            .read_window(fine.window())
            .expect("readable")
            .into_samples()
        else {
            panic!("classes are uint8")
        };
        assert!(
            classes.iter().all(|class| *class <= 1),
            "every pixel of the piece is valid"
        );
    }
}
