//! An operation of one's own that takes its parameter from a slot: no tensor of the graph, and the same gradients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg_attr(
    feature = "tch",
    expect(deprecated, reason = "the macro names burn's LibTorch backend itself")
)]

use std::sync::Arc;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, Flex,
    backend_extension,
};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
#[cfg(feature = "tch")]
use terrashard_torch::LibTorch;
use terrashard_zero::{
    Error, Initial, ParameterGroup, Recompute, Select, Slots, StateKind, ZeroConfig, ZeroOptimizer,
};

/// Values by parameter.
type Named = Vec<(String, Vec<f32>)>;

/// Which parameter multiplies the input.
#[derive(Clone, Debug)]
struct Factor {
    slots: Slots,
    parameter: ParamId,
}

impl Factor {
    fn value<B: Backend>(&self) -> FloatTensor<B>
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        lower::<B>(self.slots.value(self.parameter))
    }
}

fn lower<B: Backend>(tensor: DispatchTensor) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(tensor)) => tensor,
        _ => panic!("a slot has a plain float tensor of the rank's backend"),
    }
}

/// `x * parameter`, element by element.
#[backend_extension(Flex, LibTorch: cfg(feature = "tch"), Autodiff)]
trait Scale: Backend {
    fn scale(x: FloatTensor<Self>, token: FloatTensor<Self>, factor: Factor) -> FloatTensor<Self>;
}

macro_rules! scale_plainly {
    ($backend:ty) => {
        impl Scale for $backend {
            fn scale(
                x: FloatTensor<Self>,
                _token: FloatTensor<Self>,
                factor: Factor,
            ) -> FloatTensor<Self> {
                <$backend>::float_mul(x, factor.value::<Self>())
            }
        }
    };
}

scale_plainly!(Flex);
#[cfg(feature = "tch")]
scale_plainly!(LibTorch);

#[derive(Debug)]
struct Step;

impl<B: Backend> Backward<B, 2> for Step
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = (Factor, FloatTensor<B>, bool);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (factor, x, is_trained) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(input) = &ops.parents[0] {
            let value = factor.value::<B>();
            grads.register::<B>(input.id, B::float_mul(gradient.clone(), value));
        }
        if is_trained {
            let own = BackendTensor::Float(B::float_mul(gradient, x));
            let own = <DispatchTensor as DispatchKindConversion<B>>::from_backend(own);
            factor.slots.deliver(factor.parameter, own);
        }
    }
}

impl<B: Scale, C: CheckpointStrategy> Scale for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn scale(x: FloatTensor<Self>, token: FloatTensor<Self>, factor: Factor) -> FloatTensor<Self> {
        let value = factor.value::<B>();
        let output = B::float_mul(x.primitive().clone(), value);
        let is_trained = factor.slots.enter(factor.parameter);
        match Step
            .prepare::<C>([x.node(), token.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prepared) => {
                let state = (factor, x.primitive().clone(), is_trained);
                prepared.finish(state, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }
}

/// Two layers of factors.
#[derive(Module, Debug)]
struct Factors {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
}

const COUNT: usize = 7;

fn value(layer: usize, i: usize) -> f32 {
    0.25 * (i as f32 + 1.0) - layer as f32
}

impl Factors {
    fn new() -> Self {
        let layer = |layer| {
            let values: Vec<f32> = (0..COUNT).map(|i| value(layer, i)).collect();
            Param::from_tensor(Tensor::from_floats(values.as_slice(), &Device::flex()))
        };
        Self {
            first: layer(0),
            second: layer(1),
        }
    }
}

/// How a block multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Slots,
    Tensors,
}

fn multiplied(by: By, x: Tensor<1>, factor: &Param<Tensor<1>>, slots: Option<&Slots>) -> Tensor<1> {
    match slots.filter(|slots| by == By::Slots && slots.holds(factor.id)) {
        Some(slots) => {
            assert!(slots.token().is_tracked());
            let factor = Factor {
                slots: slots.clone(),
                parameter: factor.id,
            };
            let token = slots.token().clone();
            Tensor::from_dispatch(Dispatch::scale(
                x.into_dispatch(),
                token.into_dispatch(),
                factor,
            ))
        }
        None => x * factor.val(),
    }
}

/// The gradient of the sum over ranks of `x * first * second + x * first`, with `x = rank + 1`, and both parameters after a step.
fn step(by: By, stage: Stage, recompute: Recompute, frozen: bool) -> (Named, Named) {
    let results = local::run(2, |communicator| -> Result<_, Error> {
        let model = Factors::new();
        let device = Device::flex();
        let x = (communicator.rank() + 1) as f32;
        let config = ZeroConfig {
            stage,
            groups: vec![ParameterGroup {
                select: Select::Name("second".into()),
                lr_factor: 1.0,
                weight_decay: 0.0,
                frozen,
            }],
            ..ZeroConfig::default()
        };
        let first = Initial::Module;
        let mut optimizer =
            ZeroOptimizer::new(&model, config, first, Arc::new(communicator), &device)?;
        let x = Tensor::<1>::full([COUNT], x, &device.autodiff());
        let y = optimizer.block_with_slots(
            &model,
            vec![x],
            recompute,
            move |model: &Factors, mut inputs: Vec<Tensor<1>>, _, slots| {
                let foreign = ParamId::new();
                assert!(slots.is_none_or(|slots| !slots.holds(foreign)));
                let hidden = multiplied(by, inputs.remove(0), &model.first, slots);
                multiplied(by, hidden.clone(), &model.second, slots) + hidden
            },
        );
        optimizer.backward(y.sum())?;
        let floats = |states: Vec<(String, _)>| {
            let values = |data: burn::tensor::TensorData| data.try_to_vec::<f32>().unwrap();
            let states = states.into_iter();
            states.map(move |(name, data)| (name, values(data)))
        };
        let gradients = floats(optimizer.whole_gradients()?).collect();
        optimizer.step(0.1, &[])?;
        assert_eq!(optimizer.gathered_bytes(), 0);
        let parameters = floats(optimizer.whole_states(StateKind::Parameter)?).collect();
        Ok((gradients, parameters))
    });
    results.unwrap().swap_remove(0)
}

#[test]
fn parameters_in_slots_train_as_those_that_are_tensors_of_the_graph() {
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        for recompute in [Recompute::Keep, Recompute::Recompute, Recompute::Offload] {
            for frozen in [false, true] {
                let what = format!("stage {stage}, {recompute:?}, frozen: {frozen}");
                let (gradients, parameters) = step(By::Slots, stage, recompute, frozen);
                // x is 1 on one rank and 2 on the other.
                let first = (0..COUNT).map(|i| 3.0 * (value(1, i) + 1.0));
                let mut expected = vec![("first".to_string(), first.collect::<Vec<_>>())];
                if !frozen {
                    let second = (0..COUNT).map(|i| 3.0 * value(0, i));
                    expected.push(("second".into(), second.collect()));
                }
                assert_eq!(gradients, expected, "{what}");
                let by_tensors = step(By::Tensors, stage, recompute, frozen);
                assert_eq!((gradients, parameters), by_tensors, "{what}");
            }
        }
    }
}
