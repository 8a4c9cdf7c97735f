//! Validation between steps: it disturbs nothing, counts what `test` counts, and ranks checkpoints.

use terrashard_checkpoint::{Checkpoint, step_folder, steps};
use terrashard_trainer::config::{Config, Device};
use terrashard_trainer::evaluation::{TestOptions, test};
use terrashard_trainer::record::{Display, TestRecord, ValidationRecord};

use crate::saves::tensors;
use crate::scenario::Scenario;

/// West is trained on, of the east the first half is for validation.
const PARTS: [&str; 2] = [
    "data.validation={ pixels = [64, 0, 32, 64] }",
    "data.test={ pixels = [96, 0, 32, 64] }",
];

fn validated(scenario: &Scenario, run: &str) -> Vec<ValidationRecord> {
    scenario.run(run).validations().unwrap()
}

/// What was found, but for how long it took.
fn figures(mut record: ValidationRecord) -> ValidationRecord {
    record.seconds = 0.0;
    record
}

/// What `test` finds on the part for validation, each window by itself.
fn tested(scenario: &Scenario, checkpoint: &str, settings: &[&str]) -> TestRecord {
    let part = [
        "data.test={ pixels = [64, 0, 32, 64] }",
        "data.tile=32",
        "data.overlap=0",
    ];
    let settings = part.iter().chain(settings).map(|each| each.to_string());
    let settings: Vec<String> = settings.collect();
    let config = Config::load(&scenario.path("run.toml"), &settings).unwrap();
    let options = TestOptions {
        device: Device::Cpu,
        ranks: 1,
        memory: None,
        display: Display::Quiet,
    };
    test(&config, &scenario.path(checkpoint), &options).unwrap()
}

#[test]
fn the_training_is_the_same_with_and_without_it() {
    let scenario = Scenario::new();
    let cases: [&[&str]; 6] = [
        &["zero.ranks=1", "zero.stage=0"],
        &["zero.ranks=2", "zero.stage=2", "train.ema=0.9"],
        &["zero.ranks=3", "zero.stage=3", "train.ema=0.9"],
        &["zero.ranks=2", "zero.stage=3", "zero.offload=parameters"],
        &[
            "zero.ranks=2",
            "zero.stage=3",
            "zero.prefetch=0",
            "train.precision=bf16",
        ],
        &[
            "zero.ranks=2",
            "zero.stage=1",
            "train.batch_norm=average_at_save",
        ],
    ];
    for (index, case) in cases.into_iter().enumerate() {
        let (plain, with) = (format!("plain{index}"), format!("with{index}"));
        scenario.fit(&plain, None, case);
        let settings = [case, &PARTS, &["train.validate_every=1"]].concat();
        scenario.fit(&with, None, &settings);
        for step in [2, 6] {
            let (plain, with) = (
                tensors(&scenario, &plain, step),
                tensors(&scenario, &with, step),
            );
            assert!(plain == with, "{case:?} at step {step}");
        }
        let steps: Vec<u64> = validated(&scenario, &with)
            .iter()
            .map(|each| each.step)
            .collect();
        assert_eq!(steps, [1, 2, 3, 4, 5, 6], "{case:?}");
        assert!(validated(&scenario, &plain).is_empty());
    }
}

