//! A model over a part of a scene, window by window: windows spread over threads, results blended in order.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor;
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_data::{Block, Mosaic, Patch, Scene};
use terrashard_models::{Plain, S2s2Net, SUPERRES_CHANNELS, Scope};
use terrashard_raster::Window;

use crate::error::{Error, Result};
use crate::sharding::{OnDevice, RankShards, Sharding, Weights};
use crate::training::run_ranks;

/// Stack of a thread that runs a model: what the main thread has on Linux.
const STACK_BYTES: usize = 8 << 20;

/// How a model is laid over a scene.
#[derive(Debug)]
pub struct Mapping<'a> {
    /// The network, where its weights are and where it runs.
    pub weights: &'a Weights<'a>,
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

impl Layers {
    /// Channels of a model with this many for its segmentation.
    pub(crate) fn channels(self, classes: usize) -> usize {
        match self {
            Self::Classes => classes,
            Self::ClassesAndImage => classes + SUPERRES_CHANNELS,
        }
    }
}

/// What a window gives.
struct Predicted {
    /// `[channels, scale h, scale w]`: probabilities and perhaps the image.
    values: Vec<f32>,
    /// Which pixels of the image have data, `[h, w]`.
    valid: Vec<bool>,
    /// How long the input took to be read.
    reading: Duration,
    /// Pixels of the window's block that are zero in every band of the image, where no value is declared to stand for no data.
    zeros: u64,
}

/// What [`Mapping::run`] tells while it works.
pub trait Receive {
    /// A final block, in the order of the windows; it counts from the corner of the region. Of its pixels, `zeros` are zero in
    /// every band of an image that declares no value for no data.
    ///
    /// # Errors
    /// What the receiver finds; the work then ends.
    fn block(&mut self, block: Block, zeros: u64) -> Result<()>;

    /// One more of `windows` windows is done, whose input took `reading` to be read and decoded.
    fn window(&mut self, done: usize, windows: usize, reading: Duration);
}

impl Mapping<'_> {
    /// Maps `region` of a scene. The result does not depend on the number of ranks, nor on where the weights are.
    ///
    /// # Errors
    /// [`Error::Data`] where a window cannot be read, [`Error::Panicked`], [`Error::Spawn`], what `to` returns, and with sharded
    /// weights [`Error::Rank`].
    pub fn run(&self, scene: &Scene, region: Window, to: &mut dyn Receive) -> Result<()> {
        let mosaic = self.mosaic(region, scene.scale())?;
        self.go_on(scene, region, mosaic, to)
    }

    /// How windows cover a region.
    ///
    /// # Errors
    /// [`Error::Data`] where the settings are none.
    pub fn mosaic(&self, region: Window, scale: usize) -> Result<Mosaic> {
        let Window { width, height, .. } = region;
        let mosaic = Mosaic::new(width, height, self.tile, self.overlap, scale)?;
        Ok(mosaic.with_channels(self.channels()))
    }

    /// Maps what a mosaic of the region still lacks, with the bits that [`Mapping::run`] gives there.
    ///
    /// # Errors
    /// As [`Mapping::run`].
    pub fn go_on(
        &self,
        scene: &Scene,
        region: Window,
        mosaic: Mosaic,
        to: &mut dyn Receive,
    ) -> Result<()> {
        let (windows, blocks) = (mosaic.windows(), mosaic.blocks());
        if windows.is_empty() {
            return Ok(());
        }
        let ranks = self.ranks.clamp(1, windows.len());
        let work = Work {
            mapping: self,
            scene,
            region,
            windows: &windows,
            blocks: &blocks,
            ranks,
        };
        match self.weights {
            Weights::Whole(networks) => work.whole(networks, mosaic, to),
            Weights::Sharded(sharding) => work.sharded(sharding, mosaic, to),
        }
    }

    /// Channels that are mapped.
    pub fn channels(&self) -> usize {
        self.layers.channels(self.classes)
    }

    fn predict(
        &self,
        (network, device): (&S2s2Net, &tensor::Device),
        scope: &impl Scope,
        values: Vec<f32>,
        shape: [usize; 4],
    ) -> Vec<f32> {
        let image = Tensor::<4>::from_data(TensorData::new(values, shape), device);
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
    /// For each window, the pixels that it is the last to cover.
    blocks: &'a [Window],
    ranks: usize,
}

