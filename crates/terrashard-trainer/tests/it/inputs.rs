//! What is done with scenes before a training: `align`, `check`, `chip`, `stats`; what a model remembers of them, and what is left out of labels.

use std::fs;

use serde_json::Value;
use terrashard_raster::RasterSource;

use crate::scenario::{HEIGHT, SCALE, Scenario, WIDTH};

fn json(scenario: &Scenario, arguments: &[&str], code: i32) -> Value {
    let output = scenario.terrashard(&[arguments, &["--json"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn check_lists_all_and_ends_with_2() {
    let scenario = Scenario::new();
    let sound = json(&scenario, &["check", "run.toml"], 0);
    assert_eq!((&sound["ok"], &sound["scenes"]), (&true.into(), &1.into()));

    fs::write(scenario.path("cut.tif"), "II*\0").unwrap();
    let scenes = "data.scenes=[{ image = \"gone.tif\", mask = \"mask.tif\" }, { image = \"image.tif\", mask = \"cut.tif\" }]";
    let found = json(&scenario, &["check", "run.toml", "--set", scenes], 2);
    let kinds: Vec<&str> = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["missing", "corrupt"]);

    // What is suspicious may be meant so.
    let twice = ["check", "run.toml", "--set", "data.scaling.offset=-1200.0"];
    let found = json(&scenario, &twice, 2);
    assert_eq!(found["findings"][0]["kind"], "offset_twice");
    assert_eq!(found["findings"][0]["expected"], 0.01);
    let allowed = [&twice[..], &["--allow-suspicious"]].concat();
    assert_eq!(json(&scenario, &allowed, 0)["suspicious"], 1);
}

#[test]
fn geo_52_scenes_that_do_not_read_are_left_out_where_that_is_asked_for() {
    let scenario = Scenario::new();
    let whole = fs::read(scenario.path("image.tif")).unwrap();
    fs::write(scenario.path("cut.tif"), &whole[..whole.len() / 2]).unwrap();
    let scene = |image: &str, mask: &str| format!("{{ image = \"{image}\", mask = \"{mask}\" }}");
    let sound = scene("image.tif", "mask.tif");
    let scenes = [
        &scene("gone.tif", "mask.tif"),
        &sound,
        &scene("cut.tif", "mask.tif"),
    ];
    let scenes = format!("data.scenes=[{}, {}, {}]", scenes[0], scenes[1], scenes[2]);
    let fit = |run: &str, arguments: &[&str]| {
        let fit = [
            "fit",
            "run.toml",
            "--run",
            run,
            "--quiet",
            "--set",
            "train.steps=2",
        ];
        let output = scenario.terrashard(&[&fit[..], arguments].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    };
    assert_eq!(fit("alone", &[]).0, Some(0));
    let (code, told) = fit("all", &["--set", &scenes]);
    assert!(code != Some(0) && told.contains("gone.tif"), "{told}");
    let (code, told) = fit("rest", &["--set", &scenes, "--skip-missing"]);
    assert_eq!(code, Some(0), "{told}");
    for words in ["gone.tif", "cut.tif", "2 of 3 scenes are left out"] {
        assert!(told.contains(words), "{words} in {told}");
    }
    assert_eq!(losses(&scenario, "rest"), losses(&scenario, "alone"));

    let chip = ["chip", "run.toml", "--set", &scenes, "--json"];
    assert!(!scenario.terrashard(&chip).status.success());
    let chip = json(&scenario, &[&chip[..4], &["--skip-missing"]].concat(), 0);
    assert_eq!(chip["scenes"], 1);

    let stats = ["stats", "run.toml", "--set", &scenes];
    assert!(!scenario.terrashard(&stats).status.success());
    let stats = json(&scenario, &[&stats[..], &["--skip-missing"]].concat(), 0);
    assert_eq!(stats["scenes"], 1);
    let test = [
        "test",
        "run.toml",
        "--checkpoint",
        "alone",
        "--quiet",
        "--set",
        &scenes,
    ];
    assert!(!scenario.terrashard(&test).status.success());
    let tested = json(&scenario, &[&test[..], &["--skip-missing"]].concat(), 0);
    let alone = json(&scenario, &test[..5], 0);
    assert_eq!(tested["iou"], alone["iou"]);

    // An index of chips names two scenes, of which one goes: the run's own configuration has the other alone.
    fs::copy(scenario.path("image.tif"), scenario.path("other.tif")).unwrap();
    let scenes = format!("data.scenes=[{sound}, {}]", scene("other.tif", "mask.tif"));
    json(&scenario, &["chip", "run.toml", "--set", &scenes], 0);
    fs::remove_file(scenario.path("other.tif")).unwrap();
    let text = fs::read_to_string(scenario.path("run.toml")).unwrap();
    let (before, rest) = text.split_once("scenes = ").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    let chips = format!("{before}chips = \"chips.geojson\"\n{rest}");
    fs::write(scenario.path("chips.toml"), chips).unwrap();
    let fit_chips = |config: &str| {
        let fit = [
            "fit",
            config,
            "--run",
            "chips",
            "--set",
            "train.steps=2",
            "--skip-missing",
        ];
        let output = scenario.terrashard(&fit);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let told = fit_chips("chips.toml");
    assert!(told.contains("1 of 2 scenes are left out"), "{told}");
    let told = fit_chips("chips/config.toml");
    assert!(told.contains("nothing to do"), "{told}");

    let (code, told) = fit(
        "none",
        &[
            "--set",
            "data.scenes=[{ image = \"gone.tif\" }]",
            "--skip-missing",
        ],
    );
    assert!(
        code == Some(2) && told.contains("none can be read") && told.contains("gone.tif"),
        "{told}"
    );
}

#[test]
fn stats_are_those_of_each_part() {
    let scenario = Scenario::new();
    let of_config = json(&scenario, &["stats", "run.toml"], 0);
    let parts = of_config["parts"].as_array().unwrap();
    let names: Vec<&str> = parts
        .iter()
        .map(|part| part["part"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["all", "train", "test"]);
    let pixels: Vec<u64> = parts
        .iter()
        .map(|part| part["valid"].as_u64().unwrap())
        .collect();
    let all = (WIDTH * HEIGHT) as u64;
    assert_eq!(pixels, [all, all / 2, all / 2]);
    let of_file = json(&scenario, &["stats", "image.tif"], 0);
    let mean = |parts: &Value, part: usize, band: usize| {
        parts["parts"][part]["bands"][band]["mean"]
            .as_f64()
            .unwrap()
    };
    for band in 0..2 {
        let (reflectance, numbers) = (mean(&of_config, 0, band), mean(&of_file, 0, band));
        assert!(
            (reflectance - numbers * 1e-4).abs() < 1e-7,
            "{reflectance} and {numbers}"
        );
        let halves = (mean(&of_config, 1, band) + mean(&of_config, 2, band)) / 2.0;
        assert!(
            (reflectance - halves).abs() < 1e-9,
            "{reflectance} and {halves}"
        );
    }
    // What it says can be pasted.
    let scaling = of_config["scaling"].as_str().unwrap();
    let text = fs::read_to_string(scenario.path("run.toml")).unwrap();
    let normalised = text.replace("[data]\n", &format!("[data]\n{scaling}\n"));
    fs::write(scenario.path("normalised.toml"), normalised).unwrap();
    let again = json(&scenario, &["stats", "normalised.toml"], 0);
    assert_eq!(again["scaling"], of_config["scaling"]);

    let refused = scenario.terrashard(&["stats", "image.tif", "mask.tif"]);
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        told.contains("mask.tif with 1 bands, expected 2 bands"),
        "{told}"
    );
}

#[test]
fn classes_of_a_cloud_mask_are_not_counted() {
    let scenario = Scenario::new();
    let arguments = [
        "fit",
        "run.toml",
        "--quiet",
        "--run",
        "run",
        "--set",
        "train.steps=1",
    ];
    assert!(scenario.terrashard(&arguments).status.success());
    // Clouds over the lower half, on a grid of 20 m.
    scenario.write_classes(
        "clouds.tif",
        2,
        |_, row| if row >= HEIGHT / 4 { 9 } else { 4 },
    );
    let scenes = "data.scenes=[{ image = \"image.tif\", mask = \"mask.tif\", classification = \"clouds.tif\" }]";
    let test = ["test", "run.toml", "--checkpoint", "run", "--quiet"];
    let ignore = ["--set", scenes, "--set", "data.ignore_from=SCL:3,8,9,10"];
    let half = (WIDTH / 2 * HEIGHT * SCALE * SCALE) as u64;
    assert_eq!(json(&scenario, &test, 0)["valid_pixels"], half);
    let tested = json(&scenario, &[&test[..], &ignore].concat(), 0);
    assert_eq!(tested["valid_pixels"], half / 2);

    let unnamed = scenario.terrashard(&[&test[..], &ignore[2..]].concat());
    let told = String::from_utf8_lossy(&unnamed.stderr).into_owned();
    assert!(
        told.contains("no band SCL") && told.contains("`classification` beside `image`"),
        "{told}"
    );
}

/// The losses of a run.
fn losses(scenario: &Scenario, run: &str) -> Vec<f64> {
    let text = fs::read_to_string(scenario.path(run).join("metrics.jsonl")).unwrap();
    let step = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap()["loss"]
            .as_f64()
            .unwrap()
    };
    text.lines().map(step).collect()
}

#[test]
fn chips_are_trained_on_as_regions_are() {
    let scenario = Scenario::new();
    let fit = |config: &str, run: &str| {
        let arguments = [
            "fit",
            config,
            "--run",
            run,
            "--quiet",
            "--set",
            "train.steps=2",
        ];
        let output = scenario.terrashard(&arguments);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        losses(&scenario, run)
    };
    let expected = fit("run.toml", "of-regions");

    let chip = ["chip", "run.toml", "--stride", "8"];
    let windows = json(
        &scenario,
        &[&chip[..], &["-o", "chips/index.geojson"]].concat(),
        0,
    );
    let of_files = ["-o", "files/index.geojson", "--files", "files"];
    let files = json(&scenario, &[&chip[..], &of_files].concat(), 0);
    // 32 x 32 chips of 64 x 64 pixels, 8 apart; the test half in four.
    let kept: Value = serde_json::json!({ "train": 25, "test": 4 });
    assert_eq!((&windows["kept"], &files["kept"]), (&kept, &kept));
    assert_eq!(
        (&windows["cut"], &windows["dropped"]),
        (&29.into(), &serde_json::json!({}))
    );

    let text = fs::read_to_string(scenario.path("run.toml")).unwrap();
    let (scenes, rest) = text.split_once("scenes = ").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    for (folder, run) in [("chips", "of-windows"), ("files", "of-files")] {
        let config = format!("{run}.toml");
        let chips = format!("{scenes}chips = \"{folder}/index.geojson\"\n{rest}");
        fs::write(scenario.path(&config), chips).unwrap();
        assert_eq!(fit(&config, run), expected, "{run}");
        let tested = json(
            &scenario,
            &["test", &config, "--checkpoint", run, "--quiet"],
            0,
        );
        assert_eq!(
            tested["valid_pixels"],
            (WIDTH / 2 * HEIGHT * SCALE * SCALE) as u64
        );
        assert_eq!(json(&scenario, &["check", &config], 0)["ok"], true);
        // Again from the configuration that the run has written down.
        let again = scenario.terrashard(&["fit", &format!("{run}/config.toml"), "--run", run]);
        assert!(String::from_utf8_lossy(&again.stderr).contains("nothing to do"));
    }
    let smaller = scenario.terrashard(&["fit", "of-windows.toml", "--set", "data.chip=16"]);
    let told = String::from_utf8_lossy(&smaller.stderr).into_owned();
    assert!(
        told.contains("`data.chip`: got 16, expected 32, as "),
        "{told}"
    );

    let blocks = [
        "chip",
        "run.toml",
        "-o",
        "blocks.geojson",
        "--split",
        "blocks",
        "--block",
        "32",
    ];
    let blocks = json(&scenario, &blocks, 0);
    assert_eq!(
        blocks["kept"],
        serde_json::json!({ "train": 11, "validation": 2, "test": 2 })
    );
}

#[test]
fn aligned_files_are_trained_on_and_listed() {
    let scenario = Scenario::new();
    scenario.write_highres("fine.tif", |_, _| false);
    let align = [
        "align",
        "--onto",
        "image.tif",
        "--highres",
        "fine.tif",
        "--mask",
        "mask.tif",
        "-o",
        "out",
    ];
    let made = json(&scenario, &align, 0);
    assert_eq!(
        (
            &made["files"][0]["resampling"],
            &made["files"][1]["resampling"]
        ),
        (&"area".into(), &"nearest".into())
    );
    let index = fs::read_to_string(scenario.path("out/index.geojson")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    let features = index["features"].as_array().unwrap();
    assert_eq!(features.len(), 2);
    let corner = &features[0]["geometry"]["coordinates"][0][0];
    // 330000, 5822040 in zone 33 by PROJ 9.5.
    let apart = |at: usize, degrees: f64| (corner[at].as_f64().unwrap() - degrees).abs();
    assert!(
        apart(0, 12.494_241_106) < 1e-8 && apart(1, 52.521_910_140) < 1e-8,
        "{corner}"
    );
    // In its place already, so that nothing changes.
    for name in ["fine.tif", "mask.tif"] {
        let samples = |path: &str| {
            let source = terrashard_raster::open(scenario.path(path)).unwrap();
            source
                .read_window(source.metadata().window())
                .unwrap()
                .into_samples()
        };
        assert!(samples(name) == samples(&format!("out/{name}")), "{name}");
    }
    let twice = scenario.terrashard(&[
        "align",
        "--onto",
        "image.tif",
        "--mask",
        "out/mask.tif",
        "-o",
        "out",
    ]);
    let told = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(
        told.contains("another file than those that are read"),
        "{told}"
    );
}

#[test]
fn geo_38_a_scene_of_another_size_is_told_with_both_medians() {
    let scenario = Scenario::new();
    let fit = [
        "fit",
        "run.toml",
        "--quiet",
        "--run",
        "run",
        "--set",
        "train.steps=1",
    ];
    assert!(scenario.terrashard(&fit).status.success());
    let saved = fs::read_to_string(scenario.path("run/config.toml")).unwrap();
    let saved: toml::Table = saved.parse().unwrap();
    let medians: Vec<f64> = saved["data"]["medians"]
        .as_array()
        .unwrap()
        .iter()
        .map(|median| median.as_float().unwrap())
        .collect();
    let stats = json(&scenario, &["stats", "run.toml"], 0);
    for (band, median) in medians.iter().enumerate() {
        let of_training = &stats["parts"][1]["bands"][band]["percentiles"][4];
        assert!(
            (of_training.as_f64().unwrap() - median).abs() < 1e-6,
            "{of_training} and {median}"
        );
    }
    assert!(
        scenario
            .terrashard(&["export", "run", "-o", "model.safetensors"])
            .status
            .success()
    );
    for checkpoint in ["run", "model.safetensors"] {
        let predict = |offset: &[&str]| {
            let arguments = [
                "predict",
                "image.tif",
                "-o",
                "map.tif",
                "--quiet",
                "--checkpoint",
                checkpoint,
            ];
            let output = scenario.terrashard(&[&arguments[..], offset].concat());
            (
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        let (code, told) = predict(&[]);
        assert!(code == Some(0) && !told.contains("the median of"), "{told}");
        let (code, told) = predict(&["--offset", "60000"]);
        assert!(
            code == Some(0) && told.contains("the median of band 1 is a reflectance of 6."),
            "{told}"
        );
        assert!(
            told.contains("it was 0.0") && told.contains("more than 10 times apart"),
            "{told}"
        );
        let (code, told) = predict(&["--offset", "auto"]);
        assert!(
            code == Some(2) && told.contains("give the offset as a number"),
            "{told}"
        );
    }
}
