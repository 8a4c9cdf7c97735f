//! A model that is not ours, with its own loss, trained as a user would: at every stage on two ranks it is what it is on one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_zero::{
    Blocks, Error, Progress, Recompute, Reduction, StateKind, StepOutcome, Trainable, Training,
    ZeroConfig,
};

const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

/// A block with a residual.
#[derive(Module, Debug)]
struct Residual {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

/// Predicts a number and how sure it is of it.
#[derive(Module, Debug)]
struct Regressor {
    stem: Linear,
    blocks: Vec<Residual>,
    mean: Linear,
    spread: Param<Tensor<1>>,
}

impl Regressor {
    /// The same first values on every call, without a random generator that threads share.
    fn new(device: &Device) -> Self {
        let values = |count: usize| {
            Tensor::<1>::from_floats(
                Vec::from_iter((0..count).map(|i| ((i * 37 + 11) % 23) as f32 / 23.0 - 0.5))
                    .as_slice(),
                device,
            )
        };
        let dense = |from: usize, to: usize| Linear {
            weight: Param::from_tensor(values(from * to).reshape([from, to])),
            bias: Some(Param::from_tensor(values(to))),
        };
        let block = || Residual {
            norm: LayerNormConfig::new(6).init(device),
            up: dense(6, 10),
            down: dense(10, 6),
        };
        Self {
            stem: dense(3, 6),
            blocks: vec![block(), block()],
            mean: dense(6, 1),
            spread: Param::from_tensor(Tensor::zeros([1], device)),
        }
    }
}

impl Trainable for Regressor {
    type Batch = (Tensor<2>, Tensor<2>);

    /// The negative logarithm of a normal distribution's density, a loss that is nowhere in burn.
    fn loss(&self, (x, y): Self::Batch, blocks: &Blocks<'_>) -> Tensor<1> {
        let mut x = blocks.run(&self.stem, x, |stem, x| stem.forward(x));
        for block in &self.blocks {
            x = blocks.run(block, x, |block, x| {
                let inner = gelu(block.up.forward(block.norm.forward(x.clone())));
                x + block.down.forward(inner)
            });
        }
        let mean = blocks.run(&self.mean, x, |mean, x| mean.forward(x));
        let error = (mean - y).powi_scalar(2).mean();
        // A parameter by itself is a block, too.
        blocks.run(&self.spread, error, |spread, error| {
            let spread = spread.val();
            error * spread.clone().mul_scalar(-2.0).exp() * 0.5 + spread
        })
    }
}

/// Sample `i` of the whole step.
fn sample(i: usize) -> ([f32; 3], f32) {
    let t = i as f32;
    let x = [(t * 0.7).sin(), (t * 0.3).cos(), t / 16.0];
    (x, x[0] * x[1] + 0.3 * x[2])
}

struct Outcome {
    losses: Vec<f64>,
    parameters: Vec<(String, Vec<f32>)>,
    moments: Vec<(String, Vec<f32>)>,
    after: f64,
}

fn close(found: &Outcome, expected: &Outcome, what: &str) {
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert!(
            (found - expected).abs() < 1e-6,
            "{what}: {found} {expected}"
        );
    }
    assert!((found.after - expected.after).abs() < 1e-6, "{what}");
    let states = found.parameters.iter().zip(&expected.parameters);
    let moments = found.moments.iter().zip(&expected.moments);
    for ((name, found), (expected_name, expected)) in states.chain(moments) {
        assert_eq!(name, expected_name, "{what}");
        let far = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let far = far.fold(0.0, f32::max);
        assert!(
            found.len() == expected.len() && far < 1e-6,
            "{what}: {name} by {far}"
        );
    }
}

const SAMPLES: usize = 8;
const STEPS: usize = 5;

fn batch(samples: impl Iterator<Item = usize>, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let (x, y): (Vec<_>, Vec<_>) = samples.map(sample).unzip();
    let count = y.len();
    let x = Tensor::<1>::from_floats(x.concat().as_slice(), device).reshape([count, 3]);
    let y = Tensor::<1>::from_floats(y.as_slice(), device).reshape([count, 1]);
    (x, y)
}

