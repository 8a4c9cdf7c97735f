//! What a rank holds: its bytes, its averages, its share of a checkpoint, with and without groups of ranks; and what is refused
//! with a name.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refusals;
#[path = "../rules/vectors.rs"]
mod vectors;

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_zero::{
    Error, HeldBytes, Initial, Offload, Optimizer, ParameterGroup, Precision, Progress, Reduction,
    Select, Sgd, ShardedParameters, StateKind, StatePiece, ZeroConfig,
};
use vectors::{Rank, SIZES, Vectors, first, gradient, initial};

const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

fn config(stage: Stage) -> ZeroConfig {
    ZeroConfig {
        stage,
        reduction: Reduction::Mean,
        bucket_bytes: Some(200),
        ..ZeroConfig::default()
    }
}

fn step(rank: &mut Rank, number: u64) -> Result<(), Error> {
    rank.backward(|part, i| gradient(part, i, number))?;
    rank.optimizer.step(0.05, &[])?;
    Ok(())
}

/// The values that a prediction sees.
fn seen(parameters: &ShardedParameters, model: &Vectors) -> Vec<Vec<f64>> {
    let plain = parameters.plain(model);
    let values = plain.parts.iter().zip(SIZES).map(|(part, size)| {
        let value = part.val();
        assert_eq!(value.dims(), [size]);
        value.into_data().iter::<f64>().collect()
    });
    values.collect()
}

#[test]
fn averages_stand_in_for_the_parameters_while_work_goes_on() {
    for stage in STAGES {
        for (precision, offload) in [
            (Precision::F32, Offload::None),
            (Precision::Bf16, Offload::None),
            (Precision::F32, Offload::Parameters),
        ] {
            if offload == Offload::Parameters && stage != Stage::Three {
                continue;
            }
            let results = local::run(3, |communicator| -> Result<_, Error> {
                let config = ZeroConfig {
                    precision,
                    offload,
                    ema: Some(0.5),
                    ..config(stage)
                };
                let mut rank = Rank::new(config, communicator)?;
                assert!(rank.optimizer.has_averages());
                for number in 1..=2 {
                    step(&mut rank, number)?;
                }
                let before = seen(rank.optimizer.parameters(), &rank.model);
                let averages = rank.state(StateKind::Ema)?;
                let inside = rank
                    .optimizer
                    .with_averages(|| seen(rank.optimizer.parameters(), &rank.model))?;
                let bound = if precision == Precision::F32 {
                    0.0
                } else {
                    0.01
                };
                // Parts without elements have no average.
                let filled = inside.iter().filter(|values| !values.is_empty());
                for (inside, average) in filled.zip(&averages) {
                    assert_eq!(inside.len(), average.len());
                    for (inside, average) in inside.iter().zip(average) {
                        assert!((inside - average).abs() <= bound, "{inside}, not {average}");
                    }
                }
                assert!(inside != before, "the average is not the last value");
                assert!(seen(rank.optimizer.parameters(), &rank.model) == before);
                // And training goes on from the parameters, not from the averages.
                step(&mut rank, 3)?;
                rank.state(StateKind::Parameter)
            });
            let plain = local::run(3, |communicator| -> Result<_, Error> {
                let config = ZeroConfig {
                    precision,
                    offload,
                    ..config(stage)
                };
                let mut rank = Rank::new(config, communicator)?;
                assert!(!rank.optimizer.has_averages());
                assert!(rank.state(StateKind::Ema)?.is_empty());
                for number in 1..=3 {
                    step(&mut rank, number)?;
                }
                // Without averages the parameters stand for themselves.
                let own = seen(rank.optimizer.parameters(), &rank.model);
                let inside = rank
                    .optimizer
                    .with_averages(|| seen(rank.optimizer.parameters(), &rank.model))?;
                assert!(inside == own);
                rank.state(StateKind::Parameter)
            });
            assert_eq!(
                results.unwrap(),
                plain.unwrap(),
                "stage {stage}, {precision:?}"
            );
        }
    }
}

