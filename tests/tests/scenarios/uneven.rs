//! Ranks that do not do the same: other numbers of samples, other pixels, other calls.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_checkpoint::{Checkpoint, steps};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::{BatchShape, Stage, Window};
use terrashard_tests::nasty::{Case, Named, SIDE, TARGETS, Trainer};
use terrashard_zero::{Error, Precision, Recompute, Result, Unused};

use crate::{STAGES, case, close, ranks};

#[test]
fn h5_unused_parameters_are_zero_or_an_error_that_names_them() {
    for stage in STAGES {
        let case = case(2, stage, |case| case.config.unused = Unused::Error);
        ranks(2, |communicator| {
            let mut trainer = Trainer::new(&case, communicator)?;
            match trainer.step(0) {
                Err(Error::Unused { count: 2, name }) => assert!(name.starts_with("side.")),
                other => panic!("{other:?}"),
            }
            Ok(())
        });
        // Zeros: the branch that nobody used keeps its values but for the decay of its matrix.
        let case = self::case(2, stage, |case| case.config.unused = Unused::Zero);
        let (start, end) = ranks(2, |communicator| {
            let mut trainer = Trainer::new(&case, communicator)?;
            let start = trainer.states()?;
            (0..3).try_for_each(|step| trainer.step(step).map(drop))?;
            Ok((start, trainer.states()?))
        })
        .swap_remove(0);
        let decay = (1.0 - 0.01 * case.lr).powi(3);
        for (name, factor) in [("side.weight", decay), ("side.bias", 1.0)] {
            let of = |states: &Named| states[&format!("Parameter/{name}")].clone();
            for (end, start) in of(&end).iter().zip(of(&start)) {
                let apart = (end - start * factor).abs();
                assert!(apart < 1e-7, "stage {stage}, {name}: {end} from {start}");
            }
        }
        let moments = |name: &&String| name.contains("/side.") && !name.starts_with("Parameter/");
        for name in end.keys().filter(moments) {
            assert!(end[name].iter().all(|value| *value == 0.0), "{name}");
        }
    }
}

/// One step over `samples` of which each rank takes its share in micro-batches, maybe none.
fn uneven_step(trainer: &mut Trainer, window: &Window, step: u64, together: usize) -> Result<()> {
    let communicator = trainer.optimizer.communicator();
    let (rank, alone) = (communicator.rank(), communicator.ranks() == 1);
    let samples = window.samples();
    let count = ((samples.end - samples.start) * TARGETS as u64) as f64;
    for m in 0..trainer.case.config.accumulate {
        let ids: Vec<u64> = match alone {
            true => (0..together)
                .flat_map(|rank| window.micro_batch(rank, m))
                .collect(),
            false => window.micro_batch(rank, m).collect(),
        };
        let loss = trainer.loss(&ids, step, count);
        trainer.optimizer.backward(loss)?;
    }
    trainer.optimizer.step(trainer.case.lr, &[])?;
    Ok(())
}

fn uneven(name: &str, together: usize, accumulate: usize, samples: u64) {
    for stage in STAGES {
        for recompute in [Recompute::Keep, Recompute::Recompute] {
            let case = case(together, stage, |case| {
                case.config.precision = Precision::F64;
                case.config.accumulate = accumulate;
                case.recompute = recompute;
            });
            let shape = BatchShape {
                ranks: together,
                micro_batch: 1,
                accumulate,
            };
            let train = |communicator: Arc<dyn Communicator>, case: &Case| {
                let mut trainer = Trainer::new(case, communicator)?;
                for step in 0..shape.steps(samples) {
                    let window = shape.window(step * shape.global_batch(), Some(samples));
                    uneven_step(&mut trainer, &window, step, together)?;
                }
                trainer.states()
            };
            let got = ranks(together, |communicator| train(communicator, &case));
            let mut alone = case.clone();
            alone.config.stage = Stage::Zero;
            let expected = ranks(1, |communicator| train(communicator, &alone));
            for got in got {
                close(&got, &expected[0], 1e-10, &format!("{name}, stage {stage}"));
            }
        }
    }
}

#[test]
fn h1_ranks_with_uneven_numbers_of_samples_end_together() {
    uneven("10 samples on 3 ranks", 3, 1, 10);
}

#[test]
fn h13_a_last_window_of_uneven_micro_batches_ends_together() {
    // The last window has three samples: one of rank 0, two of rank 1.
    uneven("windows of 3 micro-batches", 2, 3, 15);
}

#[test]
fn h13_a_window_cut_short_on_all_ranks_is_reduced() {
    for stage in STAGES {
        let step = |communicator, stage, accumulate| {
            let case = case(2, stage, |case| {
                case.config.precision = Precision::F64;
                case.config.accumulate = accumulate;
            });
            let mut short = Trainer::new(&case, communicator)?;
            // Two micro-batches, whether the window would have more or not.
            let rank = short.optimizer.communicator().rank() as u64;
            for m in 0..2 {
                let ids = [4 * m + 2 * rank, 4 * m + 2 * rank + 1];
                let loss = short.loss(&ids, 0, (8 * TARGETS) as f64);
                short.optimizer.backward(loss)?;
            }
            short.optimizer.step(1e-3, &[])?;
            short.states()
        };
        let short = ranks(2, |communicator| step(communicator, stage, 3));
        let whole = ranks(2, |communicator| step(communicator, stage, 2));
        assert!(short == whole, "stage {stage}");
    }
}

