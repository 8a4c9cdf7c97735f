//! One rank's training: the loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_collectives::local::LocalCommunicator;
use terrashard_data::{Batch as Samples, Loader, LoaderOptions};
use terrashard_layout::{ShardTable, Window};
use terrashard_models::{Losses, Normalizers, S2s2Net, Scope, Targets, initial_value};
use terrashard_ops::{Labels, Masks, Mode, Pass, SumOverRanks};
use terrashard_zero::{Initial, StepOutcome, ZeroOptimizer, declared};

use super::settings::zero_config;
use super::{Plan, saving};
use crate::error::{Error, Result};
use crate::record::{HeldBytes, Metrics, Progress, StepRecord, counted};
use crate::schedule::learning_rate;

/// Batches that a loader keeps ready.
const PREFETCH: usize = 2;

/// What a rank has to tell at the end.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The table, the same on every rank.
    pub table: ShardTable,
    /// What this rank held when it held most.
    pub held: HeldBytes,
}

/// Trains from the plan's start to its last step.
pub(super) fn train(plan: &Plan<'_>, communicator: LocalCommunicator) -> Result<Outcome> {
    let rank = Rank::new(plan, Arc::new(communicator))?;
    rank.run()
}

struct Rank<'a> {
    plan: &'a Plan<'a>,
    communicator: Arc<dyn Communicator>,
    device: Device,
    model: S2s2Net,
    optimizer: ZeroOptimizer,
    loader: Loader,
    /// On rank 0, what is told of each step.
    told: Option<(Metrics, Progress)>,
    held: HeldBytes,
}

impl<'a> Rank<'a> {
    fn new(plan: &'a Plan<'a>, communicator: Arc<dyn Communicator>) -> Result<Self> {
        let (config, seed) = (plan.config, plan.config.train.seed);
        let device = Device::flex();
        let model = config.model.init(&device)?;
        let values = |name: &str, shape: &[usize]| initial_value(name, shape, seed);
        let parameters = declared(&model);
        let names = parameters.iter().map(|parameter| parameter.name.as_str());
        let zero = zero_config(config, plan.batch, names)?;
        let mut optimizer = ZeroOptimizer::new(
            &model,
            zero,
            Initial::Keyed(&values),
            communicator.clone(),
            &device,
        )?;
        plan.start.restore(&mut optimizer, &model)?;
        let options = LoaderOptions {
            rank: communicator.rank(),
            ranks: communicator.ranks(),
            micro_batch: plan.batch.micro,
            accumulate: plan.batch.accumulate,
            cursor: plan.start.cursor(),
            end: plan.end,
            steps: Some(plan.last_step - plan.start.step()),
            prefetch: PREFETCH,
        };
        let loader = Loader::new(plan.chips.clone(), plan.order, options)?;
        let told = match communicator.rank() {
            0 => {
                let every = Duration::from_secs_f64(config.log.seconds);
                let progress =
                    Progress::new(plan.display, "step", plan.start.step(), plan.steps, every);
                progress.say(&opening(plan, optimizer.table()));
                Some((Metrics::open(plan.run)?, progress))
            }
            _ => None,
        };
        Ok(Self {
            plan,
            communicator,
            device,
            model,
            optimizer,
            loader,
            told,
            held: HeldBytes::default(),
        })
    }

    fn run(mut self) -> Result<Outcome> {
        let every = self.plan.config.checkpoint.every;
        for step in self.plan.start.step() + 1..=self.plan.last_step {
            self.step(step)?;
            if step == self.plan.last_step || (every > 0 && step.is_multiple_of(every)) {
                saving::save(self.plan, step, &self.optimizer, &self.model)?;
            }
        }
        if let Some((_, progress)) = &self.told {
            progress.finish();
        }
        Ok(Outcome {
            table: self.optimizer.table().clone(),
            held: self.held,
        })
    }

    /// One optimizer step: the micro-batches, the update, the record.
    fn step(&mut self, step: u64) -> Result<()> {
        let began = Instant::now();
        let window = self.plan.window(step);
        let normalizers = self.normalizers(&window)?;
        let mut sums = Terms::default();
        for number in 0..self.plan.batch.accumulate {
            let batch = self
                .loader
                .next()
                .expect("the loader has every step of the plan")?
                .batch;
            if window.is_idle(number) {
                continue;
            }
            let losses = self.forward(step, batch, &normalizers);
            sums.add(&losses);
            self.optimizer.backward(losses.total)?;
        }
        self.count_held();
        let train = &self.plan.config.train;
        let lr = learning_rate(train, self.plan.steps, self.optimizer.steps() + 1);
        let (grad_norm, sums, skipped) = match self.optimizer.step(lr, &sums.0)? {
            StepOutcome::Applied { norm, scalars, .. } => (norm, scalars, None),
            StepOutcome::Skipped {
                scalars, origin, ..
            } => (0.0, scalars, Some(origin)),
        };
        let loss = sums[0];
        // A gradient that is not finite is the optimizer's to judge; a loss that is not, with gradients that are, is nothing
        // to go on from.
        if skipped.is_none() && !loss.is_finite() {
            return Err(Error::NonFinite { step, loss });
        }
        let Some((metrics, progress)) = &mut self.told else {
            return Ok(());
        };
        let seconds = began.elapsed().as_secs_f64();
        let images = (window.samples().end - window.samples().start) as usize;
        let terms = Terms::named(&sums, self.plan.config);
        let images_s = images as f64 / seconds;
        metrics.append(&StepRecord {
            step,
            loss,
            lr,
            images_s,
            grad_norm,
            skipped: skipped.is_some(),
            seconds,
            terms,
        })?;
        if let Some(origin) = skipped {
            progress.say(&format!(
                "step {step} was skipped: a gradient is not finite; {origin}"
            ));
        }
        progress.advance(step, Some(loss), images);
        Ok(())
    }

