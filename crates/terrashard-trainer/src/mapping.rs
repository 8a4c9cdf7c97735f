//! A model over a part of a scene, window by window: windows spread over threads, results blended in order.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Device, Tensor, TensorData};
use terrashard_data::{Mosaic, Rows, Scene};
use terrashard_models::{Plain, S2s2Net};
use terrashard_raster::Window;

use crate::error::{Error, Result};

/// Stack of a thread that runs a model: what the main thread has on Linux.
const STACK_BYTES: usize = 8 << 20;

/// How a model is laid over a scene.
#[derive(Debug)]
pub struct Mapping<'a> {
    /// The network with its weights.
    pub network: &'a S2s2Net,
    /// Where it runs.
    pub device: &'a Device,
    /// Channels of its segmentation.
    pub classes: usize,
    /// Threads; each takes every `ranks`-th window.
    pub ranks: usize,
    /// Height and width of a window in pixels of the image.
    pub tile: usize,
    /// Pixels of the image that neighbouring windows share.
    pub overlap: usize,
}

/// What a window gives: probabilities `[classes, scale h, scale w]`, and which pixels of the image have data, `[h, w]`.
type Predicted = (Vec<f32>, Vec<bool>);

/// What [`Mapping::run`] tells while it works.
pub trait Receive {
    /// Final rows, from the top down; they count from the top of the region.
    ///
    /// # Errors
    /// What the receiver finds; the work then ends.
    fn rows(&mut self, rows: Rows) -> Result<()>;

    /// One more of `windows` windows is done.
    fn window(&mut self, done: usize, windows: usize);
}

impl Mapping<'_> {
    /// Maps `region` of a scene. The result does not depend on the number of ranks.
    ///
    /// # Errors
    /// [`Error::Data`], [`Error::Spawn`], [`Error::Panicked`], and what the receiver returns.
    pub fn run(&self, scene: &Scene, region: Window, to: &mut dyn Receive) -> Result<()> {
        let mosaic = Mosaic::new(
            region.width,
            region.height,
            self.tile,
            self.overlap,
            scene.scale(),
        )?;
        let mut mosaic = mosaic.with_channels(self.classes);
        let windows = mosaic.windows();
        let ranks = self.ranks.clamp(1, windows.len());
        thread::scope(|scope| {
            let mut receivers: Vec<Receiver<Result<Predicted>>> = Vec::with_capacity(ranks);
            let mut threads = Vec::with_capacity(ranks);
            for rank in 0..ranks {
                // One result may wait while the next is computed.
                let (sender, receiver) = sync_channel(1);
                let own = windows.iter().skip(rank).step_by(ranks);
                let network = self.network.clone();
                let work = move || self.predict_all(&network, scene, region, own, &sender);
                let who = format!("rank {rank}");
                let builder = thread::Builder::new()
                    .name(who.clone())
                    .stack_size(STACK_BYTES);
                threads.push(
                    builder
                        .spawn_scoped(scope, work)
                        .map_err(|source| Error::Spawn { who, source })?,
                );
                receivers.push(receiver);
            }
            let blended = (|| {
                for (index, window) in windows.iter().enumerate() {
                    let gone = |_| Error::Panicked {
                        who: format!("rank {}", index % ranks),
                        message: "its message stands above".into(),
                    };
                    let (values, valid) = receivers[index % ranks].recv().map_err(gone)??;
                    if let Some(rows) = mosaic.add_valid(*window, &values, &valid)? {
                        to.rows(rows)?;
                    }
                    to.window(index + 1, windows.len());
                }
                Ok(())
            })();
            // Without receivers the threads end at their next result; joining them keeps a panic from the scope.
            drop(receivers);
            for thread in threads {
                let _ = thread.join();
            }
            blended
        })
    }

    fn predict_all<'w>(
        &self,
        network: &S2s2Net,
        scene: &Scene,
        region: Window,
        windows: impl Iterator<Item = &'w Window>,
        sender: &SyncSender<Result<Predicted>>,
    ) {
        for window in windows {
            let Window {
                col,
                row,
                width,
                height,
            } = *window;
            let predicted = self.predict(
                network,
                scene,
                Window::new(region.col + col, region.row + row, width, height),
            );
            let failed = predicted.is_err();
            if sender.send(predicted).is_err() || failed {
                return;
            }
        }
    }

    fn predict(&self, network: &S2s2Net, scene: &Scene, window: Window) -> Result<Predicted> {
        let patch = scene.patch(window)?;
        if !patch.valid.contains(&true) {
            let values = vec![0.0; self.classes * window.scaled(scene.scale()).pixels()];
            return Ok((values, patch.valid));
        }
        let shape = [1, scene.bands(), window.height, window.width];
        let image = Tensor::<4>::from_data(TensorData::new(patch.values, shape), self.device);
        let logits = network.forward(image, &Plain::inference()).segmentation;
        let probabilities = match self.classes {
            1 => sigmoid(logits),
            _ => softmax(logits, 1),
        };
        let values = probabilities
            .into_data()
            .try_to_vec::<f32>()
            .expect("the model computes in f32");
        Ok((values, patch.valid))
    }
}
