//! A small net with all that is awkward to shard, and its training: what the tests of the sharded optimizer, and their
//! counterpart on ranks that are processes, compare with each other.
//!
//! It has a 3x3 convolution without bias before a batch-norm whose statistics span ranks, a frozen convolution, a
//! layer-norm, a scalar, an empty parameter, a linear layer of odd size, a matrix that two blocks share, and a branch
//! that is switched off. Its groups are matrices and vectors, which have a learning rate of their own and no decay.

mod training;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use terrashard_layout::counter;
use terrashard_models::Scope;
use terrashard_ops::{BatchNorm, Conv2d, ConvShape, LayerNorm, Linear, dropout};

pub use training::{Blocks, Case, Named, Sums, Trained, Trainer, difference, train};

/// Height and width of a sample.
pub const SIDE: usize = 3;
/// Values of a sample's target.
pub const TARGETS: usize = SIDE * SIDE * 3;

/// Convolution and batch-norm.
#[derive(Module, Debug)]
pub struct Stem {
    /// `[7, 3, 3, 3]`.
    pub conv: Conv2d,
    /// Over 7 channels.
    pub norm: BatchNorm,
}

/// From maps to tokens.
#[derive(Module, Debug)]
pub struct Tokens {
    /// Over 7 channels.
    pub norm: LayerNorm,
    /// One element.
    pub gain: Param<Tensor<1>>,
    /// `[0, 4]`.
    pub nothing: Param<Tensor<2>>,
    /// 7 to 5.
    pub linear: Linear,
}

/// A matrix that [`Again`] shares.
#[derive(Module, Debug)]
pub struct Mix {
    /// `[5, 5]`.
    pub weight: Param<Tensor<2>>,
    /// `[5]`.
    pub bias: Param<Tensor<1>>,
}

/// The same matrix, transposed, in another block.
#[derive(Module, Debug)]
pub struct Again {
    /// The parameter `mix.weight`.
    pub tied: Param<Tensor<2>>,
    /// Over 5 channels.
    pub norm: LayerNorm,
}

/// The net.
#[derive(Module, Debug)]
pub struct Nasty {
    /// First block.
    pub stem: Stem,
    /// A convolution that is not trained.
    pub frozen: Conv2d,
    /// Third block.
    pub tokens: Tokens,
    /// Fourth block.
    pub mix: Mix,
    /// Fifth block.
    pub again: Again,
    /// The branch that is switched off.
    pub side: Linear,
    /// Last block.
    pub head: Linear,
}

fn lazy<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    let init = move |device: &Device, tracked: bool| {
        let tensor = Tensor::ones(shape, device);
        if tracked {
            tensor.require_grad()
        } else {
            tensor
        }
    };
    Param::uninitialized(
        ParamId::new(),
        init,
        device.clone(),
        true,
        Shape::from(shape),
    )
}

impl Default for Nasty {
    fn default() -> Self {
        Self::new()
    }
}

impl Nasty {
    /// The net on burn's own CPU backend, nothing of it initialised.
    pub fn new() -> Self {
        Self::on(&Device::flex())
    }

    /// The net on a plain device, nothing of it initialised.
    pub fn on(device: &Device) -> Self {
        let shape = ConvShape {
            stride: 1,
            padding: 1,
            groups: 1,
        };
        let mix = Mix {
            weight: lazy([5, 5], device),
            bias: lazy([5], device),
        };
        Self {
            stem: Stem {
                conv: Conv2d::new(3, 7, 3, shape, device).without_bias(),
                norm: BatchNorm::new(7, device),
            },
            frozen: Conv2d::new(7, 7, 3, shape, device),
            tokens: Tokens {
                norm: LayerNorm::new(7, 1e-5, device),
                gain: lazy([1], device),
                nothing: lazy([0, 4], device),
                linear: Linear::new(7, 5, device),
            },
            again: Again {
                tied: mix.weight.clone(),
                norm: LayerNorm::new(5, 1e-5, device),
            },
            mix,
            side: Linear::new(5, 2, device),
            head: Linear::new(5, 3, device),
        }
    }

    /// The blocks that run, in forward order, as [`terrashard_zero::ShardedParameters::declare_blocks`] takes them.
    pub fn blocks(&self) -> Vec<Vec<String>> {
        let named = |prefix: &str| {
            let names = terrashard_zero::declared(self).into_iter();
            names
                .map(|parameter| parameter.name)
                .filter(|name| name.starts_with(prefix))
                .collect()
        };
        ["stem.", "frozen.", "tokens.", "mix.", "again.", "head."]
            .map(named)
            .into()
    }

