//! Training in `bf16` on LibTorch follows training in `f32`.

use std::sync::Arc;

use burn::tensor::{DType, Tensor, TensorData};
use terrashard_collectives::local;
use terrashard_layout::ElementType;
use terrashard_models::{Labels, Loss, ModelConfig, Normalizers, Targets};
use terrashard_tests::backend::Backend;
use terrashard_tests::hash;
use terrashard_tests::training::{Sharded, precision};
use terrashard_zero::{Initial, ZeroConfig, ZeroOptimizer};

const STEPS: usize = 200;
const SIZE: usize = 32;
const LARGE: usize = 5 * SIZE;
/// Samples of a batch, and how many batches come one after the other.
const SAMPLES: usize = 2;
const BATCHES: usize = 4;

/// The loss of each step.
fn losses(dtype: ElementType) -> Vec<f64> {
    let config = ModelConfig {
        dims: [16, 32, 40, 64],
        heads: [1, 2, 5, 8],
        depths: [1; 4],
        head_channels: 32,
        ..ModelConfig::b0()
    };
    let results = local::run(1, |communicator| {
        let device = Backend::Tch.device();
        let model = config.init(&device).map_err(|error| error.to_string())?;
        let zero = ZeroConfig {
            precision: precision(dtype),
            ..ZeroConfig::default()
        };
        let initial = Initial::Keyed(&hash::initial);
        let optimizer = ZeroOptimizer::new(&model, zero, initial, Arc::new(communicator), &device);
        let mut optimizer = optimizer.map_err(|error| error.to_string())?;
        let graph = device.clone().autodiff();
        let compute = match dtype {
            ElementType::Bf16 => DType::BF16,
            _ => DType::F32,
        };
        let mut losses = Vec::new();
        for step in 0..STEPS {
            let first = step % BATCHES * SAMPLES;
            let batch = hash::batch(SIZE, first..first + SAMPLES);
            // Labels that can be learned: where the first band is bright.
            let mask = mask(&batch.image);
            let image = TensorData::new(batch.image, [SAMPLES, 6, SIZE, SIZE]);
            let large = TensorData::new(batch.hres, [SAMPLES, 4, LARGE, LARGE]);
            let targets = Targets {
                labels: Labels::new(mask, [SAMPLES, LARGE, LARGE], &graph),
                superres: Some(Tensor::from_data(large, (&device, DType::F32)).into()),
            };
            let scope = Sharded::new(&optimizer);
            let maps = model.forward(Tensor::from_data(image, (&graph, compute)), &scope);
            assert_eq!(maps.features[3].dtype(), compute);
            let terms = Loss::Focal.of(&maps, &targets, &Normalizers::of(&targets), &scope);
            losses.push(terms.total.clone().into_scalar::<f64>());
            let backward = optimizer.backward(terms.total);
            backward.map_err(|error| error.to_string())?;
            // As a schedule begins, since AdamW's first steps are as large as any whatever the gradient.
            let lr = 5e-4 * (step + 1).min(20) as f64 / 20.0;
            let step = optimizer.step(lr, &[]);
            step.map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(losses)
    });
    results.expect("one rank trains").remove(0)
}

/// One where the first band's mean over eight pixels squared is above nought.
fn mask(image: &[f32]) -> Vec<u8> {
    const AROUND: usize = 8;
    let bright = |sample: usize, row: usize, column: usize| {
        let rows = row / AROUND * AROUND..(row / AROUND + 1) * AROUND;
        let pixels = rows.flat_map(|row| {
            let start = sample * 6 * SIZE * SIZE + row * SIZE + column / AROUND * AROUND;
            &image[start..start + AROUND]
        });
        u8::from(pixels.sum::<f32>() > 0.0)
    };
    let pixel = |index: usize| {
        let (sample, place) = (index / (LARGE * LARGE), index % (LARGE * LARGE));
        bright(sample, place / LARGE / 5, place % LARGE / 5)
    };
    (0..SAMPLES * LARGE * LARGE).map(pixel).collect()
}

#[test]
fn losses_in_bf16_are_those_in_f32() {
    let (narrow, wide) = (losses(ElementType::Bf16), losses(ElementType::F32));
    assert!(wide[STEPS - 1] < 0.5 * wide[0], "{wide:?}");
    assert_ne!(narrow, wide);
    // Once over all batches.
    let means = |losses: &[f64]| -> Vec<f64> {
        let windows = losses.chunks(BATCHES);
        windows
            .map(|window| window.iter().sum::<f64>() / window.len() as f64)
            .collect()
    };
    let (narrow, wide) = (means(&narrow), means(&wide));
    let ratio = narrow.iter().sum::<f64>() / wide.iter().sum::<f64>();
    assert!((ratio - 1.0).abs() < 0.02, "the curve lies at {ratio}");
    for (index, (narrow, wide)) in narrow.into_iter().zip(wide).enumerate() {
        // Two trainings of so small a net part by several percent in between, and meet again.
        let off = (narrow / wide - 1.0).abs();
        assert!(
            off < 0.12,
            "around step {}: {narrow} not {wide}",
            index * BATCHES
        );
    }
}
