//! Trains the model of a reference set as it says, on ranks that are threads, and keeps what the set has values for.

use std::cell::RefCell;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::{ElementType, Stage, micro_batch};
use terrashard_models::{
    Labels, Loss, Losses, Maps, Mode, Normalizers, Pass, S2s2Net, Scope, Targets,
};
use terrashard_trainer::training::BlockSlots;
use terrashard_zero::{
    AdamW, Initial, Optimizer, ParameterGroup, Precision, Recompute, Round, Select, Slots,
    StateKind, StepOutcome, ZeroConfig, ZeroOptimizer,
};

use crate::backend::Backend;
use crate::fixture::{Error, Fixture, Parity, Result, Tensors, Values};
use crate::maps::{observe_large, observe_maps};
use crate::{hash, maps};

/// A training pass whose parameters come from a sharded optimizer. It keeps what the blocks of `tail.up` make.
pub struct Sharded<'a> {
    optimizer: &'a ZeroOptimizer,
    steps: RefCell<Vec<Values>>,
}

impl<'a> Sharded<'a> {
    /// A pass that has seen nothing.
    pub fn new(optimizer: &'a ZeroOptimizer) -> Self {
        Self {
            optimizer,
            steps: RefCell::default(),
        }
    }
}

impl Scope for Sharded<'_> {
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
    {
        let output = block(self.optimizer, self.pass(), module, inputs, forward);
        if name.starts_with("tail.up.") {
            self.steps.borrow_mut().push(maps::values(&output));
        }
        output
    }

    fn pass(&self) -> Pass {
        Pass::new(Mode::Training)
    }
}

/// A block of a training that keeps its activations, its parameters from `optimizer`.
pub fn block<M, const D: usize, const E: usize, F>(
    optimizer: &ZeroOptimizer,
    pass: Pass,
    module: &M,
    inputs: Vec<Tensor<D>>,
    forward: F,
) -> Tensor<E>
where
    M: Module + Sync + 'static,
    F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
{
    let run = move |module: &M, inputs: Vec<Tensor<D>>, _: Round, slots: Option<&Slots>| {
        let pass = Pass {
            slots: slots.map(BlockSlots::of),
            ..pass.clone()
        };
        forward(module, inputs, &pass)
    };
    optimizer.block_with_slots(module, inputs, Recompute::Keep, run)
}

/// Which of a set's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One process with the whole batch in one micro-batch.
    One,
    /// Several ranks, perhaps with accumulation.
    Ranks,
}

impl Role {
    /// Its key in `parity.json`'s `prefix`.
    pub fn key(self) -> &'static str {
        match self {
            Role::One => "one",
            Role::Ranks => "ranks",
        }
    }
}

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// What computes.
    pub backend: Backend,
    /// Which of the set's runs.
    pub role: Role,
    /// What is sharded.
    pub stage: Stage,
    /// Element type of everything.
    pub dtype: ElementType,
}

impl Run {
    fn ranks(&self, parity: &Parity) -> usize {
        if self.role == Role::One {
            1
        } else {
            parity.ranks
        }
    }

    fn accumulate(&self, parity: &Parity) -> usize {
        if self.role == Role::One {
            1
        } else {
            parity.accumulate
        }
    }

    /// The element type of its tensors.
    pub fn dtype(&self) -> DType {
        if self.dtype == ElementType::F64 {
            DType::F64
        } else {
            DType::F32
        }
    }
}

/// Trains as `run` says and returns all that was seen, under the keys of the expected file.
///
/// # Errors
/// [`Error::Model`], [`Error::Ranks`] if a rank failed.
pub fn observe(fixture: &Fixture, run: Run) -> Result<Tensors> {
    let parity = &fixture.parity;
    let ranks = run.ranks(parity);
    let results = local::run(ranks, |communicator| {
        one_rank(fixture, run, Arc::new(communicator))
    });
    let mut results = results.map_err(|error| Error::Ranks {
        reason: error.to_string(),
    })?;
    let terms = parity.terms.len() * run.accumulate(parity);
    let mut losses = Vec::new();
    for step in 0..parity.steps {
        for (_, rank_losses) in &results {
            losses.extend(&rank_losses[step * terms..(step + 1) * terms]);
        }
    }
    let mut observed = results.swap_remove(0).0;
    let prefix = parity
        .prefix
        .get(run.role.key())
        .cloned()
        .unwrap_or_default();
    let shape = vec![
        parity.steps,
        ranks,
        run.accumulate(parity),
        parity.terms.len(),
    ];
    observed.insert(
        format!("{prefix}loss"),
        Values {
            shape,
            values: losses,
        },
    );
    Ok(observed)
}

