//! Ranks that are processes: one is killed, and all go on from the newest checkpoint.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use terrashard_checkpoint::Checkpoint;

use crate::scenario::Scenario;

/// Between two looks at the record.
const LOOK: Duration = Duration::from_millis(5);

/// The steps of a record.
fn steps(scenario: &Scenario) -> Vec<u64> {
    let steps = scenario.run("run").steps().unwrap_or_default();
    steps.iter().map(|step| step.step).collect()
}

/// The process of a rank that was started for this scenario.
fn process(rank: usize, folder: &Path) -> Option<u32> {
    let is_meant = |pid: u32| {
        let of = Path::new("/proc").join(pid.to_string());
        let read = |name| fs::read(of.join(name)).unwrap_or_default();
        let wanted = format!("RANK={rank}");
        fs::read_link(of.join("cwd")).is_ok_and(|cwd| cwd == folder)
            && read("environ")
                .split(|byte| *byte == 0)
                .any(|word| word == wanted.as_bytes())
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .find(|pid| is_meant(*pid))
}

fn launch(scenario: &Scenario, flags: &[&str]) -> Child {
    let fit = [
        "fit",
        "run.toml",
        "--device",
        "cpu",
        "--run",
        "run",
        "--quiet",
        "--set",
        "train.steps=40",
        "--set",
        "zero.stage=2",
    ];
    let arguments = [&["launch", "-n", "3"], flags, &["--"], &fit[..]].concat();
    let mut command = scenario.command(&arguments);
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a step's record, kills a rank, and returns what the launcher says in the end.
fn kill_one(scenario: &Scenario, mut launched: Child, rank: usize) -> (bool, String) {
    let folder = scenario.path("").canonicalize().unwrap();
    while !steps(scenario).contains(&5) {
        assert!(launched.try_wait().unwrap().is_none(), "it ended too early");
        thread::sleep(LOOK);
    }
    let victim = process(rank, &folder).expect("the rank is there");
    let killed = std::process::Command::new("kill")
        .args(["-9", &victim.to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = launched.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), text)
}

#[test]
fn a_rank_that_is_killed_is_started_again_with_all_others() {
    for (flags, ranks) in [
        (&["--restarts", "1"][..], 3),
        (&["--restarts", "2", "--elastic"], 2),
    ] {
        let scenario = Scenario::new();
        let launched = launch(&scenario, flags);
        let (ended_well, text) = kill_one(&scenario, launched, 1);
        assert!(ended_well, "{text}");
        let told = format!(
            "rank 1 was killed by signal 9, as the system does where memory runs out; starting again with {ranks} ranks, 1 of "
        );
        assert!(text.contains(&told), "{text}");
        // No step is missing and none is there twice.
        assert_eq!(steps(&scenario), (1..=40).collect::<Vec<_>>(), "{text}");
        let sessions = scenario.run("run").session_records().unwrap();
        let last = sessions.last().expect("the second start came to the end");
        assert_eq!((last.ranks, last.last_step), (ranks, 40));
        assert!(
            last.resumed_from_step.is_some_and(|step| step >= 2),
            "{last:?}"
        );
        let checkpoint = Checkpoint::open(scenario.path("run")).unwrap();
        checkpoint.verify().unwrap();
        assert_eq!((checkpoint.state().step, checkpoint.ranks()), (40, ranks));
    }
}

#[test]
fn without_restarts_the_launcher_fails_and_names_the_rank() {
    let scenario = Scenario::new();
    let launched = launch(&scenario, &[]);
    let (ended_well, text) = kill_one(&scenario, launched, 2);
    assert!(!ended_well, "{text}");
    let last = text.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: rank 2 was killed by signal 9"),
        "{text}"
    );
    // Another rank says where that was.
    assert!(
        text.contains("error: rank 0: step ") && text.contains("rank 2 gave up"),
        "{text}"
    );
}

#[test]
fn processes_train_to_the_bits_of_threads() {
    let scenario = Scenario::new();
    let settings = ["--set", "zero.stage=3", "--set", "zero.offload=optimizer"];
    let fit = |before: &[&str], run: &str, after: &[&str]| {
        let fit = ["fit", "run.toml", "--quiet", "--run", run];
        let output = scenario.terrashard(&[before, &fit, &settings, after].concat());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    fit(&[], "threads", &["--ranks", "3"]);
    fit(
        &["launch", "-n", "3", "--"],
        "processes",
        &["--device", "cpu"],
    );
    for rank in 0..3 {
        let file = |run: &str| {
            let folder = scenario.run(run).checkpoints().join("step-000006");
            fs::read(folder.join(format!("rank-{rank:05}.safetensors"))).unwrap()
        };
        assert!(file("threads") == file("processes"), "rank {rank}");
    }
}
