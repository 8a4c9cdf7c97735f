//! One rank's measurement: a model, its optimizer, the same batch each step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{self, DType, Tensor};
use terrashard_collectives::{Communicator, Traffic, local};
use terrashard_layout::Stage;
use terrashard_models::{Loss, Mode, Normalizers, Pass, S2s2Net, Scope, Targets};
use terrashard_trainer::training::BlockSlots;
use terrashard_zero::{
    AdamW, Initial, Offload, Optimizer, Recompute, Reduction, Round, Slots, StepOutcome,
    ZeroConfig, ZeroOptimizer, declared,
};

use super::device;
use super::job::{Device, Error, Job, Precision};
use super::processes::{Program, RESULT};
use super::silent::Silent;
use super::{Measured, workload};

/// The learning rate and weight decay of all that is compared.
const LR: f64 = 6e-5;
const WEIGHT_DECAY: f64 = 0.01;

/// Steps whose loss is told, beside the last: rounding has had little, some and much time to grow.
const TOLD: [usize; 5] = [1, 2, 5, 10, 28];

/// Steps without communication, and of next to no computation, that are timed.
const BESIDE: usize = 10;

/// The size of an image that a GPU is done with before the host has told it what to do next.
const SMALL_PX: usize = 64;

impl Program {
    /// This program, to run `job` as one of its processes.
    pub(super) fn own(job: &Job) -> Self {
        let path = std::env::current_exe().unwrap_or_else(|_| "bench".into());
        let read = |value: &serde_json::Value| {
            serde_json::from_value(value.clone()).map_err(|error| error.to_string())
        };
        Self {
            path,
            read,
            arguments: job.arguments(),
            environment: Vec::new(),
        }
    }
}

impl Job {
    /// Threads of a rank on the CPU.
    pub(super) fn threads(&self) -> usize {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        (all / self.ranks).max(1)
    }
}

/// Runs `job` in this process, one of those that the environment tells of, and prints the result, or why there is none.
///
/// # Errors
/// What was printed, again.
pub fn speak(job: &Job) -> Result<(), String> {
    let began = Instant::now();
    let outcome = run(job, began);
    let line = match &outcome {
        Ok(Some(measured)) => serde_json::json!(measured),
        Ok(None) => return Ok(()),
        Err(error) => serde_json::json!({ "error": error }),
    };
    println!("{RESULT}{line}");
    outcome.map(|_| ())
}

/// What is measured, on the rank that tells of all.
fn run(job: &Job, began: Instant) -> Result<Option<Measured>, String> {
    match job.device {
        Device::Flex => threads(job, began, |_| Ok(tensor::Device::flex())),
        Device::Tch => threads(job, began, device::libtorch),
        Device::Cuda => device::gpus(job, began),
    }
}

/// Ranks that are threads.
fn threads(
    job: &Job,
    began: Instant,
    device: fn(&Job) -> Result<tensor::Device, Error>,
) -> Result<Option<Measured>, String> {
    let measured = local::run(job.ranks, |communicator| {
        let device = device(job).map_err(|error| error.to_string())?;
        measure(job, began, Arc::new(communicator), device, None)
    });
    let mut measured = measured.map_err(|error| error.to_string())?;
    Ok(measured.drain(..).next())
}

/// Measures one rank. All ranks return the same but for the memory, of which each returns the largest.
pub(super) fn measure(
    job: &Job,
    began: Instant,
    communicator: Arc<dyn Communicator>,
    device: tensor::Device,
    gpu: Option<usize>,
) -> Result<Measured, String> {
    device::prepare(job)?;
    let silent = Silent::new(communicator);
    let switch = silent.switch();
    let mut rank = Rank::new(job, Arc::new(silent), device).map_err(|error| error.to_string())?;
    let ranks = job.ranks;
    let (rank_number, batch) = (rank.communicator.rank(), job.batch);
    let samples = rank_number * batch..(rank_number + 1) * batch;
    let data = rank.batch(job.px, samples);
    rank.wait()?;
    device::forget_set_up(gpu);
    let setup_s = began.elapsed().as_secs_f64();

    let mut losses = Vec::new();
    losses.extend(rank.steps(&data, job.warm_up)?.losses);
    rank.wait()?;
    let before = rank.communicator.traffic();
    let timed = rank.steps(&data, job.steps)?;
    losses.extend(timed.losses);
    let sent = rank.communicator.traffic().since(&before);
    let [alloc, reserved] = device::peaks(gpu);
    let peaks = rank.largest([alloc, reserved].map(|gib| gib.unwrap_or(0.0)))?;
    let loss = rank.told(losses)?;
    let graphs = device::graphs(gpu);

    let profile = match job.profile {
        true => {
            rank.wait()?;
            device::profiled(gpu, || rank.steps(&data, 1).map(drop))?
        }
        false => Vec::new(),
    };

    let middle = median(&timed.ms);
    let mut beside = Beside {
        rank: &mut rank,
        switch: &switch,
    };
    let exposed_comm = match job.memory {
        None => beside.silent_step(&data)?.map(|ms| 1.0 - ms / middle),
        Some(_) => None,
    };
    let host_ms = match (gpu, job.memory) {
        (Some(_), None) => Some(beside.issue()?),
        _ => None,
    };
    Ok(Measured {
        step_ms: middle,
        min_ms: timed.ms.iter().copied().fold(f64::INFINITY, f64::min),
        max_ms: timed.ms.iter().copied().fold(0.0, f64::max),
        wall_ms: timed.wall_ms,
        images_s: (batch * ranks) as f64 / middle * 1e3,
        alloc_gib: alloc.map(|_| peaks[0]),
        reserved_gib: reserved.map(|_| peaks[1]),
        exposed_comm,
        wire_bytes: Some(per_step(&sent, job.steps)),
        host_ms,
        loss,
        parameters: rank.parameters(),
        setup_s,
        profile,
        graphs,
    })
}