    /// The output of a batch.
    ///
    /// # Shapes
    /// `[N, 3, SIDE, SIDE]` to `[N, SIDE * SIDE, 3]`.
    pub fn forward(&self, x: Tensor<4>, scope: &impl Scope, drop: f64) -> Tensor<3> {
        let x = scope.block(
            "stem",
            &self.stem,
            vec![x],
            |stem, inputs: Vec<Tensor<4>>, pass| {
                let [x] = take(inputs);
                stem.norm.forward(stem.conv.forward(x), pass).tanh()
            },
        );
        let x: Tensor<4> = scope.block("frozen", &self.frozen, vec![x], |conv, inputs, _| {
            let [x] = take(inputs);
            conv.forward(x.clone()) * 0.3 + x
        });
        let tokens: Tensor<3> = scope.block(
            "tokens",
            &self.tokens,
            vec![x],
            move |block, inputs, pass| {
                let [x] = take::<1, 4>(inputs);
                let [n, c, h, w] = x.dims();
                let x = x.reshape([n, c, h * w]).swap_dims(1, 2);
                let x = block.norm.forward(x) * block.gain.val().unsqueeze::<3>();
                dropout(block.linear.forward(x).tanh(), drop, "tokens", pass)
            },
        );
        let mixed: Tensor<3> =
            scope.block("mix", &self.mix, vec![tokens.clone()], |mix, inputs, _| {
                let [x] = take::<1, 3>(inputs);
                let y = times(x, mix.weight.val());
                (y + mix.bias.val().unsqueeze::<3>()).tanh()
            });
        let both = vec![tokens, mixed];
        let x: Tensor<3> = scope.block("again", &self.again, both, |again, inputs, _| {
            let [tokens, mixed] = take::<2, 3>(inputs);
            let y = times(mixed, again.tied.val().transpose());
            again.norm.forward(y.tanh() + tokens)
        });
        scope.block("head", &self.head, vec![x], |head, inputs, _| {
            let [x] = take::<1, 3>(inputs);
            head.forward(x)
        })
    }
}

/// The tokens times a matrix, as one product of matrices: burn's batched product fails for a batch without a sample.
fn times(x: Tensor<3>, weight: Tensor<2>) -> Tensor<3> {
    let [n, tokens, width] = x.dims();
    let y = x.reshape([n * tokens, width]).matmul(weight);
    y.reshape([n, tokens, width])
}

fn take<const N: usize, const D: usize>(inputs: Vec<Tensor<D>>) -> [Tensor<D>; N] {
    let inputs = inputs.try_into();
    inputs.expect("a scope hands a block the inputs that it got for it")
}

/// First values of a parameter: what scales starts around 1.
pub fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    let around = if name.ends_with("norm.weight") || name.ends_with("gain") {
        1.0
    } else {
        0.0
    };
    let count = shape.iter().product::<usize>() as u64;
    let noise = (0..count).map(|index| counter::uniform(5, name, index) - 0.5);
    noise.map(|noise| (around + 0.6 * noise) as f32).collect()
}

/// A batch of samples by their ids.
pub struct Batch {
    /// `[N, 3, SIDE, SIDE]`.
    pub x: Tensor<4>,
    /// `[N, SIDE * SIDE, 3]`.
    pub target: Tensor<3>,
}

impl Batch {
    /// The samples `ids`, inputs in the type `compute` and targets in `master`.
    pub fn new(ids: &[u64], device: &Device, compute: DType, master: DType) -> Self {
        let make = |name: &str, width: u64| -> Vec<f64> {
            let value = |index| 2.0 * counter::uniform(11, name, index) - 1.0;
            let values = ids
                .iter()
                .flat_map(|id| (0..width).map(move |index| value(id * width + index)));
            values.collect()
        };
        let n = ids.len();
        let x = TensorData::new(make("x", 3 * (SIDE * SIDE) as u64), [n, 3, SIDE, SIDE]);
        let target = TensorData::new(make("target", TARGETS as u64), [n, SIDE * SIDE, 3]);
        Self {
            x: Tensor::from_data(x, (device, compute)),
            target: Tensor::from_data(target, (device, master)),
        }
    }

    /// The sum of squared errors of `output` over `count`, in the type of the targets.
    pub fn loss(self, output: Tensor<3>, count: f64) -> Tensor<1> {
        let error = output.cast(self.target.dtype()) - self.target;
        (error.clone() * error).sum() / count
    }
}
