//! The forward pass of training: blocks get their parameters from the optimizer and run again where the configuration
//! says so; batch statistics and losses are summed over ranks.

use std::sync::{Arc, OnceLock};

use burn::module::Module;
use burn::tensor::Tensor;
use terrashard_models::Scope;
use terrashard_ops::{Alone, Masks, Mode, Pass, Recorder, Replay, SumOverRanks};
use terrashard_zero::{Recompute, Round, ShardedParameters, Slots, ZeroOptimizer};

use super::BlockSlots;
use crate::config::{self, BatchNormStatistics, RecomputeChoice};

/// What surrounds one micro-batch's forward pass.
pub(super) struct Training<'a> {
    optimizer: &'a ZeroOptimizer,
    recompute: &'a RecomputeChoice,
    /// Of the losses.
    pass: Pass,
    /// Of batch statistics.
    statistics: Arc<dyn SumOverRanks>,
}

impl<'a> Training<'a> {
    pub(super) fn new(
        optimizer: &'a ZeroOptimizer,
        recompute: &'a RecomputeChoice,
        batch_norm: BatchNormStatistics,
        masks: Masks,
    ) -> Self {
        let sums: Arc<dyn SumOverRanks> = Arc::new(RankSums {
            parameters: optimizer.parameters().clone(),
        });
        let statistics = match batch_norm {
            BatchNormStatistics::Sync => sums.clone(),
            BatchNormStatistics::Local | BatchNormStatistics::AverageAtSave => Arc::new(Alone),
        };
        Self {
            optimizer,
            recompute,
            pass: Pass {
                ranks: sums,
                masks: Some(masks),
                ..Pass::new(Mode::Training)
            },
            statistics,
        }
    }
}

impl Scope for Training<'_> {
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
    {
        let recompute = match self.recompute.of(name) {
            config::Recompute::Keep => Recompute::Keep,
            config::Recompute::Recompute => Recompute::Recompute,
            config::Recompute::Offload => Recompute::Offload,
        };
        let first = Pass {
            ranks: self.statistics.clone(),
            ..self.pass.clone()
        };
        // The second run gets the sums over ranks that the first one took.
        let recorded: OnceLock<Vec<Vec<f64>>> = OnceLock::new();
        let run = move |module: &M, inputs: Vec<Tensor<D>>, round: Round, slots: Option<&Slots>| {
            let slots = slots.map(BlockSlots::of);
            if recompute == Recompute::Keep {
                let pass = Pass {
                    slots,
                    ..first.clone()
                };
                return forward(module, inputs, &pass);
            }
            match round {
                Round::First => {
                    let recorder = Arc::new(Recorder::new(first.ranks.clone()));
                    let pass = Pass {
                        ranks: recorder.clone(),
                        ..first.clone()
                    };
                    let output = forward(module, inputs, &pass);
                    recorded.get_or_init(|| recorder.recorded());
                    output
                }
                Round::Again => {
                    let sums = recorded.get().cloned().unwrap_or_default();
                    let pass = Pass {
                        mode: Mode::Recomputing,
                        ranks: Arc::new(Replay::new(sums, first.ranks.clone())),
                        masks: first.masks.clone(),
                        slots,
                    };
                    forward(module, inputs, &pass)
                }
            }
        };
        self.optimizer
            .block_with_slots(module, inputs, recompute, run)
    }

    fn pass(&self) -> Pass {
        self.pass.clone()
    }
}

/// Sums over ranks inside forward and backward.
#[derive(Debug)]
struct RankSums {
    parameters: ShardedParameters,
}

impl SumOverRanks for RankSums {
    fn sum(&self, values: &mut [f64]) {
        let finite = values.iter().all(|value| value.is_finite());
        self.parameters.note_given(finite);
        match self.parameters.sum_over_ranks(values.to_vec()) {
            Ok(summed) => values.copy_from_slice(&summed),
            // Nothing can be returned from here. A failed group fails every later call as well, so the error comes back from the end
            // of the step, also where it was this rank's alone.
            Err(error) => self.parameters.communicator().abort(&error.to_string()),
        }
    }
}
