//! The memory that a mapping takes, counted before it starts, and the window and ranks that fit a limit.

use terrashard_data::Mosaic;
use terrashard_models::{ModelConfig, SUPERRES_CHANNELS};
use terrashard_raster::{Metadata, RasterSpec, Window};

use crate::config::Device;
use crate::error::{Error, Result};
use crate::mapping::Layers;

/// The program itself and its threads.
const PROGRAM_BYTES: u64 = 40 << 20;

/// The share of all that is counted that the allocator holds beside it: a whole Sentinel-2 tile took 27 % more than was counted.
const ALLOCATOR_SHARE: (u64, u64) = (3, 10);

/// The reader keeps at most this many decoded tiles or strips.
const DECODED_BLOCKS: u64 = 257;

/// Decoded tiles that are kept at least where there is room, and at most unless two rows of them take more.
const CACHE_BYTES: u64 = 256 << 20;

/// What a sink notes of a row of a tile that is not complete.
const NOTED_BYTES: usize = 96;

/// Sides of windows are multiples of this: models pad to it.
const WINDOW_STEP: usize = 32;

/// What is to be mapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The network.
    pub(crate) model: &'a ModelConfig,
    /// What is mapped of it.
    pub(crate) layers: Layers,
    /// Side of the windows that the model is meant to be used with, in pixels of the image.
    pub(crate) tile: usize,
    /// Pixels of the image that windows share.
    pub(crate) overlap: usize,
    /// Most ranks.
    pub(crate) ranks: usize,
    /// Where the network computes.
    pub(crate) device: Device,
    /// Bytes of the weights in this process's memory.
    pub(crate) parameters: u64,
    /// Bytes to stay below.
    pub(crate) memory: Option<u64>,
}

/// How a mapping stays within its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Side of the windows.
    pub(crate) tile: usize,
    /// Ranks at once.
    pub(crate) ranks: usize,
    /// Decoded tiles and strips of the image that are kept.
    pub(crate) cache_bytes: u64,
    /// All that is counted.
    pub(crate) bytes: u64,
}

/// What the receiver of blocks takes, by (width, height) of the largest block in pixels of the image.
pub(crate) type OutputBytes<'a> = &'a dyn Fn((usize, usize)) -> u64;

