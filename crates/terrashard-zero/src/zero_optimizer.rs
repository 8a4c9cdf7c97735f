//! One rank's sharded optimizer: it holds the parameters, lets a model's blocks enter the graph with them, reduces
//! their gradients during backward and updates its shard.

use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::Communicator;

use crate::bucket_updates::Decided;
use crate::config::{Reduction, ZeroConfig};
use crate::decision::{Origin, Progress, StepOutcome};
use crate::error::{Error, Result};
use crate::parameters::dtype;
use crate::policy::Extent;
use crate::reading::read_f64;
use crate::setup::Initial;
use crate::sharded_parameters::{ShardedParameters, Trained};
use crate::signs::{Sign, Spoilt};
use crate::update::BucketStates;

/// Added to the norm by which gradients are clipped.
pub(crate) const EPSILON: f64 = 1e-6;

/// Bytes that a rank holds, counted on its tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Parameter values on the device.
    pub parameters: usize,
    /// Gradients between micro-batches, on the device.
    pub gradients: usize,
    /// Master weights where they are separate, moments and moving average, on the device.
    pub optimizer: usize,
    /// Parameters and states in host memory.
    pub host: usize,
    /// Parameters gathered for a use at the moment.
    pub gathered: usize,
}

/// One rank's part of a sharded optimizer.
///
/// ```text
/// let y = optimizer.block(&model.block, vec![x], Recompute::Keep, |block, x, _| ...); // forward, block by block
/// optimizer.backward(loss)?;                                                          // for each micro-batch
/// let outcome = optimizer.step(lr, &[])?;                                             // for each optimizer step
/// ```
///
/// Each rank builds its own model and optimizer: burn's `Param` clones share one value and its graph one lock.
#[derive(Debug)]
pub struct ZeroOptimizer {
    pub(crate) parameters: ShardedParameters,
    /// For each bucket.
    pub(crate) states: Vec<BucketStates>,
    pub(crate) progress: Progress,
    /// Reduced gradients of the finished window and the number of its micro-batches.
    window: Option<(Vec<Tensor<1>>, usize)>,
}

/// The parameters: `enter`, `block`, `plain`, `table` and the like.
impl Deref for ZeroOptimizer {
    type Target = ShardedParameters;

    fn deref(&self) -> &ShardedParameters {
        &self.parameters
    }
}

impl ZeroOptimizer {
    /// Lays out the parameters of `module`, fills this rank's values and compares tables with the other ranks.
    ///
    /// The module's own parameters are read only for [`Initial::Module`], which initialises all of it; otherwise nothing of
    /// it is initialised, and one parameter at a time is materialised whole, whatever the stage. Collective: every rank calls it with an equal
    /// module and configuration.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Layout`], [`Error::InitialLength`], [`Error::TableMismatch`],
    /// [`Error::HostMemory`], [`Error::Collective`].
    pub fn new<M: Module>(
        module: &M,
        config: ZeroConfig,
        initial: Initial<'_>,
        communicator: Arc<dyn Communicator>,
        device: &Device,
    ) -> Result<Self> {
        let progress = Progress::new(&config);
        let (parameters, states) = ShardedParameters::with_states(
            module,
            config,
            initial,
            communicator,
            device,
            Trained::Yes,
        )?;
        Ok(Self {
            parameters,
            states,
            progress,
            window: None,
        })
    }

    /// Runs backward of one micro-batch and reduces its gradients on the way, as the stage says.
    ///
    /// Collective. Parameters that did not take part count as zero.
    ///
    /// # Shapes
    /// `loss`: `[1]`, on the autodiff device.
    ///
    /// # Errors
    /// [`Error::MicroBatches`] if the step already has all its micro-batches, [`Error::Collective`],
    /// [`Error::ForeignParameter`].
    pub fn backward(&self, loss: Tensor<1>) -> Result<()> {
        let core = &self.parameters.0;
        if let Some((_, micro_batches)) = &self.window {
            // Its gradients were looked at, so the window is finished.
            return Err(Error::MicroBatches {
                expected: *micro_batches,
                got: micro_batches + 1,
            });
        }
        core.gathers().settle()?;
        core.reducer().begin()?;
        let loss = match self.progress.loss_scale {
            Some(scale) => loss.mul_scalar(scale),
            None => loss,
        };
        // The reducer is not locked here: burn's backward delivers gradients to it.
        drop(loss.backward());
        core.gathers().settle()?;
        core.reducer().finish()
    }

