//! How the blocks of a model get the values of their parameters.

use burn::module::Module;
use burn::tensor::Tensor;
use std::sync::Arc;
use terrashard_ops::{Alone, Mode, SumOverRanks};

/// What surrounds a forward pass.
///
/// A model asks its scope for each block right before it uses it. Whoever shards parameters fetches them there; the model itself
/// knows nothing of that.
pub trait Scope {
    /// The block with its parameters ready to be used. `anchor` is the activation that enters the block.
    fn enter<M: Module, const D: usize>(&self, module: &M, anchor: &Tensor<D>) -> M;

    /// Whether this is a training pass. It decides what batch normalisation normalises by, and whether it moves its running
    /// statistics.
    fn mode(&self) -> Mode;

    /// How batch statistics are added over ranks. Each rank has its own by default.
    fn ranks(&self) -> Arc<dyn SumOverRanks> {
        Arc::new(Alone)
    }
}

/// Parameters are used as they are, as on one device without sharding.
#[derive(Debug, Clone, Copy)]
pub struct Plain {
    mode: Mode,
}

impl Plain {
    /// For training: batch statistics are those of the batch.
    pub fn training() -> Self {
        Self {
            mode: Mode::Training,
        }
    }

    /// For test and prediction: nothing in the model changes.
    pub fn inference() -> Self {
        Self {
            mode: Mode::Inference,
        }
    }
}

impl Scope for Plain {
    fn enter<M: Module, const D: usize>(&self, module: &M, _anchor: &Tensor<D>) -> M {
        module.clone()
    }

    fn mode(&self) -> Mode {
        self.mode
    }
}