#[test]
fn bytes_held_are_those_of_the_stage() {
    // Two ranks, and one part whose elements they share evenly.
    let elements = 130;
    let run = |config: ZeroConfig| {
        let results = local::run(2, |communicator| -> Result<_, Error> {
            let config = ZeroConfig {
                accumulate: 2,
                groups: (0..4)
                    .map(|part| ParameterGroup {
                        select: Select::Name(format!("parts.{part}")),
                        lr_factor: 1.0,
                        weight_decay: 0.0,
                        frozen: true,
                    })
                    .collect(),
                ..config.clone()
            };
            let mut rank = Rank::new(config, communicator)?;
            rank.backward(|_, _| 1.0)?;
            let held = rank.optimizer.held_bytes();
            rank.backward(|_, _| 1.0)?;
            assert!(rank.optimizer.take_buckets_peak() > 0);
            rank.optimizer.step(0.05, &[])?;
            assert_eq!(rank.optimizer.take_buckets_peak(), 0, "nothing travels");
            let after = rank.optimizer.held_bytes();
            assert_eq!(
                after,
                HeldBytes {
                    gradients: 0,
                    ..held
                }
            );
            Ok((held, rank.optimizer.parameters().held_bytes()))
        });
        results.unwrap().swap_remove(1)
    };
    let frozen = SIZES[..4].iter().sum::<usize>();
    for stage in STAGES {
        let (held, in_parameters) = run(config(stage));
        assert_eq!(held.parameters, in_parameters);
        let shards = if stage == Stage::Zero { 1 } else { 2 };
        assert_eq!(held.optimizer, 2 * 4 * elements / shards, "stage {stage}");
        let gradients = if stage < Stage::Two { 1 } else { 2 };
        assert_eq!(held.gradients, 4 * elements / gradients, "stage {stage}");
        let parameters = match stage {
            // Rounded up, part by part.
            Stage::Three => elements / 2 + 19 + 3 + 1,
            _ => elements + frozen,
        };
        assert_eq!(held.parameters, 4 * parameters, "stage {stage}");
        assert_eq!((held.host, held.gathered), (0, 0), "stage {stage}");
    }
    let shared = config(Stage::Three);
    let (all, in_parameters) = run(ZeroConfig {
        offload: Offload::Parameters,
        ..shared.clone()
    });
    assert_eq!((all.parameters, all.optimizer), (0, 0));
    assert_eq!(all.host, 4 * (3 * elements / 2 + 19 + 3 + 1));
    assert_eq!(in_parameters, 4 * (elements / 2 + 19 + 3 + 1));
    let (some, _) = run(ZeroConfig {
        offload: Offload::Optimizer,
        offload_fraction: 0.2,
        ..shared
    });
    // A fifth of the master weights and moments, the master weights beside the parameters.
    assert_eq!(some.host, 3 * 4 * 13);
    assert_eq!(some.optimizer, 2 * 4 * 52);
}

#[test]
fn gathered_parameters_are_counted_and_go() {
    let results = local::run(2, |communicator| -> Result<_, Error> {
        let rank = Rank::new(config(Stage::Three), communicator)?;
        let parameters = rank.optimizer.parameters();
        assert_eq!(parameters.take_gathered_peak(), 0);
        let part = parameters.plain(&rank.model.parts[4]);
        assert_eq!(part.val().dims(), [130]);
        assert_eq!(parameters.take_gathered_peak(), 4 * 130);
        assert_eq!(
            (parameters.gathered_bytes(), parameters.take_gathered_peak()),
            (0, 0)
        );
        // Outside the graph, entering is the same as asking for plain values.
        let anchor = Tensor::<1>::zeros([1], &Device::flex());
        let entered = rank.optimizer.enter(&rank.model.parts[0], &anchor).val();
        assert!(!entered.is_autodiff());
        let expected = (0..37).map(|i| first(0, i));
        assert!(entered.into_data().iter::<f64>().eq(expected));
        parameters.check()
    });
    results.unwrap();
}

/// Elements of every state of a whole checkpoint, by kind and name, from the pieces of all ranks.
fn assembled(pieces: Vec<StatePiece>) -> BTreeMap<(StateKind, String), Vec<u8>> {
    let mut pieces = pieces;
    pieces.sort_by_key(|piece| piece.interval.start);
    let mut whole: BTreeMap<_, Vec<u8>> = BTreeMap::new();
    for piece in pieces {
        let bytes = whole.entry((piece.kind, piece.name.clone())).or_default();
        let start = piece.interval.start * piece.dtype.bytes();
        assert!(
            piece.interval.is_empty() || bytes.len() == start,
            "{} of {}: each element once",
            piece.name,
            bytes.len()
        );
        bytes.extend(piece.bytes());
    }
    whole
}

