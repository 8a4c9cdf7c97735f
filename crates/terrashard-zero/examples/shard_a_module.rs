//! Shards the training of a burn module over threads: two dense layers learn `y = sin(x)` on four ranks at stage 2.

use std::error::Error;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_zero::{Initial, Reduction, StepOutcome, ZeroConfig, ZeroOptimizer};

#[derive(Module, Debug)]
struct Dense {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<2>>,
}

impl Dense {
    fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        let random =
            |shape| Tensor::random(shape, burn::tensor::Distribution::Normal(0.0, 0.7), device);
        Self {
            weight: Param::from_tensor(random([inputs, outputs])),
            bias: Param::from_tensor(random([1, outputs])),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val()) + self.bias.val()
    }
}

#[derive(Module, Debug)]
struct Net {
    first: Dense,
    second: Dense,
}

fn main() -> Result<(), Box<dyn Error>> {
    let losses = local::run(4, |communicator| -> Result<f64, terrashard_zero::Error> {
        let device = Device::flex();
        let net = Net {
            first: Dense::new(1, 32, &device),
            second: Dense::new(32, 1, &device),
        };
        let config = ZeroConfig {
            reduction: Reduction::Mean,
            ..ZeroConfig::default()
        };
        let rank = communicator.rank();
        let mut optimizer = ZeroOptimizer::new(
            &net,
            config,
            Initial::Module,
            Arc::new(communicator),
            &device,
        )?;
        let mut last = f64::NAN;
        for _ in 0..400 {
            // Each rank sees its own quarter of the period.
            let x = Tensor::<1>::from_floats(
                std::array::from_fn::<f32, 16, _>(|i| (rank * 16 + i) as f32 / 10.0),
                &device,
            );
            let x = x.reshape([16, 1]).autodiff();
            let hidden = optimizer.enter(&net.first, &x).forward(x.clone()).tanh();
            let y = optimizer.enter(&net.second, &hidden).forward(hidden);
            let loss = (y - x.sin()).powi_scalar(2).mean();
            let value = loss.clone().into_scalar::<f64>();
            optimizer.backward(loss)?;
            if let StepOutcome::Applied { scalars, .. } = optimizer.step(1e-2, &[value])? {
                last = scalars[0] / 4.0;
            }
        }
        Ok(last)
    })?;
    println!(
        "mean squared error after 400 steps: {:.5} on every rank",
        losses[0]
    );
    assert!(losses[0] < 1e-2);
    Ok(())
}
