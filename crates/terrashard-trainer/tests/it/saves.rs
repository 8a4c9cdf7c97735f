//! Saving beside the steps, disks that are full, signals and kills.

use std::fs;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use terrashard_checkpoint::{Checkpoint, steps};

use crate::scenario::Scenario;

/// Files of a step's folder with their contents, without the manifest, whose configuration may differ.
pub(crate) fn tensors(scenario: &Scenario, run: &str, step: u64) -> Vec<(String, Vec<u8>)> {
    let folder = scenario.run(run).checkpoints();
    let folder = terrashard_checkpoint::step_folder(folder, step);
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|ending| ending == "safetensors")
        })
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn what_is_saved_beside_the_steps_is_what_is_saved_between_them() {
    let scenario = Scenario::new();
    let settings = ["zero.ranks=3", "zero.stage=2", "checkpoint.every=1"];
    scenario.fit("beside", None, &settings);
    scenario.fit(
        "between",
        None,
        &[&settings[..], &["checkpoint.async=false"]].concat(),
    );
    for step in 1..=6 {
        let saved = tensors(&scenario, "beside", step);
        assert_eq!(saved.len(), 3);
        assert!(saved == tensors(&scenario, "between", step), "step {step}");
    }
}

#[test]
fn the_best_are_kept_beside_the_newest() {
    let scenario = Scenario::new();
    let settings = [
        "checkpoint.every=1",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=2",
    ];
    scenario.fit("run", None, &settings);
    let losses: Vec<f64> = scenario
        .run("run")
        .steps()
        .unwrap()
        .iter()
        .map(|step| step.loss)
        .collect();
    let mut ranked: Vec<u64> = (1..=6).collect();
    ranked.sort_by(|a, b| losses[*a as usize - 1].total_cmp(&losses[*b as usize - 1]));
    let mut kept = vec![ranked[0], ranked[1], 6];
    kept.sort_unstable();
    kept.dedup();
    let root = scenario.run("run").checkpoints();
    assert_eq!(steps(&root).unwrap(), kept);
    let best = Checkpoint::open(terrashard_checkpoint::step_folder(&root, ranked[0])).unwrap();
    assert_eq!(best.state().score, Some(losses[ranked[0] as usize - 1]));
}

#[test]
fn a_full_disk_ends_the_run_or_not_as_is_set_and_never_harms_the_checkpoint_before() {
    let scenario = Scenario::new();
    scenario.fit("first", Some(1), &["zero.ranks=2", "zero.stage=1"]);
    let before = tensors(&scenario, "first", 1);
    let largest = before.iter().map(|(_, bytes)| bytes.len()).max().unwrap();
    // Too little for a rank's part, and enough for all else.
    let blocks = largest / 512 / 2;
    for asynchronous in ["checkpoint.async=true", "checkpoint.async=false"] {
        let fit = |run: &str, more: &[&str]| {
            let mut arguments = vec![
                "fit", "run.toml", "--run", run, "--ranks", "2", "--stage", "1",
            ];
            arguments.extend(["--set", "checkpoint.every=2", "--set", asynchronous]);
            arguments.extend(more);
            scenario.limited(&format!("-f {blocks}"), &arguments)
        };
        let (code, told) = fit("first", &["--quiet"]);
        assert_eq!((code, told.lines().count()), (Some(1), 1), "{told}");
        assert!(told.contains("failed to save: failed to write"), "{told}");
        assert!(
            told.contains(".safetensors") && told.starts_with("error: rank "),
            "{told}"
        );
        let root = scenario.run("first").checkpoints();
        assert_eq!(steps(&root).unwrap(), [1]);
        Checkpoint::open(&root).unwrap().verify().unwrap();
        assert!(tensors(&scenario, "first", 1) == before);

        // It goes on to its end, where the result has to be kept.
        let (code, told) = fit(
            "first",
            &["--quiet", "--set", "checkpoint.on_failure=continue"],
        );
        assert_eq!(code, Some(1), "{told}");
        let warned = |step: u64| {
            let line = format!("warning: step {step} was not saved: failed to write ");
            told.lines().filter(|told| told.starts_with(&line)).count()
        };
        // Both ranks fail, each with its file.
        assert_eq!((warned(2), warned(4), warned(6)), (2, 2, 0), "{told}");
        assert!(
            told.lines().last().unwrap().contains("failed to save"),
            "{told}"
        );
        assert_eq!(scenario.run("first").steps().unwrap().len(), 6);
        assert_eq!(steps(&root).unwrap(), [1]);
        assert!(tensors(&scenario, "first", 1) == before);
    }
    // With space again it goes on as if nothing had been.
    scenario.fit("first", None, &["zero.ranks=2", "zero.stage=1"]);
    scenario.fit("whole", None, &["zero.ranks=2", "zero.stage=1"]);
    assert!(tensors(&scenario, "first", 6) == tensors(&scenario, "whole", 6));
}

