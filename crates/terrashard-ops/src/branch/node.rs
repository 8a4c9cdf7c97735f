//! A branch as one operation of the graph.
//!
//! Its parents are its input and either its parameters, where these are tensors of the graph, or the token of the slots that
//! they have. Its state names the parameters and holds none of them.

use super::{Backward as Given, Branch, Saved};
use crate::kernels::Kernels;
use crate::slots::{ParameterSlots, Wanted};
use crate::{Mode, Pass};
#[cfg(feature = "tch")]
use terrashard_torch::LibTorch;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchTensor, ExtensionType, Flex, backend_extension};
use burn::module::{Param, ParamId};
use burn::tensor::Tensor;
use std::sync::Arc;

/// A parameter of a layer, whatever its shape, as the graph's tensor only when that is asked for.
#[derive(Clone, Copy)]
pub(super) struct Parameter<'a> {
    id: ParamId,
    value: &'a dyn Value,
}

trait Value {
    fn tensor(&self) -> DispatchTensor;
}

impl<const D: usize> Value for Param<Tensor<D>> {
    fn tensor(&self) -> DispatchTensor {
        self.val().into_dispatch()
    }
}

impl<'a> Parameter<'a> {
    pub(super) fn of<const D: usize>(parameter: &'a Param<Tensor<D>>) -> Self {
        Self {
            id: parameter.id,
            value: parameter,
        }
    }
}

/// The slots of a branch's parameters.
#[derive(Debug, Clone)]
pub(crate) struct Slotted {
    source: Arc<dyn ParameterSlots>,
    parameters: Vec<(ParamId, Wanted)>,
}

impl Slotted {
    fn values<B: Kernels>(&self) -> Vec<FloatTensor<B>> {
        let value = |(id, _): &(ParamId, Wanted)| {
            B::lower(Tensor::<1>::from_dispatch(self.source.value(*id)))
        };
        self.parameters.iter().map(value).collect()
    }
}

/// Weight and bias of a layer.
#[derive(ExtensionType, Debug, Clone)]
pub(crate) struct Layer<B: Backend> {
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
}

/// What a branch has as parents in the graph beside its input.
#[derive(ExtensionType, Debug, Clone)]
pub(crate) enum Parents<B: Backend> {
    /// The token of the parameters' slots.
    Token(FloatTensor<B>),
    /// Four layers.
    Four(
        #[extension_type] Layer<B>,
        #[extension_type] Layer<B>,
        #[extension_type] Layer<B>,
        #[extension_type] Layer<B>,
    ),
    /// Four layers, and two that reduce.
    Six(
        #[extension_type] Layer<B>,
        #[extension_type] Layer<B>,
        #[extension_type] Layer<B>,
        #[extension_type] Layer<B>,
        #[extension_type] Layer<B>,
        #[extension_type] Layer<B>,
    ),
}

impl Parents<Dispatch> {
    fn of_layers(tensors: impl Iterator<Item = DispatchTensor>) -> Self {
        let tensors: Vec<_> = tensors.collect();
        let layers = tensors.chunks_exact(2).map(|pair| Layer {
            weight: pair[0].clone(),
            bias: pair[1].clone(),
        });
        match <[_; 4]>::try_from(layers.collect::<Vec<_>>()) {
            Ok([a, b, c, d]) => Self::Four(a, b, c, d),
            Err(layers) => match <[_; 6]>::try_from(layers) {
                Ok([a, b, c, d, e, f]) => Self::Six(a, b, c, d, e, f),
                Err(layers) => unreachable!("no branch has {} layers", layers.len()),
            },
        }
    }
}

impl<B: Backend> Parents<B> {
    fn tensors(self) -> Vec<FloatTensor<B>> {
        let layers = match self {
            Self::Token(token) => return vec![token],
            Self::Four(a, b, c, d) => vec![a, b, c, d],
            Self::Six(a, b, c, d, e, f) => vec![a, b, c, d, e, f],
        };
        let tensors = layers
            .into_iter()
            .flat_map(|layer| [layer.weight, layer.bias]);
        tensors.collect()
    }
}

/// Runs a branch on whatever backend the tensors live on.
#[backend_extension(Flex, LibTorch: cfg(feature = "tch"), Autodiff)]
pub(crate) trait RunBranch: Backend {
    /// The branch's result.
    fn run_branch(
        x: FloatTensor<Self>,
        #[extension_type] parents: Parents<Self>,
        branch: Branch,
        slots: Option<Slotted>,
    ) -> FloatTensor<Self>;
}

macro_rules! run_by_kernels {
    ($backend:ty) => {
        impl RunBranch for $backend {
            fn run_branch(
                x: FloatTensor<Self>,
                parents: Parents<Self>,
                branch: Branch,
                slots: Option<Slotted>,
            ) -> FloatTensor<Self> {
                let parameters = match slots {
                    Some(slots) => slots.values::<Self>(),
                    None => parents.tensors(),
                };
                branch.forward::<Self>(x, parameters).0
            }
        }
    };
}

run_by_kernels!(Flex);
#[cfg(feature = "tch")]
run_by_kernels!(LibTorch);

