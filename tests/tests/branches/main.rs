//! A branch of a transformer block as one operation is what its parts are, on every backend; and its parameters may have slots.

mod slots;

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_ops::{
    Activation, AttentionLayers, Conv2d, ConvShape, DropPath, FeedForwardLayers, LayerNorm, Linear,
    Masks, Mode, Pass, activate, attention_branch, drop_path, feed_forward_branch,
};
use terrashard_tests::backend::Backend;

const CHANNELS: usize = 8;
const HIDDEN: usize = 16;
const EPSILON: f64 = 1e-6;

/// A branch to test.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Attention { ratio: usize, grid: [usize; 2] },
    FeedForward(Activation),
}

impl Kind {
    fn grid(self) -> [usize; 2] {
        match self {
            Self::Attention { grid, .. } => grid,
            Self::FeedForward(_) => [4, 6],
        }
    }

    fn all() -> Vec<Self> {
        let attention = |ratio, grid| Self::Attention { ratio, grid };
        vec![
            attention(1, [4, 6]),
            attention(2, [4, 6]),
            // The reduction leaves a row and a column out.
            attention(2, [5, 7]),
            Self::FeedForward(Activation::Gelu),
            Self::FeedForward(Activation::Silu),
        ]
    }
}

/// How it is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Branch,
    Parts,
}

/// Values between -1 and 1 without pattern.
fn noise(seed: u64, count: usize) -> Vec<f64> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Layers whose parameters are views of tracked leaves, the same values everywhere.
struct Net {
    device: Device,
    dtype: DType,
    leaves: Vec<Tensor<1>>,
    /// Added to every leaf: this much of noise.
    step: f64,
    frozen: bool,
}

impl Net {
    fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let index = self.leaves.len() as u64;
        let count = shape.iter().product();
        let along = noise(1000 + index, count);
        let values = noise(index, count).into_iter().zip(along);
        let values: Vec<f64> = values.map(|(v, d)| v + self.step * d).collect();
        let data = TensorData::new(values, [count]);
        let leaf = Tensor::from_data(data, (&self.device, self.dtype));
        let leaf = if self.frozen && index > 0 {
            leaf
        } else {
            leaf.require_grad()
        };
        self.leaves.push(leaf.clone());
        leaf.reshape(shape)
    }

    fn parameter<const D: usize>(&mut self, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::initialized(ParamId::new(), self.tensor(shape))
    }

    fn norm(&mut self) -> LayerNorm {
        let mut norm = LayerNorm::new(CHANNELS, EPSILON, &self.device);
        (norm.weight, norm.bias) = (self.parameter([CHANNELS]), self.parameter([CHANNELS]));
        norm
    }

    fn linear(&mut self, inputs: usize, outputs: usize) -> Linear {
        let mut linear = Linear::new(inputs, outputs, &self.device);
        linear.weight = self.parameter([outputs, inputs]);
        linear.bias = self.parameter([outputs]);
        linear
    }

    fn conv2d(&mut self, channels: usize, kernel: usize, shape: ConvShape) -> Conv2d {
        let mut conv = Conv2d::new(channels, channels, kernel, shape, &self.device);
        conv.weight = self.parameter([channels, channels / shape.groups, kernel, kernel]);
        conv.bias = Some(self.parameter([channels]));
        conv
    }
}

fn to_map(x: Tensor<3>, [height, width]: [usize; 2]) -> Tensor<4> {
    let [n, _, c] = x.dims();
    x.reshape([n, height, width, c]).permute([0, 3, 1, 2])
}

fn to_tokens(map: Tensor<4>) -> Tensor<3> {
    let [n, c, height, width] = map.dims();
    map.permute([0, 2, 3, 1]).reshape([n, height * width, c])
}

