//! The operation by which a parameter enters the autodiff graph.
//!
//! burn runs backward steps by depth, deepest first, leaves last. A parameter that entered as a leaf would therefore
//! receive its gradient at the very end of backward, when the gradients of the whole model are alive together. Here a
//! parameter is instead the output of an operation with two parents: an *anchor*, the activation that enters the
//! parameter's block, and a one-element *token* that is always tracked, so that the operation is part of the graph
//! even where the anchor is not. The operation sits at the depth of its block; its backward step runs as soon as the
//! block's own steps are done, hands the gradient to the [`Port`] and registers nothing with burn.
//!
//! The operation keeps no parameter in its state: only the port and the slot number.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex,
    backend_extension,
};
use burn::tensor::Tensor;

/// Where the anchor operation finds a parameter's value and delivers its gradient. One for each rank.
pub(crate) trait Port: Debug + Send + Sync {
    /// The value of the parameter in `slot`, a plain (not autodiff) float tensor of the parameter's shape.
    fn value(&self, slot: usize) -> DispatchTensor;

    /// Takes the gradient of the parameter in `slot`, of the parameter's shape. Called inside burn's backward, which
    /// cannot return an error: the receiver keeps the first one.
    fn deliver(&self, slot: usize, gradient: DispatchTensor);
}

/// One parameter of one rank, as the anchor operation carries it.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) port: Arc<dyn Port>,
    pub(crate) index: usize,
}

/// The backend's side of the anchor operation.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait AnchorOps: Backend {
    /// The parameter's value, tracked as a child of `anchor` and `token` on an autodiff backend.
    fn enter_parameter(
        anchor: FloatTensor<Self>,
        token: FloatTensor<Self>,
        slot: Slot,
    ) -> FloatTensor<Self>;
}

fn fetch<B: Backend>(slot: &Slot) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let value = slot.port.value(slot.index);
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(value) {
        Ok(BackendTensor::Float(tensor)) => tensor,
        Ok(_) => panic!("invariant: parameters are plain float tensors"),
        Err(reason) => {
            panic!("invariant: a rank's parameters and activations share a backend: {reason}")
        }
    }
}

impl AnchorOps for Flex {
    fn enter_parameter(
        _anchor: FloatTensor<Self>,
        _token: FloatTensor<Self>,
        slot: Slot,
    ) -> FloatTensor<Self> {
        fetch::<Self>(&slot)
    }
}

/// The backward step: hands the gradient over and registers nothing.
#[derive(Debug)]
struct Deliver;

impl<B: Backend> Backward<B, 2> for Deliver
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Slot;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let gradient = <DispatchTensor as DispatchKindConversion<B>>::from_backend(
            BackendTensor::Float(gradient),
        );
        ops.state.port.deliver(ops.state.index, gradient);
    }
}

impl<B: AnchorOps, C: CheckpointStrategy> AnchorOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn enter_parameter(
        anchor: FloatTensor<Self>,
        token: FloatTensor<Self>,
        slot: Slot,
    ) -> FloatTensor<Self> {
        let prepared = Deliver
            .prepare::<C>([anchor.node(), token.node()])
            .compute_bound()
            .stateful();
        let value = fetch::<B>(&slot);
        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(slot, value),
            OpsKind::UnTracked(prepared) => prepared.finish(value),
        }
    }
}

/// The parameter in `slot` as a tensor of the graph, at the depth of `anchor`.
pub(crate) fn enter<const A: usize, const D: usize>(
    anchor: &Tensor<A>,
    token: &Tensor<1>,
    slot: Slot,
) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::enter_parameter(
        anchor.clone().into_dispatch(),
        token.clone().into_dispatch(),
        slot,
    ))
}
