//! Runs of a model of several classes.

use serde_json::Value;
use terrashard_raster::{RasterSource, Samples};

use crate::scenario::{SCALE, Scenario, WIDTH};

const SEVERAL: [&str; 3] = [
    "model.classes=4",
    "train.loss=cross_entropy_dice",
    "data.scenes=[{ image = \"image.tif\", mask = \"classes.tif\" }]",
];

/// Stripes of classes 0, 1 and 2, every ninth row without a label; class 3 is nowhere.
fn class(x: usize, y: usize) -> u8 {
    match y % 9 {
        0 => 255,
        _ => (x / 37 % 3) as u8,
    }
}

fn scenario() -> Scenario {
    let scenario = Scenario::new();
    scenario.write_mask("classes.tif", WIDTH * SCALE, class);
    scenario
}

#[test]
fn b4_every_class_is_scored_exactly_on_any_number_of_ranks() {
    let scenario = scenario();
    scenario.fit("run", None, &SEVERAL);
    let tested = |ranks: &str| -> Value {
        let sets = SEVERAL.iter().flat_map(|setting| ["--set", setting]);
        let line = [
            "test",
            "run.toml",
            "--checkpoint",
            "run",
            "--quiet",
            "--json",
            "--ranks",
            ranks,
        ];
        let output = scenario.terrashard(&line.into_iter().chain(sets).collect::<Vec<_>>());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{told}");
        let mut record: Value = serde_json::from_slice(&output.stdout).unwrap();
        record.as_object_mut().unwrap().remove("seconds");
        record
    };
    let record = tested("1");
    assert_eq!(record, tested("3"));
    assert!(
        record["threshold"].is_null() && record["baseline"].is_null(),
        "{record}"
    );

    // The labels of the east half by hand.
    let mask = terrashard_raster::open(scenario.path("classes.tif")).unwrap();
    let mut pixels = [0u64; 4];
    let whole = mask.read_window(mask.metadata().window()).unwrap();
    let Samples::U8(labels) = whole.into_samples() else {
        panic!("classes are bytes")
    };
    for row in labels.chunks_exact(WIDTH * SCALE) {
        for label in row[WIDTH / 2 * SCALE..]
            .iter()
            .filter(|label| **label != 255)
        {
            pixels[usize::from(*label)] += 1;
        }
    }
    let valid: u64 = pixels.iter().sum();
    assert_eq!(record["valid_pixels"], valid);
    let classes = record["per_class"].as_array().unwrap();
    assert_eq!(classes.len(), 4);
    for (scores, pixels) in classes.iter().zip(pixels) {
        assert_eq!(scores["pixels"], pixels);
        let share = scores["prevalence"].as_f64().unwrap();
        assert!((share - pixels as f64 / valid as f64).abs() < 1e-12);
        // What is nowhere can be found wrongly, and not missed.
        assert_eq!(scores["recall"].is_null(), pixels == 0);
    }
    let share = record["prevalence"].as_f64().unwrap();
    assert!((share - (pixels[1] + pixels[2]) as f64 / valid as f64).abs() < 1e-12);
    for key in ["iou", "f1", "recall"] {
        let values: Vec<f64> = classes
            .iter()
            .filter_map(|scores| scores[key].as_f64())
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!(
            (record[key].as_f64().unwrap() - mean).abs() < 1e-12,
            "{key} in {record}"
        );
    }
}

#[test]
fn the_most_probable_class_is_mapped() {
    let scenario = scenario();
    scenario.fit("run", Some(2), &[&SEVERAL[..], &["zero.ranks=2"]].concat());
    let line = [
        "predict",
        "image.tif",
        "--checkpoint",
        "run",
        "-o",
        "map.tif",
        "--quiet",
    ];
    assert!(scenario.terrashard(&line).status.success());
    let map = terrashard_raster::open(scenario.path("map.tif")).unwrap();
    let whole = map.read_window(map.metadata().window()).unwrap();
    let Samples::U8(classes) = whole.into_samples() else {
        panic!("classes are bytes")
    };
    assert!(classes.iter().all(|class| *class < 4));
}

#[test]
fn a_model_of_other_classes_or_another_scale_is_not_tested() {
    let scenario = scenario();
    scenario.fit("run", Some(1), &SEVERAL);
    for (settings, key) in [
        // The configuration as it is has one class.
        (&[][..], "model.classes"),
        (
            &[SEVERAL[0], SEVERAL[1], SEVERAL[2], "model.classes=8"][..],
            "model.classes",
        ),
        (
            &[SEVERAL[0], SEVERAL[1], SEVERAL[2], "model.scale=3"][..],
            "model.scale",
        ),
    ] {
        let sets = settings.iter().flat_map(|setting| ["--set", setting]);
        let line = ["test", "run.toml", "--checkpoint", "run", "--quiet"];
        let output = scenario.terrashard(&line.into_iter().chain(sets).collect::<Vec<_>>());
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(key) && told.contains("was trained"), "{told}");
        assert_eq!(told.trim().lines().count(), 1, "{told}");
    }
}
