//! Training of a model of the user's own: what it has to implement, and the step that does the rest.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use terrashard_collectives::Communicator;

use crate::block::Recompute;
use crate::config::{Reduction, ZeroConfig};
use crate::decision::StepOutcome;
use crate::error::{Error, Result};
use crate::setup::Initial;
use crate::sharded_parameters::ShardedParameters;
use crate::zero_optimizer::ZeroOptimizer;

/// A burn module that can be trained at any stage: it tells its loss.
///
/// It is written for one device and knows nothing of ranks. What it computes with its parameters runs in blocks
/// ([`Blocks::run`]), which are what stage 3 gathers at a time and what can run again in backward; a model may be one block.
/// The crate's README trains one in thirty lines.
pub trait Trainable: Module {
    /// A micro-batch: tensors on [`Training::device`], or what they are made of.
    type Batch;

    /// The loss of one micro-batch. With [`Reduction::Mean`] it is a mean over the micro-batch's samples, with
    /// [`Reduction::Sum`] this rank's share of a loss that already divides by counts of the whole step.
    ///
    /// # Shapes
    /// Returns `[1]`.
    fn loss(&self, batch: Self::Batch, blocks: &Blocks<'_>) -> Tensor<1>;
}

/// Runs the blocks of a [`Trainable`] model with their parameters.
#[derive(Debug)]
pub struct Blocks<'a> {
    parameters: &'a ShardedParameters,
    recompute: Recompute,
}

impl Blocks<'_> {
    /// Runs `forward` on `module`, a part of the model, with its parameters. On tensors of [`Training::device`] gradients
    /// are taken, on those of its plain device they are not, as for test and prediction. Collective at stage 3.
    ///
    /// `forward` may capture plain values, but no tensor of a graph. Where blocks run again in backward
    /// ([`Training::recompute`]), it has to give the same output again.
    ///
    /// # Shapes
    /// `input`: any.
    pub fn run<M, const D: usize, const E: usize, F>(
        &self,
        module: &M,
        input: Tensor<D>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Tensor<D>) -> Tensor<E> + Send + Sync + 'static,
    {
        let forward = move |module: &M, mut inputs: Vec<Tensor<D>>, _| {
            let input = inputs.pop().expect("a block has its input");
            forward(module, input)
        };
        let recompute = self.recompute;
        self.parameters
            .block(module, vec![input], recompute, forward)
    }
}

/// The parameters, for [`ShardedParameters::enter`] and for [`ShardedParameters::block`] with several inputs.
impl Deref for Blocks<'_> {
    type Target = ShardedParameters;

    fn deref(&self) -> &ShardedParameters {
        self.parameters
    }
}

/// A model of the user's own on one rank, in training.
///
/// Each rank builds its own; they begin with rank 0's values. Saving, loading and gathering states is
/// [`ZeroOptimizer`]'s, to which this dereferences.
#[derive(Debug)]
pub struct Training<M> {
    model: M,
    optimizer: ZeroOptimizer,
    recompute: Recompute,
}

/// What a step has done, the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// The losses of all ranks and micro-batches, reduced as the gradients are: their mean or their sum.
    pub loss: f64,
    /// Whether the parameters were updated, and the norm of the gradient.
    pub outcome: StepOutcome,
}

impl<M: Trainable> Training<M> {
    /// Shards `model` as `config` says; its own values are the first. Collective.
    ///
    /// # Errors
    /// Those of [`ZeroOptimizer::new`].
    pub fn new(
        model: M,
        config: ZeroConfig,
        communicator: impl Communicator + 'static,
        device: &Device,
    ) -> Result<Self> {
        let communicator = Arc::new(communicator);
        let optimizer = ZeroOptimizer::new(&model, config, Initial::Module, communicator, device)?;
        Ok(Self {
            model,
            optimizer,
            recompute: Recompute::Keep,
        })
    }

    /// Chooses whether blocks keep their activations, as they do by default, or run again in backward.
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// The device of batches to train on. Those to measure the loss of alone are on its plain one, `device().inner()`.
    pub fn device(&self) -> Device {
        self.optimizer.device().clone().autodiff()
    }

    /// One optimizer step at learning rate `lr` on this rank's micro-batches: as many as
    /// [`ZeroConfig::accumulate`] says, on every rank. Collective.
    ///
    /// # Errors
    /// [`Error::Detached`], and those of [`ZeroOptimizer::backward`] and [`ZeroOptimizer::step`].
    pub fn step(
        &mut self,
        lr: f64,
        batches: impl IntoIterator<Item = M::Batch>,
    ) -> Result<Trained> {
        let mut sum = Tensor::<1>::zeros([1], (self.optimizer.device(), DType::F64));
        let mut micro_batches = 0;
        for batch in batches {
            let loss = self.model.loss(batch, &self.blocks());
            if !loss.is_tracked() {
                return Err(Error::Detached);
            }
            sum = sum + loss.clone().inner().cast(DType::F64);
            micro_batches += 1;
            self.optimizer.backward(loss)?;
        }
        let outcome = self.optimizer.step_with(lr, sum)?;
        let (StepOutcome::Applied { scalars, .. } | StepOutcome::Skipped { scalars, .. }) =
            &outcome;
        let count = match self.optimizer.reduction() {
            Reduction::Sum => 1,
            Reduction::Mean => micro_batches * self.optimizer.communicator().ranks(),
        };
        let loss = scalars[0] / count as f64;
        Ok(Trained { loss, outcome })
    }

    /// The loss of one micro-batch of this rank as the parameters are now, without gradients where it is on the plain device.
    /// Collective at stage 3.
    ///
    /// # Errors
    /// Those of [`ShardedParameters::check`].
    pub fn loss(&self, batch: M::Batch) -> Result<Tensor<1>> {
        let loss = self.model.loss(batch, &self.blocks());
        self.optimizer.check()?;
        Ok(loss)
    }

    /// The model with its trained parameters, whole and plain: to predict with, or to save with burn's recorders.
    /// Collective at stage 3.
    ///
    /// # Errors
    /// Those of [`ShardedParameters::check`].
    pub fn model(&self) -> Result<M> {
        let model = self.optimizer.plain(&self.model);
        self.optimizer.check()?;
        Ok(model)
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks {
            parameters: self.optimizer.parameters(),
            recompute: self.recompute,
        }
    }
}

impl<M> Deref for Training<M> {
    type Target = ZeroOptimizer;

    fn deref(&self) -> &ZeroOptimizer {
        &self.optimizer
    }
}

impl<M> DerefMut for Training<M> {
    fn deref_mut(&mut self) -> &mut ZeroOptimizer {
        &mut self.optimizer
    }
}