#[test]
fn a_folder_that_cannot_be_made_ends_the_run_or_not_as_is_set() {
    let scenario = Scenario::new();
    scenario.fit("run", Some(1), &[]);
    // In the way of the folder in which step 2 would be written.
    let blocked = scenario.path("run/checkpoints/.step-000002.tmp");
    fs::write(&blocked, "in the way").unwrap();
    let fit = |more: &[&str]| {
        let fit = ["fit", "run.toml", "--run", "run", "--quiet", "--ranks", "2"];
        let output = scenario.terrashard(&[&fit[..], more].concat());
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, told) = fit(&[]);
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("rank 0: failed to save") && told.contains(".step-000002.tmp"),
        "{told}"
    );
    assert_eq!(steps(scenario.run("run").checkpoints()).unwrap(), [1]);
    let (code, told) = fit(&[
        "--set",
        "checkpoint.on_failure=continue",
        "--stop-after",
        "3",
    ]);
    assert_eq!(code, Some(1), "the last save fails as well: {told}");
    assert_eq!(
        told.matches("warning: step 2 was not saved").count(),
        1,
        "{told}"
    );
    fs::remove_file(blocked).unwrap();
    assert_eq!(fit(&[]).0, Some(0));
}

/// A `fit` of many steps, once it has said that it is at one from `step` on; and the rest of what it says.
fn at_step(scenario: &Scenario, step: u64, arguments: &[&str]) -> Child {
    let fit = [
        "fit",
        "run.toml",
        "--run",
        "run",
        "--set",
        "train.steps=100000",
        "--set",
        "log.seconds=1e-9",
    ];
    let mut command = scenario.command(&[&fit[..], arguments].concat());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it has ended");
        let number = line
            .strip_prefix("step ")
            .and_then(|rest| rest.split(['/', ' ']).next()?.parse::<u64>().ok());
        if number.is_some_and(|number| number >= step) {
            break;
        }
    }
    child.stderr = Some(lines.into_inner());
    child
}

#[test]
fn a_signal_saves_and_ends_on_all_ranks_together() {
    for (signal, name) in [("-TERM", "SIGTERM"), ("-USR1", "SIGUSR1")] {
        let scenario = Scenario::new();
        let settings = [
            "--ranks",
            "2",
            "--stage",
            "2",
            "--set",
            "checkpoint.every=0",
        ];
        let child = at_step(&scenario, 3, &settings);
        let kill = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), output.status.signal()),
            (Some(0), None),
            "{told}"
        );
        assert!(
            told.contains(&format!(
                "stopped by {name}, the same command goes on from there"
            )),
            "{told}"
        );
        let session = &scenario.run("run").session_records().unwrap()[0];
        assert_eq!(session.stopped_by.as_deref(), Some(name));
        let last = session.last_step;
        assert!((3..100_000).contains(&last));
        // The step at hand is the last one recorded, and that which was saved; and it is the training that was not stopped.
        assert_eq!(
            scenario.run("run").steps().unwrap().last().unwrap().step,
            last
        );
        let checkpoint = Checkpoint::open(scenario.path("run")).unwrap();
        assert_eq!(checkpoint.state().step, last);
        let settings = ["zero.ranks=2", "zero.stage=2", "train.steps=100000"];
        scenario.fit("run", Some(last + 2), &settings);
        scenario.fit("whole", Some(last + 2), &settings);
        assert!(tensors(&scenario, "run", last + 2) == tensors(&scenario, "whole", last + 2));
    }
}

