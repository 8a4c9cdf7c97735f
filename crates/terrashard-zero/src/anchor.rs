//! The operation by which a parameter enters the autodiff graph.
//!
//! burn runs backward steps by depth, deepest first, leaves last. A parameter that entered as a leaf would therefore
//! receive its gradient at the very end of backward, when the gradients of the whole model are alive together. Here a
//! parameter is instead the output of an operation with two parents: an *anchor*, a mark at the depth of the activation
//! that enters the parameter's block, and a one-element *token* that is always tracked, so that the operation is part of the graph
//! even where the anchor is not. The operation sits at the depth of its block; its backward step runs as soon as the
//! block's own steps are done, hands the gradient to the [`Port`] and registers nothing with burn.
//!
//! The operation keeps no parameter in its state: only the port, the slot number and the lease of its block.
//!
//! # Stage 3
//!
//! A gathered parameter must not survive forward. burn keeps what later operations asked to be checkpointed; for an
//! operation marked as memory bound it keeps instead the way to make the value again. So the operation is marked so,
//! whatever strategy the rest of the graph has, and making the value again is a gather through the port.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex, TensorMetadata,
    backend_extension,
};
use burn::tensor::{FloatDType, Tensor};
#[cfg(feature = "tch")]
use terrashard_torch::LibTorch;

use crate::gather::Lease;

/// Where the anchor operation finds a parameter's value and delivers its gradient. One for each rank.
pub(crate) trait Port: Debug + Send + Sync {
    /// The value of the parameter in `slot`, a plain (not autodiff) float tensor of the parameter's shape; gathered
    /// with its whole block if the lease does not hold it.
    fn value(&self, slot: usize, lease: &Lease) -> DispatchTensor;

    /// Takes the gradient of the parameter in `slot`, of the parameter's shape. Called inside burn's backward, which
    /// cannot return an error: the receiver keeps the first one.
    fn deliver(&self, slot: usize, lease: &Lease, gradient: DispatchTensor);
}

/// What happens to a parameter's value between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// The graph may keep it.
    Kept,
    /// It is made again in backward.
    MadeAgain,
}

/// One parameter of one rank, as the anchor operation carries it.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) port: Arc<dyn Port>,
    pub(crate) index: usize,
    pub(crate) lease: Arc<Lease>,
    pub(crate) between: Between,
}

/// The backend's side of the anchor operation.
#[backend_extension(Flex, LibTorch: cfg(feature = "tch"), Autodiff)]
pub(crate) trait AnchorOps: Backend {
    /// The parameter's value, tracked as a child of `anchor` and `token` on an autodiff backend.
    fn enter_parameter(
        anchor: FloatTensor<Self>,
        token: FloatTensor<Self>,
        slot: Slot,
    ) -> FloatTensor<Self>;

    /// One element at the depth of `activation`.
    fn mark_depth(activation: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// The primitive of a plain float tensor.
pub(crate) fn lower<B: Backend>(tensor: DispatchTensor) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(tensor)) => tensor,
        Ok(_) => panic!("invariant: parameters and activations are plain float tensors"),
        Err(reason) => {
            panic!("invariant: a rank's parameters and activations share a backend: {reason}")
        }
    }
}

/// The plain tensor of a float primitive.
pub(crate) fn lift<B: Backend>(tensor: FloatTensor<B>) -> DispatchTensor
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(tensor))
}

fn fetch<B: Backend>(slot: &Slot) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    lower::<B>(slot.port.value(slot.index, &slot.lease))
}

/// A plain backend has no graph to enter.
macro_rules! enter_plainly {
    ($backend:ty) => {
        impl AnchorOps for $backend {
            fn enter_parameter(
                _anchor: FloatTensor<Self>,
                _token: FloatTensor<Self>,
                slot: Slot,
            ) -> FloatTensor<Self> {
                fetch::<Self>(&slot)
            }

            fn mark_depth(activation: FloatTensor<Self>) -> FloatTensor<Self> {
                one::<Self>(&activation)
            }
        }
    };
}

enter_plainly!(Flex);
#[cfg(feature = "tch")]
enter_plainly!(LibTorch);

/// One element whose value nobody reads.
fn one<B: Backend>(beside: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_empty([1].into(), &beside.device(), FloatDType::F32)
}

/// The backward step of a mark: nothing flows through it.
#[derive(Debug)]
struct Mark;

impl<B: Backend> Backward<B, 1> for Mark {
    type State = ();

    fn backward(self, _ops: Ops<(), 1>, _grads: &mut Gradients, _checkpointer: &mut Checkpointer) {}
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
        let Slot {
            port, index, lease, ..
        } = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        port.deliver(index, &lease, lift::<B>(gradient));
    }
}

/// Makes a parameter's value again.
#[derive(Debug)]
struct Regather<B> {
    slot: Slot,
    /// The nodes whose states burn counts as used by this one.
    parents: Vec<NodeId>,
    backend: PhantomData<fn() -> B>,
}

impl<B: Backend> RetroForward for Regather<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        // burn counts one use of each parent and keeps its state until it was taken that often.
        for parent in &self.parents {
            drop(states.get_state::<FloatTensor<B>>(parent));
        }
        states.save(out, fetch::<B>(&self.slot));
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
        let value = fetch::<B>(&slot);
        let nodes = [anchor.node(), token.node()];
        let between = match anchor.is_tracked() || token.is_tracked() {
            true => slot.between,
            // Outside the graph, nothing asks for it again.
            false => Between::Kept,
        };
        match between {
            Between::Kept => {
                let prepared = Deliver.prepare::<NoCheckpointing>(nodes).compute_bound();
                match prepared.stateful() {
                    OpsKind::Tracked(prepared) => prepared.finish(slot, value),
                    OpsKind::UnTracked(prepared) => prepared.finish(value),
                }
            }
            Between::MadeAgain => {
                let tracked: Vec<_> = [&anchor, &token]
                    .into_iter()
                    .filter(|tensor| tensor.is_tracked())
                    .collect();
                let regather = Regather::<B> {
                    slot: slot.clone(),
                    parents: tracked.iter().map(|tensor| tensor.id()).collect(),
                    backend: PhantomData,
                };
                let prepared = Deliver
                    .prepare::<BalancedCheckpointing>(nodes)
                    .memory_bound()
                    .retro_forward(regather)
                    .parents::<B, _>(tracked);
                match prepared.stateful() {
                    OpsKind::Tracked(prepared) => prepared.finish(slot, value),
                    OpsKind::UnTracked(prepared) => prepared.finish(value),
                }
            }
        }
    }

    fn mark_depth(activation: FloatTensor<Self>) -> FloatTensor<Self> {
        let one = one::<B>(activation.primitive());
        let prepared = Mark.prepare::<NoCheckpointing>([activation.node()]);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((), one),
            OpsKind::UnTracked(prepared) => prepared.finish(one),
        }
    }
}

/// A mark at the depth of an activation, which is an anchor as good as the activation itself.
///
/// burn makes a value again from the values of its parents. If those were activations, which a checkpointing strategy
/// makes again from parameters, one parameter would ask for all that entered before it.
pub(crate) fn mark<const A: usize>(activation: &Tensor<A>) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::mark_depth(activation.clone().into_dispatch()))
}

/// The parameter in `slot` as a tensor of the graph, at the depth of `anchor`.
pub(crate) fn enter<const D: usize>(
    anchor: &Tensor<1>,
    token: &Tensor<1>,
    slot: Slot,
) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::enter_parameter(
        anchor.clone().into_dispatch(),
        token.clone().into_dispatch(),
        slot,
    ))
}
