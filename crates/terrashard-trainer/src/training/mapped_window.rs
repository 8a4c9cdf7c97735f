//! A window that a model maps by itself while it is trained, beside what it should be.

use std::sync::Arc;

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_data::{Block, Scene};
use terrashard_models::{S2s2Net, Scope};
use terrashard_raster::{Samples, Window};

use crate::error::Result;
use crate::trained_model::THRESHOLD;

/// A window of a scene, and the pixels of it that are looked at.
#[derive(Debug, Clone)]
pub(super) struct MappedWindow {
    pub(super) scene: Arc<Scene>,
    /// In pixels of the image.
    pub(super) window: Window,
    /// Within it.
    pub(super) counted: Window,
}

/// Classes of the pixels that are looked at, on the fine grid.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) predicted: Vec<u8>,
    pub(super) labels: Vec<u8>,
}

impl MappedWindow {
    /// Maps the window, if it has any pixel with data; else the model has not run, as it has not after an error.
    pub(super) fn map(
        &self,
        model: &S2s2Net,
        scope: &impl Scope,
        on: (&Device, DType),
    ) -> Result<Option<Mapped>> {
        let Self {
            scene,
            window,
            counted,
        } = self;
        let patch = scene.patch(*window)?;
        if !patch.valid.contains(&true) {
            return Ok(None);
        }
        // Before the model runs: after an error it has not.
        let labels = scene.labels(*counted)?;
        let shape = [1, scene.bands(), window.height, window.width];
        let image = Tensor::<4>::from_data(TensorData::new(patch.values, shape), on);
        let logits = model.forward(image, scope).segmentation.pixels();
        let [_, channels, ..] = logits.dims();
        // In the type of the computation, as `test` does.
        let probabilities = match channels {
            1 => sigmoid(logits),
            _ => softmax(logits, 1),
        };
        let block = Block {
            image: *window,
            scale: scene.scale(),
            channels,
            values: probabilities
                .cast(DType::F32)
                .into_data()
                .iter::<f32>()
                .collect(),
            valid: patch.valid,
        };
        let Samples::U8(classes) = block.classes(THRESHOLD as f32)?.into_samples() else {
            unreachable!("classes are bytes")
        };
        let (fine, part) = (window.scaled(scene.scale()), counted.scaled(scene.scale()));
        let mut predicted = Vec::with_capacity(labels.len());
        for row in part.row - fine.row..part.row_end() - fine.row {
            let at = row * fine.width + part.col - fine.col;
            predicted.extend_from_slice(&classes[at..at + part.width]);
        }
        Ok(Some(Mapped { predicted, labels }))
    }
}

/// Runs the smallest image that there is: at stage 3 a rank that maps nothing has to gather with the others.
pub(super) fn accompany(
    model: &S2s2Net,
    scope: &impl Scope,
    bands: usize,
    (device, element): (&Device, DType),
) {
    let image = Tensor::<4>::zeros([1, bands, 1, 1], (device, element));
    drop(model.forward(image, scope));
}
