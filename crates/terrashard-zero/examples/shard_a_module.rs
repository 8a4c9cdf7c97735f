//! Shards the training of a burn module over threads: two dense layers learn `y = sin(x)` on four ranks at stage 2.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Distribution, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_zero::{Error, Initial, Reduction, ZeroConfig, ZeroOptimizer};

#[derive(Module, Debug)]
struct Dense {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<2>>,
}

impl Dense {
    fn new(sizes: [usize; 2], device: &Device) -> Self {
        let random = |shape| Tensor::random(shape, Distribution::Normal(0.0, 0.7), device);
        let (weight, bias) = (random(sizes), random([1, sizes[1]]));
        let (weight, bias) = (Param::from_tensor(weight), Param::from_tensor(bias));
        Self { weight, bias }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val()) + self.bias.val()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let losses = local::run(4, |communicator| -> Result<f64, Error> {
        let device = Device::flex();
        let net = vec![Dense::new([1, 32], &device), Dense::new([32, 1], &device)];
        let reduction = Reduction::Mean;
        let config = ZeroConfig {
            reduction,
            ..ZeroConfig::default()
        };
        let rank = communicator.rank() as f32;
        let comm = Arc::new(communicator);
        let mut zero = ZeroOptimizer::new(&net, config, Initial::Module, comm, &device)?;
        let mut mean = f64::NAN;
        for _ in 0..400 {
            // Each rank sees its own quarter of the period.
            let x = std::array::from_fn::<f32, 16, _>(|i| rank * 1.6 + i as f32 / 10.0);
            let x = Tensor::<1>::from_floats(x, &device).reshape([16, 1]);
            let x = x.autodiff();
            let hidden = zero.enter(&net[0], &x).forward(x.clone()).tanh();
            let y = zero.enter(&net[1], &hidden).forward(hidden);
            let loss = (y - x.sin()).powi_scalar(2).mean();
            let value = loss.clone().into_scalar::<f64>();
            zero.backward(loss)?;
            zero.step(1e-2, &[])?;
            mean = zero.sum_over_ranks(vec![value])?[0] / 4.0;
        }
        Ok(mean)
    })?;
    println!("mean squared error after 400 steps: {:.5}", losses[0]);
    assert!(losses[0] < 1e-2);
    Ok(())
}
