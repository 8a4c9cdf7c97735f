//! Element types, loss scale, gradients that are not finite, clipping.

use terrashard_layout::Stage;
use terrashard_tests::nasty::{Named, TARGETS, Trained, Trainer};
use terrashard_zero::{
    LossScale, NonFinite, Offload, Optimizer, Precision, Recompute, ReduceDtype, Sgd, StepOutcome,
};

use crate::{SHARDING, STAGES, case, close, offloaded, ranks, run};

const HALVES: [Precision; 2] = [Precision::Bf16, Precision::F16];

#[test]
fn l1_the_loss_scale_grows_after_the_gradient_is_unscaled() {
    let updates = |precision, window| -> Vec<Named> {
        let case = case(2, Stage::Two, |case| {
            case.config.precision = precision;
            case.config.clip_norm = None;
            case.config.optimizer = Optimizer::Sgd(Sgd {
                momentum: 0.0,
                ..Sgd::default()
            });
            case.config.loss_scale = LossScale {
                initial: 256.0,
                window,
                min: 1.0,
            };
            case.lr = 0.05;
        });
        let results = ranks(2, |communicator| {
            let mut trainer = Trainer::new(&case, communicator)?;
            let mut before = trainer.states()?;
            let mut updates = Vec::new();
            for step in 0..5 {
                trainer.step(step)?;
                let after = trainer.states()?;
                let minus = |(name, values): (&String, &Vec<f64>)| {
                    let before = &before[name];
                    let update = values.iter().zip(before).map(|(a, b)| a - b);
                    (name.clone(), update.collect())
                };
                let trained = |(name, _): &(&String, &Vec<f64>)| {
                    name.starts_with("Parameter/") && name.contains("head")
                };
                updates.push(after.iter().filter(trained).map(minus).collect());
                before = after;
            }
            if precision == Precision::F16 {
                let scale = if window == 2 { 1024.0 } else { 256.0 };
                assert_eq!(trainer.optimizer.progress().loss_scale, Some(scale));
            }
            Ok(updates)
        });
        results.into_iter().next().expect("two ranks")
    };
    let (growing, steady) = (updates(Precision::F16, 2), updates(Precision::F16, 1000));
    let exact = updates(Precision::F32, 1);
    for step in 0..5 {
        close(&growing[step], &steady[step], 1e-2, "without growth");
        close(&growing[step], &exact[step], 5e-2, "in single precision");
    }
}

#[test]
fn l3_one_nan_on_one_rank_changes_nothing_on_any() {
    for stage in STAGES {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            for offload in [Offload::None, offloaded(stage)] {
                let case = case(3, stage, |case| {
                    case.config.precision = precision;
                    case.config.offload = offload;
                    case.config.accumulate = 2;
                    case.config.nonfinite = NonFinite::Skip;
                    case.config.ema = Some(0.9);
                });
                let what = format!("stage {stage}, {precision:?}, {offload:?}");
                ranks(3, |communicator| {
                    let rank = communicator.rank();
                    let mut trainer = Trainer::new(&case, communicator)?;
                    let count = (case.window() * TARGETS as u64) as f64;
                    trainer.step(0)?;
                    let before = trainer.optimizer.own_states()?;
                    let progress = trainer.optimizer.progress();
                    for m in 0..2 {
                        let loss = trainer.loss(&case.samples(1, rank, 3, m), 1, count);
                        let spoil = if rank == 1 && m == 1 { f64::NAN } else { 1.0 };
                        trainer.optimizer.backward(loss.mul_scalar(spoil))?;
                    }
                    let StepOutcome::Skipped {
                        origin,
                        in_a_row,
                        loss_scale,
                        scalars,
                    } = trainer.optimizer.step(case.lr, &[1.0])?
                    else {
                        panic!("{what}: the step was applied")
                    };
                    assert_eq!((origin.rank, origin.micro_batch), (Some(1), 1), "{what}");
                    assert!(origin.parameter.starts_with("head."), "{what}: {origin}");
                    assert_eq!((in_a_row, scalars), (1, vec![3.0]));
                    assert!(before == trainer.optimizer.own_states()?, "{what}: changed");
                    let after = trainer.optimizer.progress();
                    assert_eq!(after.steps, 1);
                    let halves = precision == Precision::F16;
                    assert_eq!(halves, progress.loss_scale.is_some());
                    let expected = progress.loss_scale.map(|scale| scale / 2.0);
                    assert_eq!((loss_scale, after.loss_scale), (expected, expected));
                    assert!(matches!(trainer.step(1)?, StepOutcome::Applied { .. }));
                    assert!(before != trainer.optimizer.own_states()?);
                    Ok(())
                });
            }
        }
    }
}

