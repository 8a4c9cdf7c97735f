//! Times forward and backward of MiT-B0 with both branches on the CPU.
//!
//! `cargo run --release -p terrashard-models --example forward_backward -- [PX] [REPEATS]`

use burn::tensor::{Device, Tensor, TensorData};
use std::time::Instant;
use terrashard_models::{Labels, Loss, ModelConfig, Normalizers, Plain, Targets};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let size: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let repeats: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;

    let device = Device::flex().autodiff();
    let model = ModelConfig::b0().init(&device)?.initialize(0);
    println!("{} parameter tensors, {size} px", model.parameters().len());

    // A checkerboard of 20 m to find in an image whose first band shows it.
    let large = 5 * size;
    let bright = |x: usize, y: usize| (x / 10 + y / 10).is_multiple_of(2);
    let image: Vec<f32> = (0..6 * size * size)
        .map(|i| {
            f32::from(u8::from(
                i < size * size && bright(i % size * 5, i / size * 5),
            ))
        })
        .collect();
    let labels = (0..large * large)
        .map(|i| u8::from(bright(i % large, i / large)))
        .collect();
    let superres = TensorData::new(vec![0.5f32; 4 * large * large], [1, 4, large, large]);
    let targets = Targets {
        labels: Labels::new(labels, [1, large, large], &device),
        superres: Some(Tensor::from_data(superres, &device).into()),
    };
    let normalizers = Normalizers::of(&targets);
    let scope = Plain::training();

    for _ in 0..repeats {
        let image = TensorData::new(image.clone(), [1, 6, size, size]);
        let start = Instant::now();
        let maps = model.forward(Tensor::from_data(image, &device), &scope);
        let losses = Loss::Focal.of(&maps, &targets, &normalizers, &scope);
        drop(maps);
        let forward = start.elapsed();
        let gradients = losses.total.backward();
        let step = start.elapsed();
        drop(gradients);
        let loss: f32 = losses.total.into_scalar();
        println!(
            "loss {loss:.4}, forward {:.1} ms, forward and backward {:.1} ms",
            forward.as_secs_f64() * 1e3,
            step.as_secs_f64() * 1e3
        );
    }
    Ok(())
}
