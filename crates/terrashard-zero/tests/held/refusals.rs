//! What cannot go on is refused with the name of what is wrong.

use burn::tensor::Device;
use std::sync::Arc;
use terrashard_collectives::{Communicator, local};
use terrashard_layout::{ElementType, Stage};
use terrashard_zero::{
    Error, Initial, NonFinite, Origin, ParameterGroup, Precision, Progress, Reduction, Select,
    StateKind, StepOutcome, ZeroConfig, ZeroOptimizer,
};

use crate::vectors::{Rank, Vectors};
use crate::{STAGES, config};

#[test]
fn first_values_of_another_length_are_refused() {
    let results = local::run(2, |communicator| -> Result<_, Error> {
        let wrong = |name: &str, shape: &[usize]| match name {
            "parts.1" => vec![0.0; 6],
            _ => vec![0.0; shape[0]],
        };
        let made = ZeroOptimizer::new(
            &Vectors::new(),
            config(Stage::Two),
            Initial::Keyed(&wrong),
            Arc::new(communicator),
            &Device::flex(),
        );
        Ok(made.err())
    });
    for refused in results.unwrap() {
        let refused = refused.unwrap().to_string();
        assert_eq!(
            refused,
            "initial values of parts.1: expected 5 elements, got 6"
        );
    }
}

#[test]
fn a_state_that_cannot_be_read_is_named_and_so_is_one_that_does_not_fit() {
    for stage in STAGES {
        let results = local::run(1, |communicator| -> Result<_, Error> {
            let config = config(stage);
            let progress = Progress::new(&config);
            let mut rank = Rank::new(config, communicator)?;
            let failed =
                rank.optimizer
                    .load(progress, &|name, kind, interval| match (name, kind) {
                        ("parts.4", StateKind::Variance) => Err("the disk is gone".into()),
                        _ => Ok(vec![0; 4 * interval.len()]),
                    });
            assert!(matches!(
                &failed,
                Err(Error::LoadState { name, kind: StateKind::Variance, .. }) if name == "parts.4"
            ));
            let text = failed.err().unwrap().to_string();
            assert!(text.ends_with("of parts.4: the disk is gone"), "{text}");
            let failed = rank.optimizer.load(progress, &|name, kind, interval| {
                // As if it had been saved in half precision.
                let width = match (name, kind) {
                    ("parts.1", StateKind::Momentum) => 2,
                    _ => 4,
                };
                Ok(vec![0; width * interval.len()])
            });
            let Err(Error::StateLength {
                name,
                kind: StateKind::Momentum,
                dtype: ElementType::F32,
                expected: 20,
                got: 10,
            }) = failed
            else {
                panic!("stage {stage}: {failed:?}")
            };
            assert_eq!(name, "parts.1");
            Ok(())
        });
        results.unwrap();
    }
}

#[test]
fn a_block_of_a_parameter_that_is_not_there_is_refused() {
    let results = local::run(1, |communicator| -> Result<_, Error> {
        let rank = Rank::new(config(Stage::Three), communicator)?;
        let blocks = [vec!["parts.0".into()], vec!["parts.5".into()]];
        let refused = rank.optimizer.declare_blocks(&blocks);
        assert!(matches!(refused, Err(Error::UnknownParameter { name }) if name == "parts.5"));
        Ok(())
    });
    results.unwrap();
}

#[test]
fn a_model_with_nothing_to_train_is_refused() {
    let results = local::run(2, |communicator| -> Result<_, Error> {
        let config = ZeroConfig {
            groups: vec![ParameterGroup {
                select: Select::Vectors,
                lr_factor: 1.0,
                weight_decay: 0.0,
                frozen: true,
            }],
            ..config(Stage::One)
        };
        let made = Rank::new(config, communicator);
        Ok(made.err().unwrap().to_string())
    });
    for refused in results.unwrap() {
        assert!(refused.contains("groups = no parameter"), "{refused}");
    }
}

