//! What `terrashard plan` foretells of a job.

use terrashard_layout::{Offload, Stage};
use terrashard_trainer::config::{
    self, CheckpointSection, Config, DataSection, LogSection, ModelConfig, TrainSection,
    ZeroSection,
};
use terrashard_trainer::planning::dry_run::Losses;
use terrashard_trainer::planning::{self, PlanOptions, StagePlan};

use super::job::{Device, Error, Job, Precision};
use super::workload;

/// What each rank takes, without anything being run.
///
/// # Errors
/// [`Error::Model`] for a model that there is not, [`Error::Plan`].
pub fn foretold(job: &Job, losses: Losses) -> Result<StagePlan, Error> {
    let config = settings(job, workload::model(&job.model)?.config);
    let options = PlanOptions {
        ranks: Some(job.ranks),
        device: match job.device {
            Device::Flex => config::Device::Cpu,
            Device::Tch => config::Device::CpuLibTorch,
            Device::Cuda => config::Device::Cuda,
        },
        losses,
        // Graphs of kernels hold a part of what there is, and nothing where little is left.
        memory: job.memory,
        ..PlanOptions::default()
    };
    let plan = planning::plan(&config, options).map_err(|error| Error::Plan {
        reason: error.to_string(),
    })?;
    let (stage, offload) = (config.zero.stage, config.zero.offload);
    let mut stages = plan.stages.into_iter();
    let own = stages.find(|plan| (plan.stage, plan.offload) == (stage, offload));
    Ok(own.expect("a plan has every stage with every offload that it allows"))
}

/// The configuration that trains as the benchmark does.
fn settings(job: &Job, model: ModelConfig) -> Config {
    let stage = Stage::try_from(job.sharding.stage);
    Config {
        model,
        data: DataSection {
            chip: job.px,
            ..DataSection::default()
        },
        train: TrainSection {
            micro_batch: Some(job.batch),
            precision: match job.precision {
                Precision::Fp32 => config::Precision::Fp32,
                Precision::Tf32 => config::Precision::Tf32,
                Precision::Bf16 => config::Precision::Bf16,
                Precision::Fp16 => config::Precision::Fp16,
            },
            graphs: job.graphs,
            ..TrainSection::default()
        },
        zero: ZeroSection {
            stage: stage.expect("a sharding has one of the four stages"),
            offload: match (job.sharding.offload, job.sharding.stage) {
                (false, _) => Offload::None,
                (true, 3) => Offload::Parameters,
                (true, _) => Offload::Optimizer,
            },
            recompute: config::RecomputeChoice::All(match job.sharding.recompute {
                true => config::Recompute::Recompute,
                false => config::Recompute::Keep,
            }),
            // As the optimizer does where it is not told otherwise.
            prefetch: 1,
            persist_bytes: job.persist_bytes,
            overlap: job.overlap,
            shard_group: job.sharding.group,
            ..ZeroSection::default()
        },
        checkpoint: CheckpointSection::default(),
        log: LogSection::default(),
    }
}