    /// The counts of a whole step over all ranks. Labels are counted when chips are cut, so every rank knows them.
    fn normalizers(&self, window: &Window) -> Result<Normalizers> {
        let cursors = window.samples();
        let samples = (cursors.end - cursors.start) as f64;
        let counts = self.plan.chips.class_counts(&self.plan.order, cursors)?;
        Ok(Normalizers {
            samples,
            valid_pixels: counts.iter().sum::<u64>() as f64,
            superres_values: 0.0,
        })
    }

    fn forward(&self, step: u64, batch: Samples, normalizers: &Normalizers) -> Losses {
        let Samples {
            samples,
            bands,
            side,
            scale,
            images,
            masks,
            ids,
            ..
        } = batch;
        let autodiff = self.device.clone().autodiff();
        let image = Tensor::<4>::from_data(
            TensorData::new(images, [samples, bands, side, side]),
            &autodiff,
        );
        let labels = Labels::new(masks, [samples, side * scale, side * scale], &self.device);
        let scope = Sharded {
            optimizer: &self.optimizer,
            pass: Pass {
                mode: Mode::Training,
                ranks: self.sums(),
                masks: Some(Masks {
                    seed: self.plan.config.train.seed,
                    step,
                    samples: ids.into(),
                }),
            },
        };
        let maps = self.model.forward(image, &scope);
        let targets = Targets {
            labels,
            superres: None,
        };
        self.plan
            .config
            .train
            .loss
            .of(&maps, &targets, normalizers, &scope)
    }

    fn sums(&self) -> Arc<dyn SumOverRanks> {
        Arc::new(RankSums {
            communicator: self.communicator.clone(),
            device: self.device.clone(),
        })
    }

    fn count_held(&mut self) {
        let held = self.optimizer.held_bytes();
        let held = HeldBytes {
            parameters: held.parameters as u64,
            gradients: held.gradients as u64,
            optimizer: held.optimizer as u64,
        };
        if held.total() > self.held.total() {
            self.held = held;
        }
    }
}

/// What a run says at its start.
fn opening(plan: &Plan<'_>, table: &ShardTable) -> String {
    let parameters: usize = table.rows().iter().map(|row| row.numel()).sum();
    let begins = format!(
        "training {parameters} parameters on {}, {} at stage {}",
        counted(plan.chips.len(), "sample"),
        counted(table.ranks(), "rank"),
        plan.config.zero.stage
    );
    match plan.start.resumed_from() {
        Some(step) => format!("{begins}, resumed from step {step}"),
        None => begins,
    }
}

/// A forward pass whose blocks get their parameters from the optimizer, with batch statistics over all ranks.
struct Sharded<'a> {
    optimizer: &'a ZeroOptimizer,
    pass: Pass,
}

impl Scope for Sharded<'_> {
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
        let anchor = inputs.last().expect("a block has an input");
        let module = self.optimizer.enter(module, anchor);
        forward(&module, inputs, &self.pass)
    }

    fn pass(&self) -> Pass {
        self.pass.clone()
    }
}

/// Sums over ranks inside forward and backward.
#[derive(Debug)]
struct RankSums {
    communicator: Arc<dyn Communicator>,
    device: Device,
}

impl SumOverRanks for RankSums {
    fn sum(&self, values: &mut [f64]) {
        let tensor = Tensor::<1>::from_data(TensorData::from(&*values), (&self.device, DType::F64));
        let summed = self
            .communicator
            .all_reduce(tensor)
            .and_then(|pending| pending.wait());
        // A failed group fails every later call as well, so the error comes back from the end of the step.
        let Ok(summed) = summed else { return };
        if let Ok(summed) = summed.into_data().try_to_vec::<f64>() {
            values.copy_from_slice(&summed);
        }
    }
}

/// The terms of the loss, summed over micro-batches and then ranks: total, segmentation, affinity, L1.
#[derive(Debug, Default)]
struct Terms([f64; 4]);

impl Terms {
    fn add(&mut self, losses: &Losses) {
        let value = |term: &Tensor<1>| term.clone().into_scalar::<f64>();
        let terms = [
            Some(&losses.total),
            Some(&losses.segmentation),
            losses.affinity.as_ref(),
            losses.l1.as_ref(),
        ];
        for (sum, term) in self.0.iter_mut().zip(terms) {
            *sum += term.map_or(0.0, value);
        }
    }

    /// The terms that a configuration's model has beside the total, by name; none where there is but one.
    fn named(
        sums: &[f64],
        config: &crate::config::Config,
    ) -> std::collections::BTreeMap<String, f64> {
        match config.model.superres {
            true => [
                (config.train.loss.name().to_string(), sums[1]),
                ("affinity".to_string(), sums[2]),
            ]
            .into(),
            false => Default::default(),
        }
    }
}
