//! A run that ends and goes on is the run that did not end.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use terrashard_checkpoint::{Checkpoint, Kind};

use crate::scenario::{SCALE, Scenario, WIDTH};

fn losses(scenario: &Scenario, run: &str) -> Vec<f64> {
    scenario
        .run(run)
        .steps()
        .unwrap()
        .iter()
        .map(|step| step.loss)
        .collect()
}

/// All values of all tensors of a kind, with their names.
fn values(scenario: &Scenario, run: &str, kind: Kind) -> Vec<(String, Vec<f32>)> {
    let checkpoint = Checkpoint::open(scenario.path(run)).unwrap();
    let tensors = checkpoint.tensors().filter(|tensor| tensor.kind == kind);
    let read = |name: &str| checkpoint.read_whole(name, kind).unwrap();
    let floats = |bytes: Vec<u8>| {
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|chunk| f32::from_le_bytes(*chunk))
            .collect()
    };
    tensors
        .map(|tensor| (tensor.name.clone(), floats(read(&tensor.name))))
        .collect()
}

/// What the checkpoint after a step is ranked by.
fn score(scenario: &Scenario, run: &str, step: u64) -> f64 {
    let folder = scenario.run(run).checkpoints();
    let folder = terrashard_checkpoint::step_folder(folder, step);
    let checkpoint = Checkpoint::open(folder).unwrap();
    checkpoint.state().score.unwrap()
}

#[test]
fn a_run_that_was_interrupted_ranks_its_checkpoints_as_one_that_was_not() {
    let scenario = Scenario::new();
    for (every, due) in [(2, &[4, 6][..]), (4, &[4, 6]), (0, &[6])] {
        let every = format!("checkpoint.every={every}");
        let [whole, parts] = ["whole", "parts"].map(|name| format!("{name}-{every}"));
        scenario.fit(&whole, None, &[&every]);
        scenario.fit(&parts, Some(1), &[&every]);
        scenario.fit(&parts, Some(3), &[&every]);
        scenario.fit(&parts, None, &[&every]);
        let losses = losses(&scenario, &whole);
        assert_eq!(losses, self::losses(&scenario, &parts), "{every}");
        let mean = |range: std::ops::Range<usize>| {
            let count = range.len() as f64;
            losses[range].iter().sum::<f64>() / count
        };
        for &step in due {
            let expected = match (every.as_str(), step) {
                ("checkpoint.every=2", step) => mean(step as usize - 2..step as usize),
                ("checkpoint.every=4", 4) => mean(0..4),
                ("checkpoint.every=4", _) => mean(4..6),
                _ => mean(0..6),
            };
            let found = score(&scenario, &whole, step);
            assert!((found - expected).abs() < 1e-12, "{every}, step {step}");
            assert_eq!(
                found,
                score(&scenario, &parts, step),
                "{every}, step {step}"
            );
        }
        // That of the interruption is the mean as far as it had come.
        let begun = if every == "checkpoint.every=2" { 2 } else { 0 };
        let interrupted = score(&scenario, &parts, 3);
        assert!((interrupted - mean(begun..3)).abs() < 1e-12, "{every}");
    }
}

#[test]
fn bit_by_bit_at_the_same_rank_count() {
    for (ranks, stage) in [(1, 0), (2, 0), (2, 1), (3, 2)] {
        let scenario = Scenario::new();
        let (ranks, stage) = (format!("zero.ranks={ranks}"), format!("zero.stage={stage}"));
        let settings = [ranks.as_str(), stage.as_str()];
        scenario.fit("whole", None, &settings);
        let first = scenario.fit("parts", Some(3), &settings);
        assert_eq!((first.resumed_from_step, first.last_step), (None, 3));
        let second = scenario.fit("parts", None, &settings);
        assert_eq!((second.resumed_from_step, second.last_step), (Some(3), 6));

        assert_eq!(
            losses(&scenario, "whole"),
            losses(&scenario, "parts"),
            "{settings:?}"
        );
        let file = |run: &str| {
            let folder = scenario.run(run).checkpoints().join("step-000006");
            fs::read(folder.join("rank-00000.safetensors")).unwrap()
        };
        assert_eq!(file("whole"), file("parts"), "{settings:?}");
    }
}

