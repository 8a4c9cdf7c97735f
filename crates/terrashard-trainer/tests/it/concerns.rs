//! What a training would run with and learn or measure nothing of is told by `fit` before the first step, and by `check`.

use crate::scenario::{HEIGHT, SCALE, Scenario, WIDTH};

/// What `fit` and `check` say, beside other things, of this configuration; they end with these codes.
#[track_caller]
fn told(scenario: &Scenario, settings: &[&str], codes: [i32; 2]) -> [String; 2] {
    let sets = settings.iter().flat_map(|each| ["--set", each]);
    let sets: Vec<&str> = sets.chain(["--set", "train.steps=1"]).collect();
    let lines = [
        vec!["fit", "run.toml", "--run", "run"],
        vec!["check", "run.toml"],
    ];
    let _ = std::fs::remove_dir_all(scenario.path("run"));
    let mut both = lines.iter().zip(codes).map(|(line, code)| {
        let output = scenario.terrashard(&[line, &sets[..]].concat());
        let told =
            String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line:?}: {told}");
        told
    });
    [both.next().unwrap(), both.next().unwrap()]
}

#[test]
fn a_validation_without_foreground_is_told() {
    let scenario = Scenario::new();
    // A few pixels in the middle, where no part for validation is.
    scenario.write_mask("mask.tif", WIDTH * SCALE, |x, _| u8::from(x / SCALE == 40));
    let parts = [
        "data.train={ pixels = [0, 0, 64, 64] }",
        "data.validation={ pixels = [64, 0, 32, 64] }",
        "data.test={ pixels = [96, 0, 32, 64] }",
    ];
    let message = "`data.validation` hold no pixel of any class but the background";
    for told in told(&scenario, &parts, [0, 2]) {
        assert!(told.contains(message), "{told}");
        assert!(told.contains("image.tif"), "{told}");
    }
    // With one such pixel there is nothing to be told.
    scenario.write_mask("mask.tif", WIDTH * SCALE, |x, y| {
        u8::from(x / SCALE == 40 || (x, y) == (95 * SCALE + 4, HEIGHT * SCALE - 1))
    });
    for told in told(&scenario, &parts, [0, 0]) {
        assert!(!told.contains("but the background"), "{told}");
    }
}

#[test]
fn an_image_at_high_resolution_without_values_is_told() {
    let scenario = Scenario::new();
    let branch = [
        "model.superres=true",
        "data.scenes=[{ image = \"image.tif\", mask = \"mask.tif\", highres = \"fine.tif\" }]",
        "data.highres.bands=[1, 2, 3, 4]",
        "data.highres.nodata=0",
        "data.train={ pixels = [0, 0, 64, 64] }",
        "data.test={ pixels = [64, 0, 64, 64] }",
    ];
    // Data in the half that is not trained on.
    scenario.write_highres("fine.tif", |x, _| x < 64 * SCALE);
    for told in told(&scenario, &branch, [0, 2]) {
        let message = "has not one pixel with data where it is trained on";
        assert!(
            told.contains("fine.tif") && told.contains(message),
            "{told}"
        );
    }
    // Zeros that are said to be data.
    let branch = branch.map(|setting| match setting {
        "data.highres.nodata=0" => "data.highres.nodata=7",
        other => other,
    });
    for told in told(&scenario, &branch, [0, 2]) {
        assert!(
            told.contains("has one value where it is trained on: it is blank"),
            "{told}"
        );
    }
    scenario.write_highres("fine.tif", |_, _| false);
    let sound = &told(&scenario, &branch, [0, 0])[0];
    assert!(!sound.contains("where it is trained on"), "{sound}");
}
