//! A small net with all that is awkward to shard, and its training: what the tests of the sharded optimizer, and their
//! counterpart on ranks that are processes, compare with each other.
//!
//! It has a 3x3 convolution without bias before a batch-norm whose statistics span ranks, a frozen convolution, a
//! layer-norm, a scalar, an empty parameter, a linear layer of odd size, a matrix that two blocks share, and a branch
//! that is switched off. Its groups are matrices and vectors, which have a learning rate of their own and no decay.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_layout::{counter, micro_batch};
use terrashard_models::Scope;
use terrashard_ops::{
    BatchNorm, Conv2d, ConvShape, LayerNorm, Linear, Masks, Mode, Pass, Recorder, Replay,
    SumOverRanks, dropout,
};
use terrashard_zero::{
    Initial, ParameterGroup, Recompute, Result, Round, Select, StateKind, StepOutcome, ZeroConfig,
    ZeroOptimizer,
};

/// Height and width of a sample.
pub const SIDE: usize = 3;
/// Values of a sample's target.
pub const TARGETS: usize = SIDE * SIDE * 3;

/// Convolution and batch-norm.
#[derive(Module, Debug)]
pub struct Stem {
    /// `[7, 3, 3, 3]`.
    pub conv: Conv2d,
    /// Over 7 channels.
    pub norm: BatchNorm,
}

/// From maps to tokens.
#[derive(Module, Debug)]
pub struct Tokens {
    /// Over 7 channels.
    pub norm: LayerNorm,
    /// One element.
    pub gain: Param<Tensor<1>>,
    /// `[0, 4]`.
    pub nothing: Param<Tensor<2>>,
    /// 7 to 5.
    pub linear: Linear,
}

/// A matrix that [`Again`] shares.
#[derive(Module, Debug)]
pub struct Mix {
    /// `[5, 5]`.
    pub weight: Param<Tensor<2>>,
    /// `[5]`.
    pub bias: Param<Tensor<1>>,
}

/// The same matrix, transposed, in another block.
#[derive(Module, Debug)]
pub struct Again {
    /// The parameter `mix.weight`.
    pub tied: Param<Tensor<2>>,
    /// Over 5 channels.
    pub norm: LayerNorm,
}

/// The net.
#[derive(Module, Debug)]
pub struct Nasty {
    /// First block.
    pub stem: Stem,
    /// A convolution that is not trained.
    pub frozen: Conv2d,
    /// Third block.
    pub tokens: Tokens,
    /// Fourth block.
    pub mix: Mix,
    /// Fifth block.
    pub again: Again,
    /// The branch that is switched off.
    pub side: Linear,
    /// Last block.
    pub head: Linear,
}

fn lazy<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
    let init = move |device: &Device, tracked: bool| {
        let tensor = Tensor::ones(shape, device);
        if tracked {
            tensor.require_grad()
        } else {
            tensor
        }
    };
    Param::uninitialized(
        ParamId::new(),
        init,
        Device::flex(),
        true,
        Shape::from(shape),
    )
}

impl Default for Nasty {
    fn default() -> Self {
        Self::new()
    }
}

impl Nasty {
    /// The net, nothing of it initialised.
    pub fn new() -> Self {
        let device = Device::flex();
        let shape = ConvShape {
            stride: 1,
            padding: 1,
            groups: 1,
        };
        let mix = Mix {
            weight: lazy([5, 5]),
            bias: lazy([5]),
        };
        Self {
            stem: Stem {
                conv: Conv2d::new(3, 7, 3, shape, &device).without_bias(),
                norm: BatchNorm::new(7, &device),
            },
            frozen: Conv2d::new(7, 7, 3, shape, &device),
            tokens: Tokens {
                norm: LayerNorm::new(7, 1e-5, &device),
                gain: lazy([1]),
                nothing: lazy([0, 4]),
                linear: Linear::new(7, 5, &device),
            },
            again: Again {
                tied: mix.weight.clone(),
                norm: LayerNorm::new(5, 1e-5, &device),
            },
            mix,
            side: Linear::new(5, 2, &device),
            head: Linear::new(5, 3, &device),
        }
    }

    /// The blocks that run, in forward order, as [`terrashard_zero::ShardedParameters::declare_blocks`] takes them.
    pub fn blocks(&self) -> Vec<Vec<String>> {
        let named = |prefix: &str| {
            let names = terrashard_zero::declared(self).into_iter();
            names
                .map(|parameter| parameter.name)
                .filter(|name| name.starts_with(prefix))
                .collect()
        };
        ["stem.", "frozen.", "tokens.", "mix.", "again.", "head."]
            .map(named)
            .into()
    }