/// All that a checkpoint has to bring back: moving averages, the loss scale, masks of dropout, flips, what of an epoch is left, and
/// states in host memory.
#[test]
fn c2_bit_by_bit_with_all_that_there_is_to_bring_back() {
    let cases: [(u64, &[&str]); 4] = [
        (
            6,
            &[
                "zero.ranks=2",
                "zero.stage=3",
                "train.ema=0.9",
                "model.dropout=0.3",
                "model.drop_path=0.2",
            ],
        ),
        (
            6,
            &[
                "zero.ranks=2",
                "zero.stage=1",
                "zero.offload=optimizer",
                "train.precision=fp16",
                "train.accumulate=3",
            ],
        ),
        (
            6,
            &[
                "zero.ranks=3",
                "zero.stage=3",
                "zero.offload=parameters",
                "train.precision=bf16",
                "train.batch_norm=local",
            ],
        ),
        // The last step has what is left of the epochs.
        (5, &["zero.ranks=2", "zero.stage=2", "train.optimizer=sgd"]),
    ];
    for (last, settings) in cases {
        let scenario = Scenario::new();
        let mut settings = settings.to_vec();
        if last == 5 {
            let text = fs::read_to_string(scenario.path("run.toml")).unwrap();
            let text = text.replace("steps = 6", "epochs = 2");
            fs::write(scenario.path("run.toml"), text).unwrap();
            settings.push("data.selection.min_valid=0.1");
        }
        let whole = scenario.fit("whole", None, &settings);
        assert_eq!(whole.last_step, last, "{settings:?}");
        scenario.fit("parts", Some(3), &settings);
        scenario.fit("parts", None, &settings);
        assert_eq!(
            losses(&scenario, "whole"),
            losses(&scenario, "parts"),
            "{settings:?}"
        );
        let open = |run: &str| Checkpoint::open(scenario.path(run)).unwrap();
        let (whole, parts) = (open("whole"), open("parts"));
        // Loss scale, applied steps and cursor among it.
        assert_eq!(whole.state(), parts.state(), "{settings:?}");
        let tensors: Vec<_> = whole.tensors().collect();
        assert!(parts.tensors().eq(tensors.iter().copied()));
        for tensor in tensors {
            let read =
                |checkpoint: &Checkpoint| checkpoint.read_whole(&tensor.name, tensor.kind).unwrap();
            assert!(read(&whole) == read(&parts), "{settings:?}: {tensor:?}");
        }
    }
}

#[test]
fn at_other_rank_counts_and_stages() {
    let scenario = Scenario::new();
    // Samples large enough for several keys in the deepest attention, and no batch-norm in the head, which would make many
    // gradients zero in mathematics.
    let fit = |run: &str, stop, settings: &[&str]| {
        let larger = [
            "data.chip=48",
            "data.stride=4",
            "model.head_norm=none",
            "model.dropout=0.3",
            "model.drop_path=0.2",
            "train.steps=15",
        ];
        scenario.fit(run, Some(stop), &[&larger[..], settings].concat());
    };
    // Biases begin at zero, and AdamW's first steps are but signs of gradients: compare runs that have left that behind.
    fit("base", 12, &["zero.ranks=1"]);
    let from = "checkpoint.resume=base";
    fit("whole", 15, &["zero.ranks=1", from]);
    fit("parts", 13, &["zero.ranks=4", "zero.stage=2", from]);
    fit("parts", 14, &["zero.ranks=2", "zero.stage=0"]);
    fit("parts", 15, &["zero.ranks=3", "zero.stage=1"]);
    for (whole, parts) in losses(&scenario, "whole")
        .iter()
        .zip(losses(&scenario, "parts"))
    {
        assert!(
            (whole - parts).abs() <= 1e-5 * whole.abs(),
            "{whole} and {parts}"
        );
    }
    // Where the gradient is zero in mathematics, AdamW turns rounding noise into steps: such elements, told by their second
    // moment, are held to what the steps can make of them.
    let largest = values(&scenario, "whole", Kind::V)
        .iter()
        .flat_map(|(_, v)| v.clone())
        .fold(0.0, f32::max);
    let tensors = values(&scenario, "whole", Kind::Parameter)
        .into_iter()
        .zip(values(&scenario, "whole", Kind::V));
    for (((name, whole), (_, v)), (_, parts)) in
        tensors.zip(values(&scenario, "parts", Kind::Parameter))
    {
        let (mut difference, mut norm) = (0.0, 0.0);
        for ((whole, parts), v) in whole.iter().zip(&parts).zip(&v) {
            let apart = f64::from(whole - parts);
            if *v < 1e-12 * largest {
                assert!(apart.abs() <= 2.0 * 1e-3 * 3.0, "{name}: {apart:e}");
            } else {
                difference += apart.powi(2);
                norm += f64::from(*whole).powi(2);
            }
        }
        assert!(
            difference.sqrt() <= 1e-5 * norm.sqrt(),
            "{name}: {:e}",
            (difference / norm).sqrt()
        );
    }
}

#[test]
fn a_changed_pixel_changes_the_loss() {
    let scenario = Scenario::new();
    scenario.fit("before", Some(1), &[]);
    scenario.write_mask("mask.tif", WIDTH * SCALE, |x, _| u8::from(x % 7 == 0));
    scenario.fit("after", Some(1), &[]);
    assert_ne!(losses(&scenario, "before"), losses(&scenario, "after"));
}

/// The files of a run with their contents and times.
fn state(scenario: &Scenario, run: &str) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let mut files: Vec<PathBuf> = fs::read_dir(scenario.path(run))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let read = |path: PathBuf| {
        let time = path.metadata().unwrap().modified().unwrap();
        (path.clone(), fs::read(path).unwrap(), time)
    };
    files.into_iter().map(read).collect()
}