    /// Ends the window of micro-batches: clips by the global norm and updates the parameters with learning rate `lr`.
    ///
    /// All ranks take the same decision, from one all-reduce of a few numbers; `scalars` travel in it, so that a
    /// caller's own counts cost no collective. Collective.
    ///
    /// # Errors
    /// [`Error::NonFinite`] where [`ZeroConfig::nonfinite`] says so, [`Error::Unused`], [`Error::MicroBatches`]
    /// without a micro-batch before, [`Error::Collective`], [`Error::Device`].
    pub fn step(&mut self, lr: f64, scalars: &[f64]) -> Result<StepOutcome> {
        let device = &self.parameters.0.device;
        let scalars = TensorData::from(scalars);
        self.step_with(lr, Tensor::from_data(scalars, (device, DType::F64)))
    }

    /// [`Self::step`] with scalars that are on the device: nothing waits for them on the way. They are added up in double
    /// precision, whatever their type.
    ///
    /// # Shapes
    /// `scalars`: `[any]`, on the plain device.
    ///
    /// # Errors
    /// Those of [`Self::step`].
    pub fn step_with(&mut self, lr: f64, scalars: Tensor<1>) -> Result<StepOutcome> {
        let core = self.parameters.0.clone();
        // What was gathered ahead and not used would be older than the parameters after this step.
        core.gathers().settle()?;
        let (gradients, micro_batches) = self.take_window()?;
        let mean = match core.config.reduction {
            Reduction::Sum => 1.0,
            Reduction::Mean => 1.0 / (core.groups.world.ranks() * micro_batches) as f64,
        };
        let factor = mean / self.progress.scale();
        let (sums, updated) = match self.update_ahead(&gradients, &scalars, lr, factor)? {
            Some(sums) if sums[1] == 0.0 => (sums, true),
            // Squares may overflow before the gradients do: then all ranks look again, closer.
            Some(_) => (self.sums_by_the_host(&gradients, scalars)?, false),
            None => (self.sums(&gradients, scalars)?, false),
        };
        let norm = sums[0].sqrt() * factor;
        let failed = sums[1] > 0.0;
        let scalars = sums[2..].to_vec();
        if failed {
            let origin = self.origin(&gradients)?;
            let (skipped, scale) = (self.progress.skipped, self.progress.loss_scale);
            return if self.progress.skips(&core.config) {
                Ok(StepOutcome::Skipped {
                    origin,
                    in_a_row: self.progress.skipped,
                    loss_scale: self.progress.loss_scale,
                    scalars,
                })
            } else {
                Err(Error::NonFinite {
                    step: self.progress.steps + 1,
                    skipped,
                    loss_scale: scale,
                    origin,
                })
            };
        }
        core.reducer().signs.forget();
        let clip = core
            .config
            .clip_norm
            .map_or(1.0, |clip| (clip / (norm + EPSILON)).min(1.0));
        if !updated {
            self.update(gradients, lr, &Decided::Host(factor * clip))?;
        }
        self.progress.applied(&core.config);
        Ok(StepOutcome::Applied {
            norm,
            clip,
            scalars,
        })
    }

    /// The parameters without gradients and optimizer states: for test and prediction.
    pub fn parameters(&self) -> &ShardedParameters {
        &self.parameters
    }

    /// What the gradients of a step become together.
    pub(crate) fn reduction(&self) -> Reduction {
        self.parameters.0.config.reduction
    }

    /// Optimizer steps applied so far.
    pub fn steps(&self) -> u64 {
        self.progress.steps
    }

    /// How far training is: what a checkpoint keeps beside the tensors.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// What this rank holds now.
    pub fn held_bytes(&self) -> HeldBytes {
        let core = &self.parameters.0;
        let (parameters, parameters_host) = core.values().bytes();
        let states = self.states.iter().map(BucketStates::bytes);
        let (optimizer, host) = states.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        HeldBytes {
            parameters,
            gradients: core.reducer().held_bytes(),
            optimizer,
            host: host + parameters_host,
            gathered: self.parameters.gathered_bytes(),
        }
    }

    /// The most bytes of gradient buffers that travelled at once since the last call.
    pub fn take_buckets_peak(&self) -> usize {
        self.parameters.0.reducer().take_travelling_peak()
    }