fn per_step(sent: &Traffic, steps: usize) -> u64 {
    sent.bytes() / steps.max(1) as u64
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        n => sorted[n / 2],
    }
}

/// The input of a step: image, targets and their counts.
type Data = (Tensor<4>, Targets, Normalizers);

/// Some steps one after another.
struct Timed {
    /// Each step's, milliseconds.
    ms: Vec<f64>,
    /// The mean over all, until the device was idle.
    wall_ms: f64,
    /// Each step's total loss, on the device.
    losses: Vec<Tensor<1>>,
}

struct Rank<'a> {
    job: &'a Job,
    model: S2s2Net,
    optimizer: ZeroOptimizer,
    communicator: Arc<dyn Communicator>,
    device: tensor::Device,
}

impl<'a> Rank<'a> {
    fn new(
        job: &'a Job,
        communicator: Arc<dyn Communicator>,
        device: tensor::Device,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let model = workload::model(&job.model)?.config.init(&device)?;
        let config = settings(job)?;
        let initial = Initial::Keyed(&workload::initial);
        let optimizer = ZeroOptimizer::new(&model, config, initial, communicator.clone(), &device)?;
        let blocks = model.blocks().into_iter();
        let blocks: Vec<_> = blocks.map(|block| block.parameters).collect();
        optimizer.declare_blocks(&blocks)?;
        Ok(Self {
            job,
            model,
            optimizer,
            communicator,
            device,
        })
    }

    fn batch(&self, px: usize, samples: std::ops::Range<usize>) -> Data {
        let element = match self.job.precision {
            Precision::Fp32 | Precision::Tf32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::Fp16 => DType::F16,
        };
        let config = workload::model(&self.job.model).expect("the model was made from it");
        let (image, targets) = workload::batch(&config.config, px, samples, element, &self.device);
        let normalizers = Normalizers::of(&targets);
        (image, targets, normalizers)
    }

    fn parameters(&self) -> usize {
        let shapes = declared(&self.model).into_iter();
        shapes.map(|it| it.shape.iter().product::<usize>()).sum()
    }

    /// Waits until all ranks are here and the device is idle.
    fn wait(&self) -> Result<(), String> {
        let idle = || self.device.sync().map_err(|error| error.to_string());
        idle()?;
        let together = self.communicator.barrier();
        together.map_err(|error| error.to_string())?;
        idle()
    }

    fn steps(&mut self, data: &Data, count: usize) -> Result<Timed, String> {
        let mut timed = Timed {
            ms: Vec::with_capacity(count),
            wall_ms: 0.0,
            losses: Vec::with_capacity(count),
        };
        let start = Instant::now();
        let mut last = start;
        for _ in 0..count {
            let loss = self.step(data).map_err(|error| error.to_string())?;
            timed.losses.push(loss);
            // Each step waits for its gradients once, to decide what becomes of it, so that the gaps between steps are those
            // between the device's.
            let now = Instant::now();
            timed.ms.push((now - last).as_secs_f64() * 1e3);
            last = now;
        }
        self.device.sync().map_err(|error| error.to_string())?;
        timed.wall_ms = start.elapsed().as_secs_f64() * 1e3 / count.max(1) as f64;
        Ok(timed)
    }

