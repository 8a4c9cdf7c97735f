//! `fit`: ranks as threads, or as processes with a GPU each, with a model, an optimizer and a loader of their own; a loop that
//! can be read.

mod block_slots;
mod crew;
mod disk_space;
mod divergence;
#[cfg(feature = "faults")]
mod faults;
mod feed;
mod initial;
mod left_out;
mod logger;
mod mapped_window;
mod metered_communicator;
mod panels;
mod rank;
mod readers;
mod resume;
mod running_statistics;
mod same_training;
mod saving;
mod scope;
mod score;
mod settings;
mod step_clock;
mod stop;
mod terms;
mod told;
mod validation;
pub mod verification;

pub use block_slots::BlockSlots;
pub(crate) use left_out::goes_on;
pub use resume::Partial;
pub(crate) use same_training::same_scenes;
pub(crate) use saving::{TOOL, VALIDATION};
pub(crate) use score::LOSS;
pub(crate) use settings::parameter_groups;
pub use stop::StopRequest;
pub(crate) use terms::Terms;
pub(crate) use validation::{METRICS, metrics};

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use terrashard_collectives::local::{self, LocalCommunicator, Patience, RunError};
use terrashard_data::Chips;
use terrashard_layout::{BatchShape, Offload, RankBytes, SampleOrder, ShardTable, Stage, Window};

use crate::concerns::{Concern, concerns};
use crate::config::{Batch, Config, Device, Length};
use crate::console::tell;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::planning::dry_run::Footprint;
use crate::planning::{self, PlanOptions};
use crate::process_memory::{peak_rss_bytes, resident_bytes};
use crate::record::{Display, HeldBytes, MeasuredPeak, SessionRecord, counted};
use crate::run_directory::{RunDirectory, replace};
pub(crate) use crew::Crew;
use initial::InitialValues;
use panels::Panels;
use resume::{Found, Start};
use terrashard_zero::Precision;
use validation::Validation;

/// What `fit` needs beside the configuration.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// Name of the run, for the report.
    pub name: String,
    /// Where everything goes.
    pub run: RunDirectory,
    /// End cleanly after this step.
    pub stop_after: Option<u64>,
    /// Who may ask for an end before that.
    pub stop: StopRequest,
    /// What becomes of a checkpoint that is not whole.
    pub partial: Partial,
    /// Where tensors are.
    pub device: Device,
    /// How progress is shown.
    pub display: Display,
}

/// How a call of `fit` ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Fitted {
    /// It trained.
    Trained(Box<SessionRecord>),
    /// It trained as a rank of a run of processes, of which rank 0 tells.
    Elsewhere,
    /// The checkpoint that it would have gone on from stands at the last step already, and nothing was written.
    NothingToDo {
        /// That checkpoint's step.
        step: u64,
    },
}

/// Batches that a loader prepares at once, at least and at most.
const PREFETCH: std::ops::RangeInclusive<usize> = 2..=8;

/// Bytes that these take up at most, where they are more than the least.
const PREFETCH_BYTES: usize = 2 << 30;

/// Everything that the ranks share. Nothing of it changes while they run.
#[derive(Debug)]
struct Plan<'a> {
    config: &'a Config,
    /// Where the training is written down; none for a trial of some steps.
    run: Option<&'a RunDirectory>,
    device: Device,
    /// The number of the GPU that this process's only rank has; none where ranks count for themselves.
    gpu: Option<usize>,
    display: Display,
    stop: StopRequest,
    precision: Precision,
    batch: Batch,
    chips: Arc<Chips>,
    /// What the model is measured on between steps.
    validation: Option<Validation>,
    /// What is drawn of it between steps.
    panels: Option<Panels>,
    order: SampleOrder,
    start: Start,
    /// Settings that are others than those of the checkpoint that it starts from, in one line.
    changed: Option<String>,
    /// Steps of the whole run, which the schedule spreads over.
    steps: u64,
    /// The cursor at which the stream of samples ends, if it does.
    end: Option<u64>,
    /// The last step of this call.
    last_step: u64,
}

impl Plan<'_> {
    /// The cursors before and after `step`.
    fn cursors(&self, step: u64) -> [u64; 2] {
        let samples = self.window(step).samples();
        [samples.start, samples.end]
    }

    /// The samples of `step`, counted from 1. That after the last step is empty where the stream ends there.
    fn window(&self, step: u64) -> Window {
        let taken = (step - 1 - self.start.step()) * self.batch.global as u64;
        let cursor = self.start.cursor() + taken;
        let cursor = self.end.map_or(cursor, |end| cursor.min(end));
        self.shape().window(cursor, self.end)
    }

    fn shape(&self) -> BatchShape {
        self.batch.shape()
    }

    /// What a run says at its start.
    fn opening(&self, ranks: usize, table: &ShardTable) -> String {
        let parameters: usize = table.rows().iter().map(|row| row.numel()).sum();
        let begins = format!(
            "training {parameters} parameters on {}, {} at stage {}",
            counted(self.chips.len(), "sample"),
            counted(ranks, "rank"),
            self.config.zero.stage
        );
        match self.start.resumed_from() {
            Some(step) => format!("{begins}, resumed from step {step}"),
            None => begins,
        }
    }
}