/// Trains on `ranks` ranks, each with `accumulate` micro-batches of its share of the eight samples.
fn train(ranks: usize, stage: Stage, accumulate: usize, recompute: Recompute) -> Vec<Outcome> {
    let outcomes = local::run(ranks, |communicator| -> Result<_, Error> {
        let device = Device::flex();
        let config = ZeroConfig {
            stage,
            accumulate,
            reduction: Reduction::Mean,
            clip_norm: Some(0.5),
            ..ZeroConfig::default()
        };
        let rank = communicator.rank();
        let training = Training::new(Regressor::new(&device), config, communicator, &device)?;
        let mut training = training.recompute(recompute);
        let micro = SAMPLES / ranks / accumulate;
        let mut losses = Vec::new();
        for _ in 0..STEPS {
            let own = |number: usize| {
                let start = (rank * accumulate + number) * micro;
                batch(start..start + micro, &training.device())
            };
            let batches: Vec<_> = (0..accumulate).map(own).collect();
            let step = training.step(1e-2, batches)?;
            assert!(matches!(step.outcome, StepOutcome::Applied { .. }));
            losses.push(step.loss);
        }
        let states = |kind| -> Result<Vec<(String, Vec<f32>)>, Error> {
            let states = training.whole_states(kind)?.into_iter();
            Ok(states
                .map(|(name, data)| (name, data.try_to_vec().unwrap()))
                .collect())
        };
        let whole = batch(0..SAMPLES, &device);
        let after = training.loss(whole.clone())?;
        assert!(
            !after.is_autodiff(),
            "a loss on the plain device has no graph"
        );
        let after = after.into_scalar::<f64>();
        // The whole model computes the same by itself.
        let model = training.model()?;
        let hidden = model
            .blocks
            .iter()
            .fold(model.stem.forward(whole.0), |x, block| {
                let inner = gelu(block.up.forward(block.norm.forward(x.clone())));
                x + block.down.forward(inner)
            });
        let spread = model.spread.val();
        let error = (model.mean.forward(hidden) - whole.1).powi_scalar(2).mean();
        let by_itself = error * spread.clone().mul_scalar(-2.0).exp() * 0.5 + spread;
        assert_eq!(by_itself.into_scalar::<f64>(), after);
        assert_eq!(training.gathered_bytes(), 0);
        Ok(Outcome {
            losses,
            parameters: states(StateKind::Parameter)?,
            moments: states(StateKind::Momentum)?,
            after,
        })
    });
    outcomes.unwrap()
}

#[test]
fn a_model_of_ones_own_trains_at_every_stage_as_on_one_rank() {
    let alone = &train(1, Stage::Zero, 1, Recompute::Keep)[0];
    assert_eq!(alone.parameters.len(), 17, "every parameter has a name");
    assert!(alone.losses[STEPS - 1] < alone.losses[0] && alone.after < alone.losses[STEPS - 1]);
    let plain = &train(2, Stage::Zero, 1, Recompute::Keep)[0];
    for stage in STAGES {
        for recompute in [Recompute::Keep, Recompute::Recompute, Recompute::Offload] {
            for (rank, found) in train(2, stage, 1, recompute).iter().enumerate() {
                let what = format!("stage {stage}, {recompute:?}, rank {rank}");
                // A block that runs again adds up the gradients of its input's uses in an order of its own.
                if recompute == Recompute::Keep {
                    assert!(found.parameters == plain.parameters, "{what}");
                    assert!(found.moments == plain.moments, "{what}");
                    assert_eq!(found.losses, plain.losses, "{what}");
                }
                close(found, alone, &what);
            }
        }
        for found in train(2, stage, 2, Recompute::Keep) {
            close(&found, alone, &format!("stage {stage}, two micro-batches"));
        }
    }
}

/// The same model, whose parts enter the graph by themselves and whose loss is a sum.
#[derive(Module, Debug)]
struct Summed {
    net: Regressor,
}

impl Trainable for Summed {
    type Batch = (Tensor<2>, Tensor<2>);

