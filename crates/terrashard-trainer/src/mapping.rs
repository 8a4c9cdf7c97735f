//! A model over a part of a scene, window by window: windows spread over threads, results blended in order.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Device, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_data::{Mosaic, Patch, Rows, Scene};
use terrashard_models::{Plain, S2s2Net, SUPERRES_CHANNELS, Scope};
use terrashard_raster::Window;

use crate::error::{Error, Result};
use crate::sharding::{RankShards, Sharding, Weights};
use crate::training::run_ranks;

/// Stack of a thread that runs a model: what the main thread has on Linux.
const STACK_BYTES: usize = 8 << 20;

/// How a model is laid over a scene.
#[derive(Debug)]
pub struct Mapping<'a> {
    /// The network and where its weights are.
    pub weights: &'a Weights<'a>,
    /// Where it runs.
    pub device: &'a Device,
    /// Channels of its segmentation.
    pub classes: usize,
    /// Whether the super-resolved image is mapped too.
    pub layers: Layers,
    /// Threads; each takes every `ranks`-th window.
    pub ranks: usize,
    /// Height and width of a window in pixels of the image.
    pub tile: usize,
    /// Pixels of the image that neighbouring windows share.
    pub overlap: usize,
}

/// What is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// The probabilities of the classes.
    Classes,
    /// These, and behind them the channels of the super-resolved image, which the model has a branch for.
    ClassesAndImage,
}

/// What a window gives: `[channels, scale h, scale w]`, probabilities and perhaps the image, and which pixels of the image have data, `[h, w]`.
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
    /// Maps `region` of a scene. The result does not depend on the number of ranks, nor on where the weights are.
    ///
    /// # Errors
    /// [`Error::Data`] where a window cannot be read, [`Error::Panicked`], [`Error::Spawn`], what `to` returns, and with sharded
    /// weights [`Error::Rank`].
    pub fn run(&self, scene: &Scene, region: Window, to: &mut dyn Receive) -> Result<()> {
        let mosaic = Mosaic::new(
            region.width,
            region.height,
            self.tile,
            self.overlap,
            scene.scale(),
        )?;
        let mosaic = mosaic.with_channels(self.channels());
        let windows = mosaic.windows();
        let ranks = self.ranks.clamp(1, windows.len());
        let work = Work {
            mapping: self,
            scene,
            region,
            windows: &windows,
            ranks,
        };
        match self.weights {
            Weights::Whole(network) => work.whole(network, mosaic, to),
            Weights::Sharded(sharding) => work.sharded(sharding, mosaic, to),
        }
    }

    fn channels(&self) -> usize {
        match self.layers {
            Layers::Classes => self.classes,
            Layers::ClassesAndImage => self.classes + SUPERRES_CHANNELS,
        }
    }

    fn predict(
        &self,
        network: &S2s2Net,
        scope: &impl Scope,
        patch: Patch,
        shape: [usize; 4],
    ) -> Vec<f32> {
        let image = Tensor::<4>::from_data(TensorData::new(patch.values, shape), self.device);
        let maps = network.forward(image, scope);
        let logits = maps.segmentation.pixels();
        let probabilities = match self.classes {
            1 => sigmoid(logits),
            _ => softmax(logits, 1),
        };
        let numbers = |map: Tensor<4>| {
            let data = map.into_data();
            data.try_to_vec::<f32>().expect("the model computes in f32")
        };
        let mut values = numbers(probabilities);
        if self.layers == Layers::ClassesAndImage {
            let image = maps.superres.expect("a model with the branch");
            values.extend(numbers(image.pixels()));
        }
        values
    }
}

/// The windows of one region, spread over ranks.
struct Work<'a> {
    mapping: &'a Mapping<'a>,
    scene: &'a Scene,
    region: Window,
    windows: &'a [Window],
    ranks: usize,
}