#[test]
fn figures_are_those_of_test_at_any_rank_count_and_stage() {
    let scenario = Scenario::new();
    let model = "model.head_norm=none";
    scenario.fit("trained", None, &[model, "train.steps=30", "train.lr=1e-2"]);
    let from = scenario.path("trained").display().to_string();
    let (from, expected) = (
        format!("checkpoint.resume={from}"),
        tested(&scenario, "trained", &[model]),
    );
    // A constant map would tell nothing.
    let iou = expected.scores.iou.unwrap();
    assert!((0.01..0.999).contains(&iou), "{iou}");
    for (ranks, stage) in [(1, 0), (2, 2), (2, 3), (3, 1), (3, 3), (4, 0)] {
        let run = format!("run{ranks}{stage}");
        let (ranks, stage) = (format!("zero.ranks={ranks}"), format!("zero.stage={stage}"));
        // A step that changes nothing, and windows that do not overlap.
        let settings = [
            &*from,
            model,
            &ranks,
            &stage,
            "train.steps=31",
            "train.lr=1e-30",
        ];
        let settings = [&settings[..], &PARTS, &["data.overlap=0"]].concat();
        scenario.fit(&run, None, &settings);
        let found = validated(&scenario, &run);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].step, found[0].averages), (31, false));
        assert_eq!(found[0].valid_pixels, expected.valid_pixels);
        let [ours, theirs] = [&found[0].scores, &expected.scores].map(|scores| {
            [
                scores.iou,
                scores.f1,
                scores.precision,
                scores.recall,
                scores.prevalence,
            ]
        });
        assert_eq!(ours, theirs, "{settings:?}");
    }
}

/// Windows that overlap share their pixels out: each is counted once.
#[test]
fn each_pixel_counts_once() {
    let scenario = Scenario::new();
    let counted = |run: &str, more: &[&str]| {
        scenario.fit(run, Some(1), &[&PARTS[..], more].concat());
        validated(&scenario, run)[0].valid_pixels
    };
    let all = 32 * 64 * 25;
    assert_eq!(counted("apart", &["data.overlap=0"]), all);
    assert_eq!(counted("overlap", &["data.tile=20", "data.overlap=7"]), all);
    assert_eq!(
        counted(
            "larger",
            &["data.tile=64", "data.overlap=9", "zero.ranks=3"]
        ),
        all
    );
}

#[test]
fn the_averages_are_measured_where_they_are_kept() {
    let scenario = Scenario::new();
    for (ranks, stage) in [(1, 0), (2, 1), (3, 3)] {
        let run = format!("run{stage}");
        let (of_ranks, of_stage) = (format!("zero.ranks={ranks}"), format!("zero.stage={stage}"));
        let settings = [
            "train.ema=0.8",
            "train.steps=20",
            "train.lr=1e-2",
            "data.overlap=0",
        ];
        let settings = [&settings[..], &[&*of_ranks, &*of_stage], &PARTS].concat();
        scenario.fit(&run, None, &settings);
        let export = ["export", &*run, "-o", "ema.safetensors", "--ema"];
        let exported = scenario.terrashard(&export);
        assert!(exported.status.success(), "{exported:?}");
        let found = validated(&scenario, &run).pop().unwrap();
        assert!(found.averages);
        let expected = tested(&scenario, "ema.safetensors", &[]);
        assert_eq!(found.scores.iou, expected.scores.iou, "stage {stage}");
        assert_eq!(found.scores.precision, expected.scores.precision);
        std::fs::remove_file(scenario.path("ema.safetensors")).unwrap();
    }
}

