//! Every stage, rank count and accumulation trains as one process over the same micro-batches does.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod net;
mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, TensorData};
use net::{Net, batch, dense, initial, loss};
use reference::reference;
use terrashard_collectives::Communicator;
use terrashard_collectives::local::{self, LocalCommunicator};
use terrashard_layout::{Stage, micro_batch};
use terrashard_zero::{
    Error, Initial, NonFinite, ParameterGroup, Precision, Progress, Reduction, Select, StateKind,
    StepOutcome, ZeroConfig, ZeroOptimizer,
};

const STEPS: u64 = 20;
const LR: f64 = 1e-3;
const MICRO: usize = 2;

type Named = BTreeMap<String, Vec<f64>>;

fn config(stage: Stage, precision: Precision, accumulate: usize) -> ZeroConfig {
    ZeroConfig {
        stage,
        precision,
        accumulate,
        // Small enough for several buckets.
        bucket_bytes: Some(256),
        groups: vec![
            ParameterGroup {
                select: Select::Name("frozen".into()),
                lr_factor: 1.0,
                weight_decay: 0.0,
                frozen: true,
            },
            ParameterGroup {
                select: Select::Vectors,
                lr_factor: 2.0,
                weight_decay: 0.0,
                frozen: false,
            },
        ],
        clip_norm: Some(0.05),
        ..ZeroConfig::default()
    }
}

fn named(states: Vec<(String, TensorData)>) -> Named {
    let values = |data: TensorData| data.convert::<f64>().try_to_vec::<f64>().unwrap();
    states
        .into_iter()
        .map(|(name, data)| (name, values(data)))
        .collect()
}

/// This rank's optimizer, on the plain device.
fn new_optimizer(
    net: &Net,
    config: ZeroConfig,
    communicator: LocalCommunicator,
) -> Result<ZeroOptimizer, Error> {
    let communicator = Arc::new(communicator);
    ZeroOptimizer::new(
        net,
        config,
        Initial::Keyed(&initial),
        communicator,
        &Device::flex(),
    )
}

/// All states and the norms after training on `ranks` threads, from rank 0.
fn train(config: &ZeroConfig, ranks: usize, steps: u64) -> (Named, Vec<f64>) {
    let dtype = match config.precision {
        Precision::F64 => DType::F64,
        _ => DType::F32,
    };
    let results = local::run(ranks, |communicator| -> Result<_, Error> {
        let device = Device::flex();
        let net = Net::new();
        let rank = communicator.rank();
        let mut optimizer = new_optimizer(&net, config.clone(), communicator)?;
        let window = (ranks * config.accumulate * MICRO) as u64;
        let mut norms = Vec::new();
        for step in 0..steps {
            for m in 0..config.accumulate {
                let samples = micro_batch(step * window, rank, ranks, MICRO, config.accumulate, m);
                let (x, target) = batch(samples, &device.clone().autodiff(), dtype);
                optimizer.backward(loss(&net, &optimizer, x, target, (window * 3) as f64))?;
            }
            match optimizer.step(LR, &[1.0])? {
                StepOutcome::Applied { norm, scalars, .. } => {
                    assert_eq!(scalars, [ranks as f64]);
                    norms.push(norm);
                }
                StepOutcome::Skipped { .. } => panic!("all gradients are finite"),
            }
        }
        let mut states = named(optimizer.whole_states(StateKind::Parameter)?);
        for (kind, prefix) in [(StateKind::Momentum, "m/"), (StateKind::Variance, "v/")] {
            let moments = named(optimizer.whole_states(kind)?);
            states.extend(
                moments
                    .into_iter()
                    .map(|(name, values)| (format!("{prefix}{name}"), values)),
            );
        }
        Ok((states, norms))
    });
    results.unwrap().swap_remove(0)
}

fn compare(got: &Named, expected: &Named, bound: f64, what: &str) {
    assert_eq!(
        got.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>(),
        "{what}"
    );
    for (name, expected) in expected {
        let square =
            |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let difference = square(&mut got[name].iter().zip(expected).map(|(a, b)| a - b));
        let norm = square(&mut expected.iter().copied());
        assert!(
            difference <= bound * norm,
            "{what}: {name}: {difference:e} of {norm:e}"
        );
    }
}

