//! Blocks of a model: what is fetched, let go and perhaps run again as one.

use std::fmt;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::Module;
use burn::tensor::Tensor;

use crate::entrance::{Entering, Entry};
use crate::segment::{self, KeepInputs, MAX_INPUTS, Rerun};
use crate::sharded_parameters::{Core, ShardedParameters, beside};
use crate::slots::Slots;

/// Whether a block keeps its activations for backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// It keeps them.
    Keep,
    /// It keeps its inputs and runs again in backward.
    Recompute,
    /// It keeps its inputs in host memory and runs again in backward.
    Offload,
}

/// Which run of a block it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The forward pass.
    First,
    /// The repetition in backward. It must give the same output; side effects of the first run must not happen again.
    Again,
}

impl ShardedParameters {
    /// Runs a block of the model: `forward` on `module` with its parameters and `inputs`. With [`Recompute::Recompute`]
    /// and [`Recompute::Offload`] the graph keeps the inputs only, and `forward` runs again in backward; it may capture
    /// plain values, but no tensor of a graph. The parameters enter at the depth of the last input. Collective at
    /// stage 3.
    ///
    /// # Shapes
    /// 1 to 4 inputs of any shape.
    ///
    /// # Panics
    /// With no input or more than 4.
    pub fn block<M, const D: usize, const E: usize, F>(
        &self,
        module: &M,
        inputs: Vec<Tensor<D>>,
        recompute: Recompute,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, Round) -> Tensor<E> + Send + Sync + 'static,
    {
        let forward = move |module: &M, inputs: Vec<Tensor<D>>, round: Round, _: Option<&Slots>| {
            forward(module, inputs, round)
        };
        self.block_with_slots(module, inputs, recompute, forward)
    }

    /// As [`block`](Self::block), for a `forward` with operations that fetch parameters themselves: by these slots, which are
    /// there where there is a graph. A parameter whose tensor nobody asks for then costs the graph nothing.
    ///
    /// # Panics
    /// As [`block`](Self::block).
    pub fn block_with_slots<M, const D: usize, const E: usize, F>(
        &self,
        module: &M,
        inputs: Vec<Tensor<D>>,
        recompute: Recompute,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, Round, Option<&Slots>) -> Tensor<E> + Send + Sync + 'static,
    {
        let count = inputs.len();
        assert!(
            (1..=MAX_INPUTS).contains(&count),
            "a block has 1 to {MAX_INPUTS} inputs, got {count}"
        );
        let Some(tracked) = inputs.iter().find(|input| input.is_autodiff()).cloned() else {
            let lease = self.0.lease(module);
            let module = self.0.plain_with(module, &lease);
            let output = forward(&module, inputs, Round::First, None);
            drop(module);
            lease.release();
            return output;
        };
        let graph = |input: Tensor<D>| match input.is_autodiff() {
            true => input,
            false => beside(input, &tracked),
        };
        let inputs: Vec<_> = inputs.into_iter().map(graph).collect();
        let trainable = self.0.trainable(module);
        // Where no gradient passes and none is wanted, there is nothing to run again.
        let idle = trainable.is_empty() && !inputs.iter().any(Tensor::is_tracked);
        let keep = match recompute {
            _ if idle => None,
            Recompute::Keep => None,
            Recompute::Recompute => Some(KeepInputs::Device),
            Recompute::Offload => Some(KeepInputs::Host),
        };
        let Some(keep) = keep else {
            let anchor = &inputs[count - 1];
            let token = self.0.token(anchor);
            let entry = Entry::Counted;
            let (module, lease) = self.0.enter(module, anchor, &token, entry, Entering::Asked);
            let slots = Slots {
                core: self.0.clone(),
                lease: lease.clone(),
                entry,
                token,
            };
            let output = forward(&module, inputs, Round::First, Some(&slots));
            drop(module);
            lease.release();
            return output;
        };
        for row in trainable {
            self.0.reducer().entered(row);
        }
        let run = BlockRun::<M, F, D, E> {
            core: self.0.clone(),
            module: module.clone(),
            forward,
        };
        segment::segment(&inputs, &self.0.token(&tracked), Arc::new(run), keep)
    }
}

/// A block that can run again.
struct BlockRun<M, F, const D: usize, const E: usize> {
    core: Arc<Core>,
    module: M,
    forward: F,
}

impl<M, F, const D: usize, const E: usize> fmt::Debug for BlockRun<M, F, D, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockRun")
    }
}

impl<M, F, const D: usize, const E: usize> Rerun for BlockRun<M, F, D, E>
where
    M: Module + Sync + 'static,
    F: Fn(&M, Vec<Tensor<D>>, Round, Option<&Slots>) -> Tensor<E> + Send + Sync + 'static,
{
    fn first(&self, inputs: Vec<DispatchTensor>) -> DispatchTensor {
        let Self {
            core,
            module,
            forward,
        } = self;
        let lease = core.lease(module);
        let plain = core.plain_with(module, &lease);
        let inputs = inputs.into_iter().map(Tensor::from_dispatch).collect();
        let output = forward(&plain, inputs, Round::First, None);
        drop(plain);
        lease.release();
        output.into_dispatch()
    }

    fn again(
        &self,
        inputs: Vec<DispatchTensor>,
        wanted: &[bool],
        gradient: DispatchTensor,
    ) -> Vec<Option<DispatchTensor>> {
        let Self {
            core,
            module,
            forward,
        } = self;
        let track = |(input, &wanted): (DispatchTensor, &bool)| {
            let input = Tensor::<D>::from_dispatch(input).autodiff();
            if wanted { input.require_grad() } else { input }
        };
        let inputs: Vec<_> = inputs.into_iter().zip(wanted).map(track).collect();
        let rows = core.trainable(module);
        let expected = core.reducer().outstanding(&rows);
        // The graph outside is locked while its backward runs, so this one shares no tensor with it.
        let anchor = &inputs[inputs.len() - 1];
        let token = core.token(anchor);
        let entry = Entry::Repeated;
        let (entered, lease) = core.enter(module, anchor, &token, entry, Entering::Asked);
        let slots = Slots {
            core: core.clone(),
            lease: lease.clone(),
            entry,
            token,
        };
        let output = forward(&entered, inputs.clone(), Round::Again, Some(&slots));
        drop(entered);
        // An output outside the graph has used nothing of what could have a gradient.
        let mut gradients = output
            .is_tracked()
            .then(|| segment::backward_from(output, gradient));
        core.reducer().settle(&rows, &expected);
        lease.release();
        let gradient = |(input, &wanted): (&Tensor<D>, &bool)| {
            let gradients = gradients.as_mut().filter(|_| wanted)?;
            input.grad_remove(gradients).map(Tensor::into_dispatch)
        };
        inputs.iter().zip(wanted).map(gradient).collect()
    }
}