#[test]
fn l4_l7_l8_norms_are_of_the_unscaled_gradient_and_clipping_acts_in_every_type() {
    let exact = run(&case(2, Stage::Zero, |case| case.steps = 1)).norms[0];
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let mut first = None;
        for stage in STAGES {
            let case = case(2, stage, |case| {
                case.config.precision = precision;
                case.config.clip_norm = Some(0.25);
                case.config.loss_scale.initial = 64.0;
            });
            let outcomes = ranks(2, |communicator| {
                let mut trainer = Trainer::new(&case, communicator)?;
                let first = trainer.step(0)?;
                // A gradient a thousand times as large.
                let (rank, count) = (trainer.optimizer.communicator().rank(), TARGETS as f64);
                let ids = case.samples(1, rank, 2, 0);
                let loss = trainer.loss(&ids, 1, count * case.window() as f64 / 100.0);
                trainer.optimizer.backward(loss)?;
                Ok((first, trainer.optimizer.step(case.lr, &[])?))
            });
            assert_eq!(outcomes[0].0, outcomes[1].0);
            assert_eq!(outcomes[0].1, outcomes[1].1);
            let mut norms = Vec::new();
            for outcome in [&outcomes[0].0, &outcomes[0].1] {
                let StepOutcome::Applied { norm, clip, .. } = outcome else {
                    panic!("{outcome:?}")
                };
                let post = norm * clip;
                assert!((post - norm.min(0.25)).abs() < 1e-6, "{norm} {clip}");
                norms.push(*norm);
            }
            assert!((norms[0] - exact).abs() < 0.02 * exact, "{norms:?} {exact}");
            assert!(norms[1] > 50.0 * norms[0], "{norms:?}");
            assert_eq!(*first.get_or_insert(norms.clone()), norms, "stage {stage}");
        }
    }
}

#[test]
fn l6_every_stage_overflows_at_the_same_steps() {
    let mut first = None;
    for stage in STAGES {
        let case = case(2, stage, |case| {
            case.config.precision = Precision::F16;
            case.config.loss_scale = LossScale {
                initial: f64::from(1 << 22),
                window: 3,
                min: 1.0,
            };
        });
        let outcomes = ranks(2, |communicator| {
            let mut trainer = Trainer::new(&case, communicator)?;
            let mut outcomes = Vec::new();
            for step in 0..16 {
                let applied = matches!(trainer.step(step)?, StepOutcome::Applied { .. });
                outcomes.push((applied, trainer.optimizer.progress().loss_scale));
            }
            Ok((outcomes, trainer.states()?))
        });
        assert_eq!(outcomes[0].0, outcomes[1].0);
        let applied = outcomes[0].0.iter().filter(|(applied, _)| *applied).count();
        assert!((3..16).contains(&applied), "{:?}", outcomes[0].0);
        let first = first.get_or_insert_with(|| outcomes[0].clone());
        assert!(*first == outcomes[0], "stage {stage}");
    }
}

#[test]
fn l10_the_norm_is_the_same_with_offload() {
    for stage in SHARDING {
        for precision in [Precision::F32, Precision::F64, Precision::Bf16] {
            let norms = |offload| {
                let case = case(3, stage, |case| {
                    case.config.precision = precision;
                    case.config.offload = offload;
                });
                run(&case).norms
            };
            assert_eq!(norms(Offload::None), norms(offloaded(stage)), "{stage}");
            assert_eq!(norms(Offload::None), norms(Offload::Optimizer), "{stage}");
        }
    }
}

#[test]
fn halves_train_alike_at_every_stage() {
    for precision in HALVES {
        for reduce in [ReduceDtype::Full, ReduceDtype::Compute] {
            let mut first: Option<Trained> = None;
            for stage in STAGES {
                for recompute in [Recompute::Keep, Recompute::Recompute] {
                    let case = case(2, stage, |case| {
                        case.steps = 30;
                        case.lr = 1e-2;
                        case.recompute = recompute;
                        case.config.precision = precision;
                        case.config.reduce_dtype = reduce;
                        case.config.offload = offloaded(stage);
                        case.config.loss_scale.initial = 64.0;
                    });
                    let got = run(&case);
                    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
                    let (start, end) = (mean(&got.losses[..5]), mean(&got.losses[25..]));
                    assert!(end < 0.9 * start, "{precision:?}: {start} to {end}");
                    let first = first.get_or_insert_with(|| got.clone());
                    assert!(*first == got, "not bitwise: {case:?}");
                }
            }
        }
    }
}

/// A window of micro-batches adds up in single precision, whatever the type in which gradients travel.
#[test]
fn n2_micro_batches_do_not_add_up_in_half_precision() {
    for stage in STAGES {
        let gradients = |reduce| {
            let case = case(2, stage, |case| {
                case.config.precision = Precision::Bf16;
                case.config.reduce_dtype = reduce;
                case.config.accumulate = 64;
                case.micro = 1;
            });
            let results = ranks(2, |communicator| {
                let mut trainer = Trainer::new(&case, communicator)?;
                trainer.accumulate(0)?;
                let gradients = trainer.optimizer.whole_gradients()?;
                let named = gradients.into_iter();
                Ok(named
                    .map(|(name, data)| (name, data.iter::<f64>().collect()))
                    .collect::<Named>())
            });
            results.into_iter().next().expect("two ranks")
        };
        let (full, half) = (
            gradients(ReduceDtype::Full),
            gradients(ReduceDtype::Compute),
        );
        let bias = |gradients: &Named| -> Named {
            let of = |name: &str| (name.to_string(), gradients[name].clone());
            [of("head.weight"), of("tokens.linear.weight")].into()
        };
        // Rounding each of 64 sums to 8 bits would be off by far more than rounding each of 64 terms.
        close(&bias(&half), &bias(&full), 4e-3, &format!("stage {stage}"));
    }
}