/// Trains one step whose gradient in each element is `value(rank, micro_batch, part)`.
fn outcome(
    config: &ZeroConfig,
    value: impl Fn(usize, usize, usize) -> f64 + Sync,
) -> Vec<(String, u64)> {
    let results = local::run(3, |communicator| -> Result<_, Error> {
        let number = communicator.rank();
        let mut rank = Rank::new(config.clone(), communicator)?;
        for micro_batch in 0..config.accumulate {
            rank.backward(|part, _| value(number, micro_batch, part))?;
        }
        let before = rank.optimizer.own_states()?;
        let outcome = match rank.optimizer.step(1.0, &[]) {
            Err(error) => error.to_string(),
            Ok(StepOutcome::Skipped { origin, .. }) => origin.to_string(),
            Ok(applied) => panic!("{applied:?}"),
        };
        assert!(before == rank.optimizer.own_states()?, "nothing changes");
        Ok((outcome, rank.optimizer.steps()))
    });
    results.unwrap()
}

#[test]
fn where_a_gradient_was_first_not_finite_is_told() {
    for stage in STAGES {
        for accumulate in [1, 2] {
            let config = ZeroConfig {
                accumulate,
                nonfinite: NonFinite::Abort,
                reduction: Reduction::Sum,
                ..config(stage)
            };
            let last = accumulate - 1;
            let told = outcome(&config, |rank, micro_batch, part| {
                match (rank, micro_batch, part) {
                    (1, m, 1) if m == last => f64::NAN,
                    _ => 1.0,
                }
            });
            let expected = format!(
                "non-finite gradient in step 1 after 0 skipped step(s): rank 1, micro-batch {last}, first in parts.1"
            );
            for told in told {
                assert_eq!(told, (expected.clone(), 0), "stage {stage}");
            }
            // Each gradient is finite, but the sum over ranks is not.
            let told = outcome(&config, |_, _, part| if part == 3 { 2e38 } else { 1.0 });
            for (told, _) in told {
                assert!(
                    told.ends_with("overflow of the sum over ranks, first in parts.3"),
                    "stage {stage}: {told}"
                );
            }
            // So is the sum, but its squares are beyond what doubles hold.
            let config = ZeroConfig {
                precision: Precision::F64,
                nonfinite: NonFinite::Skip,
                ..config
            };
            for (told, _) in outcome(&config, |_, _, _| 1e200) {
                assert_eq!(told, "no single gradient, but their sum of squares");
            }
        }
    }
}

/// As statistics over ranks do, whatever is not finite on one rank comes back to all within the pass.
#[test]
fn what_spreads_to_all_ranks_within_a_pass_is_told_of_the_rank_where_it_began() {
    for stage in STAGES {
        for (micro_batch, spoils) in [(0, 2), (1, 1), (1, 0)] {
            let results = local::run(3, |communicator| -> Result<_, Error> {
                let number = communicator.rank();
                let config = ZeroConfig {
                    accumulate: 2,
                    nonfinite: NonFinite::Skip,
                    ..config(stage)
                };
                let mut rank = Rank::new(config, communicator)?;
                let mut told = Vec::new();
                for is_spoilt in [false, true, false, true] {
                    for m in 0..2 {
                        let spoilt = is_spoilt && m >= micro_batch;
                        // The rank where it begins gives it in the second exchange, all give it in the third.
                        let parameters = rank.optimizer.parameters();
                        parameters.note_given(true);
                        parameters.note_given(!(spoilt && number == spoils));
                        parameters.note_given(!spoilt);
                        rank.backward(|_, _| if spoilt { f64::NAN } else { 1.0 })?;
                    }
                    if let StepOutcome::Skipped { origin, .. } = rank.optimizer.step(0.1, &[])? {
                        told.push((origin.rank, origin.micro_batch));
                    }
                }
                Ok(told)
            });
            for told in results.unwrap() {
                assert_eq!(told, [(Some(spoils), micro_batch); 2], "stage {stage}");
            }
        }
    }
}

#[test]
fn f16_that_overflows_at_the_least_scale_ends_with_the_scale() {
    let mut config = ZeroConfig {
        precision: Precision::F16,
        nonfinite: NonFinite::Abort,
        ..config(Stage::Two)
    };
    config.loss_scale.initial = 1.0;
    let told = outcome(&config, |rank, _, part| match (rank, part) {
        (2, 0) => f64::INFINITY,
        _ => 1.0,
    });
    for (told, _) in told {
        assert_eq!(
            told,
            "non-finite gradient in step 1 at loss scale 1 after 0 skipped step(s): rank 2, micro-batch 0, first in parts.0"
        );
    }
    let origin = Origin {
        rank: None,
        micro_batch: 0,
        parameter: String::new(),
    };
    assert!(!origin.to_string().contains("rank"));
}
