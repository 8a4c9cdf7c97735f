//! `bench stages`: training steps of whole models at each ZeRO stage, beside PyTorch's and DeepSpeed's in the same call.
//!
//! Every measurement is made by fresh processes, one for each rank, so that the peaks of memory are its own; ranks on the CPU
//! are threads of one process. Weights and batches follow from names and indices through an integer hash, the same as the
//! peers', so that equal losses after equal numbers of steps prove equal work.

mod device;
pub mod foretold;
pub mod job;
pub mod largest;
pub mod peer;
pub mod processes;
pub mod rank;
pub mod scaling;
mod silent;
pub mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use job::{Device, Job, Precision, Sharding};
use peer::Peers;
use processes::{Program, Rank};
use terrashard_trainer::planning::dry_run::Losses;

pub use rank::speak;

/// Who measures this program.
const OURS: &str = "terrashard";

/// What to measure: every model at every sharding, precision and number of ranks.
#[derive(Clone, Debug)]
pub struct StagesBench {
    /// Names of models.
    pub models: Vec<String>,
    /// Input heights and widths in pixels; each model's own where there are none.
    pub px: Vec<usize>,
    /// Samples of a rank's batch; each model's own where there are none.
    pub batches: Vec<usize>,
    /// Element types of the computation.
    pub precisions: Vec<Precision>,
    /// What is sharded, offloaded and recomputed.
    pub shardings: Vec<Sharding>,
    /// Numbers of ranks.
    pub ranks: Vec<usize>,
    /// What computes.
    pub device: Device,
    /// Steps that are timed.
    pub steps: usize,
    /// Steps before those.
    pub warm_up: usize,
    /// Whether communication overlaps with computation.
    pub overlap: bool,
    /// At stage 3 a parameter of fewer bytes stays whole.
    pub persist_bytes: usize,
    /// Whether one more step of each of ours is profiled.
    pub profile: bool,
    /// Whether GPUs run what comes again by graphs of its kernels.
    pub graphs: bool,
    /// The peers to measure beside ours.
    pub peers: Option<Peers>,
    /// The time after which one measurement is given up.
    pub limit: Duration,
    /// The time after which no further measurement is begun.
    pub total: Duration,
    /// The commit of this program.
    pub commit: String,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagesRow {
    /// `terrashard`, or the peer's name.
    pub who: String,
    /// Which benchmark.
    pub bench: String,
    /// What computed.
    pub device: String,
    /// The model's name.
    pub model: String,
    /// Input height and width in pixels.
    pub px: usize,
    /// ZeRO stage; that of which the peer does the same.
    pub stage: u8,
    /// Whether optimizer states are in host memory, at stage 3 parameters too.
    pub offload: bool,
    /// Whether blocks are recomputed in backward.
    pub recompute: bool,
    /// Ranks that shard together, where that is not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// Ranks.
    pub ranks: usize,
    /// Element type of the computation.
    pub precision: Precision,
    /// Samples of one rank's batch.
    pub batch_per_rank: usize,
    /// The most memory of a rank's device that `terrashard plan` foretells for the same job of ours, GiB.
    #[serde(rename = "foretold_GiB", default)]
    pub foretold_gib: Option<f64>,
    /// What was measured; none where it failed.
    #[serde(flatten)]
    pub measured: Option<Measured>,
    /// Why there is no measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The commit of this program.
    pub commit: String,
}

/// What one measurement gives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Median of the steps, milliseconds.
    pub step_ms: f64,
    /// The fastest step, milliseconds.
    pub min_ms: f64,
    /// The slowest step, milliseconds.
    pub max_ms: f64,
    /// The mean of the timed steps from the first's start until the device was idle, milliseconds.
    pub wall_ms: f64,
    /// Samples of all ranks in a second, by the median.
    pub images_s: f64,
    /// The most that tensors held on a GPU, of the rank where it was most, GiB.
    #[serde(rename = "alloc_GiB")]
    pub alloc_gib: Option<f64>,
    /// The most that was taken from the GPU, GiB.
    #[serde(rename = "reserved_GiB")]
    pub reserved_gib: Option<f64>,
    /// The share of a step that communication adds: one less the time of a step that moves nothing between ranks, by that of
    /// one that does. None where it was not measured.
    pub exposed_comm: Option<f64>,
    /// Bytes that a rank sends in a step.
    pub wire_bytes: Option<u64>,
    /// Time in which the host issues a step: that of a step with next to nothing to compute. On GPUs only.
    pub host_ms: Option<f64>,
    /// The total loss of steps, counted from 1: the mean over ranks.
    pub loss: BTreeMap<usize, f64>,
    /// Parameters of the model.
    pub parameters: usize,
    /// From the process's start to the first step, seconds.
    pub setup_s: f64,
    /// What one more step of the first rank consists of, where that was asked for: kernels first, each by falling time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profile: Vec<Part>,
    /// What became of graphs of kernels, where there were some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphs: Option<GraphUse>,
}

/// Graphs of kernels on the GPU of the first rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphUse {
    /// Made.
    pub made: u64,
    /// Runs of them, in all steps.
    pub runs: u64,
    /// Memory that they hold, GiB.
    pub held_gib: f64,
}

/// All calls of one name in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// A kernel, or an operation of LibTorch or a call of the driver.
    pub name: String,
    /// Whether the GPU ran it.
    pub on_device: bool,
    /// How often.
    pub calls: u64,
    /// All calls together, milliseconds. On the host, what an operation calls counts for both.
    pub ms: f64,
}