impl Work<'_> {
    /// Threads that share the copy of the weights on their device.
    fn whole(&self, networks: &[OnDevice], mosaic: Mosaic, to: &mut dyn Receive) -> Result<()> {
        thread::scope(|scope| {
            let mut receivers: Vec<Receiver<Result<Predicted>>> = Vec::with_capacity(self.ranks);
            let mut threads = Vec::with_capacity(self.ranks);
            for rank in 0..self.ranks {
                // One result may wait while the next is computed.
                let (sender, receiver) = sync_channel(1);
                let own = networks[rank % networks.len()].clone();
                let work = move || self.predict_whole(&own, rank, &sender);
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
                    let own = sharding.rank(Arc::new(communicator))?;
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

    /// Takes results in the order of windows and lets the receiver have the blocks that are final.
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
            let Predicted {
                values,
                valid,
                reading,
                zeros,
            } = receivers[index % self.ranks].recv().map_err(gone)??;
            if let Some(block) = mosaic.add_valid(*window, &values, &valid)? {
                drop(values);
                to.block(block, zeros)?;
            }
            to.window(index + 1, self.windows.len(), reading);
        }
        Ok(())
    }

    fn predict_whole(&self, own: &OnDevice, rank: usize, sender: &SyncSender<Result<Predicted>>) {
        let on = (&own.network, &own.device);
        for index in (rank..self.windows.len()).step_by(self.ranks) {
            let predicted = self.patch(index).map(|read| {
                if !read.patch.valid.contains(&true) {
                    return self.nothing(read);
                }
                read.predicted(|patch, shape| {
                    let scope = Plain::inference();
                    self.mapping.predict(on, &scope, patch, shape)
                })
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
        let on = (&own.network, &own.device);
        for round in 0..self.windows.len().div_ceil(self.ranks) {
            let index = Some(round * self.ranks + rank).filter(|at| *at < self.windows.len());
            let predicted = match index.map(|index| self.patch(index)).transpose()? {
                Some(read) if read.patch.valid.contains(&true) => Some(
                    read.predicted(|patch, shape| self.mapping.predict(on, &scope, patch, shape)),
                ),
                // The other ranks gather, so this one runs the smallest image that there is.
                other => {
                    let image = Tensor::<4>::zeros([1, self.scene.bands(), 1, 1], &own.device);
                    drop(own.network.forward(image, &scope));
                    other.map(|read| self.nothing(read))
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

    /// The input of a window.
    fn patch(&self, index: usize) -> Result<Read> {
        let began = Instant::now();
        let (window, region) = (self.windows[index], self.region);
        let (col, row) = (region.col + window.col, region.row + window.row);
        let patch = self
            .scene
            .patch(Window::new(col, row, window.width, window.height))?;
        let zeros = match self.scene.metadata().nodata {
            Some(_) => 0,
            None => self.zeros(&patch, window, self.blocks[index]),
        };
        Ok(Read {
            window,
            bands: self.scene.bands(),
            patch,
            reading: began.elapsed(),
            zeros,
        })
    }

    /// Pixels of a block that are zero in every band, as they are before they are scaled.
    fn zeros(&self, patch: &Patch, window: Window, block: Window) -> u64 {
        let zero = |band: usize| {
            let mut value = [0.0];
            self.scene.scaling().apply(band, &mut value);
            value[0]
        };
        let zero: Vec<f32> = (0..self.scene.bands()).map(zero).collect();
        let is_zero = |at: &usize| {
            let planes = patch.values.chunks_exact(window.pixels());
            patch.valid[*at] && planes.zip(&zero).all(|(plane, zero)| plane[*at] == *zero)
        };
        let rows = block.row - window.row..block.row_end() - window.row;
        let columns = block.col - window.col..block.col_end() - window.col;
        let pixels = rows.flat_map(|row| columns.clone().map(move |col| row * window.width + col));
        pixels.filter(is_zero).count() as u64
    }

    /// The map of a window without data.
    fn nothing(&self, read: Read) -> Predicted {
        let fine = read.window.scaled(self.scene.scale());
        read.predicted(|_, _| vec![0.0; self.mapping.channels() * fine.pixels()])
    }
}

/// The input of a window.
struct Read {
    window: Window,
    bands: usize,
    patch: Patch,
    reading: Duration,
    zeros: u64,
}

impl Read {
    /// What `map` makes of it.
    fn predicted(self, map: impl FnOnce(Vec<f32>, [usize; 4]) -> Vec<f32>) -> Predicted {
        let shape = [1, self.bands, self.window.height, self.window.width];
        let Patch { values, valid } = self.patch;
        Predicted {
            values: map(values, shape),
            valid,
            reading: self.reading,
            zeros: self.zeros,
        }
    }
}
