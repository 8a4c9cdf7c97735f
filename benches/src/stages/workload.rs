//! Models and batches that are the peers', bit by bit.

use burn::tensor::{DType, Device, Tensor, TensorData};
use rayon::prelude::*;
use terrashard_models::{Labels, ModelConfig, Targets};
use terrashard_tests::hash;

use super::job::Error;

/// A model with the input that it is measured at.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The model.
    pub config: ModelConfig,
    /// Input height and width in pixels.
    pub px: usize,
    /// Samples of a rank's batch.
    pub batch: usize,
}

/// The model with this name: `tiny`, `b0` to `b5`, `xl` of a billion parameters, `xl-N` with N blocks in its third
/// stage in place of 48.
///
/// # Errors
/// [`Error::Model`].
pub fn model(name: &str) -> Result<Workload, Error> {
    let unknown = || Error::Model { name: name.into() };
    let workload = |config, px, batch| Workload { config, px, batch };
    Ok(match name {
        "tiny" => {
            let config = ModelConfig {
                dims: [8, 16, 20, 32],
                depths: [1; 4],
                heads: [1, 2, 5, 8],
                head_channels: 32,
                ..ModelConfig::b0()
            };
            workload(config, 64, 2)
        }
        "xl" => workload(xl(48), 256, 48),
        name if name.starts_with("xl-") => {
            let blocks = name["xl-".len()..].parse().ok();
            let blocks = blocks.filter(|blocks| (1..=1000).contains(blocks));
            workload(xl(blocks.ok_or_else(unknown)?), 256, 1)
        }
        name => {
            let config = ModelConfig::preset(name).map_err(|_| unknown())?;
            workload(config, 512, if name == "b5" { 24 } else { 8 })
        }
    })
}

/// `xl` with so many blocks in its third stage, 48 in that of a billion parameters.
fn xl(blocks: usize) -> ModelConfig {
    ModelConfig {
        dims: [128, 256, 1024, 1536],
        depths: [3, 6, blocks, 6],
        heads: [2, 4, 16, 24],
        ..ModelConfig::b0()
    }
}

/// The initial value of a parameter, by its name.
pub(super) fn initial(name: &str, shape: &[usize]) -> Vec<f32> {
    hash::initial(name, shape)
}

/// Image and targets of the samples with these global indices: the image in the type of the computation on the autodiff
/// device, targets as bytes and in 32 bits on the plain one.
pub(super) fn batch(
    config: &ModelConfig,
    px: usize,
    samples: std::ops::Range<usize>,
    element: DType,
    device: &Device,
) -> (Tensor<4>, Targets) {
    let n = samples.len();
    let large = px * config.scale;
    let made: Vec<hash::Batch> = samples
        .into_par_iter()
        .map(|index| hash::batch(px, [index]))
        .collect();
    let joined = |part: fn(&hash::Batch) -> &[f32]| -> Vec<f32> {
        made.iter().flat_map(part).copied().collect()
    };
    let tensor = |values: Vec<f32>, shape: [usize; 4], device: &Device, element: DType| {
        Tensor::<4>::from_data(TensorData::new(values, shape), (device, element))
    };
    let (autodiff, plain) = (device.clone().autodiff(), device.clone());
    let image = joined(|batch| &batch.image);
    let image = tensor(image, [n, config.bands, px, px], &autodiff, element);
    let mask = made.iter().flat_map(|batch| &batch.mask).copied().collect();
    let hres = joined(|batch| &batch.hres);
    let targets = Targets {
        labels: Labels::new(mask, [n, large, large], &plain),
        superres: Some(tensor(hres, [n, 4, large, large], &plain, DType::F32).into()),
    };
    (image, targets)
}
