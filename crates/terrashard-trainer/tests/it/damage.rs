//! Checkpoints that are damaged: skipped, refused by name, or taken in part. None of it changes the run.

use std::fs;
use std::path::PathBuf;

use terrashard_checkpoint::{Checkpoint, Kind};

use crate::scenario::Scenario;

/// A run of 6 steps with checkpoints at 2, 4 and 6; a byte of one of its files changes.
struct Damaged {
    scenario: Scenario,
}

const FIT: [&str; 4] = ["fit", "run.toml", "--run", "run"];

impl Damaged {
    fn new(settings: &[&str]) -> Self {
        let scenario = Scenario::new();
        scenario.fit("run", None, settings);
        Self { scenario }
    }

    fn step(&self, step: u64) -> PathBuf {
        let root = self.scenario.run("run").checkpoints();
        terrashard_checkpoint::step_folder(root, step)
    }

    /// Changes the last byte of a tensor.
    fn flip(&self, step: u64, name: &str, kind: &str) {
        let folder = self.step(step);
        let text = fs::read(folder.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let mut entries = manifest["tensors"].as_array().unwrap().iter();
        let entry = entries.find(|entry| entry["name"] == name && entry["kind"] == kind);
        let piece = entry.unwrap()["pieces"].as_array().unwrap().last().unwrap();
        let path = folder.join(piece["file"].as_str().unwrap());
        let mut bytes = fs::read(&path).unwrap();
        bytes[piece["bytes"][1].as_u64().unwrap() as usize - 1] ^= 0x40;
        fs::write(path, bytes).unwrap();
    }

    /// Changes the text of a manifest, state and all.
    fn edit(&self, step: u64, from: &str, to: &str) {
        let path = self.step(step).join("manifest.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    /// What lies in the run, but for the lock.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = [
            "config.toml",
            "metrics.jsonl",
            "sessions.jsonl",
            "checkpoints/latest",
        ];
        let read = |name: &str| {
            let path = self.scenario.path("run").join(name);
            (path.clone(), fs::read(path).unwrap())
        };
        files.map(read).to_vec()
    }

    /// Goes on to step 7 with these arguments; the exit code and what was told.
    fn go_on(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let more = ["--set", "train.steps=7", "--set", "log.seconds=9.0"];
        let output = self
            .scenario
            .terrashard(&[&FIT[..], &more, arguments].concat());
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// It is refused by a line with these parts, and nothing has changed.
    #[track_caller]
    fn refused(&self, arguments: &[&str], expected: &[&str]) {
        let before = self.files();
        let (code, told) = self.go_on(arguments);
        assert_eq!((code, told.lines().count()), (Some(2), 1), "{told}");
        for part in expected {
            assert!(told.contains(part), "`{part}` is not in: {told}");
        }
        assert!(self.files() == before, "the run has changed: {told}");
    }
}

#[test]
fn a_damaged_newest_is_skipped_with_one_warning() {
    let run = Damaged::new(&["zero.ranks=2", "zero.stage=2"]);
    run.scenario.fit("whole", None, &["train.steps=7"]);
    run.flip(6, "tail.head.cls.weight", "v");
    let (code, told) = run.go_on(&["--ranks", "2", "--stage", "2"]);
    assert_eq!(code, Some(0), "{told}");
    let warnings: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("warning: "))
        .collect();
    assert_eq!(warnings.len(), 1, "{told}");
    for part in [
        "step-000006",
        "is damaged",
        "v `tail.head.cls.weight`",
        "going on from step 4",
    ] {
        assert!(warnings[0].contains(part), "{told}");
    }
    let sessions = run.scenario.run("run").session_records().unwrap();
    assert_eq!(
        (sessions[1].resumed_from_step, sessions[1].last_step),
        (Some(4), 7)
    );
    // What it makes of steps 5 and 6 takes the place of what was damaged.
    Checkpoint::open(run.step(6)).unwrap().verify().unwrap();
    let steps: Vec<u64> = run
        .scenario
        .run("run")
        .steps()
        .unwrap()
        .iter()
        .map(|step| step.step)
        .collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn the_newest_that_is_whole_is_taken_whatever_is_wrong_with_the_others() {
    let check = |damage: &dyn Fn(&Damaged), from: u64, expected: &str| {
        let run = Damaged::new(&[]);
        damage(&run);
        let (code, told) = run.go_on(&["--quiet"]);
        assert_eq!((code, told.lines().count()), (Some(0), 1), "{told}");
        assert!(
            told.contains(expected) && told.contains(&format!("from step {from}")),
            "{told}"
        );
    };
    let remove =
        |run: &Damaged, step, name: &str| fs::remove_file(run.step(step).join(name)).unwrap();
    check(
        &|run| remove(run, 6, "rank-00000.safetensors"),
        4,
        "rank-00000.safetensors is missing",
    );
    check(
        &|run| remove(run, 6, "manifest.json"),
        4,
        "latest names \"step-000006\"",
    );
    check(
        &|run| {
            let path = run.step(6).join("manifest.json");
            let text = fs::read(&path).unwrap();
            fs::write(path, &text[..text.len() / 2]).unwrap();
            run.flip(4, "stages.0.embed.bias", "m");
        },
        2,
        "manifest.json is truncated or damaged",
    );
    check(
        &|run| fs::write(run.scenario.path("run/checkpoints/latest"), "step-0").unwrap(),
        6,
        "latest names \"step-0\"",
    );
}

#[test]
fn what_is_asked_for_by_name_and_a_run_without_a_whole_one_are_refused() {
    let run = Damaged::new(&["checkpoint.keep_last=1"]);
    run.flip(6, "stages.3.norm.bias", "m");
    let expected = [
        "step-000006/rank-00000.safetensors is damaged",
        "m `stages.3.norm.bias`",
    ];
    run.refused(&[], &expected);
    run.refused(&["--resume", "run"], &expected);
    run.refused(&["--resume", "run/checkpoints/step-000006"], &expected);
    fs::remove_file(run.step(6).join("rank-00000.safetensors")).unwrap();
    run.refused(&[], &["rank-00000.safetensors is missing, it holds"]);
    run.edit(6, "\"version\":1", "\"version\":2");
    run.refused(&[], &["format version 2", "update terrashard"]);
    run.refused(
        &["--allow-partial"],
        &["format version 2", "update terrashard"],
    );
    fs::write(run.step(6).join("manifest.json"), "{\"format\":\"terr").unwrap();
    run.refused(
        &["--allow-partial"],
        &["manifest.json is truncated or damaged"],
    );
}

#[test]
fn a_newer_format_is_not_skipped() {
    let run = Damaged::new(&[]);
    run.edit(6, "\"version\":1", "\"version\":2");
    run.refused(
        &[],
        &["step-000006", "format version 2", "update terrashard"],
    );
}

#[test]
fn c11_a_renamed_parameter_is_refused_by_both_names() {
    let run = Damaged::new(&[]);
    run.edit(
        6,
        "\"name\":\"tail.head.cls.bias\"",
        "\"name\":\"tail.head.out.bias\"",
    );
    let expected = [
        "missing: parameter `tail.head.cls.bias`",
        "unexpected: parameter `tail.head.out.bias`",
    ];
    run.refused(&[], &expected);
}

/// The values of a tensor of a checkpoint.
fn values(run: &Damaged, step: u64, name: &str, kind: Kind) -> Vec<u8> {
    Checkpoint::open(run.step(step))
        .unwrap()
        .read_whole(name, kind)
        .unwrap()
}

#[test]
fn what_there_is_is_taken_where_that_is_wanted_and_each_loss_named() {
    let run = Damaged::new(&["zero.ranks=2", "zero.stage=1", "train.ema=0.5"]);
    let before = values(&run, 6, "stages.1.norm.weight", Kind::Parameter);
    run.flip(6, "stages.0.embed.weight", "parameter");
    run.flip(6, "stages.0.embed.weight", "ema");
    run.flip(6, "stages.3.norm.bias", "v");
    run.flip(6, "tail.head.bn.running_mean", "buffer");
    run.edit(
        6,
        "\"name\":\"tail.head.cls.bias\"",
        "\"name\":\"tail.head.out.bias\"",
    );
    // A rate too small for a step to change anything, so that what was taken is what is saved.
    let settings = ["train.lr=1e-30", "train.weight_decay=0.0", "train.ema=0.5"];
    let sets: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
    let arguments = [&["--allow-partial", "--quiet"][..], &sets].concat();
    let (code, told) = run.go_on(&arguments);
    assert_eq!(code, Some(0), "{told}");
    let lines = [
        "parameter `stages.0.embed.weight` begins as in a new training",
        "ema `stages.0.embed.weight` begins as in a new training",
        "v `stages.3.norm.bias` begins as in a new training",
        "buffer `tail.head.bn.running_mean` begins as in a new training",
        "parameter `tail.head.cls.bias` begins as in a new training",
        "parameter `tail.head.out.bias` of",
    ];
    for line in lines {
        let told_once = told
            .lines()
            .filter(|told| told.starts_with(&format!("warning: {line}")));
        assert_eq!(told_once.count(), 1, "{line}: {told}");
    }
    assert_eq!(told.lines().count(), lines.len(), "{told}");
    let floats = |bytes: Vec<u8>| -> Vec<f32> {
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|chunk| f32::from_le_bytes(*chunk))
            .collect()
    };
    let name = "stages.0.embed.weight";
    let shape = [8, 2, 7, 7];
    let initial = terrashard_models::initial_value(name, &shape, 7);
    for kind in [Kind::Parameter, Kind::Ema] {
        assert_eq!(floats(values(&run, 7, name, kind)), initial, "{kind}");
    }
    let bias = floats(values(&run, 7, "tail.head.cls.bias", Kind::Parameter));
    assert!(bias.len() == 16 && bias.iter().all(|value| value.abs() < 1e-29));
    // What was sound is as it was.
    assert!(values(&run, 7, "stages.1.norm.weight", Kind::Parameter) == before);
    let moment = floats(values(&run, 7, "stages.1.norm.weight", Kind::M));
    assert!(moment.iter().any(|value| *value != 0.0));
}

#[test]
fn a_missing_file_is_told_in_a_few_lines_and_the_pointer_may_be_damaged_too() {
    let run = Damaged::new(&["zero.ranks=2", "zero.stage=1"]);
    fs::remove_file(run.step(6).join("rank-00001.safetensors")).unwrap();
    let latest = run.scenario.path("run/checkpoints/latest");
    fs::write(latest, "step-00").unwrap();
    let (code, told) = run.go_on(&["--allow-partial", "--quiet"]);
    assert_eq!(code, Some(0), "{told}");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 1 + 8 + 1, "{told}");
    assert!(
        lines[0].contains("latest") && lines[0].contains("going on from step 6"),
        "{told}"
    );
    assert!(lines[1].contains("rank-00001.safetensors is missing"));
    assert!(
        lines[9].starts_with("warning: and so with ") && lines[9].contains("ckpt verify"),
        "{told}"
    );
}

#[test]
fn an_export_is_of_the_model_that_the_configuration_describes() {
    let run = Damaged::new(&[]);
    run.edit(
        6,
        "\"name\":\"tail.head.cls.bias\"",
        "\"name\":\"tail.head.out.bias\"",
    );
    let output = run.scenario.terrashard(&["export", "run"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("missing: parameter `tail.head.cls.bias`"),
        "{told}"
    );
    assert!(!run.scenario.path("model.safetensors").exists());
}
