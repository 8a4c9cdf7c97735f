//! A small net with the awkward cases of a parameter table: odd sizes, a scalar, an empty tensor, a tied pair, a
//! frozen matrix and a branch that is never used. Shared by the tests of this crate.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

/// A dense layer: `y = x w + b`.
#[derive(Module, Debug)]
pub(crate) struct Dense {
    pub(crate) weight: Param<Tensor<2>>,
    pub(crate) bias: Param<Tensor<1>>,
}

/// The net. `tied` is the same burn parameter as `hidden.weight`.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) input: Dense,
    pub(crate) hidden: Dense,
    pub(crate) tied: Param<Tensor<2>>,
    pub(crate) gain: Param<Tensor<1>>,
    pub(crate) nothing: Param<Tensor<2>>,
    pub(crate) frozen: Param<Tensor<2>>,
    pub(crate) unused: Dense,
    pub(crate) output: Dense,
}

fn lazy<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
    let init = move |device: &Device, grad: bool| {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i| noise("init", i as u64))
            .collect();
        let tensor = Tensor::from_data(TensorData::new(values, shape), device);
        if grad { tensor.require_grad() } else { tensor }
    };
    Param::uninitialized(
        ParamId::new(),
        init,
        Device::flex(),
        true,
        Shape::from(shape),
    )
}

pub(crate) fn dense(inputs: usize, outputs: usize) -> Dense {
    Dense {
        weight: lazy([inputs, outputs]),
        bias: lazy([outputs]),
    }
}

impl Net {
    pub(crate) fn new() -> Self {
        let hidden = dense(7, 7);
        Self {
            input: dense(5, 7),
            tied: hidden.weight.clone(),
            hidden,
            gain: lazy([1]),
            nothing: lazy([0, 4]),
            frozen: lazy([7, 7]),
            unused: dense(3, 2),
            output: dense(7, 3),
        }
    }
}

/// How the net's parts are fetched: sharded or plain.
pub(crate) trait Fetch {
    fn fetch<M: Module, const D: usize>(&self, module: &M, anchor: &Tensor<D>) -> M;
}

impl Fetch for terrashard_zero::ZeroOptimizer {
    fn fetch<M: Module, const D: usize>(&self, module: &M, anchor: &Tensor<D>) -> M {
        self.enter(module, anchor)
    }
}

/// The module's own parameters.
pub(crate) struct Own;

impl Fetch for Own {
    fn fetch<M: Module, const D: usize>(&self, module: &M, _anchor: &Tensor<D>) -> M {
        module.clone()
    }
}

fn affine(layer: &Dense, x: Tensor<2>) -> Tensor<2> {
    x.matmul(layer.weight.val()) + layer.bias.val().unsqueeze::<2>()
}

/// The sum of squared errors of a micro-batch over `count`, the number of targets in the whole window.
pub(crate) fn loss(
    net: &Net,
    fetch: &impl Fetch,
    x: Tensor<2>,
    target: Tensor<2>,
    count: f64,
) -> Tensor<1> {
    let h = affine(&fetch.fetch(&net.input, &x), x).tanh();
    let gain = fetch.fetch(&net.gain, &h).val();
    let frozen = fetch.fetch(&net.frozen, &h).val();
    let h = affine(&fetch.fetch(&net.hidden, &h), h.clone()).tanh() * gain.unsqueeze::<2>()
        + h.matmul(frozen) * 0.1;
    let tied = fetch.fetch(&net.tied, &h).val();
    let h = h.clone().matmul(tied.transpose()).tanh() + h;
    let y = affine(&fetch.fetch(&net.output, &h), h);
    (y - target).powi_scalar(2).sum() / count
}

/// A value in -1..1 that depends on its name and index alone.
pub(crate) fn noise(name: &str, index: u64) -> f32 {
    (terrashard_layout::counter::uniform(7, name, index) * 2.0 - 1.0) as f32
}

/// First values of a parameter.
pub(crate) fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    (0..shape.iter().product::<usize>())
        .map(|i| 0.5 * noise(name, i as u64))
        .collect()
}

/// Sample indices to inputs `[n, 5]` and targets `[n, 3]` on `device`.
pub(crate) fn batch(
    samples: std::ops::Range<u64>,
    device: &Device,
    dtype: DType,
) -> (Tensor<2>, Tensor<2>) {
    let n = (samples.end - samples.start) as usize;
    let make = |name: &str, width: u64| {
        let values: Vec<f32> = samples
            .clone()
            .flat_map(|sample| (0..width).map(move |i| (sample * width) + i))
            .map(|index| noise(name, index))
            .collect();
        Tensor::<2>::from_data(
            TensorData::new(values, [n, width as usize]),
            (device, dtype),
        )
    };
    (make("x", 5), make("target", 3))
}