    /// Forward, losses, backward, update. The loss stays where it is.
    fn step(
        &mut self,
        (image, targets, normalizers): &Data,
    ) -> Result<Tensor<1>, terrashard_zero::Error> {
        let scope = Blocks {
            optimizer: &self.optimizer,
            recompute: match self.job.sharding.recompute {
                true => Recompute::Recompute,
                false => Recompute::Keep,
            },
        };
        let maps = self.model.forward(image.clone(), &scope);
        let losses = Loss::Focal.of(&maps, targets, normalizers, &scope);
        drop(maps);
        let total = losses.total.clone().inner();
        self.optimizer.backward(losses.total)?;
        match self.optimizer.step(LR, &[])? {
            StepOutcome::Applied { .. } | StepOutcome::Skipped { .. } => Ok(total),
        }
    }

    /// The losses of some of the steps, as means over the ranks.
    fn told(&self, losses: Vec<Tensor<1>>) -> Result<BTreeMap<usize, f64>, String> {
        let count = losses.len();
        let all = Tensor::cat(losses, 0).into_data();
        let own: Vec<f64> = all.iter::<f64>().collect();
        let sums = self.optimizer.sum_over_ranks(own);
        let sums = sums.map_err(|error| error.to_string())?;
        let told = TOLD.into_iter().chain([count]);
        let ranks = self.communicator.ranks() as f64;
        let mean = |step: usize| Some((step, sums.get(step.checked_sub(1)?)? / ranks));
        Ok(told.filter_map(mean).collect())
    }

    /// The largest over ranks.
    fn largest<const N: usize>(&self, own: [f64; N]) -> Result<[f64; N], String> {
        let ranks = self.communicator.ranks();
        let mut slots = vec![0.0; ranks * N];
        let rank = self.communicator.rank();
        slots[rank * N..(rank + 1) * N].copy_from_slice(&own);
        let all = self.optimizer.sum_over_ranks(slots);
        let all = all.map_err(|error| error.to_string())?;
        let largest = |i: usize| all.iter().skip(i).step_by(N).copied().fold(0.0, f64::max);
        Ok(std::array::from_fn(largest))
    }
}

/// What is measured after the training is over.
struct Beside<'a, 'b> {
    rank: &'a mut Rank<'b>,
    switch: &'a AtomicBool,
}

impl Beside<'_, '_> {
    /// The time of a step in which nothing moves between ranks. None where nothing does anyway.
    fn silent_step(&mut self, data: &Data) -> Result<Option<f64>, String> {
        if self.rank.communicator.ranks() == 1 {
            return Ok(None);
        }
        self.rank.wait()?;
        self.switch.store(true, Ordering::Relaxed);
        self.rank.steps(data, 2)?;
        Ok(Some(median(&self.rank.steps(data, BESIDE)?.ms)))
    }

    /// The time in which the host issues a step: that of one whose work is done sooner than it is told.
    fn issue(&mut self) -> Result<f64, String> {
        self.rank.wait()?;
        self.switch.store(true, Ordering::Relaxed);
        let data = self.rank.batch(SMALL_PX, 0..1);
        self.rank.steps(&data, 3)?;
        Ok(median(&self.rank.steps(&data, BESIDE)?.ms))
    }
}

fn settings(job: &Job) -> Result<ZeroConfig, terrashard_zero::Error> {
    let sharding = job.sharding;
    let stage = Stage::try_from(sharding.stage);
    Ok(ZeroConfig {
        stage: stage.expect("a sharding has one of the four stages"),
        precision: match job.precision {
            Precision::Fp32 | Precision::Tf32 => terrashard_zero::Precision::F32,
            Precision::Bf16 => terrashard_zero::Precision::Bf16,
            Precision::Fp16 => terrashard_zero::Precision::F16,
        },
        reduction: Reduction::Mean,
        optimizer: Optimizer::AdamW(AdamW {
            weight_decay: WEIGHT_DECAY,
            ..AdamW::default()
        }),
        offload: match (sharding.offload, sharding.stage) {
            (false, _) => Offload::None,
            (true, 3) => Offload::Parameters,
            (true, _) => Offload::Optimizer,
        },
        overlap: job.overlap,
        persist_bytes: job.persist_bytes,
        shard_group: sharding.group,
        ..ZeroConfig::default()
    })
}

/// A training pass, batch statistics those of the rank as the peers have them.
struct Blocks<'a> {
    optimizer: &'a ZeroOptimizer,
    recompute: Recompute,
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
        let run = move |module: &M, inputs: Vec<Tensor<D>>, round: Round, slots: Option<&Slots>| {
            let mode = match round {
                Round::First => Mode::Training,
                Round::Again => Mode::Recomputing,
            };
            let pass = Pass {
                slots: slots.map(BlockSlots::of),
                ..Pass::new(mode)
            };
            forward(module, inputs, &pass)
        };
        self.optimizer
            .block_with_slots(module, inputs, self.recompute, run)
    }

    fn pass(&self) -> Pass {
        Pass::new(Mode::Training)
    }
}