#[test]
fn groups_of_ranks_train_as_all_ranks_do_and_save_each_element_once() {
    let trained = |ranks: usize, config: &ZeroConfig, steps: u64| {
        let results = local::run(ranks, |communicator| -> Result<_, Error> {
            let number = communicator.rank();
            let mut rank = Rank::new(config.clone(), communicator)?;
            for step in 1..=steps {
                // Ranks differ, and only some of them use the last part.
                rank.backward(|part, i| match part {
                    4 if number != 1 => 0.0,
                    _ => gradient(part, i, step + number as u64),
                })?;
                rank.optimizer.step(0.05, &[])?;
            }
            if let (Some(size), true) = (config.shard_group, config.stage != Stage::Zero) {
                let groups = rank.optimizer.parameters().groups();
                assert_eq!(groups.world.ranks(), ranks);
                assert_eq!(
                    (groups.shards.ranks(), groups.shards.rank()),
                    (size, number % size)
                );
                let replicas = groups.replicas.as_ref().unwrap();
                assert_eq!(
                    (replicas.ranks(), replicas.rank()),
                    (ranks / size, number / size)
                );
            }
            rank.optimizer.own_states()
        });
        assembled(results.unwrap().concat())
    };
    for optimizer in [
        ZeroConfig::default().optimizer,
        Optimizer::Sgd(Sgd::default()),
    ] {
        for stage in STAGES {
            let config = ZeroConfig {
                optimizer,
                // Sums of doubles do not depend on the order in which so few of them are added up.
                precision: Precision::F64,
                ..config(stage)
            };
            let expected = trained(4, &config, 3);
            for size in [1, 2] {
                let grouped = ZeroConfig {
                    shard_group: Some(size),
                    ..config.clone()
                };
                let got = trained(4, &grouped, 3);
                assert!(got == expected, "stage {stage}, groups of {size}");
            }
        }
    }
}

#[test]
fn parameters_alone_load_what_a_training_saved() {
    let saved = local::run(3, |communicator| -> Result<_, Error> {
        let mut rank = Rank::new(config(Stage::Two), communicator)?;
        step(&mut rank, 1)?;
        Ok((
            rank.optimizer.own_states()?,
            rank.state(StateKind::Parameter)?,
        ))
    });
    let saved = saved.unwrap();
    let expected = &saved[0].1;
    let pieces = saved.iter().flat_map(|(pieces, _)| pieces.clone());
    let whole = assembled(pieces.collect());
    for stage in STAGES {
        for offload in [Offload::None, Offload::Parameters] {
            if offload == Offload::Parameters && stage != Stage::Three {
                continue;
            }
            // Frozen parts are in no bucket.
            for frozen in [false, true] {
                let results = local::run(2, |communicator| -> Result<_, Error> {
                    let model = Vectors::new();
                    let config = ZeroConfig {
                        offload,
                        groups: vec![ParameterGroup {
                            select: Select::Name("parts.0".into()),
                            lr_factor: 1.0,
                            weight_decay: 0.0,
                            frozen,
                        }],
                        ..config(stage)
                    };
                    let parameters = ShardedParameters::new(
                        &model,
                        config,
                        Initial::Keyed(&initial),
                        std::sync::Arc::new(communicator),
                        &Device::flex(),
                    )?;
                    assert!(seen(&parameters, &model) != *expected);
                    parameters.load(&|name, kind, interval| {
                        let bytes = &whole[&(kind, name.to_string())];
                        Ok(bytes[4 * interval.start..4 * interval.end].to_vec())
                    })?;
                    Ok(seen(&parameters, &model))
                });
                for seen in results.unwrap() {
                    assert!(
                        seen == *expected,
                        "stage {stage}, {offload:?}, frozen: {frozen}"
                    );
                }
            }
        }
    }
}

#[test]
fn states_go_on_wherever_they_are_loaded_to() {
    let places = [
        (Stage::Zero, Offload::None, 1.0),
        (Stage::Two, Offload::Optimizer, 0.37),
        (Stage::Three, Offload::Optimizer, 1.0),
        (Stage::Three, Offload::Parameters, 0.37),
    ];
    let trained = |place: (Stage, Offload, f64), from: Option<&BTreeMap<_, Vec<u8>>>| {
        let (stage, offload, offload_fraction) = place;
        let results = local::run(2, |communicator| -> Result<_, Error> {
            let config = ZeroConfig {
                offload,
                offload_fraction,
                ema: Some(0.5),
                ..config(stage)
            };
            let mut rank = Rank::new(config.clone(), communicator)?;
            let mut steps = 1..=2;
            if let Some(whole) = from {
                let progress = Progress {
                    steps: 2,
                    ..Progress::new(&config)
                };
                rank.optimizer.load(progress, &|name, kind, interval| {
                    let bytes: &Vec<u8> = &whole[&(kind, name.to_string())];
                    Ok(bytes[4 * interval.start..4 * interval.end].to_vec())
                })?;
                steps = 3..=4;
            }
            for number in steps {
                step(&mut rank, number)?;
            }
            rank.optimizer.own_states()
        });
        assembled(results.unwrap().concat())
    };
    let half = trained(places[0], None);
    let expected = trained(places[0], Some(&half));
    assert!(half != expected);
    for from in places {
        let half = trained(from, None);
        for to in places {
            let whole = trained(to, Some(&half));
            assert!(whole == expected, "from {from:?} to {to:?}");
        }
    }
}
