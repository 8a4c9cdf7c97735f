//! One rank's training: the loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use terrashard_collectives::{Communicator, Traffic};
use terrashard_data::{Loader, LoaderOptions};
use terrashard_layout::{ShardTable, Window};
use terrashard_models::{L1_WEIGHT, Losses, Normalizers, S2s2Net, Targets};
use terrashard_ops::Masks;
use terrashard_zero::{Initial, Origin, StepOutcome, ZeroOptimizer, declared};

use super::feed::{Destination, Fed, Feed};
use super::initial::InitialValues;
use super::metered_communicator::MeteredCommunicator;
use super::scope::Training;
use super::settings::zero_config;
use super::step_clock::{Phase, StepClock};
use super::terms::Terms;
use super::{Plan, running_statistics, saving};
use crate::error::{Error, Result};
use crate::record::{HeldBytes, Metrics, Progress, SentBytes, StepRecord, StepTimes, counted};
use crate::schedule::learning_rate;

/// Batches that a loader prepares at once, at least and at most.
const PREFETCH: std::ops::RangeInclusive<usize> = 2..=8;

/// Bytes that these take up at most, where they are more than the least.
const PREFETCH_BYTES: usize = 2 << 30;

/// What a rank has to tell at the end.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The table, the same on every rank.
    pub table: ShardTable,
    /// What this rank held when it held most.
    pub held: HeldBytes,
    /// Where its time went, over all steps.
    pub times: StepTimes,
    /// What it sent in the last whole step.
    pub sent: SentBytes,
    /// Steps that changed nothing, the same number on every rank.
    pub skipped: u64,
}

/// Trains from the plan's start to its last step.
pub(super) fn train(plan: &Plan<'_>, communicator: Arc<dyn Communicator>) -> Result<Outcome> {
    Rank::new(plan, communicator)?.run()
}

/// How many batches are prepared at once: as many as there are processors for, half of them, which `ranks` share, and memory.
fn prefetch(plan: &Plan<'_>, ranks: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Processes that share a host see all of its processors, as do ranks of other hosts, who have more.
    let threads = processors / 2 / ranks.max(1);
    let fits = PREFETCH_BYTES / plan.chips.batch_bytes(plan.batch.micro).max(1);
    threads.min(fits).clamp(*PREFETCH.start(), *PREFETCH.end())
}

/// One rank of a training.
pub(super) struct Rank<'a> {
    plan: &'a Plan<'a>,
    device: Device,
    model: S2s2Net,
    pub(super) optimizer: ZeroOptimizer,
    feed: Feed,
    /// On rank 0, what is told of each step.
    told: Option<(Metrics, Progress)>,
    clock: StepClock,
    held: HeldBytes,
    times: StepTimes,
    sent: SentBytes,
    skipped: u64,
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq)]
enum Became {
    Applied {
        norm: f64,
    },
    NotFinite {
        origin: Origin,
        /// That of the next step, in fp16.
        loss_scale: Option<f64>,
    },
    NoValidPixel,
}

impl<'a> Rank<'a> {
    pub(super) fn new(plan: &'a Plan<'a>, communicator: Arc<dyn Communicator>) -> Result<Self> {
        let config = plan.config;
        let communicator = MeteredCommunicator::new(communicator);
        let clock = StepClock::new(communicator.waited());
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let device =
            plan.device
                .of_rank(plan.gpu.unwrap_or(rank), ranks, config.train.arithmetic())?;
        let model = config.model.init(&device)?;
        let initial = InitialValues::open(config, &plan.start)?;
        let values = |name: &str, shape: &[usize]| initial.of(name, shape);
        let parameters = declared(&model);
        let names = parameters.iter().map(|parameter| parameter.name.as_str());
        let zero = zero_config(config, plan.precision, plan.batch, names)?;
        let mut optimizer = ZeroOptimizer::new(
            &model,
            zero,
            Initial::Keyed(&values),
            communicator.clone(),
            &device,
        )?;
        let blocks: Vec<_> = model
            .blocks()
            .into_iter()
            .map(|block| block.parameters)
            .collect();
        optimizer.declare_blocks(&blocks)?;
        let origin = initial.told();
        initial.finish(&model)?;
        plan.start.restore(&mut optimizer, &model)?;
        let options = LoaderOptions {
            rank: communicator.rank(),
            ranks: communicator.ranks(),
            micro_batch: plan.batch.micro,
            accumulate: plan.batch.accumulate,
            cursor: plan.start.cursor(),
            end: plan.end,
            steps: Some(plan.last_step - plan.start.step()),
            prefetch: prefetch(plan, ranks),
        };
        let feed = Feed::new(
            Loader::new(plan.chips.clone(), plan.order, options)?,
            Destination {
                device: device.clone(),
                precision: plan.precision,
                #[cfg(feature = "tch")]
                libtorch: plan.device.libtorch(plan.gpu.unwrap_or(rank)),
            },
        )?;
        let told = match (communicator.rank(), plan.run) {
            (0, Some(run)) => {
                let every = Duration::from_secs_f64(config.log.seconds);
                let progress =
                    Progress::new(plan.display, "step", plan.start.step(), plan.steps, every);
                progress.say(&opening(plan, communicator.ranks(), optimizer.table()));
                origin.iter().for_each(|origin| progress.say(origin));
                Some((Metrics::open(run)?, progress))
            }
            _ => None,
        };
        Ok(Self {
            plan,
            device,
            model,
            optimizer,
            feed,
            told,
            clock,
            held: HeldBytes::default(),
            times: StepTimes::default(),
            sent: SentBytes::default(),
            skipped: 0,
        })
    }

