//! First values, states that are saved and loaded, averages, tied parameters.

use std::collections::BTreeMap;
use std::ops::Range;

use terrashard_layout::Stage;
use terrashard_tests::nasty::{Named, Trainer, difference, initial};
use terrashard_zero::{Offload, Precision, Progress, StateKind, StatePiece};

use crate::{STAGES, case, close, offloaded, ranks};

/// What a checkpoint would keep.
type Saved = BTreeMap<(String, StateKind), Vec<u8>>;

fn collect(pieces: Vec<StatePiece>) -> Saved {
    let mut pieces = pieces;
    pieces.sort_by_key(|piece| piece.interval.start);
    let mut saved = Saved::new();
    for piece in pieces {
        let size = piece.dtype.bytes();
        let bytes = saved.entry((piece.name.clone(), piece.kind)).or_default();
        if !piece.interval.is_empty() {
            assert_eq!(bytes.len(), piece.interval.start * size, "{}", piece.name);
            bytes.extend(piece.data.as_bytes());
        }
    }
    saved
}

#[test]
fn c1_c4_c6_c10_states_load_at_every_rank_count_stage_and_offload() {
    // Twelve samples a step, however many ranks share them.
    let with = |ranks: usize, stage, offload, precision| {
        case(ranks, stage, |case| {
            case.config.offload = offload;
            case.config.precision = precision;
            case.config.ema = Some(0.8);
            case.micro = 12 / ranks;
        })
    };
    for (precision, bound) in [
        (Precision::F32, 1e-5),
        (Precision::F64, 1e-10),
        (Precision::Bf16, 0.1),
    ] {
        let first = with(4, Stage::Two, Offload::None, precision);
        let results = ranks(4, |communicator| {
            let mut trainer = Trainer::new(&first, communicator)?;
            for step in 0..5 {
                trainer.step(step)?;
            }
            let saved = trainer.optimizer.own_states()?;
            let (progress, running) = (
                trainer.optimizer.progress(),
                trainer.net.stem.norm.running(),
            );
            let whole = trainer.states()?;
            for step in 5..10 {
                trainer.step(step)?;
            }
            Ok((saved, progress, running, whole, trainer.states()?))
        });
        let (_, progress, running, whole, uninterrupted) = results[0].clone();
        let saved = collect(results.into_iter().flat_map(|result| result.0).collect());
        assert!(!saved.keys().any(|(name, _)| name == "again.tied"));
        assert!(saved.contains_key(&("mix.weight".into(), StateKind::Variance)));
        assert!(saved[&("tokens.nothing".into(), StateKind::Parameter)].is_empty());
        let size = if precision == Precision::F64 { 8 } else { 4 };
        for ranks_now in [1, 2, 3, 4] {
            for stage in STAGES {
                for offload in [Offload::None, offloaded(stage)] {
                    let case = with(ranks_now, stage, offload, precision);
                    let results = ranks(ranks_now, |communicator| {
                        let mut trainer = Trainer::new(&case, communicator)?;
                        trainer.optimizer.load(progress, &|name, kind, interval| {
                            let bytes = saved.get(&(name.to_string(), kind));
                            let bytes = bytes.ok_or_else(|| format!("no {kind:?} of {name}"))?;
                            Ok(bytes[interval.start * size..interval.end * size].to_vec())
                        })?;
                        trainer.net.stem.norm.set_running(running.clone());
                        let loaded = trainer.states()?;
                        for step in 5..10 {
                            trainer.step(step)?;
                        }
                        Ok((loaded, trainer.states()?))
                    });
                    let what =
                        format!("{ranks_now} ranks, stage {stage}, {offload:?}, {precision:?}");
                    assert!(results[0].0 == whole, "{what}: not loaded bit by bit");
                    let (apart, name) = difference(&results[0].1, &uninterrupted);
                    assert!(apart <= bound, "{what}: {name} is off by {apart:e}");
                    if (ranks_now, offload) == (4, Offload::None) {
                        assert!(results[0].1 == uninterrupted, "{what}: not bit by bit");
                    }
                }
            }
        }
    }
}