/// The branch's result for `samples` samples.
fn forward(
    net: &mut Net,
    kind: Kind,
    way: Way,
    samples: usize,
    rate: f64,
    pass: &Pass,
) -> Tensor<3> {
    let grid = kind.grid();
    let x: Tensor<3> = net.tensor([samples, grid[0] * grid[1], CHANNELS]);
    let layer = "block";
    let drop = DropPath { rate, layer };
    let norm = net.norm();
    match kind {
        Kind::Attention { ratio, .. } => {
            let [q, proj] = [0; 2].map(|_| net.linear(CHANNELS, CHANNELS));
            let kv = net.linear(CHANNELS, 2 * CHANNELS);
            let reducing = ConvShape {
                stride: ratio,
                padding: 0,
                groups: 1,
            };
            let reduction =
                (ratio > 1).then(|| (net.conv2d(CHANNELS, ratio, reducing), net.norm()));
            if way == Way::Branch {
                let layers = AttentionLayers {
                    norm: &norm,
                    q: &q,
                    kv: &kv,
                    proj: &proj,
                    reduction: reduction.as_ref().map(|(conv, norm)| (conv, norm)),
                    heads: 2,
                };
                return attention_branch(x, &layers, grid, drop, pass);
            }
            let n = norm.forward(x.clone());
            let source = match &reduction {
                None => n.clone(),
                Some((conv, norm)) => {
                    norm.forward(to_tokens(conv.forward(to_map(n.clone(), grid))))
                }
            };
            let mixed = terrashard_ops::attention(q.forward(n), kv.forward(source), 2);
            x + drop_path(proj.forward(mixed), rate, layer, pass)
        }
        Kind::FeedForward(activation) => {
            let fc1 = net.linear(CHANNELS, HIDDEN);
            let depthwise = ConvShape {
                stride: 1,
                padding: 1,
                groups: HIDDEN,
            };
            let dw = net.conv2d(HIDDEN, 3, depthwise);
            let fc2 = net.linear(HIDDEN, CHANNELS);
            if way == Way::Branch {
                let layers = FeedForwardLayers {
                    norm: &norm,
                    fc1: &fc1,
                    dw: &dw,
                    activation,
                    fc2: &fc2,
                };
                return feed_forward_branch(x, &layers, grid, drop, pass);
            }
            let hidden = dw.forward(to_map(fc1.forward(norm.forward(x.clone())), grid));
            let fed = fc2.forward(activate(to_tokens(hidden), activation));
            x + drop_path(fed, rate, layer, pass)
        }
    }
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// What is run.
#[derive(Clone, Copy, Debug)]
struct Case {
    backend: Backend,
    dtype: DType,
    way: Way,
    samples: usize,
    rate: f64,
    frozen: bool,
}

impl Case {
    const PLAIN: Self = Self {
        backend: Backend::Flex,
        dtype: DType::F64,
        way: Way::Branch,
        samples: 3,
        rate: 0.0,
        frozen: false,
    };

    fn net(&self, step: f64) -> Net {
        Net {
            device: self.backend.device().autodiff(),
            dtype: self.dtype,
            leaves: Vec::new(),
            step,
            frozen: self.frozen,
        }
    }

    fn pass(&self) -> Pass {
        let ids: Vec<u64> = (0..self.samples as u64).collect();
        let masks = Masks {
            seed: 1,
            step: 2,
            samples: ids.into(),
        };
        Pass {
            masks: Some(masks),
            ..Pass::new(Mode::Training)
        }
    }

    fn loss(&self, net: &Net, y: Tensor<3>) -> Tensor<1> {
        let count = y.shape().num_elements();
        let weights = TensorData::new(noise(99, count), y.dims());
        (y.clone() * Tensor::from_data(weights, (&net.device, y.dtype()))).sum()
    }

    /// The result, then the gradients of x and of all parameters.
    fn results(&self, kind: Kind) -> Vec<Vec<f64>> {
        let mut net = self.net(0.0);
        let y = forward(
            &mut net,
            kind,
            self.way,
            self.samples,
            self.rate,
            &self.pass(),
        );
        let gradients = self.loss(&net, y.clone()).backward();
        let tracked = net.leaves.iter().filter(|leaf| leaf.is_require_grad());
        let of = |leaf: &Tensor<1>| host(leaf.grad(&gradients).expect("part of the graph"));
        [host(y)].into_iter().chain(tracked.map(of)).collect()
    }
}

/// The norm of the difference by that of what is expected, of each tensor.
#[track_caller]
fn close(got: &[Vec<f64>], expected: &[Vec<f64>], bound: f64, what: &dyn std::fmt::Debug) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "{what:?}, tensor {index}");
        let pairs = got.iter().zip(expected);
        let difference: f64 = pairs.map(|(a, b)| (a - b) * (a - b)).sum();
        let norm: f64 = expected.iter().map(|value| value * value).sum();
        assert!(
            difference.sqrt() <= bound * norm.sqrt(),
            "{what:?}, tensor {index}: {} of {}",
            difference.sqrt(),
            norm.sqrt()
        );
    }
}

