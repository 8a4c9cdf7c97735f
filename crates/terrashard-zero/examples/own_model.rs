//! A model that is not ours, with its own loss, on two ranks at stage 3: `cargo run -p terrashard-zero --example own_model`.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig};
use burn::tensor::{Device, Int, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_zero::{Blocks, Error, Reduction, Trainable, Training, ZeroConfig};

/// Tells which of two interleaved spirals a point lies on.
#[derive(Module, Debug)]
struct Spirals {
    hidden: Vec<Linear>,
    last: Linear,
}

impl Trainable for Spirals {
    type Batch = (Tensor<2>, Tensor<1, Int>);

    fn loss(&self, (mut x, spirals): Self::Batch, blocks: &Blocks<'_>) -> Tensor<1> {
        for layer in &self.hidden {
            x = blocks.run(layer, x, |layer, x| layer.forward(x).sin());
        }
        let logits = blocks.run(&self.last, x, |layer, x| layer.forward(x));
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        loss.forward(logits, spirals)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let losses = local::run(2, |rank| -> Result<f64, Error> {
        let device = Device::flex();
        let dense = |from, to| LinearConfig::new(from, to).init(&device);
        let (hidden, last) = (vec![dense(2, 64), dense(64, 64)], dense(64, 2));
        let config = ZeroConfig {
            stage: Stage::Three,
            reduction: Reduction::Mean, // this loss is the mean over a micro-batch
            ..ZeroConfig::default()
        };
        let spiral = rank.rank() as i32; // each rank sees the points of one spiral
        let mut training = Training::new(Spirals { hidden, last }, config, rank, &device)?;
        let point = |radius: f32| {
            let angle = 4.0 * radius + spiral as f32 * std::f32::consts::PI;
            [radius * angle.cos(), radius * angle.sin()]
        };
        let points: Vec<f32> = (10..90).flat_map(|i| point(i as f32 / 30.0)).collect();
        let points = Tensor::<1>::from_floats(points.as_slice(), &training.device());
        let labels = Tensor::full([80], spiral, &training.device());
        let batch = (points.reshape([80, 2]), labels);
        let mut loss = f64::NAN;
        for _ in 0..300 {
            loss = training.step(3e-3, [batch.clone()])?.loss;
        }
        Ok(loss)
    })?;
    println!("cross entropy of both spirals: {:.4}", losses[0]);
    assert!(losses[0] < 0.05, "a guess has 0.69");
    Ok(())
}