/// What one rank saw, and its losses: for each step, for each micro-batch, the terms.
fn one_rank(
    fixture: &Fixture,
    run: Run,
    communicator: Arc<dyn Communicator>,
) -> Result<(Tensors, Vec<f64>)> {
    let parity = &fixture.parity;
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let accumulate = run.accumulate(parity);
    let prefix = parity
        .prefix
        .get(run.role.key())
        .cloned()
        .unwrap_or_default();
    let moments = match run.role {
        Role::One => parity.prefix.get("moments").unwrap_or(&prefix),
        Role::Ranks => &prefix,
    };
    let device = run.backend.device();
    let model = fixture.model().init(&device)?;
    let initial = |name: &str, shape: &[usize]| match fixture.initial(name) {
        Some(values) => values.values.iter().map(|value| *value as f32).collect(),
        None => hash::initial(name, shape),
    };
    let config = optimizer_config(parity, run, accumulate);
    let mut optimizer = ZeroOptimizer::new(
        &model,
        config,
        Initial::Keyed(&initial),
        communicator,
        &device,
    )?;
    let batch = Batch {
        fixture,
        device: device.autodiff(),
        dtype: run.dtype(),
    };
    let micro = parity.batch / (ranks * accumulate);
    let mut seen = Tensors::new();
    let mut losses = Vec::new();
    let mut norms = Vec::new();
    for step in 0..parity.steps {
        let cursor = parity.first_sample
            + if parity.fresh_samples {
                (parity.batch * step) as u64
            } else {
                0
            };
        for m in 0..accumulate {
            let samples = micro_batch(cursor, rank, ranks, micro, accumulate, m);
            let (image, targets) = batch.make(samples, step);
            let windows = ranks * accumulate;
            let scope = Sharded::new(&optimizer);
            let loss = loss(parity);
            let (maps, terms) = forward_in(&scope, &model, loss, image, &targets, windows);
            let names = parity.terms.iter();
            losses.extend(names.map(|name| term(&terms, name) * windows as f64));
            let steps = scope.steps.take();
            optimizer.backward(terms.total)?;
            if step == 0 && run.role == Role::One {
                observe_maps(&detached(maps), &prefix, &mut seen);
                for (step, map) in steps.into_iter().enumerate() {
                    observe_large(&format!("up{step}"), map, &mut |name, values| {
                        seen.insert(format!("{prefix}out/{name}"), values);
                    });
                }
            }
        }
        if step == 0 {
            insert_states(
                &mut seen,
                &format!("{prefix}grad"),
                optimizer.whole_gradients()?,
            );
        }
        if let StepOutcome::Applied { norm, .. } = optimizer.step(parity.lr, &[])? {
            norms.push(norm);
        }
        if [1, 5].contains(&(step + 1)) {
            let key = format!("{prefix}step{}", step + 1);
            insert_states(
                &mut seen,
                &key,
                optimizer.whole_states(StateKind::Parameter)?,
            );
            insert_buffers(&mut seen, &key, &model);
        }
    }
    insert_states(
        &mut seen,
        &format!("{moments}m"),
        optimizer.whole_states(StateKind::Momentum)?,
    );
    insert_states(
        &mut seen,
        &format!("{moments}v"),
        optimizer.whole_states(StateKind::Variance)?,
    );
    seen.insert(
        format!("{prefix}norm"),
        Values {
            shape: vec![norms.len()],
            values: norms,
        },
    );
    Ok((seen, losses))
}

/// Forward and losses of one of the `windows` micro-batches of a step, which are all of the same size: each loss is
/// its share of the mean over the step.
pub fn forward(
    model: &S2s2Net,
    optimizer: &ZeroOptimizer,
    image: Tensor<4>,
    targets: &Targets,
    windows: usize,
) -> (Maps, Losses) {
    let scope = Sharded::new(optimizer);
    forward_in(&scope, model, Loss::Focal, image, targets, windows)
}

fn forward_in(
    scope: &Sharded<'_>,
    model: &S2s2Net,
    loss: Loss,
    image: Tensor<4>,
    targets: &Targets,
    windows: usize,
) -> (Maps, Losses) {
    let own = Normalizers::of(targets);
    let normalizers = Normalizers {
        samples: own.samples * windows as f64,
        valid_pixels: own.valid_pixels * windows as f64,
        superres_values: own.superres_values * windows as f64,
    };
    let maps = model.forward(image, scope);
    let losses = loss.of(&maps, targets, &normalizers, scope);
    (maps, losses)
}