#[test]
fn h11_a_run_that_is_killed_goes_on_from_a_whole_checkpoint() {
    let scenario = Scenario::new();
    let settings = [
        "--ranks",
        "2",
        "--stage",
        "3",
        "--set",
        "checkpoint.every=1",
    ];
    let mut at = 3;
    for _ in 0..4 {
        let mut child = at_step(&scenario, at, &settings);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let root = scenario.run("run").checkpoints();
        let checkpoint = Checkpoint::open(&root).unwrap();
        checkpoint.verify().unwrap();
        // Each save waits for the one before: while step 3 is told, that of step 2 has begun and that of step 1 has ended.
        let saved = checkpoint.state().step;
        assert!(saved + 2 >= at, "step {saved} is saved at step {at}");
        at = saved + 3;
    }
    let settings = ["zero.ranks=2", "zero.stage=3", "train.steps=100000"];
    scenario.fit("run", Some(at), &settings);
    scenario.fit("whole", Some(at), &settings);
    assert!(tensors(&scenario, "run", at) == tensors(&scenario, "whole", at));
    assert!(is_clean(&scenario.run("run").checkpoints()));
}

/// A tile that can no longer be read while ranks train: all of them end, and one line says why.
#[test]
fn h12_an_image_that_goes_bad_under_one_rank_ends_all_with_one_line() {
    let scenario = Scenario::new();
    let settings = ["--ranks", "3", "--stage", "2", "--set"];
    let uncached = ["data.cache_bytes=0", "--set", "checkpoint.every=1"];
    // While step 4 is told, the save of step 2 has ended.
    let child = at_step(&scenario, 4, &[&settings[..], &uncached].concat());
    let path = scenario.path("image.tif");
    let length = fs::metadata(&path).unwrap().len() as usize;
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(length as u64 / 2)).unwrap();
    file.write_all(&vec![0xa5; length / 4]).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{told}");
    let errors = told.lines().filter(|line| line.starts_with("error: "));
    let errors: Vec<&str> = errors.collect();
    assert_eq!(errors.len(), 1, "{told}");
    assert!(
        errors[0].contains("rank ") && errors[0].contains("image.tif"),
        "{told}"
    );
    // What was saved before is whole.
    let checkpoint = Checkpoint::open(scenario.path("run")).unwrap();
    checkpoint.verify().unwrap();
}

#[test]
fn h12_an_image_that_goes_bad_under_one_rank_is_left_out_where_that_is_wanted() {
    let scenario = Scenario::new();
    let settings = [
        "--ranks",
        "3",
        "--stage",
        "2",
        "--set",
        "data.cache_bytes=0",
    ];
    let skips = ["--set", "data.on_unreadable=skip_tile"];
    let mut child = at_step(&scenario, 4, &[&settings[..], &skips].concat());
    let path = scenario.path("image.tif");
    let length = fs::metadata(&path).unwrap().len() as usize;
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(length as u64 / 2)).unwrap();
    file.write_all(&vec![0xa5; length / 4]).unwrap();
    // Whichever rank meets it first says so, and all go on.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut before = String::new();
    let warning = lines.find_map(|line| {
        let line = line.unwrap();
        before += &format!("{line}\n");
        line.starts_with("warning: ").then_some(line)
    });
    let warning = warning.unwrap_or_else(|| panic!("no warning in {before}"));
    assert!(
        warning.contains(": left out ")
            && warning.contains("image.tif: ")
            && warning.contains("`data.on_unreadable`"),
        "{warning}"
    );
    let met = warning
        .split("step ")
        .nth(1)
        .and_then(|rest| rest.split(':').next());
    let met: u64 = met.unwrap().parse().unwrap();
    let rest = std::thread::spawn(move || lines.count());
    // Where all chips of a step are left out it changes nothing and tells nothing; its record is written all the same.
    let metrics = scenario.path("run").join("metrics.jsonl");
    let went_on = || {
        let text = fs::read_to_string(&metrics).unwrap();
        let steps = text
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        steps
            .filter_map(|record| record["step"].as_u64())
            .any(|step| step >= met + 3)
    };
    while !went_on() {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let kill = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    rest.join().unwrap();
    assert!(child.wait().unwrap().success());
    let run = scenario.run("run");
    let recorded: u64 = run.steps().unwrap().iter().map(|step| step.left_out).sum();
    assert!(recorded > 0);
    assert_eq!(run.session_records().unwrap()[0].left_out, recorded);
    let checkpoint = Checkpoint::open(scenario.path("run")).unwrap();
    checkpoint.verify().unwrap();
}

/// Whether nothing is left of saves that were cut short.
fn is_clean(root: &Path) -> bool {
    terrashard_checkpoint::remains(root).unwrap().is_empty()
}
