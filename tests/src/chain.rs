//! A chain of dense layers, each a block: what tests of memory and traffic count.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor};
use terrashard_layout::counter;
use terrashard_ops::linear;
use terrashard_zero::{Recompute, ShardedParameters};

/// `y = tanh(x weight^T + bias)`.
#[derive(Module, Debug)]
pub struct Layer {
    /// `[out, in]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
}

/// The chain.
#[derive(Module, Debug)]
pub struct Chain {
    /// Its layers in forward order.
    pub layers: Vec<Layer>,
}

/// Which operations a layer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// One of this project.
    Own,
    /// burn's, as its own dense layer has them: the weight as `[in, out]`, so for layers of equal widths only.
    Burn,
}

fn lazy<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
    let init = move |device: &Device, _tracked: bool| Tensor::zeros(shape, device);
    let shape_of = Shape::from(shape);
    Param::uninitialized(ParamId::new(), init, Device::flex(), true, shape_of)
}

impl Chain {
    /// Layers from each width to the next; nothing is initialised.
    pub fn new(widths: &[usize]) -> Self {
        let layer = |pair: &[usize]| Layer {
            weight: lazy([pair[1], pair[0]]),
            bias: lazy([pair[1]]),
        };
        Self {
            layers: widths.windows(2).map(layer).collect(),
        }
    }

    /// The names of each layer's parameters.
    pub fn blocks(&self) -> Vec<Vec<String>> {
        let names = |layer| ["weight", "bias"].map(|name| format!("layers.{layer}.{name}"));
        (0..self.layers.len())
            .map(|layer| names(layer).into())
            .collect()
    }

    /// Elements of all parameters.
    pub fn numel(&self) -> usize {
        let declared = terrashard_zero::declared(self).into_iter();
        declared
            .map(|one| one.shape.iter().product::<usize>())
            .sum()
    }

    /// The output, layer by layer; `before` is called before each of them.
    ///
    /// # Shapes
    /// `[N, first width]` to `[N, last width]`.
    pub fn forward(
        &self,
        x: Tensor<2>,
        parameters: &ShardedParameters,
        recompute: Recompute,
        operations: Operations,
        before: impl Fn(usize),
    ) -> Tensor<2> {
        let layers = self.layers.iter().enumerate();
        layers.fold(x, |x, (index, layer)| {
            before(index);
            let run = move |layer: &Layer, mut inputs: Vec<Tensor<2>>, _| {
                let x = inputs.remove(0);
                let (weight, bias) = (layer.weight.val(), layer.bias.val());
                let y = match operations {
                    Operations::Own => linear(x, weight, bias),
                    Operations::Burn => x.matmul(weight) + bias.unsqueeze::<2>(),
                };
                y.tanh()
            };
            parameters.block(layer, vec![x], recompute, run)
        })
    }
}

/// First values of a parameter.
pub fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    let numbers = counter::Stream::new(1, name);
    let width = *shape.last().unwrap_or(&1) as f64;
    let count = shape.iter().product::<usize>() as u64;
    let value = |index| ((numbers.uniform(index) - 0.5) * 3.0 / width.sqrt()) as f32;
    (0..count).map(value).collect()
}