    fn run(mut self) -> Result<Outcome> {
        let every = self.plan.config.checkpoint.every;
        for step in self.plan.start.step() + 1..=self.plan.last_step {
            self.step(step)?;
            if step == self.plan.last_step || (every > 0 && step.is_multiple_of(every)) {
                self.save(step)?;
            }
        }
        self.times.add(&self.clock.take());
        if let Some((_, progress)) = &self.told {
            progress.finish();
        }
        Ok(Outcome {
            table: self.optimizer.table().clone(),
            held: self.held,
            times: self.times,
            sent: self.sent,
            skipped: self.skipped,
        })
    }

    fn save(&mut self, step: u64) -> Result<()> {
        let Some(run) = self.plan.run else {
            return Ok(());
        };
        let (plan, optimizer, model) = (self.plan, &self.optimizer, &self.model);
        self.clock.measure(Phase::Checkpoint, || {
            running_statistics::settle(model, optimizer, plan.config.train.batch_norm)?;
            saving::save(plan, run, step, optimizer, model)
        })
    }

    /// One optimizer step: the micro-batches, the update, the record.
    pub(super) fn step(&mut self, step: u64) -> Result<()> {
        let began = Instant::now();
        let before = self.traffic();
        let window = self.plan.window(step);
        let normalizers = self.normalizers(&window)?;
        let nothing = normalizers.valid_pixels + normalizers.superres_values == 0.0;
        let mut sums = Terms::default();
        for number in 0..self.plan.batch.accumulate {
            let feed = &mut self.feed;
            let next = self.clock.measure(Phase::Data, || feed.next());
            let batch = next.expect("the loader has every step of the plan")?;
            if nothing || window.is_idle(number) {
                continue;
            }
            let mut clock = self.clock.lend();
            clock.measure(Phase::Compute, || -> Result<()> {
                let losses = self.forward(step, batch, &normalizers);
                sums.add(&losses);
                Ok(self.optimizer.backward(losses.total)?)
            })?;
            self.clock = clock;
            self.count_held();
        }
        let train = &self.plan.config.train;
        let lr = learning_rate(train, self.plan.steps, self.optimizer.steps() + 1);
        let (became, sums) = if nothing {
            (Became::NoValidPixel, vec![0.0; Terms::COUNT])
        } else {
            let (optimizer, sums) = (&mut self.optimizer, sums.on(&self.device));
            let outcome = self
                .clock
                .measure(Phase::Optimizer, || optimizer.step_with(lr, sums));
            match outcome.map_err(|error| diverged(self.plan, step, &window, error))? {
                StepOutcome::Applied { norm, scalars, .. } => (Became::Applied { norm }, scalars),
                StepOutcome::Skipped {
                    origin,
                    scalars,
                    loss_scale,
                    ..
                } => (Became::NotFinite { origin, loss_scale }, scalars),
            }
        };
        let loss = sums[0];
        // A gradient that is not finite is the optimizer's to judge; a loss that is not, with gradients that are, is
        // nothing to go on from.
        if matches!(became, Became::Applied { .. }) && !loss.is_finite() {
            return Err(Error::NonFinite { step, loss });
        }
        let sent = SentBytes::of(&self.traffic(), &before);
        let times = self.clock.take();
        self.times.add(&times);
        match became {
            Became::Applied { .. } => self.sent = sent,
            Became::NotFinite { .. } | Became::NoValidPixel => self.skipped += 1,
        }
        let plan = self.plan;
        let Some((metrics, progress)) = &mut self.told else {
            return Ok(());
        };
        let seconds = began.elapsed().as_secs_f64();
        let images = (window.samples().end - window.samples().start) as usize;
        metrics.append(&StepRecord {
            step,
            loss,
            lr,
            images_s: images as f64 / seconds,
            grad_norm: match became {
                Became::Applied { norm } => norm,
                _ => 0.0,
            },
            skipped: !matches!(became, Became::Applied { .. }),
            seconds,
            terms: Terms::named(&sums, plan.config),
            times,
            sent,
        })?;
        match became {
            Became::Applied { .. } => {}
            Became::NotFinite { origin, loss_scale } => {
                let chips = chips(plan, &window, &origin)?;
                let scale = loss_scale.map_or_else(String::new, |scale| {
                    format!("; the next step's loss is scaled by {scale}")
                });
                progress.say(&format!(
                    "step {step} was skipped: a gradient is not finite; {origin}{chips}{scale}"
                ));
            }
            Became::NoValidPixel => progress.say(&format!(
                "step {step} was skipped: none of its samples has a pixel with a label"
            )),
        }
        progress.advance(step, Some(loss), images);
        Ok(())
    }

