//! Reports of runs that did not go as they should, and what `fit` says of them.

use std::fs;

use serde_json::Value;
use terrashard_raster::Transform;

use crate::scenario::{HEIGHT, SCALE, Scenario, TRANSFORM, WIDTH};

fn report(scenario: &Scenario, run: &str) -> Value {
    let output = scenario.terrashard(&["report", run]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let text = fs::read_to_string(scenario.path(run).join("report.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn page(scenario: &Scenario, run: &str) -> String {
    fs::read_to_string(scenario.path(run).join("report.html")).unwrap()
}

#[test]
fn a_run_that_was_killed_has_a_report() {
    let scenario = Scenario::new();
    scenario.fit("run", Some(3), &["zero.ranks=2"]);
    // What a killed process leaves: its steps, and no record of the call.
    fs::remove_file(scenario.run("run").sessions()).unwrap();
    let killed = report(&scenario, "run");
    assert_eq!(killed["steps"], 3);
    assert_eq!((&killed["ranks"], &killed["stage"]), (&2.into(), &0.into()));
    assert_eq!(killed["killed"], true);
    assert!(killed["seconds"].as_f64().unwrap() > 0.0);
    let text = page(&scenario, "run");
    assert!(
        text.contains("Trained for 3 steps of 12 samples on 2 ranks"),
        "{text}"
    );
    assert!(text.contains("was killed before it recorded its end"));

    // A second call to its end; then the report is that of both.
    scenario.fit("run", None, &["zero.ranks=2"]);
    let whole = report(&scenario, "run");
    assert_eq!(
        (&whole["steps"], &whole["killed"]),
        (&6.into(), &false.into())
    );
    assert!(page(&scenario, "run").contains("started again from its checkpoint"));
}

#[test]
fn a_run_without_a_step_has_no_report() {
    let scenario = Scenario::new();
    scenario.fit("run", Some(1), &[]);
    fs::remove_file(scenario.run("run").sessions()).unwrap();
    fs::write(scenario.run("run").metrics(), "").unwrap();
    let output = scenario.terrashard(&["report", "run"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("no step was made in this run"), "{told}");
}

#[test]
fn skipped_steps_are_counted() {
    let scenario = Scenario::new();
    // The first update throws the parameters out of the range of numbers.
    let line = [
        "fit",
        "run.toml",
        "--run",
        "run",
        "--stop-after",
        "3",
        "--set",
        "train.nonfinite=skip",
        "--set",
        "train.lr=1e38",
    ];
    let output = scenario.terrashard(&line);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("2 of 3 skipped, so the model has learned little"),
        "{told}"
    );
    assert_eq!(report(&scenario, "run")["skipped"], 2);
    assert!(page(&scenario, "run").contains("2 steps were skipped and changed nothing."));

    scenario.fit("sound", Some(3), &[]);
    assert_eq!(report(&scenario, "sound")["skipped"], 0);
}

#[test]
fn only_a_map_of_the_scene_is_shown_as_its_prediction() {
    let scenario = Scenario::new();
    scenario.fit("run", Some(1), &[]);
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
    let shown = |file: &str| {
        let output = scenario.terrashard(&["report", "run", "--prediction", file]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    };
    assert_eq!(shown("map.tif").0, Some(0));
    assert!(page(&scenario, "run").contains("<figcaption>Prediction"));

    let fine = TRANSFORM.scaled(SCALE as f64);
    let moved = Transform {
        c: fine.c + 2.0,
        ..fine
    };
    let map = |name: &str, transform| {
        scenario.write_map(name, (WIDTH * SCALE, HEIGHT * SCALE), transform);
    };
    map("moved.tif", moved);
    for (file, got) in [
        (
            "image.tif",
            "image.tif, 128 x 64 pixels with 2 bands of uint16",
        ),
        (
            "moved.tif",
            "moved.tif, 640 x 320 pixels with 1 band of uint8",
        ),
    ] {
        let (code, told) = shown(file);
        assert_eq!(code, Some(2), "{told}");
        assert!(
            told.contains("`--prediction`") && told.contains(got),
            "{told}"
        );
        assert!(
            told.contains("640 x 320 pixels of uint8 on its ground"),
            "{told}"
        );
    }
    // One that lies beside the report and was not asked for is shown if it fits, and left out else.
    for (file, is_shown) in [("moved.tif", false), ("map.tif", true)] {
        fs::copy(
            scenario.path(file),
            scenario.path("run").join("prediction.tif"),
        )
        .unwrap();
        report(&scenario, "run");
        assert_eq!(
            page(&scenario, "run").contains("<figcaption>Prediction"),
            is_shown
        );
    }
}