    /// The output of a batch.
    ///
    /// # Shapes
    /// `[N, 3, SIDE, SIDE]` to `[N, SIDE * SIDE, 3]`.
    pub fn forward(&self, x: Tensor<4>, scope: &impl Scope, drop: f64) -> Tensor<3> {
        let x = scope.block(
            "stem",
            &self.stem,
            vec![x],
            |stem, inputs: Vec<Tensor<4>>, pass| {
                let [x] = take(inputs);
                stem.norm.forward(stem.conv.forward(x), pass).tanh()
            },
        );
        let x: Tensor<4> = scope.block("frozen", &self.frozen, vec![x], |conv, inputs, _| {
            let [x] = take(inputs);
            conv.forward(x.clone()) * 0.3 + x
        });
        let tokens: Tensor<3> = scope.block(
            "tokens",
            &self.tokens,
            vec![x],
            move |block, inputs, pass| {
                let [x] = take::<1, 4>(inputs);
                let [n, c, h, w] = x.dims();
                let x = x.reshape([n, c, h * w]).swap_dims(1, 2);
                let x = block.norm.forward(x) * block.gain.val().unsqueeze::<3>();
                dropout(block.linear.forward(x).tanh(), drop, "tokens", pass)
            },
        );
        let mixed: Tensor<3> =
            scope.block("mix", &self.mix, vec![tokens.clone()], |mix, inputs, _| {
                let [x] = take::<1, 3>(inputs);
                let y = times(x, mix.weight.val());
                (y + mix.bias.val().unsqueeze::<3>()).tanh()
            });
        let both = vec![tokens, mixed];
        let x: Tensor<3> = scope.block("again", &self.again, both, |again, inputs, _| {
            let [tokens, mixed] = take::<2, 3>(inputs);
            let y = times(mixed, again.tied.val().transpose());
            again.norm.forward(y.tanh() + tokens)
        });
        scope.block("head", &self.head, vec![x], |head, inputs, _| {
            let [x] = take::<1, 3>(inputs);
            head.forward(x)
        })
    }
}

/// The tokens times a matrix, as one product of matrices: burn's batched product fails for a batch without a sample.
fn times(x: Tensor<3>, weight: Tensor<2>) -> Tensor<3> {
    let [n, tokens, width] = x.dims();
    let y = x.reshape([n * tokens, width]).matmul(weight);
    y.reshape([n, tokens, width])
}

fn take<const N: usize, const D: usize>(inputs: Vec<Tensor<D>>) -> [Tensor<D>; N] {
    let inputs = inputs.try_into();
    inputs.expect("a scope hands a block the inputs that it got for it")
}

/// First values of a parameter: what scales starts around 1.
pub fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    let around = if name.ends_with("norm.weight") || name.ends_with("gain") {
        1.0
    } else {
        0.0
    };
    let count = shape.iter().product::<usize>() as u64;
    let noise = (0..count).map(|index| counter::uniform(5, name, index) - 0.5);
    noise.map(|noise| (around + 0.6 * noise) as f32).collect()
}

/// A batch of samples by their ids.
pub struct Batch {
    /// `[N, 3, SIDE, SIDE]`.
    pub x: Tensor<4>,
    /// `[N, SIDE * SIDE, 3]`.
    pub target: Tensor<3>,
}

impl Batch {
    /// The samples `ids`, inputs in the type `compute` and targets in `master`.
    pub fn new(ids: &[u64], device: &Device, compute: DType, master: DType) -> Self {
        let make = |name: &str, width: u64| -> Vec<f64> {
            let value = |index| 2.0 * counter::uniform(11, name, index) - 1.0;
            let values = ids
                .iter()
                .flat_map(|id| (0..width).map(move |index| value(id * width + index)));
            values.collect()
        };
        let n = ids.len();
        let x = TensorData::new(make("x", 3 * (SIDE * SIDE) as u64), [n, 3, SIDE, SIDE]);
        let target = TensorData::new(make("target", TARGETS as u64), [n, SIDE * SIDE, 3]);
        Self {
            x: Tensor::from_data(x, (device, compute)),
            target: Tensor::from_data(target, (device, master)),
        }
    }

    /// The sum of squared errors of `output` over `count`, in the type of the targets.
    pub fn loss(self, output: Tensor<3>, count: f64) -> Tensor<1> {
        let error = output.cast(self.target.dtype()) - self.target;
        (error.clone() * error).sum() / count
    }
}

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
        let net = Nasty::new();
        let sums = Arc::new(Sums(communicator.clone()));
        let optimizer = ZeroOptimizer::new(
            &net,
            case.config.clone(),
            Initial::Keyed(&initial),
            communicator,
            &Device::flex(),
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
            },
        }
    }

    /// The batch of these samples, on the autodiff device.
    pub fn batch(&self, ids: &[u64]) -> Batch {
        let (compute, master) = self.case.types();
        Batch::new(ids, &Device::flex().autodiff(), compute, master)
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
