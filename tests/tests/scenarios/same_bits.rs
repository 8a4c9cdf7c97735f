//! What changes speed or memory only gives the same bits.

use std::sync::Arc;
use std::time::Duration;

use terrashard_collectives::delayed::Delayed;
use terrashard_collectives::local;
use terrashard_tests::nasty::{Case, train};
use terrashard_zero::{Offload, Precision, Recompute};

use crate::{SHARDING, STAGES, case, close, offloaded, run};

/// What changes speed or memory only: the same bits.
#[test]
fn n4_m2_buckets_prefetch_overlap_and_offload_change_no_bit() {
    for stage in STAGES {
        let base = |change: &dyn Fn(&mut Case)| {
            case(2, stage, |case| {
                // The norm's last bit depends on how buckets cut its sum, so that only clipping would show them.
                case.config.clip_norm = None;
                case.drop = 0.3;
                change(case);
            })
        };
        let expected = run(&base(&|_| ()));
        let check = |what: &str, change: &dyn Fn(&mut Case)| {
            let got = run(&base(change));
            assert!(got.states == expected.states, "stage {stage}, {what}");
        };
        for bytes in [1, 64, 1 << 10, 1 << 16, 64 << 20] {
            check("bucket_bytes", &|case| {
                case.config.bucket_bytes = Some(bytes)
            });
        }
        check("derived buckets", &|case| case.config.bucket_bytes = None);
        check("persist_bytes", &|case| case.config.persist_bytes = 100);
        check("everything persists", &|case| {
            case.config.persist_bytes = 1 << 20
        });
        check("blocks not declared", &|case| case.declared = false);
        for prefetch in 0..=2 {
            for overlap in [true, false] {
                check("prefetch and overlap", &|case| {
                    (case.config.prefetch, case.config.overlap) = (prefetch, overlap);
                });
            }
        }
        for fraction in [0.0, 0.37, 1.0] {
            check("offload_fraction", &|case| {
                case.config.offload = offloaded(stage);
                case.config.offload_fraction = fraction;
            });
        }
        check("optimizer offloaded, parameters persist", &|case| {
            case.config.offload = offloaded(stage);
            case.config.persist_bytes = 100;
        });
    }
}

#[test]
fn n4_buckets_change_a_clipped_training_by_rounding_only() {
    for stage in STAGES {
        let with = |bytes| {
            run(&case(4, stage, |case| {
                case.config.bucket_bytes = Some(bytes)
            }))
        };
        let (small, large) = (with(1), with(64 << 20));
        close(&small.states, &large.states, 1e-6, "bucket sizes");
    }
}

#[test]
fn a2_dropout_draws_the_same_masks_again() {
    for stage in STAGES {
        let with = |recompute, drop| {
            run(&case(2, stage, |case| {
                (case.recompute, case.drop) = (recompute, drop);
            }))
        };
        let kept = with(Recompute::Keep, 0.5);
        assert!(kept != with(Recompute::Keep, 0.0), "dropout takes part");
        for recompute in [Recompute::Recompute, Recompute::Offload] {
            assert!(kept == with(recompute, 0.5), "stage {stage}, {recompute:?}");
        }
    }
}

#[test]
fn b1_statistics_move_once_under_recomputation() {
    let running = |stage, recompute| {
        let trained = run(&case(2, stage, |case| case.recompute = recompute));
        let of = |name: &str| trained.states[&format!("running/{name}")].clone();
        (of("mean"), of("variance"))
    };
    for stage in STAGES {
        let kept = running(stage, Recompute::Keep);
        // Five moves of a tenth from 1 towards a variance that is far below it.
        let most = kept.1.iter().copied().fold(0.0, f64::max);
        assert!(most < 0.95, "they moved: {most}");
        assert!(kept == running(stage, Recompute::Recompute));
        assert!(kept == running(stage, Recompute::Offload));
    }
}

#[test]
fn hybrid_groups_train_as_all_ranks_do() {
    for (precision, bound) in [(Precision::F32, 1e-5), (Precision::F64, 1e-10)] {
        for accumulate in [1, 3] {
            for recompute in [Recompute::Keep, Recompute::Recompute] {
                for stage in STAGES {
                    let with = |group, offload| {
                        run(&case(4, stage, |case| {
                            case.steps = 20;
                            case.recompute = recompute;
                            case.config.precision = precision;
                            case.config.accumulate = accumulate;
                            case.config.shard_group = group;
                            case.config.offload = offload;
                        }))
                    };
                    let (all, groups) = (with(None, Offload::None), with(Some(2), Offload::None));
                    let what = format!("stage {stage}, {precision:?}, {accumulate}");
                    close(&groups.states, &all.states, bound, &what);
                    assert!(groups == with(Some(2), offloaded(stage)), "{what}: offload");
                    for (a, b) in groups.norms.iter().zip(&all.norms) {
                        assert!((a - b).abs() <= bound * b, "{what}: norm {a} not {b}");
                    }
                }
            }
        }
    }
}

#[test]
fn n5_n6_overlap_is_safe_whatever_is_late() {
    for stage in SHARDING {
        for recompute in [Recompute::Keep, Recompute::Recompute] {
            let with = |overlap, seed: Option<u64>| {
                let case = case(2, stage, |case| {
                    case.steps = 100;
                    case.micro = 1;
                    case.recompute = recompute;
                    case.config.overlap = overlap;
                    case.config.prefetch = 2;
                    case.config.offload = offloaded(stage);
                });
                let results = local::run(2, |communicator| match seed {
                    None => train(&case, Arc::new(communicator)),
                    Some(seed) => {
                        let longest = Duration::from_micros(120);
                        train(&case, Arc::new(Delayed::new(communicator, seed, longest)))
                    }
                });
                results
                    .unwrap_or_else(|error| panic!("{error}"))
                    .swap_remove(0)
            };
            let expected = with(false, None);
            for seed in [1, 2, 3] {
                assert!(
                    expected == with(true, Some(seed)),
                    "stage {stage}, seed {seed}"
                );
            }
        }
    }
}