impl Work<'_> {
    /// Threads that share one copy of the weights.
    fn whole(&self, network: &S2s2Net, mosaic: Mosaic, to: &mut dyn Receive) -> Result<()> {
        thread::scope(|scope| {
            let mut receivers: Vec<Receiver<Result<Predicted>>> = Vec::with_capacity(self.ranks);
            let mut threads = Vec::with_capacity(self.ranks);
            for rank in 0..self.ranks {
                // One result may wait while the next is computed.
                let (sender, receiver) = sync_channel(1);
                let network = network.clone();
                let work = move || self.predict_whole(&network, rank, &sender);
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
            let blended = self.blend(mosaic, &receivers, to);
            // Without receivers the threads end at their next result; joining them keeps a panic from the scope.
            drop(receivers);
            for thread in threads {
                let _ = thread.join();
            }
            blended
        })
    }

    /// Ranks that hold a shard of the weights each and gather block by block, so that all run equally many windows.
    fn sharded(&self, sharding: &Sharding<'_>, mosaic: Mosaic, to: &mut dyn Receive) -> Result<()> {
        let channels = (0..self.ranks).map(|_| sync_channel(1));
        let (senders, receivers): (Vec<SyncSender<_>>, Vec<_>) = channels.unzip();
        thread::scope(|scope| {
            let ranks = scope.spawn(move || {
                run_ranks(self.ranks, |communicator| {
                    let rank = communicator.rank();
                    let own = sharding.rank(Arc::new(communicator), self.mapping.device)?;
                    let done = self.predict_sharded(&own, rank, &senders[rank]);
                    sharding.count(&own);
                    done
                })
            });
            let blended = self.blend(mosaic, &receivers, to);
            drop(receivers);
            match ranks.join() {
                // A rank's own error says more than that its result did not come.
                Ok(Err(error)) if matches!(blended, Err(Error::Panicked { .. })) => Err(error),
                _ => blended,
            }
        })
    }

    /// Takes results in the order of windows and lets the receiver have the rows that are final.
    fn blend(
        &self,
        mut mosaic: Mosaic,
        receivers: &[Receiver<Result<Predicted>>],
        to: &mut dyn Receive,
    ) -> Result<()> {
        for (index, window) in self.windows.iter().enumerate() {
            let gone = |_| Error::Panicked {
                who: format!("rank {}", index % self.ranks),
                message: "its message stands above".into(),
            };
            let (values, valid) = receivers[index % self.ranks].recv().map_err(gone)??;
            if let Some(rows) = mosaic.add_valid(*window, &values, &valid)? {
                to.rows(rows)?;
            }
            to.window(index + 1, self.windows.len());
        }
        Ok(())
    }

    fn predict_whole(
        &self,
        network: &S2s2Net,
        rank: usize,
        sender: &SyncSender<Result<Predicted>>,
    ) {
        for window in self.windows.iter().skip(rank).step_by(self.ranks) {
            let predicted = self.patch(window).map(|(patch, shape)| {
                let valid = patch.valid.clone();
                if !valid.contains(&true) {
                    return (self.nothing(window), valid);
                }
                let scope = Plain::inference();
                (self.mapping.predict(network, &scope, patch, shape), valid)
            });
            let failed = predicted.is_err();
            if sender.send(predicted).is_err() || failed {
                return;
            }
        }
    }

    fn predict_sharded(
        &self,
        own: &RankShards,
        rank: usize,
        sender: &SyncSender<Result<Predicted>>,
    ) -> Result<()> {
        let scope = own.scope();
        for round in 0..self.windows.len().div_ceil(self.ranks) {
            let window = self.windows.get(round * self.ranks + rank);
            let read = window.map(|window| self.patch(window)).transpose()?;
            let predicted = match read {
                Some((patch, shape)) if patch.valid.contains(&true) => {
                    let valid = patch.valid.clone();
                    Some((
                        self.mapping.predict(&own.network, &scope, patch, shape),
                        valid,
                    ))
                }
                // The other ranks gather, so this one runs the smallest image that there is.
                other => {
                    let image =
                        Tensor::<4>::zeros([1, self.scene.bands(), 1, 1], self.mapping.device);
                    drop(own.network.forward(image, &scope));
                    other
                        .zip(window)
                        .map(|((patch, _), window)| (self.nothing(window), patch.valid))
                }
            };
            own.parameters.check()?;
            // Nobody listens any more after a failure there.
            if predicted.is_some_and(|predicted| sender.send(Ok(predicted)).is_err()) {
                break;
            }
        }
        Ok(())
    }

    /// A window's input with its shape.
    fn patch(&self, window: &Window) -> Result<(Patch, [usize; 4])> {
        let Window {
            col,
            row,
            width,
            height,
        } = *window;
        let region = self.region;
        let window = Window::new(region.col + col, region.row + row, width, height);
        Ok((
            self.scene.patch(window)?,
            [1, self.scene.bands(), height, width],
        ))
    }

    /// The map of a window without data.
    fn nothing(&self, window: &Window) -> Vec<f32> {
        vec![0.0; self.mapping.channels() * window.scaled(self.scene.scale()).pixels()]
    }
}