#[test]
fn every_stage_trains_like_one_process() {
    for accumulate in [1, 3] {
        for ranks in 1..=4 {
            let (expected, norms) = reference(ranks, accumulate, STEPS);
            assert!(norms.iter().any(|norm| *norm > 0.05), "clipping takes part");
            for (dtype, bound) in [(Precision::F32, 1e-5), (Precision::F64, 1e-10)] {
                let mut bitwise: Option<(Named, Vec<f64>)> = None;
                for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
                    let got = train(&config(stage, dtype, accumulate), ranks, STEPS);
                    let what = format!(
                        "stage {stage}, {ranks} ranks, accumulation {accumulate}, {dtype:?}"
                    );
                    compare(&got.0, &expected, bound, &what);
                    for (got, expected) in got.1.iter().zip(&norms) {
                        assert!(
                            (got - expected).abs() <= bound * expected,
                            "{what}: norm {got} not {expected}"
                        );
                    }
                    if accumulate == 1 {
                        let first = bitwise.get_or_insert_with(|| got.clone());
                        assert!(*first == got, "{what}: not bitwise equal to stage 0");
                    }
                }
            }
        }
    }
}

#[test]
fn saved_states_load_at_another_rank_count_and_stage() {
    let run = |stage, ranks, saved: Option<(u64, Saved)>, steps: std::ops::Range<u64>| {
        let results = local::run(ranks, |communicator| -> Result<_, Error> {
            let device = Device::flex();
            let net = Net::new();
            let rank = communicator.rank();
            let config = config(stage, Precision::F32, 1);
            let mut optimizer = new_optimizer(&net, config, communicator)?;
            if let Some((step, saved)) = &saved {
                optimizer.load(progress(*step), &|name, kind, interval| {
                    let bytes = &saved[&(name.to_string(), kind)];
                    Ok(bytes[interval.start * 4..interval.end * 4].to_vec())
                })?;
            }
            for step in steps.clone() {
                let samples = step * 12 + 12 * rank as u64 / ranks as u64
                    ..step * 12 + 12 * (rank as u64 + 1) / ranks as u64;
                let (x, target) = batch(samples, &device.clone().autodiff(), DType::F32);
                optimizer.backward(loss(&net, &optimizer, x, target, 36.0))?;
                optimizer.step(LR, &[])?;
            }
            assert_eq!(optimizer.steps(), steps.end);
            optimizer.own_states()
        });
        let mut whole: Saved = BTreeMap::new();
        let mut pieces: Vec<_> = results.unwrap().into_iter().flatten().collect();
        pieces.sort_by_key(|piece| piece.interval.start);
        for piece in pieces {
            let bytes = whole.entry((piece.name, piece.kind)).or_default();
            assert_eq!(
                bytes.len(),
                if piece.interval.is_empty() {
                    bytes.len()
                } else {
                    piece.interval.start * 4
                }
            );
            bytes.extend(piece.data.as_bytes());
        }
        whole
    };
    let uninterrupted = run(Stage::One, 4, None, 0..10);
    let half = run(Stage::One, 4, None, 0..5);
    assert!(!half.contains_key(&("tied".to_string(), StateKind::Parameter)));
    let resumed = run(Stage::One, 4, Some((5, half.clone())), 5..10);
    assert!(
        resumed == uninterrupted,
        "resumed at the same rank count: bitwise"
    );
    for (stage, ranks) in [(Stage::Two, 2), (Stage::Zero, 3), (Stage::Two, 1)] {
        let resumed = run(stage, ranks, Some((5, half.clone())), 5..10);
        compare(
            &floats(&resumed),
            &floats(&uninterrupted),
            1e-5,
            &format!("stage {stage} on {ranks} ranks"),
        );
    }
}

fn progress(steps: u64) -> Progress {
    Progress {
        steps,
        ..Progress::new(&ZeroConfig::default())
    }
}

type Saved = BTreeMap<(String, StateKind), Vec<u8>>;

fn floats(saved: &Saved) -> Named {
    let float = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
    saved
        .iter()
        .map(|((name, kind), bytes)| {
            (
                format!("{kind:?}/{name}"),
                bytes.chunks(4).map(float).collect(),
            )
        })
        .collect()
}

#[test]
fn a_mean_of_means_equals_the_sum_over_global_counts() {
    let trained = |reduction, count| {
        let results = local::run(2, |communicator| -> Result<_, Error> {
            let device = Device::flex();
            let net = Net::new();
            let rank = communicator.rank() as u64;
            let config = ZeroConfig {
                reduction,
                ..config(Stage::Two, Precision::F64, 1)
            };
            let mut optimizer = new_optimizer(&net, config, communicator)?;
            let (x, target) = batch(rank * 4..rank * 4 + 4, &device.autodiff(), DType::F64);
            optimizer.backward(loss(&net, &optimizer, x, target, count))?;
            optimizer.step(LR, &[])?;
            Ok(named(optimizer.whole_states(StateKind::Parameter)?))
        });
        results.unwrap().swap_remove(0)
    };
    compare(
        &trained(Reduction::Mean, 12.0),
        &trained(Reduction::Sum, 24.0),
        1e-12,
        "mean and sum",
    );
}