/// The loss whose terms the set has.
fn loss(parity: &Parity) -> Loss {
    match parity.terms.iter().any(|term| term == "bce") {
        true => Loss::BceDice,
        false => Loss::Focal,
    }
}

/// Everything in one element type.
pub fn precision(dtype: ElementType) -> Precision {
    match dtype {
        ElementType::F32 => Precision::F32,
        ElementType::F64 => Precision::F64,
        ElementType::Bf16 => Precision::Bf16,
        ElementType::F16 => Precision::F16,
    }
}

/// The optimizer's settings that the set describes.
pub fn optimizer_config(parity: &Parity, run: Run, accumulate: usize) -> ZeroConfig {
    let vectors = ParameterGroup {
        select: Select::Vectors,
        lr_factor: 1.0,
        weight_decay: 0.0,
        frozen: false,
    };
    ZeroConfig {
        stage: run.stage,
        precision: precision(run.dtype),
        accumulate,
        optimizer: Optimizer::AdamW(AdamW {
            weight_decay: parity.weight_decay,
            ..AdamW::default()
        }),
        groups: if parity.decay_on == "matrices" {
            vec![vectors]
        } else {
            Vec::new()
        },
        clip_norm: parity.clip_norm,
        // The tiny nets are a quarter of a megabyte: several buckets all the same.
        bucket_bytes: Some(64 << 10),
        ..ZeroConfig::default()
    }
}

/// Makes micro-batches of hashed samples.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The set.
    pub fixture: &'a Fixture,
    /// Where images go: the autodiff device.
    pub device: Device,
    /// Their element type.
    pub dtype: DType,
}

impl Batch<'_> {
    /// Image and targets of these samples at `step`, counted from 0.
    pub fn make(&self, samples: std::ops::Range<u64>, step: usize) -> (Tensor<4>, Targets) {
        let (bands, size) = (self.fixture.model().bands, self.fixture.size());
        let n = (samples.end - samples.start) as usize;
        let hash::Batch {
            mut image,
            mask,
            hres,
        } = hash::batch(size, samples.map(|index| index as usize));
        let factor = self
            .fixture
            .parity
            .image_scale
            .as_ref()
            .map_or(1.0, |scale| scale[step]);
        image.iter_mut().for_each(|value| *value *= factor as f32);
        let big = 5 * size;
        let superres = self.fixture.model().superres;
        let tensor = |values: Vec<f32>, shape: [usize; 4], device: &Device| {
            Tensor::<4>::from_data(TensorData::new(values, shape), (device, self.dtype))
        };
        let plain = self.device.clone().inner();
        let targets = Targets {
            labels: Labels::new(mask, [n, big, big], &self.device),
            superres: superres.then(|| tensor(hres, [n, 4, big, big], &plain).into()),
        };
        (tensor(image, [n, bands, size, size], &self.device), targets)
    }
}

/// A term by the reference's name for it; NaN, which is never within bounds, for one that is not known.
fn term(losses: &Losses, name: &str) -> f64 {
    let scalar = |tensor: &Tensor<1>| tensor.clone().into_scalar::<f64>();
    let optional = |tensor: &Option<Tensor<1>>| tensor.as_ref().map_or(0.0, scalar);
    match name {
        "total" => scalar(&losses.total),
        "affinity" => optional(&losses.affinity),
        "focal" => scalar(&losses.segmentation),
        "mae" => optional(&losses.l1),
        "bce" => scalar(&losses.segmentation) - optional(&losses.dice),
        "dice" => optional(&losses.dice),
        _ => f64::NAN,
    }
}

/// Maps outside the graph.
fn detached(maps: Maps) -> Maps {
    Maps {
        features: maps.features.map(Tensor::inner),
        head: maps.head.inner(),
        seg_low: maps.seg_low.inner(),
        segmentation: maps.segmentation.map(Tensor::inner),
        sr_low: maps.sr_low.map(Tensor::inner),
        superres: maps.superres.map(|map| map.map(Tensor::inner)),
    }
}

/// Keeps one state of every parameter under `{key}/{name}`.
pub fn insert_states(seen: &mut Tensors, key: &str, states: Vec<(String, TensorData)>) {
    for (name, data) in states {
        let values: Vec<f64> = data.iter::<f64>().collect();
        seen.insert(
            format!("{key}/{name}"),
            Values {
                shape: vec![values.len()],
                values,
            },
        );
    }
}

fn insert_buffers(seen: &mut Tensors, key: &str, model: &S2s2Net) {
    for (name, values) in model.buffers() {
        seen.insert(
            format!("{key}/{name}"),
            Values {
                shape: vec![values.len()],
                values,
            },
        );
    }
}
