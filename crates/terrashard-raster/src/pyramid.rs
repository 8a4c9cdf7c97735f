//! A raster and its overviews, encoded tile by tile as tiles fill up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};

use rayon::prelude::*;

use crate::halving::{Halving, halved_window};
use crate::partial_tile::PartialTile;
use crate::tile_codec::encode_tile;
use crate::{Overviews, Raster, RasterSpec, Samples, Window};

/// Tiles that are encoded before they are written: what bounds the memory that they take.
pub(crate) const TILES_AT_ONCE: usize = 16;

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
    /// Tiles of which a part is there, by their numbers.
    open: BTreeMap<usize, PartialTile>,
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

    /// Tiles of which a part is there.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Adds samples that lie in one tile; gives the tile if they complete it.
    fn add(
        &mut self,
        window: Window,
        samples: Samples,
        (bands, side): (usize, usize),
    ) -> Option<(Window, Samples)> {
        let data_type = samples.data_type();
        let raster = Raster::new(window, bands, samples).expect("as many as the window has");
        let (column, row) = (window.col / side, window.row / side);
        let index = row * self.width.div_ceil(side) + column;
        let place = tile_window((column, row), (self.width, self.height), side);
        let open = self.open.entry(index);
        let open = open.or_insert_with(|| PartialTile::new(place, bands, data_type));
        open.take(&raster, window);
        if !open.is_complete() {
            return None;
        }
        let full = self.open.remove(&index)?;
        Some((place, full.into_samples()))
    }
}

/// The pixels of the tile in this column and row of tiles of a raster.
pub(crate) fn tile_window(
    (column, row): (usize, usize),
    (width, height): (usize, usize),
    side: usize,
) -> Window {
    let (col, row) = (column * side, row * side);
    Window::new(col, row, side.min(width - col), side.min(height - row))
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

    /// Takes complete tiles of the raster, in any order.
    pub(crate) fn take(&mut self, tiles: Vec<(Window, Samples)>) -> io::Result<()> {
        let mut full = tiles;
        for level in 0..self.levels.len() {
            self.encode(level, &full)?;
            let Some(next) = self.levels.get_mut(level + 1) else {
                break;
            };
            let mut filled = Vec::new();
            for (window, samples) in full {
                let halved = samples.halved(window, self.bands, &self.halving);
                drop(samples);
                // A tile has an even number of rows and columns, so half of it lies in one tile of the next level.
                filled.extend(next.add(halved_window(window), halved, (self.bands, self.side)));
            }
            full = filled;
        }
        Ok(())
    }

    /// Encodes tiles of a level, some at a time, and writes them to the scratch file.
    fn encode(&mut self, level: usize, tiles: &[(Window, Samples)]) -> io::Result<()> {
        let (bands, side) = (self.bands, self.side);
        let across = self.levels[level].width.div_ceil(side);
        for tiles in tiles.chunks(TILES_AT_ONCE) {
            let encoded = tiles
                .par_iter()
                .map(|(window, samples)| encode_tile(samples, *window, bands, side))
                .collect::<io::Result<Vec<_>>>()?;
            for ((window, _), bytes) in tiles.iter().zip(&encoded) {
                // A tile of at most 16384 x 16384 pixels may still be too long for its leader.
                let len = u32::try_from(bytes.len())
                    .map_err(|_| io::Error::other("one tile takes more than 4 GiB"))?;
                self.scratch.write_all(&len.to_le_bytes())?;
                self.scratch.write_all(bytes)?;
                // The checksum of zlib alone takes four bytes.
                self.scratch.write_all(&bytes[bytes.len() - 4..])?;
                let at = self.written + LEADER;
                let index = window.row / side * across + window.col / side;
                self.levels[level].tiles[index] = (at, len.into());
                self.written += u64::from(len) + FRAME;
            }
        }
        Ok(())
    }
}