#[test]
fn a_non_finite_gradient_changes_nothing_on_any_rank() {
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        let results = local::run(3, |communicator| -> Result<_, Error> {
            let device = Device::flex();
            let net = Net::new();
            let rank = communicator.rank() as u64;
            let config = ZeroConfig {
                nonfinite: NonFinite::Skip,
                ..config(stage, Precision::F32, 1)
            };
            let mut optimizer = new_optimizer(&net, config, communicator)?;
            let train = |spoil: bool, optimizer: &mut ZeroOptimizer| {
                let (x, target) = batch(rank..rank + 1, &device.clone().autodiff(), DType::F32);
                let target = if spoil && rank == 1 {
                    target * f64::NAN
                } else {
                    target
                };
                optimizer.backward(loss(&net, optimizer, x, target, 9.0))?;
                optimizer.step(LR, &[])
            };
            train(false, &mut optimizer)?;
            let before = optimizer.own_states()?;
            let outcome = train(true, &mut optimizer)?;
            assert!(
                matches!(outcome, StepOutcome::Skipped { .. }),
                "{outcome:?}"
            );
            assert!(
                before == optimizer.own_states()?,
                "stage {stage}: a state changed"
            );
            assert_eq!(optimizer.steps(), 1);
            assert!(matches!(
                train(false, &mut optimizer)?,
                StepOutcome::Applied { .. }
            ));
            Ok(())
        });
        results.unwrap();
    }
}

#[test]
fn wrong_use_is_an_error_that_says_so() {
    let results = local::run(1, |communicator| -> Result<_, Error> {
        let device = Device::flex();
        let (net, other) = (Net::new(), Net::new());
        let config = config(Stage::Two, Precision::F32, 1);
        let mut optimizer = new_optimizer(&net, config, communicator)?;
        assert!(matches!(
            optimizer.step(LR, &[]),
            Err(Error::MicroBatches { got: 0, .. })
        ));
        let data = || batch(0..2, &device.clone().autodiff(), DType::F32);
        let (x, target) = data();
        optimizer.backward(loss(&net, &optimizer, x, target, 6.0))?;
        let (x, target) = data();
        let again = optimizer.backward(loss(&net, &optimizer, x, target, 6.0));
        assert!(matches!(
            again,
            Err(Error::MicroBatches {
                expected: 1,
                got: 2
            })
        ));
        optimizer.step(LR, &[])?;
        let (x, target) = data();
        let foreign = optimizer.backward(loss(&other, &optimizer, x.require_grad(), target, 6.0));
        assert!(matches!(foreign, Err(Error::ForeignParameter { .. })));
        Ok(())
    });
    results.unwrap();
}

#[test]
fn h4_a_rank_with_another_model_is_told_by_its_first_difference() {
    let check = |stage, change: &(dyn Fn(&mut Net, &mut ZeroConfig) + Sync), told: [&str; 2]| {
        let results = local::run(3, |communicator| -> Result<(), Error> {
            let rank = communicator.rank();
            let (mut net, mut config) = (Net::new(), config(stage, Precision::F32, 1));
            if rank == 2 {
                change(&mut net, &mut config);
            }
            let Err(error) = new_optimizer(&net, config, communicator) else {
                panic!("the tables differ")
            };
            let text = error.to_string();
            assert!(text.starts_with("rank 2 has another shard table"), "{text}");
            // The same on every rank, so that the first one that ends says it.
            for words in told {
                assert!(text.contains(words), "rank {rank}: {text}");
            }
            Ok(())
        });
        results.unwrap();
    };
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        // One channel more.
        check(
            stage,
            &|net, _| net.output = dense(8, 3),
            [
                "it has `output.weight` [8, 3]",
                "rank 0 `output.weight` [7, 3]",
            ],
        );
        check(
            stage,
            &|_, config| config.groups.clear(),
            [
                "it has `frozen` [7, 7] f32 in group 0, ",
                "rank 0 `frozen` [7, 7] f32 in group 0, frozen",
            ],
        );
        check(
            stage,
            &|_, config| config.bucket_bytes = Some(512),
            ["buckets of 512 bytes", "buckets of 256 bytes"],
        );
    }
}