fn backends() -> Vec<Backend> {
    vec![
        Backend::Flex,
        #[cfg(feature = "tch")]
        Backend::Tch,
    ]
}

#[test]
fn a_branch_is_its_parts() {
    for kind in Kind::all() {
        for rate in [0.0, 0.5] {
            let case = Case {
                rate,
                ..Case::PLAIN
            };
            let expected = Case {
                way: Way::Parts,
                ..case
            }
            .results(kind);
            assert!(expected.len() > 9, "{kind:?} has that many parameters");
            for backend in backends() {
                for (dtype, bound) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
                    let case = Case {
                        backend,
                        dtype,
                        ..case
                    };
                    close(&case.results(kind), &expected, bound, &(kind, case));
                }
            }
        }
    }
}

#[test]
fn gradients_are_finite_differences() {
    for kind in Kind::all() {
        for backend in backends() {
            let case = Case {
                backend,
                ..Case::PLAIN
            };
            let value = |step: f64| {
                let mut net = case.net(step);
                let y = forward(&mut net, kind, case.way, case.samples, 0.0, &case.pass());
                case.loss(&net, y).into_scalar::<f64>()
            };
            let step = 1e-5;
            let expected = (value(step) - value(-step)) / (2.0 * step);
            let gradients = case.results(kind).into_iter().skip(1).enumerate();
            let along = gradients.map(|(index, gradient)| {
                let direction = noise(1000 + index as u64, gradient.len());
                let products = gradient.iter().zip(direction).map(|(g, d)| g * d);
                products.sum::<f64>()
            });
            let got: f64 = along.sum();
            assert!(
                (got - expected).abs() < 1e-7 * expected.abs(),
                "{kind:?}, {backend:?}: {got} not {expected}"
            );
        }
    }
}

#[test]
fn what_is_frozen_gets_no_gradient() {
    for kind in Kind::all() {
        for backend in backends() {
            let case = Case {
                backend,
                ..Case::PLAIN
            };
            let expected = case.results(kind);
            let frozen = Case {
                frozen: true,
                ..case
            };
            let got = frozen.results(kind);
            assert_eq!(got.len(), 2, "the result and the gradient of x");
            close(&got, &expected[..2], 1e-12, &frozen);
        }
    }
}

#[test]
fn no_samples_have_gradients_of_nought() {
    for kind in Kind::all() {
        for backend in backends() {
            let case = Case {
                backend,
                samples: 0,
                ..Case::PLAIN
            };
            let results = case.results(kind);
            assert!(results[0].is_empty() && results[1].is_empty());
            for gradient in &results[2..] {
                assert!(!gradient.is_empty());
                assert!(gradient.iter().all(|value| *value == 0.0), "{case:?}");
            }
        }
    }
}

#[test]
fn sixteen_bits_follow_thirty_two() {
    for kind in Kind::all() {
        for backend in backends() {
            for (dtype, bound) in [(DType::BF16, 0.1), (DType::F16, 0.02)] {
                let expected = Case {
                    dtype: DType::F32,
                    ..Case::PLAIN
                };
                let case = Case {
                    backend,
                    dtype,
                    ..Case::PLAIN
                };
                let (got, expected) = (case.results(kind), expected.results(kind));
                // The gradient of the keys' half of their bias is nought; what is there is rounding.
                let rounding = got
                    .iter()
                    .zip(&expected)
                    .filter(|(_, expected)| expected.iter().map(|v| v * v).sum::<f64>() < 1e-6);
                assert_eq!(rounding.count(), 0, "{kind:?}");
                close(&got, &expected, bound, &(kind, case));
            }
        }
    }
}
