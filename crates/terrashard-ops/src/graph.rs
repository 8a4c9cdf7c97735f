//! The one kind of node that our operations add to the autodiff graph.

use crate::kernels::{Kernels, Slopes};
use crate::operation::Operation;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DispatchTensor, Tensor};
#[cfg(feature = "tch")]
use terrashard_torch::LibTorch;

/// Runs an [`Operation`] on whatever backend the tensors live on: one method for each number of inputs.
#[backend_extension(Flex, LibTorch: cfg(feature = "tch"), Autodiff)]
pub(crate) trait Operate: Backend {
    /// The operation's result for one input.
    fn unary(a: FloatTensor<Self>, operation: Operation) -> FloatTensor<Self>;

    /// The operation's result for two inputs.
    fn binary(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        operation: Operation,
    ) -> FloatTensor<Self>;

    /// The operation's result for three inputs.
    fn ternary(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        operation: Operation,
    ) -> FloatTensor<Self>;

    /// The operation's result for five inputs.
    fn quinary(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        operation: Operation,
    ) -> FloatTensor<Self>;

    /// The operation's result for six inputs.
    fn senary(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        operation: Operation,
    ) -> FloatTensor<Self>;
}

/// The operations of a plain backend are its [`Kernels`].
macro_rules! operate_by_kernels {
    ($backend:ty) => {
        impl Operate for $backend {
            fn unary(a: FloatTensor<Self>, operation: Operation) -> FloatTensor<Self> {
                operation.forward::<Self>(vec![a])
            }

            fn binary(
                a: FloatTensor<Self>,
                b: FloatTensor<Self>,
                operation: Operation,
            ) -> FloatTensor<Self> {
                operation.forward::<Self>(vec![a, b])
            }

            fn ternary(
                a: FloatTensor<Self>,
                b: FloatTensor<Self>,
                c: FloatTensor<Self>,
                operation: Operation,
            ) -> FloatTensor<Self> {
                operation.forward::<Self>(vec![a, b, c])
            }

            fn quinary(
                a: FloatTensor<Self>,
                b: FloatTensor<Self>,
                c: FloatTensor<Self>,
                d: FloatTensor<Self>,
                e: FloatTensor<Self>,
                operation: Operation,
            ) -> FloatTensor<Self> {
                operation.forward::<Self>(vec![a, b, c, d, e])
            }

            fn senary(
                a: FloatTensor<Self>,
                b: FloatTensor<Self>,
                c: FloatTensor<Self>,
                d: FloatTensor<Self>,
                e: FloatTensor<Self>,
                f: FloatTensor<Self>,
                operation: Operation,
            ) -> FloatTensor<Self> {
                operation.forward::<Self>(vec![a, b, c, d, e, f])
            }
        }
    };
}

operate_by_kernels!(Flex);
#[cfg(feature = "tch")]
operate_by_kernels!(LibTorch);

impl<B: Kernels, C: CheckpointStrategy> Operate for Autodiff<B, C> {
    fn unary(a: FloatTensor<Self>, operation: Operation) -> FloatTensor<Self> {
        node::<B, C, 1>([a], operation)
    }

    fn binary(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        operation: Operation,
    ) -> FloatTensor<Self> {
        node::<B, C, 2>([a, b], operation)
    }

    fn ternary(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        operation: Operation,
    ) -> FloatTensor<Self> {
        node::<B, C, 3>([a, b, c], operation)
    }

    fn quinary(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        operation: Operation,
    ) -> FloatTensor<Self> {
        node::<B, C, 5>([a, b, c, d, e], operation)
    }

    fn senary(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        operation: Operation,
    ) -> FloatTensor<Self> {
        node::<B, C, 6>([a, b, c, d, e, f], operation)
    }
}

/// What backward needs.
#[derive(Debug, Clone)]
enum Kept<B: Kernels, const N: usize> {
    /// The inputs that the operation needs again, by name alone.
    Inputs([Option<NodeId>; N]),
    /// The gradients themselves, of a loss that computes them with its value.
    Slopes(Slopes<B>),
}

/// The backward step of every operation. Its state holds no input, and thereby no parameter.
#[derive(Debug)]
struct Step;

impl<B: Kernels, const N: usize> Backward<B, N> for Step {
    type State = (Operation, Kept<B, N>);

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let (operation, kept) = ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let results = match kept {
            Kept::Inputs(ids) => {
                let inputs = ids
                    .map(|id| id.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id)));
                operation.backward::<B>(gradient, inputs.into(), &wanted)
            }
            Kept::Slopes(slopes) => B::scale_slopes(&operation, gradient, slopes),
        };
        for (parent, result) in ops.parents.iter().zip(results) {
            if let (Some(parent), Some(result)) = (parent, result) {
                gradients.register::<B>(parent.id, result);
            }
        }
    }
}

fn node<B: Kernels, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    operation: Operation,
) -> FloatTensor<Autodiff<B, C>> {
    let guards = inputs.each_ref().map(|input| input.node());
    let values: Vec<_> = inputs
        .iter()
        .map(|input| input.primitive().clone())
        .collect();
    match Step.prepare::<C>(guards).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            if let Some((output, slopes)) = B::with_slopes(&operation, &values) {
                return prep.finish((operation, Kept::Slopes(slopes)), output);
            }
            let kept =
                std::array::from_fn(|i| operation.keeps(i).then(|| prep.checkpoint(&inputs[i])));
            let output = operation.forward::<B>(values);
            prep.finish((operation, Kept::Inputs(kept)), output)
        }
        OpsKind::UnTracked(prep) => prep.finish(operation.forward::<B>(values)),
    }
}

/// Runs an operation on high-level tensors.
pub(crate) fn operate<const D: usize>(
    inputs: Vec<DispatchTensor>,
    operation: Operation,
) -> Tensor<D> {
    let count = inputs.len();
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().expect("counted before");
    let output = match count {
        1 => Dispatch::unary(next(), operation),
        2 => Dispatch::binary(next(), next(), operation),
        3 => Dispatch::ternary(next(), next(), next(), operation),
        5 => Dispatch::quinary(next(), next(), next(), next(), next(), operation),
        6 => Dispatch::senary(next(), next(), next(), next(), next(), next(), operation),
        count => unreachable!("no operation has {count} inputs"),
    };
    Tensor::from_dispatch(output)
}
