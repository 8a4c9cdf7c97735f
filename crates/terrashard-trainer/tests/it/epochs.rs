//! A run of whole epochs: its last step takes what is left, whatever the number of ranks.

use std::fs;

use terrashard_checkpoint::Checkpoint;

use crate::scenario::Scenario;

/// The scenario with a number of epochs in place of steps.
fn scenario(epochs: usize) -> Scenario {
    let scenario = Scenario::new();
    let path = scenario.path("run.toml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("steps = 6"));
    fs::write(
        &path,
        text.replace("steps = 6", &format!("epochs = {epochs}")),
    )
    .unwrap();
    scenario
}

fn losses(scenario: &Scenario, run: &str) -> Vec<f64> {
    let steps = scenario.run(run).steps().unwrap();
    steps.iter().map(|step| step.loss).collect()
}

/// 25 samples, 12 a step: the fifth step of two epochs has the two that are left, and some ranks and micro-batches none.
#[test]
fn the_last_step_takes_what_is_left() {
    for norm in ["none", "batch"] {
        let norm = format!("model.head_norm={norm}");
        let scenario = scenario(2);
        let alone = scenario.fit("alone", None, &[&norm, "zero.ranks=1"]);
        assert_eq!((alone.samples, alone.last_step, alone.steps), (25, 5, 5));
        let checkpoint = Checkpoint::open(scenario.path("alone")).unwrap();
        assert_eq!(checkpoint.state().cursor, 50);
        for (run, settings) in [
            (
                "two",
                ["zero.ranks=2", "zero.stage=1", "train.accumulate=2"],
            ),
            (
                "three",
                ["zero.ranks=3", "zero.stage=2", "train.accumulate=4"],
            ),
            (
                "four",
                ["zero.ranks=4", "zero.stage=0", "train.accumulate=1"],
            ),
        ] {
            let all = [&[norm.as_str()], &settings[..]].concat();
            let session = scenario.fit(run, None, &all);
            assert_eq!(session.last_step, 5);
            let checkpoint = Checkpoint::open(scenario.path(run)).unwrap();
            assert_eq!(checkpoint.state().cursor, 50);
            // Without accumulation the batch statistics are of the same samples, too.
            if norm.ends_with("none") || run == "four" {
                for (one, more) in losses(&scenario, "alone")
                    .iter()
                    .zip(losses(&scenario, run))
                {
                    assert!(
                        (one - more).abs() <= 1e-4 * one.abs(),
                        "{all:?}: {one} and {more}"
                    );
                }
            }
        }
    }
}

/// A run of one epoch goes on to the second one where the first ended, in the middle of a step's samples.
#[test]
fn more_epochs_go_on_where_fewer_ended() {
    let scenario = scenario(1);
    let first = scenario.fit("run", None, &[]);
    assert_eq!((first.last_step, first.steps), (3, 3));
    let second = scenario.fit("run", None, &["train.epochs=2", "zero.ranks=2"]);
    assert_eq!((second.resumed_from_step, second.last_step), (Some(3), 6));
    let checkpoint = Checkpoint::open(scenario.path("run")).unwrap();
    assert_eq!(checkpoint.state().cursor, 50);
}