#[test]
fn checkpoints_are_ranked_by_what_is_measured() {
    let scenario = Scenario::new();
    let settings = [
        "checkpoint.every=2",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=2",
        "checkpoint.best_by=recall",
        "train.steps=12",
        "train.lr=1e-2",
        "zero.ranks=2",
        "zero.stage=1",
    ];
    scenario.fit("run", None, &[&settings[..], &PARTS].concat());
    let found = validated(&scenario, "run");
    let measured: Vec<u64> = found.iter().map(|each| each.step).collect();
    assert_eq!(measured, [2, 4, 6, 8, 10, 12]);
    let recall = |record: &ValidationRecord| record.scores.recall.unwrap();
    let mut ranked: Vec<&ValidationRecord> = found.iter().collect();
    // Of equal ones the newer stays.
    ranked.sort_by(|a, b| recall(b).total_cmp(&recall(a)).then(b.step.cmp(&a.step)));
    let mut kept = vec![ranked[0].step, ranked[1].step, 12];
    kept.sort_unstable();
    kept.dedup();
    let root = scenario.run("run").checkpoints();
    assert_eq!(steps(&root).unwrap(), kept, "{found:?}");
    let best = Checkpoint::open(step_folder(&root, ranked[0].step)).unwrap();
    assert_eq!(best.state().score, Some(1.0 - recall(ranked[0])));
    assert_eq!(
        best.state().values["validation"]["recall"],
        recall(ranked[0])
    );
    let listed = scenario.terrashard(&["ckpt", "ls", "run", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let last = listed["checkpoints"].as_array().unwrap().last().unwrap();
    assert_eq!(last["iou"], found[5].scores.iou.unwrap());
}

#[test]
fn a_run_that_goes_on_has_each_validation_once() {
    let scenario = Scenario::new();
    let settings = [&PARTS[..], &["train.validate_every=1"]].concat();
    scenario.fit("whole", None, &settings);
    // Saved at 2 and 4; what was measured after the checkpoint is measured again.
    scenario.fit("parts", Some(4), &settings);
    let root = scenario.run("parts").checkpoints();
    std::fs::write(root.join("latest"), "step-000002").unwrap();
    scenario.fit("parts", None, &settings);
    let [whole, parts] = ["whole", "parts"].map(|run| {
        let found = validated(&scenario, run).into_iter();
        found.map(figures).collect::<Vec<_>>()
    });
    assert_eq!(parts, whole);
    assert_eq!(parts.len(), 6);
    // Whether and when it is done may change.
    scenario.fit("parts", None, &["train.steps=7"]);
    assert_eq!(validated(&scenario, "parts").len(), 6);
}

#[test]
fn a_user_sees_it() {
    let scenario = Scenario::new();
    let mut arguments = vec!["fit", "run.toml", "--run", "run"];
    arguments.extend(PARTS.iter().flat_map(|part| ["--set", *part]));
    let epochs = ["--set", "train.epochs=3", "--set", "train.steps=1"];
    let both = scenario.terrashard(&[&arguments[..], &epochs].concat());
    assert_eq!(both.status.code(), Some(2));
    let fitted =
        scenario.terrashard(&[&arguments[..], &["--set", "train.validate_every=3"]].concat());
    let told =
        String::from_utf8(fitted.stderr).unwrap() + &String::from_utf8(fitted.stdout).unwrap();
    assert!(fitted.status.success(), "{told}");
    for step in [3, 6] {
        let line = format!("step {step}: validation iou ");
        assert!(told.contains(&line), "{told}");
    }
    let page = std::fs::read_to_string(scenario.path("run/report.html")).unwrap();
    assert!(page.contains("<h2>Validation</h2>") && page.contains("validation IoU"));
    let report = std::fs::read_to_string(scenario.path("run/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["validation"]["step"], 6);
}

#[test]
fn what_is_not_measured_ranks_nothing() {
    let scenario = Scenario::new();
    let refused = |settings: &[&str], expected: &[&str]| {
        let mut arguments = vec!["fit", "run.toml", "--run", "run"];
        arguments.extend(settings.iter().flat_map(|each| ["--set", *each]));
        let output = scenario.terrashard(&arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        for expected in expected {
            assert!(told.contains(expected), "{told}");
        }
        assert!(!scenario.path("run").exists());
    };
    let best = "checkpoint.best_by=iou";
    refused(
        &[best],
        &[
            "`checkpoint.best_by`: got iou",
            "loss",
            "data.validation",
            "f1",
        ],
    );
    refused(
        &["train.validate_every=5"],
        &["`train.validate_every`: got 5", "set `data.validation`"],
    );
    let [validation, test] = PARTS;
    refused(
        &[validation, test, "checkpoint.best_by=kappa"],
        &["got kappa", "iou", "recall"],
    );
    refused(
        &[validation, test, "train.validate_every=0"],
        &["train.validate_every", "at least 1"],
    );
    refused(&[validation], &["validation", "test"]);
}
