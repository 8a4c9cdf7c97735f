//! One rank's training of the nasty net, and how results are compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_layout::micro_batch;
use terrashard_models::Scope;
use terrashard_ops::{Masks, Mode, Pass, Recorder, Replay, SumOverRanks};
use terrashard_zero::{
    Initial, ParameterGroup, Recompute, Result, Round, Select, StateKind, StepOutcome, ZeroConfig,
    ZeroOptimizer,
};

use super::{Batch, Nasty, TARGETS, initial};

/// Sums over ranks by a communicator.
#[derive(Debug)]
pub struct Sums(pub Arc<dyn Communicator>);

impl SumOverRanks for Sums {
    fn sum(&self, values: &mut [f64]) {
        let own = TensorData::from(&*values);
        let own = Tensor::<1>::from_data(own, (&Device::flex(), DType::F64));
        let sum = self.0.all_reduce(own).and_then(|pending| pending.wait());
        // A failed group fails every later call as well, so the step ends with the error.
        if let Ok(sum) = sum {
            let sum = sum.into_data().iter::<f64>().collect::<Vec<_>>();
            values.copy_from_slice(&sum);
        }
    }
}

/// Blocks that get their parameters from an optimizer and perhaps run twice.
pub struct Blocks<'a> {
    /// Where the parameters are.
    pub optimizer: &'a ZeroOptimizer,
    /// What becomes of activations.
    pub recompute: Recompute,
    /// What the pass is for, how statistics are added, what is dropped.
    pub pass: Pass,
}

impl Scope for Blocks<'_> {
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        _name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
    {
        let (pass, live) = (self.pass.clone(), self.pass.ranks.clone());
        let recorder = Arc::new(Recorder::new(live.clone()));
        let run = move |module: &M, inputs: Vec<Tensor<D>>, round: Round| {
            let mut pass = pass.clone();
            match round {
                Round::First => pass.ranks = recorder.clone(),
                Round::Again => {
                    pass.mode = Mode::Recomputing;
                    pass.ranks = Arc::new(Replay::new(recorder.recorded(), live.clone()));
                }
            }
            forward(module, inputs, &pass)
        };
        self.optimizer.block(module, inputs, self.recompute, run)
    }

    fn pass(&self) -> Pass {
        self.pass.clone()
    }
}

/// One training of the net.
#[derive(Clone, Debug)]
pub struct Case {
    /// The optimizer's settings.
    pub config: ZeroConfig,
    /// Ranks among which samples are dealt. One process may train what so many do together.
    pub ranks: usize,
    /// What becomes of activations.
    pub recompute: Recompute,
    /// Optimizer steps.
    pub steps: u64,
    /// Samples of a rank's micro-batch.
    pub micro: usize,
    /// Learning rate.
    pub lr: f64,
    /// Rate of dropout.
    pub drop: f64,
    /// Whether the optimizer is told the blocks.
    pub declared: bool,
    /// Where tensors are.
    pub device: Device,
}

impl Case {
    /// Twenty steps of AdamW with the net's groups and clipping at a norm that takes part.
    pub fn new(ranks: usize) -> Self {
        let group = |select, lr_factor, weight_decay, frozen| ParameterGroup {
            select,
            lr_factor,
            weight_decay,
            frozen,
        };
        Self {
            config: ZeroConfig {
                groups: vec![
                    group(Select::Name("frozen.*".into()), 1.0, 0.0, true),
                    group(Select::Vectors, 2.0, 0.0, false),
                ],
                clip_norm: Some(0.5),
                bucket_bytes: Some(512),
                ..ZeroConfig::default()
            },
            ranks,
            recompute: Recompute::Keep,
            steps: 20,
            micro: 2,
            lr: 1e-3,
            drop: 0.0,
            declared: true,
            device: Device::flex(),
        }
    }

    /// Samples of one step.
    pub fn window(&self) -> u64 {
        (self.ranks * self.config.accumulate * self.micro) as u64
    }

    /// The samples of micro-batch `m` of `rank` of `ranks`: of one rank, those of all.
    pub fn samples(&self, step: u64, rank: usize, ranks: usize, m: usize) -> Vec<u64> {
        let accumulate = self.config.accumulate;
        let of = |rank| {
            let start = step * self.window();
            micro_batch(start, rank, self.ranks, self.micro, accumulate, m)
        };
        if ranks == self.ranks {
            of(rank).collect()
        } else {
            assert_eq!(ranks, 1, "a case runs on all its ranks or in one process");
            (0..self.ranks).flat_map(of).collect()
        }
    }

    /// Element types of inputs and of losses.
    pub fn types(&self) -> (DType, DType) {
        let of = |element: terrashard_layout::ElementType| match element {
            terrashard_layout::ElementType::F64 => DType::F64,
            terrashard_layout::ElementType::Bf16 => DType::BF16,
            terrashard_layout::ElementType::F16 => DType::F16,
            _ => DType::F32,
        };
        let precision = self.config.precision;
        (of(precision.compute()), of(precision.master()))
    }
}

/// Values by name.
pub type Named = BTreeMap<String, Vec<f64>>;

/// What a training ends with.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// Parameters and optimizer states, whole, as `kind/name`, and the running statistics of the batch-norm.
    pub states: Named,
    /// Norm of each step's gradient.
    pub norms: Vec<f64>,
    /// Loss of each step, over all ranks and micro-batches.
    pub losses: Vec<f64>,
}

