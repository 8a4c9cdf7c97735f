//! Parameters with slots: fetched in forward and in backward, and their gradients handed over.

use std::sync::{Arc, Mutex};

use burn::backend::DispatchTensor;
use burn::module::{Param, ParamId};
use burn::tensor::Tensor;
use terrashard_ops::{
    Activation, ConvShape, DropPath, FeedForwardLayers, ParameterSlots, Pass, Slots, Wanted,
    feed_forward_branch,
};

use super::{CHANNELS, Case, HIDDEN, Kind, backends, host};

/// Slots that note what happens.
#[derive(Debug, Default)]
struct Noted {
    parameters: Vec<(ParamId, DispatchTensor)>,
    frozen: Vec<ParamId>,
    fetched: Mutex<Vec<ParamId>>,
    delivered: Mutex<Vec<(ParamId, Vec<f64>)>>,
}

impl ParameterSlots for Noted {
    fn holds(&self, parameter: ParamId) -> bool {
        self.parameters.iter().any(|(id, _)| *id == parameter)
    }

    fn enter(&self, parameter: ParamId) -> Wanted {
        match self.frozen.contains(&parameter) {
            true => Wanted::No,
            false => Wanted::Yes,
        }
    }

    fn value(&self, parameter: ParamId) -> DispatchTensor {
        self.fetched.lock().expect("one thread").push(parameter);
        let found = self.parameters.iter().find(|(id, _)| *id == parameter);
        found.expect("held").1.clone()
    }

    fn deliver(&self, parameter: ParamId, gradient: DispatchTensor) {
        let gradient = host(Tensor::<1>::from_dispatch(gradient));
        self.delivered
            .lock()
            .expect("one thread")
            .push((parameter, gradient));
    }
}

#[test]
fn slots_are_asked_in_forward_and_backward_and_get_the_gradients() {
    for backend in backends() {
        let case = Case {
            backend,
            ..Case::PLAIN
        };
        let kind = Kind::FeedForward(Activation::Gelu);
        let expected = case.results(kind);
        let mut net = case.net(0.0);
        let x: Tensor<3> = net.tensor([3, 24, CHANNELS]);
        let norm = net.norm();
        let fc1 = net.linear(CHANNELS, HIDDEN);
        let depthwise = ConvShape {
            stride: 1,
            padding: 1,
            groups: HIDDEN,
        };
        let dw = net.conv2d(HIDDEN, 3, depthwise);
        let fc2 = net.linear(HIDDEN, CHANNELS);
        let held = |id: ParamId, value: DispatchTensor| (id, value);
        let one = |p: &Param<Tensor<1>>| held(p.id, p.val().inner().into_dispatch());
        let two = |p: &Param<Tensor<2>>| held(p.id, p.val().inner().into_dispatch());
        let bias = dw.bias.as_ref().expect("with a bias");
        let weight = held(dw.weight.id, dw.weight.val().inner().into_dispatch());
        let noted = Arc::new(Noted {
            parameters: vec![
                one(&norm.weight),
                one(&norm.bias),
                two(&fc1.weight),
                one(&fc1.bias),
                weight,
                one(bias),
                two(&fc2.weight),
                one(&fc2.bias),
            ],
            frozen: vec![fc1.bias.id],
            ..Noted::default()
        });
        let ids: Vec<ParamId> = noted.parameters.iter().map(|(id, _)| *id).collect();
        let pass = Pass {
            slots: Some(Slots {
                token: Tensor::<1>::zeros([1], (&net.device, case.dtype)).require_grad(),
                source: noted.clone(),
            }),
            ..case.pass()
        };
        let layers = FeedForwardLayers {
            norm: &norm,
            fc1: &fc1,
            dw: &dw,
            activation: Activation::Gelu,
            fc2: &fc2,
        };
        let drop = DropPath {
            rate: 0.0,
            layer: "block",
        };
        let y = feed_forward_branch(x, &layers, [4, 6], drop, &pass);
        assert_eq!(*noted.fetched.lock().unwrap(), ids);
        assert_eq!(host(y.clone()), expected[0]);
        let gradients = case.loss(&net, y).backward();
        let fetched: Vec<ParamId> = ids.iter().chain(&ids).copied().collect();
        assert_eq!(*noted.fetched.lock().unwrap(), fetched);
        let of_x = net.leaves[0].grad(&gradients).expect("x is tracked");
        assert_eq!(host(of_x), expected[1]);
        let delivered = noted.delivered.lock().unwrap();
        let wanted = ids.iter().zip(&expected[2..]);
        let wanted: Vec<_> = wanted
            .filter(|(id, _)| **id != fc1.bias.id)
            .map(|(id, gradient)| (*id, gradient.clone()))
            .collect();
        assert_eq!(*delivered, wanted);
    }
}
