//! `plan`: what each stage of ZeRO takes and sends on a rank, before anything is allocated.

mod advice;
mod choices;
pub mod dry_run;
mod page;

pub use choices::{Choice, MicroBatch};
pub use page::page;

use std::rc::Rc;

use burn::tensor;
use serde::Serialize;
use terrashard_layout::{
    ElementType, LayoutConfig, Offload, ParameterSpec, RankBytes, ReduceType, ShardTable, Stage,
    StateConfig, StepTraffic,
};
use terrashard_models::S2s2Net;

use crate::config::{
    self, Batch, Config, Device, OptimizerRule, Precision, RecomputeChoice, ReduceDtype,
};
use crate::dataset;
use crate::error::{Error, Result};
use crate::training::parameter_groups;
use dry_run::{Footprint, Held, Losses, Starts, Step};

/// What a plan is asked for beside the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlanOptions {
    /// Ranks, one for each GPU; `None` takes those of the configuration.
    pub ranks: Option<usize>,
    /// Bytes of device memory of a rank; `None` takes `zero.device_memory`, if there is one.
    pub memory: Option<u64>,
    /// What computes.
    pub device: Device,
    /// What is planned.
    pub breadth: Breadth,
    /// How a GPU computes losses.
    pub losses: Losses,
    /// Batches that are on the device before they are computed on; see [`batches_ahead`].
    pub ahead: usize,
    /// Bytes of one value of an image at high resolution: 2 where batches hold digital numbers, else the 4 of single precision. `None` takes
    /// what the scene that is named first says, or 4 where it cannot be read.
    pub target_bytes: Option<usize>,
}

/// Whether that many bytes fit into so much memory. The last half of a percent is in pieces between tensors, of which none is large enough for
/// one: on GPUs of 16 GiB a step that was foretold to take 15.97 did not get its last one.
pub fn fits(bytes: u64, memory: u64) -> bool {
    bytes <= memory - memory / 200
}

/// Batches that training has on a device beside the one that it computes on: they reach LibTorch's meanwhile.
pub fn batches_ahead(device: Device) -> usize {
    match device {
        Device::Cuda | Device::CpuLibTorch => 1,
        Device::Cpu => 0,
    }
}

/// How much is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Breadth {
    /// Every stage, with the micro-batch and the recomputation of the configuration.
    #[default]
    Stages,
    /// Beside that every stage with each recomputation and micro-batches of several sizes.
    Choices,
}

/// What `plan` prints as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanRecord {
    /// Elements of all parameters.
    pub parameters: u64,
    /// Bytes of all parameters in the element type of the computation.
    pub parameter_bytes: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks that share one set of shards: fewer than all where sharding is hybrid.
    pub shard_group: usize,
    /// Element type of the computation.
    pub precision: Precision,
    /// What computes.
    pub device: Device,
    /// Height and width of a sample in pixels of the image.
    pub chip: usize,
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of a step.
    pub accumulate: usize,
    /// The memory of a rank that was asked about, in bytes.
    pub memory: Option<u64>,
    /// Each stage without offload, then with it, in the order in which one would try them.
    pub stages: Vec<StagePlan>,
    /// Each stage and offload with each recomputation, in the order in which one would try them; none where they were not asked
    /// for.
    pub choices: Vec<Choice>,
    /// What to do, in one sentence.
    pub advice: String,
}

/// What one stage takes on each rank, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StagePlan {
    /// The stage.
    pub stage: Stage,
    /// What is kept in host memory.
    pub offload: Offload,
    /// What becomes of activations between forward and backward, as the configuration says.
    pub recompute: RecomputeChoice,
    /// Parameters and optimizer states on the device: the next two together.
    pub states: u64,
    /// Parameters on the device.
    pub parameters: u64,
    /// Optimizer states on the device.
    pub optimizer: u64,
    /// Gradients.
    pub gradients: u64,
    /// Buckets on their way.
    pub buckets: u64,
    /// Parameters that are gathered for their use, with those that are gathered ahead.
    pub gathered: u64,
    /// Images and targets of a micro-batch.
    pub batch: u64,
    /// What lives from forward to backward.
    pub activations: u64,
    /// What operations need when most is held.
    pub workspace: u64,
    /// What is kept in host memory.
    pub host: u64,
    /// Bytes that a rank sends in one step.
    pub wire: u64,
    /// The same by verb, inside and across groups.
    pub wire_by_verb: StepTraffic,
    /// The share of the model, 0 to 1, that `zero.persist_bytes` keeps whole on every rank.
    pub replicated_share: f64,
    /// The most that the device holds at once. Less than the sum of the others, since gradients come as activations go.
    pub total: u64,
    /// What it holds then.
    pub at_peak: dry_run::AtPeak,
    /// Whether `total` fits into the memory that was asked about, as [`fits`] says.
    pub fits: Option<bool>,
    /// All bytes of model states by kind.
    #[serde(skip)]
    pub bytes: RankBytes,
    /// The step's own figures.
    #[serde(skip)]
    pub footprint: Footprint,
}