/// One rank of a training.
pub struct Trainer {
    /// The settings.
    pub case: Case,
    /// The net.
    pub net: Nasty,
    /// Its optimizer.
    pub optimizer: ZeroOptimizer,
    sums: Arc<dyn SumOverRanks>,
}

impl Trainer {
    /// The start of a training.
    ///
    /// # Errors
    /// Those of [`ZeroOptimizer::new`].
    pub fn new(case: &Case, communicator: Arc<dyn Communicator>) -> Result<Self> {
        let net = Nasty::on(&case.device);
        let sums = Arc::new(Sums(communicator.clone()));
        let optimizer = ZeroOptimizer::new(
            &net,
            case.config.clone(),
            Initial::Keyed(&initial),
            communicator,
            &case.device,
        )?;
        if case.declared {
            optimizer.declare_blocks(&net.blocks())?;
        }
        Ok(Self {
            case: case.clone(),
            net,
            optimizer,
            sums,
        })
    }

    /// The blocks of a training pass over these samples.
    pub fn blocks(&self, ids: &[u64], step: u64) -> Blocks<'_> {
        Blocks {
            optimizer: &self.optimizer,
            recompute: self.case.recompute,
            pass: Pass {
                mode: Mode::Training,
                ranks: self.sums.clone(),
                masks: Some(Masks {
                    seed: 3,
                    step,
                    samples: ids.into(),
                }),
                slots: None,
            },
        }
    }

    /// The batch of these samples, on the autodiff device.
    pub fn batch(&self, ids: &[u64]) -> Batch {
        let (compute, master) = self.case.types();
        Batch::new(ids, &self.case.device.clone().autodiff(), compute, master)
    }

    /// The loss of one micro-batch over `count` values.
    pub fn loss(&self, ids: &[u64], step: u64, count: f64) -> Tensor<1> {
        let batch = self.batch(ids);
        let blocks = self.blocks(ids, step);
        let output = self.net.forward(batch.x.clone(), &blocks, self.case.drop);
        batch.loss(output, count)
    }

    /// All micro-batches of a step but not its update; the sum of this rank's losses.
    ///
    /// # Errors
    /// Those of [`ZeroOptimizer::backward`].
    pub fn accumulate(&mut self, step: u64) -> Result<f64> {
        let communicator = self.optimizer.communicator();
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let count = (self.case.window() * TARGETS as u64) as f64;
        let mut sum = 0.0;
        for m in 0..self.case.config.accumulate {
            let ids = self.case.samples(step, rank, ranks, m);
            let loss = self.loss(&ids, step, count);
            sum += loss.clone().into_scalar::<f64>();
            self.optimizer.backward(loss)?;
        }
        Ok(sum)
    }

    /// A whole step.
    ///
    /// # Errors
    /// Those of [`ZeroOptimizer::backward`] and [`ZeroOptimizer::step`].
    pub fn step(&mut self, step: u64) -> Result<StepOutcome> {
        let loss = self.accumulate(step)?;
        self.optimizer.step(self.case.lr, &[loss])
    }

    /// Parameters and states, whole. Collective.
    ///
    /// # Errors
    /// Those of [`ZeroOptimizer::whole_states`].
    pub fn states(&self) -> Result<Named> {
        let mut states = Named::new();
        for kind in StateKind::ALL {
            for (name, data) in self.optimizer.whole_states(kind)? {
                states.insert(format!("{kind:?}/{name}"), data.iter::<f64>().collect());
            }
        }
        let running = self.net.stem.norm.running();
        states.insert("running/mean".into(), running.mean);
        states.insert("running/variance".into(), running.variance);
        Ok(states)
    }
}

/// Trains as `case` says on one rank of `communicator`.
///
/// # Errors
/// Those of the optimizer.
///
/// # Panics
/// If a step is skipped.
pub fn train(case: &Case, communicator: Arc<dyn Communicator>) -> Result<Trained> {
    let mut trainer = Trainer::new(case, communicator)?;
    let (mut norms, mut losses) = (Vec::new(), Vec::new());
    for step in 0..case.steps {
        match trainer.step(step)? {
            StepOutcome::Applied { norm, scalars, .. } => {
                norms.push(norm);
                losses.extend(scalars);
            }
            StepOutcome::Skipped { origin, .. } => panic!("step {step} was skipped: {origin}"),
        }
    }
    Ok(Trained {
        states: trainer.states()?,
        norms,
        losses,
    })
}

/// The largest norm-wise relative difference of two sets of values, and where it is.
///
/// # Panics
/// If the names or lengths differ.
pub fn difference(got: &Named, expected: &Named) -> (f64, String) {
    assert!(
        got.keys().eq(expected.keys()),
        "{:?} and {:?}",
        got.keys(),
        expected.keys()
    );
    let mut worst = (0.0, String::new());
    for (name, expected) in expected {
        let got = &got[name];
        assert_eq!(got.len(), expected.len(), "{name}");
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
        let apart = norm(&mut got.iter().zip(expected).map(|(a, b)| a - b)).sqrt();
        let size = norm(&mut expected.iter().copied()).sqrt();
        let relative = if apart == 0.0 { 0.0 } else { apart / size };
        // NaN compares with nothing, and must win.
        if relative.is_nan() || relative > worst.0 {
            worst = (relative, name.clone());
        }
    }
    worst
}
