//! Bytes that a rank sends in one step.

use terrashard_layout::{Stage, StepTraffic};
use terrashard_tests::counted::sent;
use terrashard_zero::{Offload, Precision, Recompute, ReduceDtype, ZeroConfig};

use crate::{STAGES, ranks};

/// Small odd layers: what travels follows from shapes alone.
const WIDTHS: [usize; 6] = [31, 35, 39, 33, 41, 37];

/// What one step sends, without scalars, and what the layout predicts; elements of the model and of all padding.
fn count(
    count: usize,
    config: &ZeroConfig,
    recompute: Recompute,
) -> (StepTraffic, StepTraffic, u64, u64) {
    let results = ranks(count, |communicator| {
        sent(&WIDTHS, config, recompute, communicator)
    });
    let first = results.into_iter().next().expect("at least one rank");
    (first.counted, first.predicted, first.numel, first.padding)
}

#[test]
fn a_step_sends_what_the_formulas_say() {
    for ranks in 1..=4u64 {
        for stage in STAGES {
            for accumulate in [1, 3] {
                for recompute in [Recompute::Keep, Recompute::Recompute, Recompute::Offload] {
                    for precision in [Precision::F32, Precision::Bf16] {
                        let config = ZeroConfig {
                            stage,
                            accumulate,
                            precision,
                            reduce_dtype: ReduceDtype::Compute,
                            ..ZeroConfig::default()
                        };
                        let what = format!(
                            "{ranks} ranks, stage {stage}, {accumulate}, {recompute:?}, {precision:?}"
                        );
                        let (sent, predicted, psi, padding) =
                            count(ranks as usize, &config, recompute);
                        assert_eq!(sent, predicted, "{what}");
                        let a = accumulate as u64;
                        let times = match stage {
                            Stage::Zero | Stage::One => 2,
                            Stage::Two => a + 1,
                            Stage::Three => 3 * a,
                        };
                        let element = if precision == Precision::F32 { 4 } else { 2 };
                        let formula = times * psi * (ranks - 1) * element / ranks;
                        let over = sent.total() - formula;
                        assert!(
                            over <= times * padding * element + ranks,
                            "{what}: {over} over {formula}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn gradients_of_a_type_of_their_own_and_persisting_parameters_are_predicted() {
    for stage in STAGES {
        for persist_bytes in [0, 200, 1 << 30] {
            for prefetch in 0..=2 {
                let config = ZeroConfig {
                    stage,
                    persist_bytes,
                    prefetch,
                    precision: Precision::Bf16,
                    ..ZeroConfig::default()
                };
                let (sent, predicted, ..) = count(3, &config, Recompute::Keep);
                assert_eq!(
                    sent, predicted,
                    "stage {stage}, {persist_bytes}, {prefetch}"
                );
            }
        }
    }
}

#[test]
fn hybrid_groups_send_inside_and_across_by_formula() {
    for stage in STAGES {
        for accumulate in [1, 3] {
            let config = ZeroConfig {
                stage,
                accumulate,
                shard_group: Some(2),
                ..ZeroConfig::default()
            };
            let (sent, predicted, psi, padding) = count(4, &config, Recompute::Keep);
            let what = format!("stage {stage}, {accumulate}");
            assert_eq!(sent, predicted, "{what}");
            if stage == Stage::Zero {
                continue;
            }
            // Two groups add their shards of half a model once a step: 2 (2 - 1) / 2 of a shard each.
            let over = sent.across.total() - 4 * psi / 2;
            assert!(over <= 4 * padding + 64, "{what}: {over}");
            let times = match stage {
                Stage::Zero | Stage::One => 2,
                Stage::Two => accumulate as u64 + 1,
                Stage::Three => 3 * accumulate as u64,
            };
            let over = sent.inside.total() - 4 * times * psi / 2;
            assert!(over <= 4 * times * padding, "{what}: {over}");
        }
    }
}

#[test]
fn offload_sends_nothing_more() {
    for (stage, offload) in [
        (Stage::Two, Offload::Optimizer),
        (Stage::Three, Offload::Parameters),
    ] {
        let config = ZeroConfig {
            stage,
            offload,
            ..ZeroConfig::default()
        };
        let (sent, predicted, ..) = count(2, &config, Recompute::Keep);
        assert_eq!(sent, predicted, "stage {stage}");
    }
}