impl StagesRow {
    /// The columns of [`cells`](Self::cells).
    pub const HEAD: [&'static str; 17] = [
        "who",
        "model",
        "px",
        "batch",
        "precision",
        "ranks",
        "stage",
        "ms",
        "images/s",
        "alloc GiB",
        "foretold GiB",
        "reserved GiB",
        "exposed",
        "host ms",
        "loss 1",
        "loss 5",
        "last loss",
    ];

    /// A row as a record has it. What was measured is read by itself: serde cannot find numbers as keys in what is flattened.
    ///
    /// # Errors
    /// If something is missing.
    pub fn read(value: &serde_json::Value) -> Result<Self, serde_json::Error> {
        let mut row = Self::deserialize(value)?;
        row.measured = match value.get("step_ms") {
            Some(_) => Some(Measured::deserialize(value)?),
            None => None,
        };
        Ok(row)
    }

    /// What was sharded, offloaded and recomputed.
    pub fn sharding(&self) -> Sharding {
        Sharding {
            stage: self.stage,
            offload: self.offload,
            recompute: self.recompute,
            group: self.group,
        }
    }

    /// The row for a table.
    pub fn cells(&self) -> Vec<String> {
        let what = [
            self.who.clone(),
            self.model.clone(),
            self.px.to_string(),
            self.batch_per_rank.to_string(),
            self.precision.to_string(),
            self.ranks.to_string(),
            self.sharding().to_string(),
        ];
        let optional = |value: Option<f64>, digits: usize| {
            value.map_or("-".into(), |value| format!("{value:.digits$}"))
        };
        let rest = match (&self.measured, &self.error) {
            (Some(measured), _) => {
                let loss = |step: usize| optional(measured.loss.get(&step).copied(), 5);
                vec![
                    format!("{:.2}", measured.step_ms),
                    format!("{:.1}", measured.images_s),
                    optional(measured.alloc_gib, 2),
                    optional(self.foretold_gib, 2),
                    optional(measured.reserved_gib, 2),
                    optional(measured.exposed_comm, 3),
                    optional(measured.host_ms, 1),
                    loss(1),
                    loss(5),
                    optional(measured.loss.values().next_back().copied(), 5),
                ]
            }
            (None, error) => vec![format!("failed: {}", error.as_deref().unwrap_or("unknown"))],
        };
        what.into_iter().chain(rest).collect()
    }

    fn new(who: &str, job: &Job, commit: &str, outcome: Result<Measured, String>) -> Self {
        let (measured, error) = match outcome {
            Ok(measured) => (Some(measured), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            who: who.into(),
            bench: "stages".into(),
            device: job.device.to_string(),
            model: job.model.clone(),
            px: job.px,
            stage: job.sharding.stage,
            offload: job.sharding.offload,
            recompute: job.sharding.recompute,
            group: job.sharding.group,
            ranks: job.ranks,
            precision: job.precision,
            batch_per_rank: job.batch,
            foretold_gib: (who == OURS)
                .then(|| foretold::foretold(job, Losses::default()).ok())
                .flatten()
                .map(|plan| plan.total as f64 / f64::from(1 << 30)),
            measured,
            error,
            commit: commit.into(),
        }
    }
}

/// Runs the benchmark and hands each row to `each` as it is measured: for each job ours, then the peers that do the same.
/// A measurement that fails is a row with its error, and the next begins.
///
/// # Errors
/// [`job::Error`] for a model that there is not.
pub fn run(bench: &StagesBench, mut each: impl FnMut(StagesRow)) -> Result<(), job::Error> {
    let began = Instant::now();
    let mut skipped = 0;
    for job in jobs(bench)? {
        let mut turns = vec![(OURS.to_string(), Program::own(&job))];
        let peers = bench.peers.as_ref();
        turns.extend(peers.into_iter().flat_map(|peers| peers.of(&job)));
        for (who, program) in turns {
            if began.elapsed() > bench.total {
                skipped += 1;
                continue;
            }
            let ranks = job.processes(&who);
            let outcome = processes::run(&program, &ranks, bench.limit);
            each(StagesRow::new(&who, &job, &bench.commit, outcome));
        }
    }
    if skipped > 0 {
        eprintln!("{skipped} measurements were not begun: the time was over");
    }
    Ok(())
}

/// All combinations, models outermost.
fn jobs(bench: &StagesBench) -> Result<Vec<Job>, job::Error> {
    let mut jobs = Vec::new();
    let or = |given: &[usize], own: usize| match given {
        [] => vec![own],
        given => given.to_vec(),
    };
    for model in &bench.models {
        let known = workload::model(model)?;
        for px in or(&bench.px, known.px) {
            for batch in or(&bench.batches, known.batch) {
                for &precision in &bench.precisions {
                    for &ranks in &bench.ranks {
                        for &sharding in &bench.shardings {
                            jobs.push(Job {
                                model: model.clone(),
                                px,
                                batch,
                                precision,
                                sharding,
                                ranks,
                                device: bench.device,
                                steps: bench.steps,
                                warm_up: bench.warm_up,
                                overlap: bench.overlap,
                                persist_bytes: bench.persist_bytes,
                                memory: None,
                                profile: bench.profile,
                                graphs: bench.graphs,
                            });
                        }
                    }
                }
            }
        }
    }
    Ok(jobs)
}

impl Job {
    /// The processes that run it: one for each GPU, one for all ranks that are threads. Peers have a process for each rank.
    fn processes(&self, who: &str) -> Vec<Rank> {
        match (self.device, who) {
            (Device::Cuda, _) => Rank::all(self.ranks),
            (_, OURS) => Rank::all(1),
            _ => Rank::all(self.ranks),
        }
    }
}

/// A folder and an interpreter.
#[derive(Clone, Debug)]
pub struct Scripts {
    /// Where the peers' scripts lie.
    pub folder: PathBuf,
    /// A Python that has torch.
    pub python: PathBuf,
}
