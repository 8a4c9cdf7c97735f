//! One rank's training: the loop.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::{Communicator, Traffic};
use terrashard_data::{Loader, LoaderOptions};
use terrashard_layout::ShardTable;
use terrashard_models::{L1_WEIGHT, Losses, Normalizers, S2s2Net, Targets};
use terrashard_ops::Masks;
use terrashard_zero::{Initial, Origin, StepOutcome, ZeroOptimizer, declared};

use super::divergence::{chips, diverged};
use super::feed::{Destination, Fed, Feed, element};
use super::initial::InitialValues;
use super::left_out;
use super::logger::{Logger, warn};
use super::metered_communicator::MeteredCommunicator;
use super::saving::{Saves, Standing, Urgency};
use super::scope::Training;
use super::settings::zero_config;
use super::step_clock::{Phase, StepClock};
use super::terms::Terms;
use super::told::Told;
use super::validation::{Made, Validation};
use super::{Plan, running_statistics};
use crate::energy::EnergyMeter;
use crate::error::{Error, Result};
use crate::record::{HeldBytes, SentBytes, StepRecord, StepTimes};
use crate::schedule::learning_rate;

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
    /// Samples of all ranks that could not be read.
    pub left_out: u64,
    /// The last step it made.
    pub last_step: u64,
    /// The signal that it ended by before the plan's last step: that of this process, if it had one.
    pub stopped_by: Option<String>,
    /// The most that tensors held on this rank's GPU; none on the processor.
    pub device_peak: Option<u64>,
}

/// Trains from the plan's start to its last step.
pub(super) fn train(plan: &Plan<'_>, communicator: Arc<dyn Communicator>) -> Result<Outcome> {
    Rank::new(plan, communicator)?.run()
}

