//! Rules of the update and of numbers that are not finite, through the whole program.

use terrashard_checkpoint::{Checkpoint, Kind};
use terrashard_trainer::record::StepRecord;

use crate::scenario::Scenario;

fn steps(scenario: &Scenario, run: &str) -> Vec<StepRecord> {
    scenario.run(run).steps().unwrap()
}

/// The first update throws the parameters out of the range of numbers; what follows is skipped and does not count.
#[test]
fn a_skipped_step_does_not_advance_the_schedule() {
    let scenario = Scenario::new();
    let wild = ["train.lr=1e38", "train.schedule=poly", "zero.ranks=2"];
    let skip = [&wild[..], &["train.nonfinite=skip"]].concat();
    scenario.fit("run", Some(4), &skip);
    scenario.fit("run", None, &skip);
    let steps = steps(&scenario, "run");
    let told: Vec<(bool, f64)> = steps
        .iter()
        .map(|step| (step.skipped, step.lr / 1e38))
        .collect();
    // Of six steps only the first was applied, so all others have the rate of the second.
    assert!(!told[0].0 && (told[0].1 - 1.0).abs() < 1e-12, "{told:?}");
    assert_eq!(told.len(), 6);
    for (skipped, rate) in &told[1..] {
        assert!(*skipped && (rate - 5.0 / 6.0).abs() < 1e-12, "{told:?}");
    }
    let checkpoint = Checkpoint::open(scenario.path("run")).unwrap();
    let state = checkpoint.state();
    assert_eq!((state.step, &state.values["applied_steps"]), (6, &1.into()));
    assert_eq!(state.values["skipped_in_a_row"], 5);
}

#[test]
fn too_many_skipped_steps_end_the_run() {
    let scenario = Scenario::new();
    let check = |policy: &str, steps: usize| {
        let run = policy.replace(|letter: char| !letter.is_alphanumeric(), "");
        let nonfinite = format!("train.nonfinite={policy}");
        let fit = [
            "fit",
            "run.toml",
            "--run",
            &run,
            "--quiet",
            "--set",
            "train.lr=1e38",
            "--set",
            &nonfinite,
        ];
        let output = scenario.terrashard(&fit);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        let told = [
            "a gradient is not finite at step",
            "micro-batch 0",
            "image.tif [",
        ];
        assert!(told.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(self::steps(&scenario, &run).len(), steps, "{message}");
    };
    check("abort", 1);
    check("{ skip_then_abort = 2 }", 3);
}

/// Momentum alone is saved and read again, and a frozen group stays as it was.
#[test]
fn sgd_and_groups() {
    let scenario = Scenario::new();
    let sgd = [
        "train.optimizer=sgd",
        "train.lr=1e-2",
        "train.nesterov=true",
        "train.groups=[{ match = \"stages.0.*\", frozen = true }, { match = \"*.bias\", weight_decay = 0.0 }]",
    ];
    let fit = |run: &str, stop, ranks: &str| {
        scenario.fit(run, stop, &[&sgd[..], &[ranks, "zero.stage=1"]].concat())
    };
    fit("whole", None, "zero.ranks=2");
    fit("parts", Some(3), "zero.ranks=2");
    fit("parts", None, "zero.ranks=2");
    let losses = |run: &str| -> Vec<f64> {
        let steps = steps(&scenario, run);
        steps.iter().map(|step| step.loss).collect()
    };
    assert_eq!(losses("whole"), losses("parts"));

    let open = |run: &str| Checkpoint::open(scenario.path(run)).unwrap();
    let (checkpoint, kinds) = (open("whole"), [Kind::M, Kind::V]);
    let count = |kind| {
        checkpoint
            .tensors()
            .filter(|tensor| tensor.kind == kind)
            .count()
    };
    assert!(count(kinds[0]) > 10);
    assert_eq!(count(kinds[1]), 0);
    fit("one", Some(1), "zero.ranks=1");
    let first = Checkpoint::open(scenario.path("one")).unwrap();
    let same = |name: &str| {
        let read = |checkpoint: &Checkpoint| checkpoint.read_whole(name, Kind::Parameter).unwrap();
        read(&first) == read(&checkpoint)
    };
    assert!(same("stages.0.embed.weight"));
    assert!(!same("stages.1.embed.weight"));
}
