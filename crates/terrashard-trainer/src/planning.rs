//! `plan`: what each stage of ZeRO takes and sends on a rank, before anything is allocated.

mod advice;
mod page;

pub use page::page;

use burn::tensor::Device;
use serde::Serialize;
use terrashard_layout::{
    ElementType, LayoutConfig, Offload, ParameterSpec, RankBytes, ReduceType, ShardTable, Stage,
    StateConfig, StepTraffic,
};
use terrashard_models::S2s2Net;

use crate::config::{self, Batch, Config, OptimizerRule, Precision, RecomputeChoice, ReduceDtype};
use crate::error::{Error, Result};
use crate::training::parameter_groups;

/// What a plan is asked for beside the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlanOptions {
    /// Ranks, one for each GPU; `None` takes those of the configuration.
    pub ranks: Option<usize>,
    /// Bytes of device memory of a rank.
    pub memory: Option<u64>,
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
    /// Micro-batches of a step.
    pub accumulate: usize,
    /// The memory of a rank that was asked about, in bytes.
    pub memory: Option<u64>,
    /// Each stage without offload, then with it, in the order in which one would try them.
    pub stages: Vec<StagePlan>,
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
    /// Activations; none, since they are not predicted yet.
    pub activations: Option<u64>,
    /// What is kept in host memory.
    pub host: u64,
    /// Bytes that a rank sends in one step.
    pub wire: u64,
    /// The same by verb, inside and across groups.
    pub wire_by_verb: StepTraffic,
    /// The share of the model, 0 to 1, that `zero.persist_bytes` keeps whole on every rank.
    pub replicated_share: f64,
    /// Everything on the device that is predicted: states, gradients, buckets and what is gathered.
    pub total: u64,
    /// Whether `total` is at most the memory that was asked about.
    pub fits: Option<bool>,
    /// All bytes by kind.
    #[serde(skip)]
    pub bytes: RankBytes,
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

/// Plans a configuration. The model is described and not allocated; no file but the configuration is read.
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
    let model = config.model.init(&Device::flex())?;
    let parameters = parameters(config, &model)?;
    let shard_group = config.zero.shard_group.unwrap_or(ranks);
    let mut stages = Vec::with_capacity(CHOICES.len());
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
        let table = ShardTable::new(parameters.clone(), &layout)?;
        let states = state_config(config, &model, &table, batch);
        for (_, offload) in CHOICES.into_iter().filter(|(of, _)| *of == stage) {
            let states = StateConfig {
                offload,
                ..states.clone()
            };
            let bytes = table.rank_bytes(&states);
            let wire = table.step_traffic(&states, ranks / group);
            stages.push(StagePlan::new(
                &table, offload, bytes, wire, config, options,
            ));
        }
    }
    let place = |plan: &StagePlan| {
        CHOICES
            .iter()
            .position(|choice| *choice == (plan.stage, plan.offload))
    };
    stages.sort_by_key(place);
    let mut record = PlanRecord {
        parameters: parameters.iter().map(|each| each.numel() as u64).sum(),
        parameter_bytes: parameters.iter().map(|each| each.bytes() as u64).sum(),
        ranks,
        shard_group,
        precision: config.train.precision,
        accumulate: batch.accumulate,
        memory: options.memory,
        stages,
        advice: String::new(),
    };
    record.advice = advice::advice(&record);
    Ok(record)
}

impl StagePlan {
    fn new(
        table: &ShardTable,
        offload: Offload,
        bytes: RankBytes,
        wire: StepTraffic,
        config: &Config,
        options: PlanOptions,
    ) -> Self {
        let total = bytes.total();
        Self {
            stage: table.stage(),
            offload,
            recompute: config.zero.recompute.clone(),
            states: bytes.parameters + bytes.optimizer(),
            parameters: bytes.parameters,
            optimizer: bytes.optimizer(),
            gradients: bytes.gradients,
            buckets: bytes.buckets,
            gathered: bytes.gathered,
            activations: None,
            host: bytes.host,
            wire: wire.total(),
            wire_by_verb: wire,
            replicated_share: table.replicated_share(),
            total,
            fits: options.memory.map(|memory| total <= memory),
            bytes,
        }
    }
}

/// The parameters of a model in declared order, in the element type of the computation.
fn parameters(config: &Config, model: &S2s2Net) -> Result<Vec<ParameterSpec>> {
    let dtype = match config.train.precision {
        Precision::Fp32 | Precision::Tf32 => ElementType::F32,
        Precision::Bf16 => ElementType::Bf16,
        Precision::Fp16 => ElementType::F16,
    };
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