    /// What this rank has sent so far, over all its groups.
    fn traffic(&self) -> [Traffic; 3] {
        let groups = self.optimizer.groups();
        let replicas = groups.replicas.as_ref().map(|replicas| replicas.traffic());
        [
            groups.world.traffic(),
            // Without replicas the group of the shards is that of all ranks.
            replicas.map_or_else(Traffic::default, |_| groups.shards.traffic()),
            replicas.unwrap_or_default(),
        ]
    }

    /// The counts of a whole step over all ranks. Labels and high-resolution pixels are counted when chips are cut, so every
    /// rank knows them.
    fn normalizers(&self, window: &Window) -> Result<Normalizers> {
        let cursors = window.samples();
        let samples = (cursors.end - cursors.start) as f64;
        let (chips, order) = (&self.plan.chips, &self.plan.order);
        let counts = chips.class_counts(order, cursors.clone())?;
        Ok(Normalizers {
            samples,
            valid_pixels: counts.iter().sum::<u64>() as f64,
            superres_values: chips.target_values(order, cursors)? as f64,
        })
    }

    fn forward(&self, step: u64, batch: Fed, normalizers: &Normalizers) -> Losses {
        let Fed {
            images,
            labels,
            superres,
            ids,
        } = batch;
        let config = self.plan.config;
        let masks = Masks {
            seed: config.train.seed,
            step,
            samples: ids.into(),
        };
        let (recompute, batch_norm) = (&config.zero.recompute, config.train.batch_norm);
        let scope = Training::new(&self.optimizer, recompute, batch_norm, masks);
        let maps = self.model.forward(images, &scope);
        let targets = Targets { labels, superres };
        let l1_weight = config.train.l1_weight.unwrap_or(L1_WEIGHT);
        let loss = config.train.loss;
        loss.weighted(&maps, &targets, normalizers, l1_weight, &scope)
    }

    fn count_held(&mut self) {
        let held = self.optimizer.held_bytes();
        let held = HeldBytes {
            parameters: held.parameters as u64,
            gradients: held.gradients as u64,
            optimizer: held.optimizer as u64,
            host: held.host as u64,
            gathered: self.optimizer.take_gathered_peak() as u64,
            buckets: self.optimizer.take_buckets_peak() as u64,
        };
        if held.total() > self.held.total() {
            self.held = held;
        }
    }
}

/// What a run says at its start.
fn opening(plan: &Plan<'_>, ranks: usize, table: &ShardTable) -> String {
    let parameters: usize = table.rows().iter().map(|row| row.numel()).sum();
    let begins = format!(
        "training {parameters} parameters on {}, {} at stage {}",
        counted(plan.chips.len(), "sample"),
        counted(ranks, "rank"),
        plan.config.zero.stage
    );
    match plan.start.resumed_from() {
        Some(step) => format!("{begins}, resumed from step {step}"),
        None => begins,
    }
}

/// The error of a step, with the chips where it is a gradient that is not finite.
fn diverged(plan: &Plan<'_>, step: u64, window: &Window, error: terrashard_zero::Error) -> Error {
    let terrashard_zero::Error::NonFinite {
        origin, skipped, ..
    } = &error
    else {
        return error.into();
    };
    match chips(plan, window, origin) {
        Err(error) => error,
        Ok(chips) => Error::NonFiniteGradient {
            step,
            origin: format!("{origin}{chips}"),
            skipped: *skipped,
        },
    }
}

/// The chips that a non-finite gradient came from: those of its micro-batch, with their files and windows (column, row, width,
/// height).
fn chips(plan: &Plan<'_>, window: &Window, origin: &Origin) -> Result<String> {
    let Some(rank) = origin.rank else {
        return Ok(String::new());
    };
    const TOLD: usize = 4;
    let mut text = String::new();
    let cursors = window.micro_batch(rank, origin.micro_batch);
    let more = (cursors.end - cursors.start).saturating_sub(TOLD as u64);
    for cursor in cursors.take(TOLD) {
        let chip = plan.chips.chip(plan.order.at(cursor))?;
        let scene = &plan.config.data.scenes[chip.scene].image;
        let terrashard_raster::Window {
            col,
            row,
            width,
            height,
        } = chip.window;
        let before = if text.is_empty() { "; chip of" } else { "," };
        text += &format!(
            "{before} {} [{col}, {row}, {width}, {height}]",
            scene.display()
        );
    }
    if more > 0 {
        text += &format!(" and {more} more");
    }
    Ok(text)
}