    fn loss(&self, (x, y): Self::Batch, blocks: &Blocks<'_>) -> Tensor<1> {
        let hidden = blocks.enter(&self.net.stem, &x).forward(x).tanh();
        let mean = blocks.enter(&self.net.mean, &hidden).forward(hidden);
        (mean - y).powi_scalar(2).sum()
    }
}

#[test]
fn a_loss_that_is_a_sum_is_told_as_the_sum_of_all_ranks() {
    let run = |ranks: usize, accumulate: usize| {
        let results = local::run(ranks, |communicator| -> Result<_, Error> {
            let device = Device::flex();
            let config = ZeroConfig {
                accumulate,
                reduction: Reduction::Sum,
                ..ZeroConfig::default()
            };
            let rank = communicator.rank();
            let model = Summed {
                net: Regressor::new(&device),
            };
            let mut training = Training::new(model, config, communicator, &device)?;
            let micro = SAMPLES / ranks / accumulate;
            let mut losses = Vec::new();
            for _ in 0..3 {
                let batches = (0..accumulate).map(|number| {
                    let start = (rank * accumulate + number) * micro;
                    batch(start..start + micro, &device.clone().autodiff())
                });
                losses.push(training.step(1e-2, batches.collect::<Vec<_>>())?.loss);
            }
            // The optimizer's own calls are there, too: from its first step, a training trains as new.
            let start = training.progress();
            assert_eq!(start.steps, 3);
            let fresh = Regressor::new(&device).mean.weight.val().into_data();
            let moments = training.whole_states(StateKind::Momentum)?;
            assert!(!moments.is_empty());
            training.load(Progress { steps: 0, ..start }, &|_, _, interval| {
                Ok(vec![0; 4 * interval.len()])
            })?;
            assert_eq!(training.steps(), 0);
            let zeros = training.model()?.net.mean.weight.val().into_data();
            assert!(zeros.iter::<f32>().all(|value| value == 0.0) && zeros != fresh);
            Ok(losses)
        });
        results.unwrap()
    };
    let alone = run(1, 1).swap_remove(0);
    assert!(alone[2] < alone[0]);
    // By hand: with all samples, the first loss is that of the model as it is made.
    let device = Device::flex();
    let model = Regressor::new(&device);
    let (x, y) = batch(0..SAMPLES, &device);
    let mean = model.mean.forward(model.stem.forward(x).tanh());
    let first = (mean - y).powi_scalar(2).sum().into_scalar::<f64>();
    assert!(
        (alone[0] - first).abs() < 1e-5 * first,
        "{} {first}",
        alone[0]
    );
    for (ranks, accumulate) in [(2, 1), (2, 2), (4, 1)] {
        for losses in run(ranks, accumulate) {
            for (found, expected) in losses.iter().zip(&alone) {
                let what = format!("{ranks} ranks, {accumulate}: {found}, not {expected}");
                assert!((found - expected).abs() < 1e-5 * expected, "{what}");
            }
        }
    }
}

#[test]
fn a_module_of_an_autodiff_device_begins_with_its_values() {
    let results = local::run(2, |communicator| -> Result<_, Error> {
        let device = Device::flex();
        let model = Summed {
            net: Regressor::new(&device.clone().autodiff()),
        };
        let config = ZeroConfig::default();
        let training = Training::new(model, config, communicator, &device)?;
        let model = training.model()?;
        assert!(!model.net.stem.weight.val().is_autodiff());
        Ok(model.net.stem.weight.val().into_data())
    });
    let expected = Regressor::new(&Device::flex())
        .stem
        .weight
        .val()
        .into_data();
    for found in results.unwrap() {
        assert_eq!(found, expected);
    }
}

#[test]
fn a_loss_outside_the_graph_is_refused() {
    let failed = local::run(1, |communicator| -> Result<_, Error> {
        let device = Device::flex();
        let config = ZeroConfig::default();
        let mut training = Training::new(Regressor::new(&device), config, communicator, &device)?;
        let batch = batch(0..2, &device);
        Ok(training.step(1e-2, [batch]).err().unwrap().to_string())
    });
    assert!(failed.unwrap()[0].contains("outside the graph"));
}
