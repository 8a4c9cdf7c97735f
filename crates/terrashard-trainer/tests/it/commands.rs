//! The program as it is called: what it prints, writes and refuses.

use std::fs;

use serde_json::Value;
use terrashard_raster::RasterSource;

use crate::scenario::{HEIGHT, SCALE, Scenario, TRANSFORM, U8, WIDTH};

#[track_caller]
fn succeed(scenario: &Scenario, arguments: &[&str]) -> String {
    let output = scenario.terrashard(arguments);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn from_configuration_to_map_and_report() {
    let scenario = Scenario::new();
    let fit = [
        "fit", "run.toml", "--run", "run", "--ranks", "2", "--stage", "2", "--quiet",
    ];
    succeed(&scenario, &[&fit[..], &["--stop-after", "2"]].concat());
    succeed(&scenario, &fit);

    let text = succeed(
        &scenario,
        &[
            "test",
            "run.toml",
            "--checkpoint",
            "run",
            "--json",
            "--quiet",
        ],
    );
    let test: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        test["valid_pixels"],
        (WIDTH / 2 * HEIGHT * SCALE * SCALE) as u64
    );
    assert_eq!(test["threshold"], 0.5);
    assert_eq!(
        (&test["step"], &test["region"]),
        (&6.into(), &"east".into())
    );
    let recorded = fs::read(scenario.path("run/test.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&recorded).unwrap(), test);
    // The image does not name its bands.
    assert!(test["baseline"].is_null());

    succeed(&scenario, &["export", "run", "-o", "model.safetensors"]);
    let exported = succeed(
        &scenario,
        &[
            "test",
            "run.toml",
            "--checkpoint",
            "model.safetensors",
            "--json",
            "--quiet",
        ],
    );
    let exported: Value = serde_json::from_str(&exported).unwrap();
    assert_eq!(exported["iou"], test["iou"]);

    for (ranks, checkpoint) in [
        ("1", "run"),
        ("3", "model.safetensors"),
        ("2", "run/checkpoints/step-000006"),
    ] {
        let name = format!("map-{ranks}.tif");
        let predict = [
            "predict",
            "image.tif",
            "-o",
            &name,
            "--checkpoint",
            checkpoint,
            "--ranks",
            ranks,
        ];
        succeed(&scenario, &[&predict[..], &["--quiet"]].concat());
    }
    let map = |name: &str| fs::read(scenario.path(name)).unwrap();
    assert_eq!(map("map-1.tif"), map("map-3.tif"));
    assert_eq!(map("map-1.tif"), map("map-2.tif"));

    let map = terrashard_raster::open(scenario.path("map-1.tif")).unwrap();
    let metadata = map.metadata();
    assert_eq!(
        (metadata.width, metadata.height),
        (WIDTH * SCALE, HEIGHT * SCALE)
    );
    assert_eq!((metadata.data_type, metadata.nodata), (U8, Some(255.0)));
    assert_eq!(metadata.georeference.epsg, Some(32633));
    let transform = metadata.georeference.transform.unwrap();
    let size = (metadata.width, metadata.height);
    assert!(transform.corner_distance(size, &TRANSFORM, (WIDTH, HEIGHT)) < 1e-9);

    succeed(
        &scenario,
        &["report", "run", "--out", "out", "--prediction", "map-1.tif"],
    );
    let report: Value =
        serde_json::from_slice(&fs::read(scenario.path("out/report.json")).unwrap()).unwrap();
    assert_eq!(report["resumed_from_step"], 2);
    assert_eq!(
        (&report["ranks"], &report["stage"]),
        (&Value::from(2), &Value::from(2))
    );
    assert_eq!(report["test"]["iou"], test["iou"]);
    let page = fs::read_to_string(scenario.path("out/report.html")).unwrap();
    // Image, label and prediction, whole and in detail, and what was drawn at steps 2, 4 and 6; nothing from elsewhere.
    assert_eq!(page.matches("data:image/png;base64,").count(), 9);
    assert!(!page.contains("http"));
}

/// A call of `fit` says at its start what it begins, and nothing at all where it is to be quiet.
#[test]
fn a_fit_says_what_it_begins() {
    let scenario = Scenario::new();
    let fit = |arguments: &[&str]| {
        let fit = ["fit", "run.toml", "--run", "run"];
        let output = scenario.terrashard(&[&fit[..], arguments].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{message}");
        message
    };
    let first = |message: &str| message.lines().next().unwrap().to_string();
    let afresh = first(&fit(&["--stop-after", "2"]));
    let session = &scenario.run("run").session_records().unwrap()[0];
    let (parameters, samples) = (session.parameters, session.samples);
    let expected =
        format!("training {parameters} parameters on {samples} samples, 1 rank at stage 0");
    assert_eq!(afresh, expected);
    let ranks = ["--ranks", "2", "--stage", "1", "--stop-after", "3"];
    let resumed = first(&fit(&ranks));
    assert!(
        resumed.ends_with("samples, 2 ranks at stage 1, resumed from step 2"),
        "{resumed}"
    );
    assert_eq!(fit(&["--quiet"]), "");
}

/// `test.json` tells what was measured on, whatever it was.
#[test]
fn a_test_on_other_data_is_recorded_as_such() {
    let scenario = Scenario::new();
    let fit = ["fit", "run.toml", "--run", "run", "--stop-after", "1"];
    succeed(&scenario, &[&fit[..], &["--quiet"]].concat());
    fs::copy(scenario.path("image.tif"), scenario.path("other.tif")).unwrap();
    let check = |setting: &str, expected: &str| {
        let test = ["test", "run.toml", "--checkpoint", "run", "--set", setting];
        succeed(&scenario, &[&test[..], &["--quiet"]].concat());
        let recorded = fs::read(scenario.path("run/test.json")).unwrap();
        let recorded: Value = serde_json::from_slice(&recorded).unwrap();
        assert_eq!(recorded["region"], expected);
        assert_eq!(recorded["step"], 1);
    };
    check("data.tile=48", "east");
    check(
        "data.test={ fraction = [0.5, 0.0, 1.0, 0.5] }",
        "{ fraction = [0.5, 0.0, 1.0, 0.5] }",
    );
    let scene = "{ image = \"other.tif\", mask = \"mask.tif\" }";
    check(&format!("data.scenes=[{scene}]"), "east of other.tif");
}

#[test]
fn bands_of_single_files_are_one_scene() {
    let scenario = Scenario::new();
    succeed(
        &scenario,
        &[
            "fit",
            "run.toml",
            "--run",
            "run",
            "--quiet",
            "--stop-after",
            "1",
        ],
    );
    let predict = |input: &[&str], output: &str| {
        succeed(
            &scenario,
            &[
                &["predict", "-o", output, "--checkpoint", "run", "--quiet"],
                input,
            ]
            .concat(),
        );
        fs::read(scenario.path(output)).unwrap()
    };
    let whole = predict(&["image.tif"], "whole.tif");
    assert_eq!(
        predict(&["--bands", "B02=image.tif:1,B03=image.tif:2"], "parts.tif"),
        whole
    );
    assert_ne!(
        predict(
            &["--bands", "B02=image.tif:2,B03=image.tif:1"],
            "swapped.tif"
        ),
        whole
    );
}

/// Each is one line that names the file or key and the remedy, exit code 2, and leaves no run behind.
#[test]
fn bad_input_is_refused_in_one_line() {
    let scenario = Scenario::new();
    let image = fs::read(scenario.path("image.tif")).unwrap();
    fs::write(scenario.path("short.tif"), &image[..image.len() / 2]).unwrap();
    scenario.write_image("one.tif", 1);
    scenario.write_mask("narrow.tif", WIDTH * SCALE - 5, |_, _| 0);
    scenario.write_mask("seven.tif", WIDTH * SCALE, |x, y| {
        if (x, y) == (31, 9) { 7 } else { 0 }
    });

    let check = |setting: &str, expected: &[&str]| {
        let output = scenario.terrashard(&["fit", "run.toml", "--run", "run", "--set", setting]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{setting}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.starts_with("error: "), "{message}");
        for part in expected {
            assert!(
                message.contains(part),
                "{setting}: `{part}` is not in: {message}"
            );
        }
        assert!(!scenario.path("run").exists(), "{setting} has left a run");
    };
    let scene = |image: &str, mask: &str| {
        format!("data.scenes=[{{ image = \"{image}\", mask = \"{mask}\" }}]")
    };
    check(
        &scene("none.tif", "mask.tif"),
        &["none.tif", "no such file", "check the path"],
    );
    check(
        &scene("short.tif", "mask.tif"),
        &["short.tif", "truncated", "download or copy it again"],
    );
    check(
        &scene("one.tif", "mask.tif"),
        &["one.tif", "expected 2 bands, found 1"],
    );
    check(
        &scene("image.tif", "narrow.tif"),
        &["narrow.tif", "635 x 320", "640 x 320"],
    );
    check(
        &scene("image.tif", "seven.tif"),
        &["seven.tif", "value 7 at column 31, row 9", "relabel"],
    );
    check("train.stpes=3", &["`train.stpes`", "`train.steps`"]);
    check(
        "zero.ranks=500",
        &[
            "500 ranks",
            "lower `zero.ranks`",
            "by a smaller `data.stride` [trainer::TooFewSamples]\n",
        ],
    );
    check("train.micro_batch=5", &["train.global_batch", "multiple"]);
    check(
        "model.superres=true",
        &[
            "`data.scenes`",
            "image.tif without `highres`",
            "or set `model.superres = false`",
        ],
    );
    check(
        "model.classes=3",
        &[
            "`train.loss`: got focal",
            "`cross_entropy_dice`, since `model.classes` = 3",
        ],
    );
    check(
        "train.loss=cross_entropy_dice",
        &[
            "`train.loss`",
            "`focal` or `bce_dice`, since `model.classes` = 1",
        ],
    );
    check("data.test=\"west\"", &["`train` and `test` share"]);
    check(
        "zero.offload=parameters",
        &["`zero.offload`", "it needs stage 3 at least"],
    );
}

/// As of `terrashard … | head -1`.
#[test]
fn a_closed_standard_output_is_no_failure() {
    let scenario = Scenario::new();
    let fit = ["fit", "run.toml", "--run", "run", "--stop-after", "1"];
    succeed(&scenario, &[&fit[..], &["--quiet"]].concat());
    for arguments in [
        &["test", "run.toml", "--checkpoint", "run", "--quiet"][..],
        &["info", "image.tif"],
        &["info", "image.tif", "--json"],
        &["export", "run", "-o", "model.safetensors"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = scenario.command(arguments);
        let output = command.stdout(writer).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), message.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
    assert!(scenario.path("run/test.json").exists());
    // Nor is a closed standard error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let fit = [
        "fit",
        "run.toml",
        "--run",
        "run",
        "--set",
        "log.seconds=1e-9",
    ];
    let status = scenario.command(&fit).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_failed_prediction_leaves_no_file() {
    let scenario = Scenario::new();
    succeed(
        &scenario,
        &[
            "fit",
            "run.toml",
            "--run",
            "run",
            "--quiet",
            "--stop-after",
            "1",
        ],
    );
    scenario.write_image("one.tif", 1);
    let check = |arguments: &[&str], expected: &str| {
        let predict = ["predict", "--checkpoint", "run", "-o", "map.tif"];
        let mut command = scenario.command(&[&predict[..], arguments].concat());
        // Whatever GPUs there are, and whatever was built, there is none to compute on.
        let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), message.lines().count()),
            (Some(2), 1),
            "{message}"
        );
        assert!(message.contains(expected), "{message}");
        assert!(!scenario.path("map.tif").exists());
    };
    check(&["one.tif"], "one.tif: expected 2 bands, found 1");
    check(&["none.tif"], "none.tif");
    check(&["image.tif", "--overlap", "32"], "--overlap");
    check(&["image.tif", "--memory", "1MiB"], "--memory");
    check(&[], "IN");
    check(&["--chekpoint", "x"], "see `terrashard help predict`");
    check(&["image.tif", "--device", "cuda"], "`--device cuda`");

    // A map that cannot be written is no wrong use.
    let name = format!("{}.tif", "long".repeat(100));
    for output in [name.as_str(), "mask.tif/map.tif"] {
        let predict = ["predict", "image.tif", "--checkpoint", "run", "--quiet"];
        let output = scenario.terrashard(&[&predict[..], &["-o", output]].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("failed to write"), "{message}");
    }
}

#[test]
fn ranks_that_are_processes_need_gpus_or_a_number() {
    let scenario = Scenario::new();
    let check = |arguments: &[&str], expected: &str| {
        let output = scenario.terrashard(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains(expected) && text.lines().count() == 1,
            "{text}"
        );
    };
    // More than any machine has; on one without a GPU there is none at all.
    let many = ["launch", "-n", "4096", "--", "fit", "run.toml"];
    check(&many, "expected");
    let on_cpu = ["launch", "--", "fit", "run.toml", "--device", "cpu"];
    check(&on_cpu, "`--ranks`: got none, expected a number");
    check(&["launch", "-n", "2"], "COMMAND");
}

#[test]
fn a_launchers_environment_is_taken_at_its_word() {
    let scenario = Scenario::new();
    let check = |variables: &[(&str, &str)], expected: &str| {
        let fit = ["fit", "run.toml", "--run", "run", "--quiet"];
        let mut command = scenario.command(&fit);
        command.env("TERRASHARD_TIMEOUT", "1");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{text}");
        assert!(
            text.contains(expected) && text.lines().count() == 1,
            "{text}"
        );
        assert!(!scenario.path("run").exists());
    };
    check(&[("RANK", "0")], "not WORLD_SIZE");
    let whole = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1"),
    ];
    check(&whole, "the store at 127.0.0.1:1");
    check(&whole[..4], "not MASTER_PORT");
}