impl Request<'_> {
    /// Chooses window, ranks and cache for a region of an image, or says what is missing.
    ///
    /// The window does not depend on the number of ranks, since a map depends on it.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] naming `--memory` with what is needed.
    pub(crate) fn fit(
        &self,
        image: &Metadata,
        region: Window,
        outputs: OutputBytes<'_>,
    ) -> Result<Fit> {
        let reading = |tile: usize| Reading::new(image, tile.min(region.height));
        let Some(memory) = self.memory else {
            let cache = reading(self.tile).comfortable.max(CACHE_BYTES);
            let bytes = self.bytes(self.tile, self.ranks, cache, region, outputs)?;
            return Ok(Fit {
                tile: self.tile,
                ranks: self.ranks,
                cache_bytes: cache,
                bytes,
            });
        };
        let mut least = u64::MAX;
        for tile in self.tiles() {
            let needed = self.bytes(tile, 1, reading(tile).least, region, outputs)?;
            least = least.min(needed);
            if needed > memory {
                continue;
            }
            let mut ranks = 1;
            while ranks < self.ranks
                && self.bytes(tile, ranks + 1, reading(tile).least, region, outputs)? <= memory
            {
                ranks += 1;
            }
            // What is left keeps decoded tiles, half of it at most: the rest is room for what an estimate does not see.
            let rest = memory - self.bytes(tile, ranks, 0, region, outputs)?;
            let Reading { least, comfortable } = reading(tile);
            let most = comfortable.max(CACHE_BYTES);
            let cache_bytes = (rest / 2).min(most).max(least).min(rest);
            let bytes = self.bytes(tile, ranks, cache_bytes, region, outputs)?;
            return Ok(Fit {
                tile,
                ranks,
                cache_bytes,
                bytes,
            });
        }
        Err(Error::invalid(
            "--memory",
            format!("{memory} bytes"),
            format!(
                "at least {least} bytes for {} x {} pixels with this model",
                region.width, region.height
            ),
        ))
    }

    /// The model's window and smaller ones, which take less but have less to see.
    fn tiles(&self) -> impl Iterator<Item = usize> {
        let smaller = (1..self.tile.div_ceil(WINDOW_STEP)).rev();
        let least = 2 * self.overlap;
        let smaller = smaller
            .map(|steps| steps * WINDOW_STEP)
            .filter(move |tile| *tile >= least);
        [self.tile].into_iter().chain(smaller)
    }

    /// All bytes, of the process at its peak.
    fn bytes(
        &self,
        tile: usize,
        ranks: usize,
        cache: u64,
        region: Window,
        outputs: OutputBytes<'_>,
    ) -> Result<u64> {
        let scale = self.model.scale;
        let mosaic = Mosaic::new(region.width, region.height, tile, self.overlap, scale)?;
        let mosaic = mosaic.with_channels(self.layers.channels(self.model.classes));
        let sides = (tile.min(region.width), tile.min(region.height));
        let window = self.window_bytes(sides);
        let counted = PROGRAM_BYTES
            + self.parameters
            + ranks as u64 * window
            + cache
            + mosaic.bytes()
            + outputs(mosaic.largest_block());
        let (share, of) = ALLOCATOR_SHARE;
        Ok(counted + counted / of * share)
    }

    /// What one rank takes for a window: its input, the widest place of the network, and the maps that wait to be blended.
    fn window_bytes(&self, (width, height): (usize, usize)) -> u64 {
        let padded = |side: usize| side.next_multiple_of(WINDOW_STEP) as u64;
        let pixels = padded(width) * padded(height);
        let fine = (self.model.scale * self.model.scale) as u64;
        let outputs = self.layers.channels(self.model.classes) as u64;
        // The input as it is decoded, scaled and held by the network.
        let input = 4 * 4 * self.model.bands as u64;
        // Maps of the branches, of the softmax, as numbers, waiting and being blended.
        let branches = match self.model.superres {
            true => self.model.classes + SUPERRES_CHANNELS,
            false => self.model.classes,
        };
        let maps = 4 * fine * (3 * branches as u64 + 3 * outputs);
        let network = match self.device {
            Device::Cuda => 0,
            Device::Cpu | Device::CpuLibTorch => self.network_bytes_per_pixel(),
        };
        pixels * (input + maps + network)
    }

    /// The widest place of the network, by pixel of its input.
    fn network_bytes_per_pixel(&self) -> u64 {
        let model = self.model;
        let mut kept = 0;
        let mut widest = 0;
        let (mut stride, mut inputs) = (1, model.bands);
        for stage in 0..4 {
            stride *= model.stride[stage];
            let dim = model.dims[stage];
            // Patches as columns, tokens through the feed-forward part, one head's scores against the reduced keys.
            let embed = model.patch[stage].pow(2) * inputs + 2 * dim;
            let feed_forward = (3 + 3 * model.mlp_ratio) * dim;
            let attention = 8 * dim;
            let here = embed.max(feed_forward).max(attention);
            let tokens = (stride * stride) as u64;
            widest = widest.max(kept + (4 * here as u64).div_ceil(tokens));
            kept += (4 * dim as u64).div_ceil(tokens);
            inputs = dim;
        }
        // Four levels enlarged to a quarter of the input, and their sum; then the branches at the input's size.
        let head = kept + (4 * 6 * model.head_channels as u64).div_ceil(16);
        let branch = kept + 4 * (3 * 8 + model.head_outputs as u64 / 4);
        widest.max(head).max(branch)
    }
}

/// What reading an image takes.
struct Reading {
    /// Without a tile or strip kept beyond the window that needs it.
    least: u64,
    /// With two rows of them kept, so that none is decoded again for the next row of windows.
    comfortable: u64,
}

impl Reading {
    fn new(image: &Metadata, rows: usize) -> Self {
        let (width, height) = image.block;
        let (width, height) = (width.clamp(1, image.width), height.clamp(1, image.height));
        let block = (width * height * image.bands * image.data_type.bytes()) as u64;
        let across = image.width.div_ceil(width) as u64;
        let down = (rows.div_ceil(height) + 1).min(image.height.div_ceil(height)) as u64;
        Self {
            least: 2 * block,
            comfortable: block * (across * down).min(DECODED_BLOCKS),
        }
    }
}

/// What a sink of this raster keeps while blocks of `rows` of its rows come.
pub(crate) fn sink_bytes(spec: &RasterSpec, rows: usize) -> u64 {
    let side = spec.tile;
    let pixel = spec.bands * spec.data_type.bytes();
    // What is noted of each row of a tile that is not complete.
    let tile = side * (side * pixel + NOTED_BYTES);
    // One row of tiles that blocks end in and its column beside the block at hand; as much again for all overviews, each half as wide.
    let incomplete = 2 * (spec.width.div_ceil(side) + rows.div_ceil(side) + 1);
    // Sixteen tiles at once, each taken apart, as bytes and encoded.
    (incomplete * tile + 48 * side * side * pixel) as u64
}