/// Every stage with every offload that it has.
const CHOICES: [(Stage, Offload); 8] = [
    (Stage::Zero, Offload::None),
    (Stage::One, Offload::None),
    (Stage::Two, Offload::None),
    (Stage::Three, Offload::None),
    (Stage::One, Offload::Optimizer),
    (Stage::Two, Offload::Optimizer),
    (Stage::Three, Offload::Optimizer),
    (Stage::Three, Offload::Parameters),
];

/// A stage with an offload, laid out.
#[derive(Debug, Clone)]
struct Laid {
    stage: Stage,
    offload: Offload,
    held: Held,
    wire: StepTraffic,
}

/// What every stage is planned for.
struct Planned<'a> {
    config: &'a Config,
    batch: Batch,
    device: Device,
    losses: Losses,
    ahead: usize,
    target_bytes: usize,
    /// In the order of [`CHOICES`].
    laid: Vec<Laid>,
}

/// Plans a configuration. The model is described and not allocated; of the data no more is read than how the first image at high resolution is
/// stored, if that is not told.
///
/// # Errors
/// [`Error::InvalidValue`], [`Error::Batch`] for ranks that do not fit the configuration, [`Error::Model`],
/// [`Error::Layout`].
pub fn plan(config: &Config, options: PlanOptions) -> Result<PlanRecord> {
    let ranks = options
        .ranks
        .unwrap_or_else(|| config.zero.ranks.count(config::Device::Cpu));
    if ranks == 0 {
        return Err(Error::invalid("--gpus", 0, "at least 1"));
    }
    config.zero.check_group(ranks)?;
    let batch = Batch::resolve(&config.train, ranks)?;
    let model = config.model.init(&tensor::Device::flex())?;
    let parameters = parameters(config, &model)?;
    let shard_group = config.zero.shard_group.unwrap_or(ranks);
    let memory = options.memory.or(config.zero.device_memory);
    let planned = Planned {
        config,
        batch,
        device: options.device,
        losses: options.losses,
        ahead: options.ahead,
        target_bytes: options
            .target_bytes
            .unwrap_or_else(|| dataset::target_value_bytes(config)),
        laid: lay_out(config, &model, &parameters, batch, ranks)?,
    };
    let mut record = PlanRecord {
        parameters: parameters.iter().map(|each| each.numel() as u64).sum(),
        parameter_bytes: parameters.iter().map(|each| each.bytes() as u64).sum(),
        ranks,
        shard_group,
        precision: config.train.precision,
        device: options.device,
        chip: config.data.chip,
        micro_batch: batch.micro,
        accumulate: batch.accumulate,
        memory,
        stages: planned.stages(memory),
        choices: match options.breadth {
            Breadth::Stages => Vec::new(),
            Breadth::Choices => planned.choices(memory),
        },
        advice: String::new(),
    };
    if options.breadth == Breadth::Choices {
        record.advice = advice::advice(&record, &planned);
    }
    Ok(record)
}

/// Lays a model out for every stage.
fn lay_out(
    config: &Config,
    model: &S2s2Net,
    parameters: &[ParameterSpec],
    batch: Batch,
    ranks: usize,
) -> Result<Vec<Laid>> {
    let shard_group = config.zero.shard_group.unwrap_or(ranks);
    let mut laid = Vec::with_capacity(CHOICES.len());
    for stage in Stage::ALL {
        // Stage 0 has no shards, so its ranks are one group.
        let group = match stage {
            Stage::Zero => ranks,
            Stage::One | Stage::Two | Stage::Three => shard_group,
        };
        let layout = LayoutConfig {
            ranks: group,
            stage,
            persist_bytes: config.zero.persist_bytes,
            bucket_bytes: config.zero.bucket_bytes,
        };
        let table = Rc::new(ShardTable::new(parameters.to_vec(), &layout)?);
        let states = state_config(config, model, &table, batch);
        for (_, offload) in CHOICES.into_iter().filter(|(of, _)| *of == stage) {
            let states = StateConfig {
                offload,
                ..states.clone()
            };
            laid.push(Laid {
                stage,
                offload,
                wire: table.step_traffic(&states, ranks / group),
                held: Held {
                    bytes: table.rank_bytes(&states),
                    table: table.clone(),
                    states: Rc::new(states),
                },
            });
        }
    }
    let place = |laid: &Laid| {
        let choice = (laid.stage, laid.offload);
        CHOICES.iter().position(|other| *other == choice)
    };
    laid.sort_by_key(place);
    Ok(laid)
}