/// One rank of a training.
pub(super) struct Rank<'a> {
    pub(super) plan: &'a Plan<'a>,
    device: Device,
    model: S2s2Net,
    pub(super) optimizer: ZeroOptimizer,
    pub(super) feed: Feed,
    /// None for a trial.
    saves: Option<Saves<'a>>,
    /// On rank 0, what tells of each step.
    pub(super) logger: Option<Logger<'a>>,
    /// The number of its GPU, where it has one.
    gpu: usize,
    energy: EnergyMeter,
    pub(super) clock: StepClock,
    held: HeldBytes,
    times: StepTimes,
    sent: SentBytes,
    skipped: u64,
    left_out: u64,
    pub(super) told: left_out::Told,
    #[cfg(feature = "faults")]
    pub(super) stricken: super::faults::Stricken,
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
        let gpu = plan.gpu.unwrap_or(rank);
        let arithmetic = config.train.arithmetic();
        let device = plan.device.of_rank(gpu, ranks, arithmetic)?;
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
            prefetch: super::prefetch(plan, ranks),
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
        let logger = match (communicator.rank(), plan.run) {
            (0, Some(run)) => {
                let table = optimizer.table();
                let logger = Logger::open(plan, run, gpu, communicator.ranks(), table)?;
                origin.iter().for_each(|origin| logger.say(origin));
                Some(logger)
            }
            _ => None,
        };
        Ok(Self {
            plan,
            device,
            model,
            optimizer,
            feed,
            saves: plan.run.map(|run| Saves::new(plan, run)),
            logger,
            gpu,
            energy: EnergyMeter::of(plan.device, gpu),
            clock,
            held: HeldBytes::default(),
            times: StepTimes::default(),
            sent: SentBytes::default(),
            skipped: 0,
            left_out: 0,
            told: left_out::Told::default(),
            #[cfg(feature = "faults")]
            stricken: super::faults::Stricken::Not,
        })
    }

    fn run(mut self) -> Result<Outcome> {
        let (mut last_step, mut stopped_by) = (self.plan.start.step(), None);
        for step in self.plan.start.step() + 1..=self.plan.last_step {
            let made = self.make(step).map_err(|error| error.at_step(step))?;
            last_step = step;
            if let ControlFlow::Break(signal) = made {
                stopped_by = signal;
                break;
            }
        }
        self.times.add(&self.clock.take());
        if let Some(logger) = &self.logger {
            logger.finish();
        }
        Ok(Outcome {
            table: self.optimizer.table().clone(),
            held: self.held,
            times: self.times,
            sent: self.sent,
            skipped: self.skipped,
            left_out: self.left_out,
            last_step,
            stopped_by,
            device_peak: self.plan.device.peak_bytes(self.gpu),
        })
    }

    /// A step with all that follows it: the training ends after the last one, or by a signal.
    fn make(&mut self, step: u64) -> Result<ControlFlow<Option<String>>> {
        #[cfg(feature = "faults")]
        if super::faults::strike(self, step)?.is_break() {
            return Ok(ControlFlow::Break(None));
        }
        let plan = self.plan;
        let told = self.step(step)?;
        self.hear(told.saving)?;
        let is_last = step == plan.last_step;
        if told.stop > 0.0 && !is_last {
            // Who asked for an end has little time.
            self.save(step, Urgency::Now)?;
            let signal = plan.stop.signal().unwrap_or("a signal to another rank");
            return Ok(ControlFlow::Break(Some(signal.to_owned())));
        }
        let every = plan.config.checkpoint.every;
        let is_saved = is_last || (every > 0 && step.is_multiple_of(every));
        self.look(Made {
            step,
            cursors: plan.cursors(step),
            is_last,
            is_saved,
        })?;
        if is_saved {
            let urgency = match is_last {
                true => Urgency::Now,
                false => Urgency::Later,
            };
            self.save(step, urgency)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Measures the model and draws what it makes of a window, where it is time to, and tells. The training goes on as if nobody had
    /// looked.
    fn look(&mut self, made: Made) -> Result<()> {
        let plan = self.plan;
        let validation = plan.validation.as_ref().filter(|it| it.is_due(made));
        let panels = plan.panels.as_ref().filter(|it| it.is_due(made));
        if plan.run.is_none() || (validation.is_none() && panels.is_none()) {
            return Ok(());
        }
        let (optimizer, model) = (&self.optimizer, &self.model);
        let on = (&self.device, element(plan.precision));
        let (record, picture) = self.clock.measure(Phase::Validation, || -> Result<_> {
            let own = model.buffers();
            running_statistics::settle(model, optimizer, plan.config.train.batch_norm)?;
            let measure = |it: &Validation| it.run(made.step, optimizer, model, on);
            let record = validation.map(measure).transpose()?;
            let picture = panels.map(|it| it.draw(optimizer, model, on)).transpose()?;
            model.load_buffers(&own)?;
            Ok((record, picture.flatten()))
        })?;
        if let Some(logger) = &mut self.logger {
            record
                .iter()
                .try_for_each(|record| logger.validated(record))?;
            if let Some(picture) = picture {
                let size = [picture.width, picture.height];
                logger.drawn(made.step, &picture.png(), size)?;
            }
        }
        if let (Some(saves), Some(record)) = (&mut self.saves, record) {
            saves.validated = Some(record);
        }
        Ok(())
    }

    pub(super) fn save(&mut self, step: u64, urgency: Urgency) -> Result<()> {
        let Some(saves) = &mut self.saves else {
            return Ok(());
        };
        let (plan, optimizer, model) = (self.plan, &self.optimizer, &self.model);
        self.clock.measure(Phase::Checkpoint, || {
            running_statistics::settle(model, optimizer, plan.config.train.batch_norm)?;
            saves.save(step, optimizer, model, urgency)
        })?;
        self.warn();
        Ok(())
    }

    /// Takes in how far all ranks are with the save that is under way.
    fn hear(&mut self, all: Standing) -> Result<()> {
        let Some(saves) = &mut self.saves else {
            return Ok(());
        };
        let optimizer = &self.optimizer;
        self.clock
            .measure(Phase::Checkpoint, || saves.hear(all, optimizer))?;
        self.warn();
        Ok(())
    }

    /// Tells what went wrong with saves on this rank while the run goes on: also where it is to be quiet, as errors are.
    fn warn(&mut self) {
        let warnings = self.saves.iter_mut().flat_map(Saves::take_warnings);
        for warning in warnings {
            warn(self.logger.as_ref(), &warning);
        }
    }

    /// What this rank has to tell the others with a step's sums.
    fn tell_others(&mut self) -> Told {
        Told {
            stop: f64::from(u8::from(self.plan.stop.signal().is_some())),
            saving: self
                .saves
                .as_mut()
                .map_or_else(Standing::default, Saves::standing),
            joules: self.energy.take(),
        }
    }

    /// One optimizer step: the micro-batches, the update, the record.
    pub(super) fn step(&mut self, step: u64) -> Result<Told> {
        let began = Instant::now();
        let before = self.traffic();
        let window = self.plan.window(step);
        let (ready, lacking) = self.ready(step)?;
        self.left_out += lacking.samples;
        let mut ready = ready.into_iter();
        let normalizers = lacking.without(self.normalizers(&window)?);
        let nothing = normalizers.valid_pixels + normalizers.superres_values == 0.0;
        let mut sums = Terms::default();
        for number in 0..self.plan.batch.accumulate {
            let batch = match ready.next() {
                Some(batch) => batch,
                None => self.take()?,
            };
            if nothing || window.is_idle(number) {
                continue;
            }
            let mut clock = self.clock.lend();
            clock.measure(Phase::Compute, || -> Result<()> {
                let losses = self.forward(step, batch, &normalizers);
                sums.add(&losses);
                #[cfg(feature = "faults")]
                let losses = super::faults::losses(self.stricken, losses);
                Ok(self.optimizer.backward(losses.total)?)
            })?;
            self.clock = clock;
            self.count_held();
        }
        let train = &self.plan.config.train;
        let lr = learning_rate(train, self.plan.steps, self.optimizer.steps() + 1);
        let (became, sums) = if nothing {
            // What ranks have to tell each other they tell all the same: a signal, for one.
            let own = self.tell_others().own().to_vec();
            let mut sums = vec![0.0; Terms::COUNT];
            sums.extend(self.optimizer.sum_over_ranks(own)?);
            (Became::NoValidPixel, sums)
        } else {
            let told = TensorData::from(self.tell_others().own());
            let told = Tensor::from_data(told, (&self.device, DType::F64));
            let sums = Tensor::cat(vec![sums.on(&self.device), told], 0);
            let optimizer = &mut self.optimizer;
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
        let (sums, told) = sums.split_at(Terms::COUNT);
        let (loss, told) = (sums[0], Told::of(told));
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
        let terms = Terms::named(sums, plan.config);
        if let (Some(saves), Became::Applied { .. }) = (&mut self.saves, &became) {
            saves.score.add(loss, &terms);
        }
        let Some(logger) = &mut self.logger else {
            return Ok(told);
        };
        let seconds = began.elapsed().as_secs_f64();
        let images = (window.samples().end - window.samples().start) as usize;
        let record = StepRecord {
            step,
            loss,
            lr,
            images_s: images as f64 / seconds,
            grad_norm: match became {
                Became::Applied { norm } => norm,
                _ => 0.0,
            },
            skipped: !matches!(became, Became::Applied { .. }),
            left_out: lacking.samples,
            seconds,
            terms,
            times,
            sent,
            joules: told.joules,
        };
        logger.step(&record, images)?;
        match became {
            Became::Applied { .. } => {}
            Became::NotFinite { origin, loss_scale } => {
                let chips = chips(plan, &window, &origin)?;
                let scale = loss_scale.map_or_else(String::new, |scale| {
                    format!("; the next step's loss is scaled by {scale}")
                });
                logger.say(&format!(
                    "step {step} was skipped: a gradient is not finite; {origin}{chips}{scale}"
                ));
            }
            Became::NoValidPixel => logger.say(&format!(
                "step {step} was skipped: none of its samples has a pixel with a label"
            )),
        }
        logger.show(&record, images);
        Ok(told)
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

    fn forward(&self, step: u64, batch: Fed, normalizers: &Normalizers) -> Losses {
        let Fed {
            images,
            labels,
            superres,
            ids,
            ..
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