    /// The reduced gradients of the window in the stage's extent, taken from the reducer once.
    pub(crate) fn window_gradients(&mut self) -> Result<&[Tensor<1>]> {
        let window = self.take_window()?;
        Ok(&self.window.insert(window).0)
    }

    fn take_window(&mut self) -> Result<(Vec<Tensor<1>>, usize)> {
        match self.window.take() {
            Some(window) => Ok(window),
            None => self.parameters.0.reducer().take(),
        }
    }

    /// This rank's chunk of a tensor in the stage's extent.
    pub(crate) fn own_chunk(&self, bucket: usize, tensor: Tensor<1>) -> Tensor<1> {
        let core = &self.parameters.0;
        let chunk = core.table.buckets()[bucket].chunk;
        match core.policy.extent {
            Extent::Shard => tensor,
            Extent::Whole => tensor.narrow(0, core.groups.shards.rank() * chunk, chunk),
        }
    }

    /// Tells the device of the whole update before the host knows whether there is one: the device has the numbers first, and does nothing
    /// where a gradient is not finite. So it goes from backward to the update without a pause, and the host waits for the numbers alone,
    /// which it returns, as [`sums`](Self::sums). `None`, and nothing was done, where the update is not one that a GPU makes in place. Collective.
    #[cfg(feature = "tch")]
    fn update_ahead(
        &mut self,
        gradients: &[Tensor<1>],
        scalars: &Tensor<1>,
        lr: f64,
        factor: f64,
    ) -> Result<Option<Vec<f64>>> {
        let core = self.parameters.0.clone();
        let config = &core.config;
        let in_place = matches!(config.optimizer, crate::config::Optimizer::AdamW(_))
            && config.ema.is_none()
            && config.offload == crate::config::Offload::None
            && gradients.first().is_some_and(crate::libtorch::is_gpu);
        if !in_place {
            return Ok(None);
        }
        let Some(sums) = self.sums_on_the_device(gradients, scalars)? else {
            return Ok(None);
        };
        let told = crate::libtorch::HostElements::of(&sums)?;
        let gate = crate::gate::Gate::of(&sums, factor, config.clip_norm)?;
        let (Some(mut told), Some(gate)) = (told, gate) else {
            return Ok(None);
        };
        self.update(gradients.to_vec(), lr, &Decided::Device(Box::new(gate)))?;
        Ok(Some(bytemuck::cast_slice(told.elements()?.bytes).to_vec()))
    }

    #[cfg(not(feature = "tch"))]
    fn update_ahead(
        &mut self,
        _: &[Tensor<1>],
        _: &Tensor<1>,
        _: f64,
        _: f64,
    ) -> Result<Option<Vec<f64>>> {
        Ok(None)
    }

    /// The sum of squares of all gradients, how many ranks have one that is not finite, and the sums of `scalars`; over all
    /// ranks. Where the device computes by itself, this is where the host waits for it, once. Collective.
    fn sums(&self, gradients: &[Tensor<1>], scalars: Tensor<1>) -> Result<Vec<f64>> {
        #[cfg(feature = "tch")]
        if let Some(sums) = self.sums_on_the_device(gradients, &scalars)? {
            let sums = read_f64(sums)?;
            // Squares may overflow before the gradients do: then all ranks look again, closer.
            if sums[1] == 0.0 {
                return Ok(sums);
            }
        }
        self.sums_by_the_host(gradients, scalars)
    }

    /// The same before the host has waited for it. `None` where the device is not LibTorch's. Collective.
    #[cfg(feature = "tch")]
    fn sums_on_the_device(
        &self,
        gradients: &[Tensor<1>],
        scalars: &Tensor<1>,
    ) -> Result<Option<Tensor<1>>> {
        let own = gradients.iter().enumerate();
        let own = own.map(|(bucket, gradient)| self.own_chunk(bucket, gradient.clone()));
        let own: Vec<_> = own.collect();
        let groups = &self.parameters.0.groups;
        match crate::libtorch::message(&own, groups.speaks(), scalars)? {
            Some(message) => Ok(Some(groups.world.all_reduce(message)?.wait()?)),
            None => Ok(None),
        }
    }

