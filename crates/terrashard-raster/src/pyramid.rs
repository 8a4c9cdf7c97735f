//! A raster and its overviews, encoded tile by tile as rows of tiles fill up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};

use rayon::prelude::*;

use crate::halving::{Halving, halved_window};
use crate::stripe::Stripe;
use crate::tile_codec::{TilePlace, encode_tile};
use crate::{Overviews, Raster, RasterSpec, Samples, Window};

/// Tiles that are encoded before they are written: what bounds the memory that they take.
const TILES_AT_ONCE: usize = 16;

/// Bytes before an encoded tile: its length.
pub(crate) const LEADER: u64 = 4;
/// Bytes around an encoded tile: its length before it, its last four bytes once more behind it.
pub(crate) const FRAME: u64 = 8;

/// Encoded tiles of all levels, in a file without a name.
pub(crate) struct Pyramid {
    levels: Vec<Level>,
    halving: Halving,
    bands: usize,
    side: usize,
    scratch: File,
    written: u64,
}

/// The raster, level 0, or one of its overviews.
pub(crate) struct Level {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// For each tile, the place of its bytes in the scratch file and their number, without the frame.
    pub(crate) tiles: Vec<(u64, u64)>,
    /// Rows of tiles of which a part is there.
    open: BTreeMap<usize, Stripe>,
}

impl Level {
    fn new(width: usize, height: usize, side: usize) -> Self {
        Self {
            width,
            height,
            tiles: vec![(0, 0); width.div_ceil(side) * height.div_ceil(side)],
            open: BTreeMap::new(),
        }
    }
}

impl Pyramid {
    pub(crate) fn new(spec: &RasterSpec, scratch: File) -> Self {
        let (mut width, mut height, side) = (spec.width, spec.height, spec.tile);
        let mut levels = vec![Level::new(width, height, side)];
        while spec.overviews != Overviews::None && width.max(height) > side {
            (width, height) = (width.div_ceil(2), height.div_ceil(2));
            levels.push(Level::new(width, height, side));
        }
        Self {
            levels,
            halving: Halving {
                how: spec.overviews,
                nodata: spec.nodata,
            },
            bands: spec.bands,
            side,
            scratch,
            written: 0,
        }
    }

    /// The raster first, then its overviews, each half of the one before.
    pub(crate) fn levels(&self) -> &[Level] {
        &self.levels
    }

    pub(crate) const fn scratch(&self) -> &File {
        &self.scratch
    }

    /// Takes one complete row of tiles of the raster, in any order.
    pub(crate) fn take(&mut self, stripe: Window, samples: Samples) -> io::Result<()> {
        let mut full = vec![(0, stripe, samples)];
        while let Some((level, stripe, samples)) = full.pop() {
            self.encode(level, stripe, &samples)?;
            let Some(next) = self.levels.get_mut(level + 1) else {
                continue;
            };
            let window = halved_window(stripe);
            let halved = samples.halved(stripe, self.bands, &self.halving);
            let data_type = halved.data_type();
            drop(samples);
            let raster = Raster::new(window, self.bands, halved)
                .expect("half of a stripe fills half of its window");
            // A row of tiles has an even number of rows, so half of it lies in one row of tiles of the next level.
            let index = window.row / self.side;
            let row = index * self.side;
            let place = Window::new(0, row, next.width, self.side.min(next.height - row));
            let open = next
                .open
                .entry(index)
                .or_insert_with(|| Stripe::new(place, self.bands, data_type));
            open.take(&raster, window);
            if open.is_complete() {
                let open = next.open.remove(&index).expect("it was just filled");
                full.push((level + 1, place, open.into_samples()));
            }
        }
        Ok(())
    }

    fn encode(&mut self, level: usize, stripe: Window, samples: &Samples) -> io::Result<()> {
        let (bands, side) = (self.bands, self.side);
        let across = stripe.width.div_ceil(side);
        let first = stripe.row / side * across;
        for start in (0..across).step_by(TILES_AT_ONCE) {
            let columns = start..across.min(start + TILES_AT_ONCE);
            let encoded = columns
                .into_par_iter()
                .map(|column| {
                    let col = column * side;
                    let place = TilePlace {
                        stripe,
                        bands,
                        col,
                        side,
                    };
                    encode_tile(samples, place)
                })
                .collect::<io::Result<Vec<_>>>()?;
            for (column, bytes) in encoded.iter().enumerate() {
                // A tile of at most 16384 x 16384 pixels may still be too long for its leader.
                let len = u32::try_from(bytes.len())
                    .map_err(|_| io::Error::other("one tile takes more than 4 GiB"))?;
                self.scratch.write_all(&len.to_le_bytes())?;
                self.scratch.write_all(bytes)?;
                // The checksum of zlib alone takes four bytes.
                self.scratch.write_all(&bytes[bytes.len() - 4..])?;
                let at = self.written + LEADER;
                self.levels[level].tiles[first + start + column] = (at, len.into());
                self.written += u64::from(len) + FRAME;
            }
        }
        Ok(())
    }
}
