//! How the blocks of a model get the values of their parameters.

use burn::module::Module;
use burn::tensor::Tensor;
use terrashard_ops::{Masks, Mode, Pass};

/// What surrounds a forward pass.
///
/// A model hands every block to its scope: its name, its parameters, its inputs and the function that it is. Whoever shards
/// parameters fetches them before the function runs and frees them after; whoever saves memory runs it a second time in backward
/// instead of keeping what is in it. The model itself knows nothing of that.
///
/// # Recomputation
/// `forward` captures plain values only, so it may be run again later, on other tensors and in another graph. With the same
/// inputs and parameters, [`Mode::Recomputing`], the same masks, and sums over ranks that
/// [`Replay`](terrashard_ops::Replay) gives back, the second run has bitwise the same output, moves no running statistics and asks
/// other ranks for nothing in forward.
pub trait Scope {
    /// The block's output for its inputs. `name` is one of [`S2s2Net::blocks`](crate::S2s2Net::blocks), which come in that order.
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static;

    /// Whether this is a training pass, how sums are taken over ranks, what is dropped.
    fn pass(&self) -> Pass;
}

/// Parameters are used as they are, as on one device without sharding.
#[derive(Debug, Clone)]
pub struct Plain {
    pass: Pass,
}

impl Plain {
    /// For training: batch statistics are those of the batch, and nothing is dropped.
    pub fn training() -> Self {
        Self {
            pass: Pass::new(Mode::Training),
        }
    }

    /// For test and prediction: nothing in the model changes.
    pub fn inference() -> Self {
        Self {
            pass: Pass::new(Mode::Inference),
        }
    }

    /// Training with dropout by these masks.
    #[must_use]
    pub fn with_masks(mut self, masks: Masks) -> Self {
        self.pass.masks = Some(masks);
        self
    }
}

impl Scope for Plain {
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
        forward(module, inputs, &self.pass)
    }

    fn pass(&self) -> Pass {
        self.pass.clone()
    }
}

/// The inputs of a block, whose number its caller knows.
pub(crate) fn take<const N: usize, const D: usize>(inputs: Vec<Tensor<D>>) -> [Tensor<D>; N] {
    let inputs = inputs.try_into();
    inputs.expect("a scope hands a block the inputs that it got for it")
}
