//! A block that runs again in backward: activation checkpointing.
//!
//! In forward, the whole block runs on the plain device and nothing of its inside is kept; the graph gets one operation
//! whose state is the block's inputs. Its backward step runs the block once more on a graph of its own, calls backward
//! on that, registers the gradients of the inputs and lets the parameters' gradients go to the reducer on their way.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, Dispatch, DispatchKindConversion, DispatchTensor, Flex, TensorMetadata,
    backend_extension,
};
use burn::tensor::{Tensor, TensorData};
#[cfg(feature = "tch")]
use terrashard_torch::LibTorch;

use crate::anchor::{lift, lower};

/// The most inputs of a block.
pub const MAX_INPUTS: usize = 4;

/// A block with all that it needs to run, whatever its module and ranks of tensors.
pub(crate) trait Rerun: Debug + Send + Sync {
    /// The output for these inputs, all plain.
    fn first(&self, inputs: Vec<DispatchTensor>) -> DispatchTensor;

    /// The gradients of the inputs from that of the output, all plain; `None` where an input does not need one. Those
    /// of the parameters are delivered.
    fn again(
        &self,
        inputs: Vec<DispatchTensor>,
        wanted: &[bool],
        gradient: DispatchTensor,
    ) -> Vec<Option<DispatchTensor>>;
}

/// Where the inputs are between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepInputs {
    /// On the device.
    Device,
    /// In host memory.
    Host,
}

/// A block as the graph's operation carries it.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) run: Arc<dyn Rerun>,
    pub(crate) keep: KeepInputs,
    /// Inputs, at most [`MAX_INPUTS`].
    pub(crate) inputs: usize,
}

/// The backend's side of a recomputed block.
#[backend_extension(Flex, LibTorch: cfg(feature = "tch"), Autodiff)]
pub(crate) trait SegmentOps: Backend {
    /// The block's output. Inputs beyond the block's own are the token again.
    fn segment(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        token: FloatTensor<Self>,
        block: Block,
    ) -> FloatTensor<Self>;

    /// A one-element tensor whose backward gives `output` the gradient that `pull` carries.
    fn pull(output: FloatTensor<Self>, pull: Pull) -> FloatTensor<Self>;
}

/// A gradient to start a backward with.
#[derive(Clone, Debug)]
pub(crate) struct Pull(DispatchTensor);

fn run<B: Backend>(block: &Block, inputs: [FloatTensor<B>; MAX_INPUTS]) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let inputs = inputs.into_iter().take(block.inputs).map(lift::<B>);
    lower::<B>(block.run.first(inputs.collect()))
}

/// On a plain backend a block just runs.
macro_rules! run_plainly {
    ($backend:ty) => {
        impl SegmentOps for $backend {
            fn segment(
                a: FloatTensor<Self>,
                b: FloatTensor<Self>,
                c: FloatTensor<Self>,
                d: FloatTensor<Self>,
                _token: FloatTensor<Self>,
                block: Block,
            ) -> FloatTensor<Self> {
                run::<Self>(&block, [a, b, c, d])
            }

            fn pull(output: FloatTensor<Self>, _pull: Pull) -> FloatTensor<Self> {
                output
            }
        }
    };
}

run_plainly!(Flex);
#[cfg(feature = "tch")]
run_plainly!(LibTorch);

/// Inputs that wait for backward.
#[derive(Clone, Debug)]
enum Kept<T> {
    Device(Vec<T>),
    Host(Vec<TensorData>),
}

#[derive(Debug)]
struct Segment;

impl<B: Backend> Backward<B, 5> for Segment
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (Block, Kept<FloatTensor<B>>, B::Device);

    fn backward(
        self,
        ops: Ops<Self::State, 5>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let (block, kept, device) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let inputs = match kept {
            Kept::Device(tensors) => tensors.into_iter().map(lift::<B>).collect(),
            Kept::Host(data) => data
                .into_iter()
                .map(|data| lift::<B>(B::float_from_data(data, &device)))
                .collect(),
        };
        let parents = &ops.parents[..block.inputs];
        let wanted: Vec<bool> = parents.iter().map(Option::is_some).collect();
        let results = block.run.again(inputs, &wanted, lift::<B>(gradient));
        for (parent, result) in parents.iter().zip(results) {
            if let (Some(parent), Some(result)) = (parent, result) {
                grads.register::<B>(parent.id, lower::<B>(result));
            }
        }
    }
}

/// Copies a tensor to host memory.
fn to_host<B: Backend>(tensor: FloatTensor<B>) -> TensorData
where
    DispatchTensor: DispatchKindConversion<B>,
{
    Tensor::<1>::from_dispatch(lift::<B>(tensor)).into_data()
}

#[derive(Debug)]
struct Start;

impl<B: Backend> Backward<B, 1> for Start
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Pull;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        drop(grads.consume::<B>(&ops.node));
        if let [Some(parent)] = &ops.parents {
            grads.register::<B>(parent.id, lower::<B>(ops.state.0));
        }
    }
}

impl<B: SegmentOps, C: CheckpointStrategy> SegmentOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn segment(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        token: FloatTensor<Self>,
        block: Block,
    ) -> FloatTensor<Self> {
        let inputs = [&a, &b, &c, &d];
        let nodes = [a.node(), b.node(), c.node(), d.node(), token.node()];
        let plain = inputs.map(|input| input.primitive().clone());
        let device = token.primitive().device();
        match Segment.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let output = run::<B>(&block, plain.clone());
                let plain = plain.into_iter().take(block.inputs);
                let kept = match block.keep {
                    KeepInputs::Device => Kept::Device(plain.collect()),
                    KeepInputs::Host => Kept::Host(plain.map(to_host::<B>).collect()),
                };
                prepared.finish((block, kept, device), output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(run::<B>(&block, plain)),
        }
    }

    fn pull(output: FloatTensor<Self>, pull: Pull) -> FloatTensor<Self> {
        let node = output.node();
        let device = output.primitive().device();
        let one = B::float_zeros([1].into(), &device, burn::tensor::FloatDType::F32);
        match Start.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(pull, one),
            OpsKind::UnTracked(prepared) => prepared.finish(one),
        }
    }
}

/// Runs a block as one operation of the graph.
///
/// # Shapes
/// 1 to [`MAX_INPUTS`] inputs of any shape.
pub(crate) fn segment<const D: usize, const E: usize>(
    inputs: &[Tensor<D>],
    token: &Tensor<1>,
    run: Arc<dyn Rerun>,
    keep: KeepInputs,
) -> Tensor<E> {
    let input = |index: usize| match inputs.get(index) {
        Some(input) => input.clone().into_dispatch(),
        None => token.clone().into_dispatch(),
    };
    let block = Block {
        run,
        keep,
        inputs: inputs.len(),
    };
    Tensor::from_dispatch(Dispatch::segment(
        input(0),
        input(1),
        input(2),
        input(3),
        token.clone().into_dispatch(),
        block,
    ))
}

/// Runs backward from `output`, whose gradient is `gradient`, a plain tensor.
pub(crate) fn backward_from<const E: usize>(
    output: Tensor<E>,
    gradient: DispatchTensor,
) -> burn::tensor::Gradients {
    let start = Dispatch::pull(output.into_dispatch(), Pull(gradient));
    Tensor::<1>::from_dispatch(start).backward()
}