    /// The same by numbers that the host reads, of squares that do not overflow. Collective.
    fn sums_by_the_host(&self, gradients: &[Tensor<1>], scalars: Tensor<1>) -> Result<Vec<f64>> {
        let squares = self.own_sum_of_squares(gradients)?;
        let finite = squares.is_finite();
        // Ranks that hold the same shards have the same squares, so one of them counts.
        let counts = finite && self.parameters.0.groups.speaks();
        let mut message = vec![
            if counts { squares } else { 0.0 },
            if finite { 0.0 } else { 1.0 },
        ];
        if scalars.dims()[0] > 0 {
            message.extend(read_f64(scalars)?);
        }
        self.parameters.sum_over_ranks(message)
    }

    /// The sum of squares of this rank's shard. Each element of the model is in one rank's sum, and each sum runs over
    /// the same elements at every stage, so that the norm is the same bit by bit.
    fn own_sum_of_squares(&self, gradients: &[Tensor<1>]) -> Result<f64> {
        if gradients.is_empty() {
            return Ok(0.0);
        }
        let master = dtype(self.parameters.0.config.precision.master());
        let sums = gradients.iter().enumerate().map(|(bucket, gradient)| {
            let own = self.own_chunk(bucket, gradient.clone()).cast(master);
            (own.clone() * own).sum()
        });
        let sums: f64 = read_f64(Tensor::cat(sums.collect(), 0))?.iter().sum();
        if sums.is_finite() || master == DType::F64 {
            return Ok(sums);
        }
        // Squares of large gradients overflow f32 before the gradients do.
        let mut sum = 0.0;
        for (bucket, gradient) in gradients.iter().enumerate() {
            let own = self.own_chunk(bucket, gradient.clone()).cast(DType::F64);
            sum += read_f64((own.clone() * own).sum())?.iter().sum::<f64>();
        }
        Ok(sum)
    }

    /// Where a non-finite gradient came from. Collective: every rank knows that there is one.
    fn origin(&self, gradients: &[Tensor<1>]) -> Result<Origin> {
        let core = &self.parameters.0;
        let spoilt = core.reducer().signs.first()?;
        let place = self.first_non_finite(gradients)?;
        let own = spoilt.map_or([-1.0; 3], |Spoilt { micro_batch, sign }| {
            let (kind, place) = match sign {
                Sign::Given(number) => (0.0, number),
                Sign::Bucket(bucket) => (1.0, bucket),
            };
            [micro_batch as f64, kind, place as f64]
        });
        let own = [
            own[0],
            own[1],
            own[2],
            place.map_or(-1.0, |place| place as f64),
        ];
        let own = Tensor::<1>::from_data(TensorData::from(own), (&core.device, DType::F64));
        let all = read_f64(core.groups.world.all_gather(own)?.wait()?)?;
        // Sums over ranks inside a pass carry what is not finite to all of them, but later than where it began.
        let ranks = all.chunks(4).enumerate().filter(|(_, rank)| rank[0] >= 0.0);
        let earlier = |a: &[f64], b: &[f64]| a[..3].partial_cmp(&b[..3]);
        let rank = ranks.min_by(|(_, a), (_, b)| earlier(a, b).unwrap_or(Ordering::Equal));
        let places = all
            .chunks(4)
            .map(|rank| rank[3])
            .filter(|&place| place >= 0.0);
        let place = places.fold(f64::INFINITY, f64::min);
        let pieces = core
            .table
            .buckets()
            .iter()
            .flat_map(|bucket| &bucket.pieces);
        let parameter = pieces.map(|piece| &core.table.rows()[piece.row].parameter.name);
        let parameter = parameter
            .enumerate()
            .find(|(index, _)| *index as f64 == place);
        Ok(Origin {
            rank: rank.map(|(rank, _)| rank),
            micro_batch: rank.map_or(0, |(_, spoilt)| spoilt[0] as usize),
            parameter: parameter.map_or_else(String::new, |(_, name)| name.clone()),
        })
    }

    /// The first piece, counted over all buckets in the order of backward, that is not finite in this rank's shard.
    fn first_non_finite(&self, gradients: &[Tensor<1>]) -> Result<Option<usize>> {
        let mut before = 0;
        for (index, bucket) in self.parameters.0.table.buckets().iter().enumerate() {
            let own = read_f64(self.own_chunk(index, gradients[index].clone()))?;
            let finite = |piece: &terrashard_layout::Piece| {
                let own = &own[piece.offset..piece.offset + piece.len];
                own.iter().all(|value| value.is_finite())
            };
            if let Some(piece) = bucket.pieces.iter().position(|piece| !finite(piece)) {
                return Ok(Some(before + piece));
            }
            before += bucket.pieces.len();
        }
        Ok(None)
    }
}
