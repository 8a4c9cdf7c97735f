//! Learns the 3x3 kernel with which nearest-neighbour enlargement comes closest to bilinear, by plain gradient descent.
//!
//! `cargo run --release -p terrashard-ops --example smooth`

use burn::tensor::{Device, Tensor, TensorData};
use terrashard_ops::{resize_bilinear, upsample_conv2d};

const FACTOR: usize = 5;
const SMALL: usize = 32;

/// Fields with straight borders.
fn field(x: f32, y: f32) -> f32 {
    let (u, v) = (0.8 * x + 0.6 * y, 0.8 * y - 0.6 * x);
    f32::from(u8::from((u / 4.0).sin() * (v / 3.0).cos() > 0.0))
}

fn main() {
    let device = Device::flex().autodiff();
    let pixels: Vec<f32> = (0..SMALL * SMALL)
        .map(|i| field((i % SMALL) as f32, (i / SMALL) as f32))
        .collect();
    let image = Tensor::<4>::from_data(TensorData::new(pixels, [1, 1, SMALL, SMALL]), &device);
    let large = FACTOR * SMALL;
    let target = resize_bilinear(image.clone(), [large, large]);

    let kernel = TensorData::from([[[[0.0f32, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]]);
    let mut weight = Tensor::<4>::from_data(kernel, &device).require_grad();
    for step in 0..=200 {
        let enlarged = upsample_conv2d(image.clone(), weight.clone(), None, FACTOR);
        let loss = (enlarged - target.clone()).square().mean();
        let gradients = loss.backward();
        if step % 50 == 0 {
            println!(
                "step {step}: mean squared error {:.4}",
                loss.into_scalar::<f32>()
            );
        }
        let gradient = weight.grad(&gradients).expect("the weight is tracked");
        weight = (weight.inner() - gradient * 0.2).autodiff().require_grad();
    }
    let kernel: Vec<f32> = weight.into_data().iter::<f32>().collect();
    println!("kernel {kernel:.3?}");
}