#[test]
fn where_no_step_is_left_nothing_is_written() {
    let scenario = Scenario::new();
    let fit = |arguments: &[&str]| {
        let output =
            scenario.terrashard(&[&["fit", "run.toml", "--run", "run"], arguments].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), message)
    };
    let (code, message) = fit(&["--stop-after", "0"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("--stop-after"), "{message}");
    assert!(!scenario.path("run").exists());

    assert_eq!(fit(&["--quiet"]).0, Some(0));
    let before = state(&scenario, "run");
    // The configuration, two records, an event file, two reports and the lock.
    assert_eq!(before.len(), 7);
    for arguments in [&[][..], &["--ranks", "2"], &["--stop-after", "3"]] {
        let (code, message) = fit(arguments);
        assert_eq!(code, Some(0), "{message}");
        assert!(
            message.contains("nothing to do: the checkpoint is at step 6"),
            "{message}"
        );
        assert_eq!(state(&scenario, "run"), before, "{arguments:?}");
    }
}

/// How fast and how it is sharded may change on the way, but not unseen.
#[test]
fn settings_that_changed_are_told_with_what_they_were() {
    let scenario = Scenario::new();
    scenario.fit("run", Some(1), &[]);
    let told = |arguments: &[&str]| {
        let fit = ["fit", "run.toml", "--run", "run"];
        let output = scenario.terrashard(&[&fit[..], arguments].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{message}");
        message
    };
    let same = told(&["--stop-after", "2"]);
    assert!(!same.contains("settings changed"), "{same}");
    let changes = ["--set", "train.weight_decay=0.25", "--stage", "1"];
    let changed = told(&[&changes[..], &["--stop-after", "3"]].concat());
    assert!(
        changed.contains("settings changed since step 2: `train.weight_decay` = 0.25, was 0.01; `zero.stage` = 1, was 0\n"),
        "{changed}"
    );
    let quiet = told(&["--quiet"]);
    assert_eq!(quiet, "");
}

#[test]
fn another_training_is_refused() {
    let scenario = Scenario::new();
    scenario.fit("run", Some(1), &[]);
    let check = |arguments: &[&str], expected: &str| {
        let output = scenario
            .terrashard(&[&["fit", "run.toml", "--run", "run", "--quiet"], arguments].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(expected), "{message}");
    };
    check(
        &["--set", "train.seed=8"],
        "`train.seed`: got 8, expected 7",
    );
    let refused = |setting: &str, expected: &str| {
        check(&["--set", setting], expected);
        check(&["--set", setting], "choose another `--run`");
    };
    refused(
        "model.head_channels=16",
        "`model.head_channels`: got 16, expected 8, as in",
    );
    refused("data.chip=48", "`data.chip`: got 48, expected 32, as in");
    refused("data.stride=16", "`data.stride`");
    refused("data.bands=[2, 1]", "`data.bands`");
    refused("data.nodata=0", "`data.nodata`: got 0.0, expected nothing");
    refused("data.scaling.scale=5000.0", "`data.scaling.scale`");
    refused(
        "data.train={ fraction = [0.0, 0.0, 0.4, 1.0] }",
        "`data.train`",
    );
    refused("data.augment=false", "`data.augment`");
    refused("data.selection.min_valid=0.5", "`data.selection.min_valid`");
    refused("train.loss=bce_dice", "`train.loss`");
    refused(
        "train.global_batch=6",
        "`train.global_batch`: got 6, expected 12",
    );
    fs::copy(scenario.path("mask.tif"), scenario.path("other.tif")).unwrap();
    refused(
        "data.scenes=[{ image = \"image.tif\", mask = \"other.tif\" }]",
        "`data.scenes`",
    );
    check(&["--resume", "none"], "already holds checkpoints");
    check(&["--resume", "elsewhere"], "elsewhere");
    // None of these has begun anything.
    assert_eq!(scenario.run("run").session_records().unwrap().len(), 1);
}

#[test]
fn how_it_is_trained_on_may_change() {
    let scenario = Scenario::new();
    scenario.fit("run", Some(1), &[]);
    let settings = [
        "zero.ranks=2",
        "zero.stage=1",
        "train.steps=2",
        "train.lr=1e-4",
        "data.test={ fraction = [0.5, 0.0, 1.0, 0.5] }",
        "data.tile=48",
        "data.overlap=4",
        "log.seconds=1.0",
        "checkpoint.every=1",
    ];
    let session = scenario.fit("run", None, &settings);
    assert_eq!(session.resumed_from_step, Some(1));
    assert_eq!(session.last_step, 2);
}

#[test]
fn dropout_is_part_of_training() {
    let scenario = Scenario::new();
    scenario.fit("plain", Some(1), &[]);
    let plain = losses(&scenario, "plain");
    for rate in ["model.dropout=0.5", "model.drop_path=0.5"] {
        scenario.fit(rate, Some(1), &[rate]);
        assert_ne!(losses(&scenario, rate), plain, "{rate}");
    }
}