/// The squared error over the pixels that `valid` picks, and how many values those are.
fn masked_loss(trainer: &Trainer, ids: &[u64], valid: Range<usize>, count: f64) -> Tensor<1> {
    let batch = trainer.batch(ids);
    let output = trainer
        .net
        .forward(batch.x.clone(), &trainer.blocks(ids, 0), 0.0);
    let error = output.cast(batch.target.dtype()) - batch.target;
    (error.clone() * error * mask(valid)).sum() / count
}

/// Ones for valid pixels, zeros for the others.
///
/// # Shapes
/// `[1, SIDE * SIDE, 1]`.
fn mask(valid: Range<usize>) -> Tensor<3> {
    let values: Vec<f64> = (0..SIDE * SIDE)
        .map(|pixel| f64::from(u8::from(valid.contains(&pixel))))
        .collect();
    let data = TensorData::new(values, [1, SIDE * SIDE, 1]);
    Tensor::from_data(data, (&Device::flex().autodiff(), DType::F64))
}

#[test]
fn n9_a_rank_with_little_or_no_valid_data_weighs_by_its_pixels() {
    for stage in STAGES {
        // Of nine pixels, rank 0 has `left` valid ones and rank 1 eight.
        for left in [1, 0] {
            let case = case(2, stage, |case| case.config.precision = Precision::F64);
            let valid = |rank: usize| 0..if rank == 0 { left } else { 8 };
            let got = ranks(2, |communicator| {
                let rank = communicator.rank();
                let mut trainer = Trainer::new(&case, communicator)?;
                let own = (valid(rank).len() * 3) as f64;
                let count = trainer.optimizer.sum_over_ranks(vec![own])?[0];
                let loss = masked_loss(&trainer, &[rank as u64], valid(rank), count.max(1.0));
                trainer.optimizer.backward(loss)?;
                trainer.optimizer.step(case.lr, &[])?;
                trainer.states()
            });
            let expected = ranks(1, |communicator| {
                let mut alone = case.clone();
                alone.config.stage = Stage::Zero;
                let mut trainer = Trainer::new(&alone, communicator)?;
                // Both in one batch, for the statistics; the loss by hand over the valid pixels of each.
                let batch = trainer.batch(&[0, 1]);
                let output = trainer
                    .net
                    .forward(batch.x.clone(), &trainer.blocks(&[0, 1], 0), 0.0);
                let error = output - batch.target;
                let part = |rank: usize| {
                    let part = error.clone().narrow(0, rank, 1);
                    (part.clone() * part * mask(valid(rank))).sum()
                };
                let loss = (part(0) + part(1)) / ((left + 8) * 3) as f64;
                trainer.optimizer.backward(loss)?;
                trainer.optimizer.step(case.lr, &[])?;
                trainer.states()
            });
            let apart = format!("stage {stage}, {left} valid");
            close(&got[0], &expected[0], 1e-10, &apart);
            assert!(got[0].values().flatten().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn h2_a_rank_by_itself_is_refused_and_not_waited_for() {
    // At stage 3, rank 0 predicts and rank 1 has ended.
    let results = local::run(2, |communicator| {
        let rank = communicator.rank();
        let trainer = Trainer::new(&case(2, Stage::Three, |_| ()), Arc::new(communicator))?;
        if rank == 0 {
            drop(trainer.optimizer.plain(&trainer.net.head));
            let failed = trainer.optimizer.check();
            assert!(
                matches!(failed, Err(Error::Collective { .. })),
                "{failed:?}"
            );
            assert_eq!(trainer.optimizer.gathered_bytes(), 0);
        }
        Ok::<_, Error>(())
    });
    results.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn h7_a_rank_that_saves_alone_is_refused_and_publishes_nothing() {
    for stage in STAGES {
        let folder = tempfile::tempdir().expect("a folder");
        let case = case(2, stage, |_| ());
        let results = local::run(2, |communicator| {
            let communicator: Arc<dyn Communicator> = Arc::new(communicator);
            let mut trainer = Trainer::new(&case, communicator.clone())?;
            trainer.step(0)?;
            match communicator.rank() {
                0 => crate::files::save(&trainer, &communicator, folder.path()),
                // Which goes on to the next step.
                _ => trainer.step(1).map(drop),
            }
        });
        let error = results.expect_err("the ranks do not meet").to_string();
        assert!(error.contains("barrier"), "stage {stage}: {error}");
        assert!(Checkpoint::open(folder.path()).is_err());
        assert!(steps(folder.path()).expect("a folder").is_empty());
    }
}