impl<B: Kernels, C: CheckpointStrategy> RunBranch for Autodiff<B, C> {
    fn run_branch(
        x: FloatTensor<Self>,
        parents: Parents<Self>,
        branch: Branch,
        slots: Option<Slotted>,
    ) -> FloatTensor<Self> {
        match parents {
            Parents::Token(_) => node::<B, C, 2>(x, parents.tensors(), branch, slots),
            Parents::Four(..) => node::<B, C, 9>(x, parents.tensors(), branch, slots),
            Parents::Six(..) => node::<B, C, 13>(x, parents.tensors(), branch, slots),
        }
    }
}

/// Where backward finds the parameters again.
#[derive(Debug, Clone)]
enum Source {
    /// They are the parents after the input.
    Graph(Vec<NodeId>),
    Slots(Slotted),
}

#[derive(Debug, Clone)]
struct State<B: Kernels> {
    branch: Branch,
    x: NodeId,
    source: Source,
    saved: Saved<B>,
}

#[derive(Debug)]
struct Step;

impl<B: Kernels, const N: usize> Backward<B, N> for Step {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let State {
            branch,
            x,
            source,
            saved,
        } = ops.state;
        let mut wanted = vec![ops.parents[0].is_some()];
        let parameters = match &source {
            Source::Graph(nodes) => {
                wanted.extend(ops.parents[1..].iter().map(Option::is_some));
                let value = |node: &NodeId| checkpointer.retrieve_node_output(*node);
                nodes.iter().map(value).collect()
            }
            Source::Slots(slots) => {
                let parameters = slots.parameters.iter();
                wanted.extend(parameters.map(|(_, wanted)| *wanted == Wanted::Yes));
                slots.values::<B>()
            }
        };
        let given = Given {
            gradient,
            x: checkpointer.retrieve_node_output(x),
            parameters,
            saved,
            wanted: wanted.clone(),
        };
        let mut results = branch.backward::<B>(given).into_iter();
        let input = results.next().flatten();
        if let (Some(parent), Some(gradient)) = (&ops.parents[0], input) {
            gradients.register::<B>(parent.id, gradient);
        }
        match source {
            Source::Graph(_) => {
                for (parent, result) in ops.parents[1..].iter().zip(results) {
                    if let (Some(parent), Some(result)) = (parent, result) {
                        gradients.register::<B>(parent.id, result);
                    }
                }
            }
            Source::Slots(slots) => {
                for (&(id, wanted), result) in slots.parameters.iter().zip(results) {
                    if let (Wanted::Yes, Some(result)) = (wanted, result) {
                        let gradient = B::lift::<1>(result).into_dispatch();
                        slots.source.deliver(id, gradient);
                    }
                }
            }
        }
    }
}

fn node<B: Kernels, C: CheckpointStrategy, const N: usize>(
    x: FloatTensor<Autodiff<B, C>>,
    parents: Vec<FloatTensor<Autodiff<B, C>>>,
    branch: Branch,
    slots: Option<Slotted>,
) -> FloatTensor<Autodiff<B, C>> {
    let guards: [_; N] = std::array::from_fn(|i| match i {
        0 => x.node(),
        i => parents[i - 1].node(),
    });
    let parameters = match &slots {
        Some(slots) => slots.values::<B>(),
        None => parents.iter().map(|p| p.primitive().clone()).collect(),
    };
    let (output, saved) = branch.forward::<B>(x.primitive().clone(), parameters);
    match Step.prepare::<C>(guards).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let state = State {
                branch,
                x: prep.checkpoint(&x),
                source: match slots {
                    Some(slots) => Source::Slots(slots),
                    None => Source::Graph(parents.iter().map(|p| prep.checkpoint(p)).collect()),
                },
                saved,
            };
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// Runs a branch on high-level tensors: by the pass's slots where it has some for all parameters, else by the layers' own tensors.
pub(super) fn run(
    x: Tensor<3>,
    parameters: &[Parameter<'_>],
    branch: Branch,
    pass: &Pass,
) -> Tensor<3> {
    let slots = pass.slots.as_ref();
    let slots = slots.filter(|_| pass.mode != Mode::Inference && x.is_autodiff());
    let slots = slots.filter(|slots| parameters.iter().all(|p| slots.source.holds(p.id)));
    let (parents, slots) = match slots {
        Some(slots) => {
            let enter = |parameter: &Parameter<'_>| {
                let wanted = slots.source.enter(parameter.id);
                (parameter.id, wanted)
            };
            let parameters: Vec<_> = parameters.iter().map(enter).collect();
            // A frozen branch is part of the graph only if its input is.
            let wanted = parameters.iter().any(|(_, wanted)| *wanted == Wanted::Yes);
            let token = match wanted {
                true => slots.token.clone().into_dispatch(),
                false => x.clone().into_dispatch(),
            };
            let source = slots.source.clone();
            (Parents::Token(token), Some(Slotted { source, parameters }))
        }
        None => {
            let tensors = parameters.iter().map(|p| p.value.tensor());
            (Parents::of_layers(tensors), None)
        }
    };
    Tensor::from_dispatch(Dispatch::run_branch(
        x.into_dispatch(),
        parents,
        branch,
        slots,
    ))
}