/// Trains and returns what was made; where no step is left to do, nothing is written.
///
/// Everything that can be checked is checked before the first step, and before anything of the run is changed: files, labels, batch
/// sizes, the number of samples, each byte of the checkpoint that is resumed from. Samples, their order and augmentation, and initial values follow from `train.seed` alone,
/// never from the number of ranks; batch statistics are taken over all ranks.
///
/// # Errors
/// [`Error::InvalidValue`], [`Error::NotSupported`], [`Error::Data`], [`Error::Batch`], [`Error::TooFewSamples`],
/// [`Error::RunExists`], [`Error::Checkpoint`] for what is given; [`Error::Collective`] where ranks are processes; [`Error::Rank`], [`Error::Panicked`], [`Error::Save`], [`Error::Write`] while working.
pub fn fit(config: &Config, options: &FitOptions) -> Result<Fitted> {
    let began = Instant::now();
    if options.stop_after == Some(0) {
        return Err(Error::invalid("--stop-after", 0, "a step, counted from 1"));
    }
    options.device.limit_memory(config.zero.device_memory)?;
    let crew = Crew::gather(options.device)?;
    let ranks = crew.count(config.zero.ranks, options.device)?;
    let Samples {
        chips,
        validation,
        panels,
        concerns,
    } = samples(config, ranks, crew.leads())?;
    let batch = Batch::resolve(&config.train, ranks)?;
    let Found {
        start,
        changed,
        warnings,
    } = Start::find(
        config,
        batch,
        &options.run,
        options.partial,
        &crew.readers(),
    )?;
    if crew.leads() {
        // Also where a run is to be quiet, as errors are told.
        let concerns = concerns.iter().map(Concern::line);
        warnings
            .into_iter()
            .chain(concerns)
            .for_each(|warning| tell(&format!("warning: {warning}")));
    }
    let length = config.train.length();
    let end = length.end(chips.len());
    let steps = match length {
        Length::Steps(steps) => steps,
        Length::Epochs(_) => {
            let left = end.unwrap_or(0).saturating_sub(start.cursor());
            start.step() + batch.shape().steps(left)
        }
    };
    config.train.check_warmup(steps)?;
    let last_step = options.stop_after.map_or(steps, |stop| stop.min(steps));
    if start.step() >= last_step {
        return Ok(Fitted::NothingToDo { step: start.step() });
    }
    // Opened to be checked before any work starts; each rank opens it for itself.
    InitialValues::open(config, &start)?;
    let plan = Plan {
        config,
        run: Some(&options.run),
        device: options.device,
        gpu: crew.gpu(),
        display: options.display,
        stop: options.stop.clone(),
        precision: settings::precision(config),
        batch,
        order: SampleOrder::new(chips.len(), config.train.seed)?,
        chips,
        validation,
        panels,
        steps,
        end,
        last_step,
        start,
        changed,
    };
    let predicted = predicted(config, &plan.chips, ranks, options.device)?;
    if crew.leads() {
        disk_space::check(config, &options.run)?;
    }
    let lock = crew.first(|| {
        options.run.create()?;
        let lock = options.run.lock()?;
        replace(&options.run.config(), config.to_toml().as_bytes())?;
        options.run.forget_after(plan.start.step())?;
        Ok(lock)
    })?;
    let before = resident_bytes();
    let outcomes = crew.run(ranks, |communicator| {
        #[cfg(feature = "faults")]
        let communicator = faults::around(communicator);
        rank::train(&plan, communicator)
    })?;
    if lock.is_none() {
        return Ok(Fitted::Elsewhere);
    }
    let first = &outcomes[0];
    let record = SessionRecord {
        name: options.name.clone(),
        resumed_from_step: plan.start.resumed_from(),
        last_step: first.last_step,
        stopped_by: first.stopped_by.clone(),
        steps: plan.steps,
        skipped: first.skipped,
        left_out: first.left_out,
        ranks,
        stage: config.zero.stage,
        global_batch: batch.global,
        seconds: began.elapsed().as_secs_f64(),
        samples: plan.chips.len(),
        parameters: first
            .table
            .rows()
            .iter()
            .map(|row| row.numel() as u64)
            .sum(),
        predicted: predicted.bytes,
        counted: outcomes
            .iter()
            .map(|outcome| outcome.held)
            .max_by_key(HeldBytes::total)
            .unwrap_or_default(),
        times: first.times,
        sent: first.sent,
        predicted_sent: predicted.sent,
        peak_rss_bytes: peak_rss_bytes(),
        foretold: Some(predicted.own),
        prepared: prefetch(&plan, ranks),
        measured_peak: match outcomes
            .iter()
            .filter_map(|outcome| outcome.device_peak)
            .max()
        {
            Some(bytes) => Some(MeasuredPeak::Device { bytes }),
            None => peak_rss_bytes()
                .zip(before)
                .map(|(peak, before)| MeasuredPeak::Program {
                    bytes: peak.saturating_sub(before),
                }),
        },
    };
    options.run.append_session(&record)?;
    Ok(Fitted::Trained(Box::new(record)))
}