#[test]
fn c4_a_tied_pair_stays_one_parameter() {
    for stage in STAGES {
        let case = case(2, stage, |_| ());
        ranks(2, |communicator| {
            let mut trainer = Trainer::new(&case, communicator)?;
            let pair = |trainer: &Trainer| {
                let mix = trainer.optimizer.plain(&trainer.net.mix).weight.val();
                let tied = trainer.optimizer.plain(&trainer.net.again).tied.val();
                (mix.into_data(), tied.into_data())
            };
            let before = pair(&trainer);
            trainer.step(0)?;
            let after = pair(&trainer);
            assert_eq!(before.0, before.1);
            assert_eq!(after.0, after.1);
            assert_ne!(before.0, after.0);
            let names = trainer.optimizer.whole_states(StateKind::Parameter)?;
            assert!(names.iter().all(|(name, _)| name != "again.tied"));
            Ok(())
        });
    }
}

#[test]
fn c10_the_average_on_shards_is_that_of_the_weights() {
    for stage in STAGES {
        for offload in [Offload::None, offloaded(stage)] {
            let case = case(3, stage, |case| {
                case.config.ema = Some(0.7);
                case.config.offload = offload;
                case.config.precision = Precision::Bf16;
                case.lr = 1e-2;
            });
            ranks(3, |communicator| {
                let mut trainer = Trainer::new(&case, communicator)?;
                let of = |states: &Named, kind: &str| -> Named {
                    let rest = |(name, values): (&String, &Vec<f64>)| {
                        let rest = name.strip_prefix(kind)?.to_string();
                        Some((rest, values.clone()))
                    };
                    states.iter().filter_map(rest).collect()
                };
                let states = trainer.states()?;
                // It begins as the weights: an average that begins as zeros is too small for as long as it remembers.
                let mut expected = of(&states, "Ema/");
                let weights = of(&states, "Parameter/");
                for (name, average) in &expected {
                    assert_eq!(average, &weights[name], "{name}");
                }
                for step in 0..6 {
                    trainer.step(step)?;
                    let weights = of(&trainer.states()?, "Parameter/");
                    for (name, average) in &mut expected {
                        for (average, weight) in average.iter_mut().zip(&weights[name]) {
                            *average = 0.7 * *average + 0.3 * weight;
                        }
                    }
                }
                let got = of(&trainer.states()?, "Ema/");
                assert!(got.contains_key("stem.conv.weight") && got.contains_key("side.bias"));
                close(
                    &got,
                    &expected,
                    1e-6,
                    &format!("stage {stage}, {offload:?}"),
                );
                Ok(())
            });
        }
    }
}

#[test]
fn i1_first_values_are_those_of_their_names_everywhere() {
    for count in 1..=4 {
        for stage in STAGES {
            for offload in [Offload::None, offloaded(stage)] {
                for precision in [Precision::F32, Precision::Bf16] {
                    let case = case(count, stage, |case| {
                        (case.config.offload, case.config.precision) = (offload, precision);
                    });
                    ranks(count, |communicator| {
                        let trainer = Trainer::new(&case, communicator)?;
                        for (name, data) in trainer.optimizer.whole_states(StateKind::Parameter)? {
                            let values = initial(&name, data.shape());
                            let round = |value: f32| match (precision, name.starts_with("frozen")) {
                                // Only what is trained has master weights.
                                (Precision::Bf16, true) => half(value),
                                _ => value,
                            };
                            let expected = values.into_iter().map(round).map(f64::from);
                            assert!(data.iter::<f64>().eq(expected), "{name}, {case:?}");
                        }
                        Ok(())
                    });
                }
            }
        }
    }
}

/// A value rounded to bf16.
fn half(value: f32) -> f32 {
    let bits = value.to_bits();
    let even = 0x7fff + ((bits >> 16) & 1);
    f32::from_bits((bits + even) & 0xffff_0000)
}

#[test]
fn i2_buffers_are_there_after_deferred_initialisation() {
    ranks(2, |communicator| {
        let trainer = Trainer::new(&case(2, Stage::Three, |_| ()), communicator)?;
        let running = trainer.net.stem.norm.running();
        assert_eq!(running.mean, vec![0.0; 7]);
        assert_eq!(running.variance, vec![1.0; 7]);
        Ok(())
    });
}

#[test]
fn progress_of_a_load_is_what_was_saved() {
    let saved = Progress {
        steps: 7,
        skipped: 2,
        loss_scale: None,
        steady: 3,
    };
    ranks(1, |communicator| {
        let mut trainer = Trainer::new(&case(1, Stage::Two, |_| ()), communicator)?;
        let zeros = |_: &str, _: StateKind, interval: Range<usize>| Ok(vec![0; interval.len() * 4]);
        trainer.optimizer.load(saved, &zeros)?;
        assert_eq!(trainer.optimizer.progress(), saved);
        Ok(())
    });
}
