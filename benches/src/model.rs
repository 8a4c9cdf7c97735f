//! `bench model`: forward and backward of one model on one device, without an optimizer.

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use terrashard_models::{Labels, Loss, ModelConfig, Normalizers, Plain, Targets};

use crate::memory;

/// What to measure.
#[derive(Clone, Debug)]
pub struct ModelBench {
    /// The model's name in the record.
    pub name: String,
    /// The model.
    pub config: ModelConfig,
    /// Input height and width in pixels.
    pub px: usize,
    /// Samples in a batch.
    pub batch: usize,
    /// Measured repetitions, after a fifth as many that are not.
    pub repetitions: usize,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRow {
    /// Who ran.
    pub who: String,
    /// Which benchmark.
    pub bench: String,
    /// What computed.
    pub backend: String,
    /// The model's name.
    pub model: String,
    /// Input height and width in pixels.
    pub px: usize,
    /// Samples in a batch.
    pub batch: usize,
    /// Threads that the machine offers.
    pub threads: usize,
    /// Median of forward and backward together, milliseconds.
    pub ms: f64,
    /// Smallest and largest of the repetitions, milliseconds.
    pub spread_ms: [f64; 2],
    /// Median of forward alone, with the loss, milliseconds.
    pub forward_ms: f64,
    /// Repetitions.
    pub repetitions: usize,
    /// Growth of the process's largest resident size over the whole measurement, bytes.
    pub peak_bytes: Option<u64>,
    /// The loss, so that equal work can be compared.
    pub loss: f64,
}

/// Values between 0 and 1 that depend on their index alone.
fn pattern(len: usize, seed: u32) -> Vec<f32> {
    let mix = |i: u32| {
        let mut x = i ^ seed.wrapping_mul(0x9e37_79b9);
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        ((x ^ (x >> 16)) >> 8) as f32 * 2f32.powi(-24)
    };
    (0..len as u32).map(mix).collect()
}

/// Runs the benchmark on burn's CPU backend.
///
/// # Errors
/// Those of [`ModelConfig::init`].
pub fn run(bench: &ModelBench) -> Result<ModelRow, terrashard_models::Error> {
    let before = memory::resident();
    let plain = Device::flex();
    let device = plain.clone().autodiff();
    let model = bench.config.init(&device)?.initialize(0);
    let (n, px, large) = (bench.batch, bench.px, bench.px * bench.config.scale);
    let data = |shape: [usize; 4], seed, device: &Device| {
        let values = pattern(shape.iter().product(), seed);
        Tensor::<4>::from_data(TensorData::new(values, shape), device)
    };
    let mask = pattern(n * large * large, 2)
        .iter()
        .map(|u| u8::from(*u < 0.25))
        .collect();
    let image = data([n, bench.config.bands, px, px], 1, &device);
    let targets = Targets {
        labels: Labels::new(mask, [n, large, large], &device),
        superres: bench
            .config
            .superres
            .then(|| data([n, 4, large, large], 3, &plain)),
    };
    let normalizers = Normalizers::of(&targets);
    let (mut whole, mut forward) = (Vec::new(), Vec::new());
    let mut loss = f64::NAN;
    let warm_up = bench.repetitions.div_ceil(5);
    for repetition in 0..warm_up + bench.repetitions {
        let start = Instant::now();
        let maps = model.forward(image.clone(), &Plain::training());
        let losses = Loss::Focal.of(&maps, &targets, &normalizers, &Plain::training());
        drop(maps);
        loss = losses.total.clone().into_scalar::<f64>();
        let middle = start.elapsed();
        let gradients = losses.total.backward();
        let end = start.elapsed();
        drop(gradients);
        if repetition >= warm_up {
            forward.push(middle.as_secs_f64() * 1e3);
            whole.push(end.as_secs_f64() * 1e3);
        }
    }
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    let (whole, forward) = (sorted(whole), sorted(forward));
    Ok(ModelRow {
        who: "terrashard".into(),
        bench: "model".into(),
        backend: "flex".into(),
        model: bench.name.clone(),
        px,
        batch: n,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        ms: whole[whole.len() / 2],
        spread_ms: [whole[0], whole[whole.len() - 1]],
        forward_ms: forward[forward.len() / 2],
        repetitions: bench.repetitions,
        peak_bytes: memory::peak_resident()
            .zip(before)
            .map(|(peak, before)| peak.saturating_sub(before)),
        loss,
    })
}