impl Planned<'_> {
    fn footprint(
        &self,
        laid: &Laid,
        recompute: &RecomputeChoice,
        side: usize,
        micro_batch: usize,
        starts: Starts,
    ) -> Footprint {
        let step = Step {
            model: &self.config.model,
            loss: self.config.train.loss,
            side,
            micro_batch,
            element: element(self.config.train.precision),
            recompute,
            device: self.device,
            losses: self.losses,
            ahead: self.ahead,
            target_bytes: self.target_bytes,
            starts,
        };
        dry_run::footprint(&step, &laid.held)
    }

    fn stages(&self, memory: Option<u64>) -> Vec<StagePlan> {
        let stage = |laid: &Laid| {
            let (config, recompute) = (self.config, &self.config.zero.recompute);
            let step = |starts| {
                let chip = config.data.chip;
                self.footprint(laid, recompute, chip, self.batch.micro, starts)
            };
            let mut taken = step(Starts::Alone);
            if config.train.graphs && self.has_graphs(laid) {
                taken.add_graphs(&step(Starts::InGraphs), memory);
            }
            StagePlan::new(laid, recompute, taken, memory)
        };
        self.laid.iter().map(stage).collect()
    }

    /// Whether a GPU has parameters and states to itself, and where they lie for good.
    fn has_graphs(&self, laid: &Laid) -> bool {
        let lasts = laid.stage != Stage::Three && laid.offload == Offload::None;
        self.device == Device::Cuda && lasts
    }
}

impl StagePlan {
    fn new(laid: &Laid, recompute: &RecomputeChoice, step: Footprint, memory: Option<u64>) -> Self {
        let bytes = laid.held.bytes;
        Self {
            stage: laid.stage,
            offload: laid.offload,
            recompute: recompute.clone(),
            states: bytes.parameters + bytes.optimizer(),
            parameters: bytes.parameters,
            optimizer: bytes.optimizer(),
            gradients: bytes.gradients,
            buckets: bytes.buckets,
            gathered: bytes.gathered,
            batch: step.batch,
            activations: step.activations,
            workspace: step.at_peak.workspace,
            host: bytes.host + step.host,
            wire: laid.wire.total(),
            wire_by_verb: laid.wire,
            replicated_share: laid.held.table.replicated_share(),
            total: step.peak,
            at_peak: step.at_peak,
            fits: memory.map(|memory| fits(step.peak, memory)),
            bytes,
            footprint: step,
        }
    }
}

/// The element type of the computation.
fn element(precision: Precision) -> ElementType {
    match precision {
        Precision::Fp32 | Precision::Tf32 => ElementType::F32,
        Precision::Bf16 => ElementType::Bf16,
        Precision::Fp16 => ElementType::F16,
    }
}

/// The parameters of a model in declared order, in the element type of the computation.
fn parameters(config: &Config, model: &S2s2Net) -> Result<Vec<ParameterSpec>> {
    let dtype = element(config.train.precision);
    let declared = model.parameters();
    let names = declared.iter().map(|(name, _)| name.as_str());
    let groups = parameter_groups(config, names)?;
    let spec = |(name, shape): (String, Vec<usize>)| {
        let group = groups
            .iter()
            .position(|each| each.select.picks(&name, &shape));
        let frozen = group.is_some_and(|group| groups[group].frozen);
        ParameterSpec {
            group: group.unwrap_or(groups.len()),
            trainable: !frozen,
            ..ParameterSpec::new(name, shape, dtype)
        }
    };
    Ok(declared.into_iter().map(spec).collect())
}

/// How the configuration trains, without offload.
pub(crate) fn state_config(
    config: &Config,
    model: &S2s2Net,
    table: &ShardTable,
    batch: Batch,
) -> StateConfig {
    let (train, zero) = (&config.train, &config.zero);
    let blocks = model.blocks().into_iter().map(|block| {
        let rows = block.parameters.iter().filter_map(|name| table.index(name));
        rows.collect()
    });
    StateConfig {
        reduce: match zero.reduce_dtype {
            ReduceDtype::Fp32 => ReduceType::Full,
            ReduceDtype::Compute => ReduceType::Compute,
        },
        moments: match train.optimizer {
            OptimizerRule::AdamW => 2,
            OptimizerRule::Sgd if train.momentum == Some(0.0) => 0,
            OptimizerRule::Sgd => 1,
        },
        ema: train.ema.is_some(),
        offload: Offload::None,
        offload_fraction: zero.offload_fraction.unwrap_or(1.0),
        accumulate: batch.accumulate,
        overlap: zero.overlap,
        prefetch: zero.prefetch,
        blocks: blocks.collect(),
    }
}