/// What a model is trained on, and what it is measured on and drawn of meanwhile.
struct Samples {
    chips: Arc<Chips>,
    validation: Option<Validation>,
    panels: Option<Panels>,
    concerns: Vec<Concern>,
}

/// Those of a configuration, for this many ranks. The one that `leads` looks at what is suspicious of them.
fn samples(config: &Config, ranks: usize, leads: bool) -> Result<Samples> {
    settings::check_model(config)?;
    let dataset = match config.model.superres {
        true => Dataset::open_with_targets(config)?,
        false => Dataset::open(config)?,
    };
    let chips = dataset.training_chips(config)?;
    if chips.len() < ranks {
        return Err(Error::TooFewSamples {
            samples: chips.len(),
            ranks,
            smaller: settings::leaving_out(&config.data),
        });
    }
    let validation = Validation::of(config, &dataset, chips.len())?;
    Ok(Samples {
        chips: Arc::new(chips),
        validation,
        panels: Panels::of(config, &dataset)?,
        concerns: match leads {
            true => concerns(config, &dataset)?,
            false => Vec::new(),
        },
    })
}

/// How many batches are prepared at once: as many as there are processors for, half of them, which `ranks` share, and memory.
fn prefetch(plan: &Plan<'_>, ranks: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Processes that share a host see all of its processors, as do ranks of other hosts, who have more.
    let threads = processors / 2 / ranks.max(1);
    let fits = PREFETCH_BYTES / plan.chips.batch_bytes(plan.batch.micro).max(1);
    threads.min(fits).clamp(*PREFETCH.start(), *PREFETCH.end())
}

/// Runs a body on each rank; the error is that of the rank that failed first.
pub(crate) fn run_ranks<T: Send>(
    ranks: usize,
    body: impl Fn(LocalCommunicator) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    run_ranks_within(ranks, None, body)
}

/// As [`run_ranks`], with an end to all waiting.
pub(crate) fn run_ranks_within<T: Send>(
    ranks: usize,
    patience: Option<Patience>,
    body: impl Fn(LocalCommunicator) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    local::run_within(ranks, patience, body).map_err(|error| match error {
        RunError::Failed { rank, source } => Error::Rank {
            rank,
            source: Box::new(source),
        },
        RunError::Panicked { rank, message } => Error::panicked(format!("rank {rank}"), message),
        RunError::Spawn { rank, source } => Error::Spawn {
            who: format!("rank {rank}"),
            source,
        },
        other => Error::invalid("zero.ranks", other, "at least 1"),
    })
}

/// What a run takes and sends on a rank, by the formulas.
struct Predicted {
    /// At each stage; at the run's own with its offload.
    bytes: Vec<RankBytes>,
    /// Bytes sent in a step, without scalars and batch statistics.
    sent: u64,
    /// The most that a rank's device holds at once.
    own: Footprint,
}

fn predicted(config: &Config, chips: &Chips, ranks: usize, device: Device) -> Result<Predicted> {
    let options = PlanOptions {
        ranks: Some(ranks),
        device,
        ahead: planning::batches_ahead(device),
        target_bytes: Some(chips.target_value_bytes()),
        ..PlanOptions::default()
    };
    let planned = planning::plan(config, options)?.stages;
    let zero = &config.zero;
    let find = |stage| {
        let offload = if stage == zero.stage {
            zero.offload
        } else {
            Offload::None
        };
        let found = planned
            .iter()
            .find(|plan| plan.stage == stage && plan.offload == offload);
        found.expect("a plan has every stage with every offload that it allows")
    };
    Ok(Predicted {
        bytes: Stage::ALL
            .into_iter()
            .map(|stage| find(stage).bytes)
            .collect(),
        sent: find(zero.stage).wire,
        own: find(zero.stage).footprint,
    })
}

/// The name of a configuration: its file's, without the ending.
pub fn run_name(config: &Path) -> String {
    config
        .file_stem()
        .map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
}
