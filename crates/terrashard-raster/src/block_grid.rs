//! Where the tiles or strips of a file lie, in the raster and in the file.

use std::ops::Range;
use std::path::Path;

use tiff_reader::{Ifd, RasterLayout};

use crate::{Error, Result, Window};

/// The TIFF number of "one plane per band".
pub(crate) const PLANAR: u16 = 2;

const TILE: &str = "tile";

/// The grid of tiles or strips of one image.
pub(crate) struct BlockGrid {
    /// (columns, rows) of a block.
    pub(crate) block: (usize, usize),
    /// What a block is called.
    pub(crate) noun: &'static str,
    size: (usize, usize),
    bands: usize,
    planes: usize,
    extents: Vec<(u64, u64)>,
}

impl BlockGrid {
    pub(crate) fn new(path: &Path, ifd: &Ifd, layout: &RasterLayout) -> Result<Self> {
        let damaged = |what: &'static str| Error::Damaged {
            path: path.to_owned(),
            source: what.into(),
        };
        let (noun, block, offsets, lengths) = if ifd.is_tiled() {
            let side = |side: Option<u32>| side.filter(|&s| s > 0).map(|s| s as usize);
            let width = side(ifd.tile_width()).ok_or_else(|| damaged("tiles without a width"))?;
            let height =
                side(ifd.tile_height()).ok_or_else(|| damaged("tiles without a height"))?;
            (
                TILE,
                (width, height),
                ifd.tile_offsets(),
                ifd.tile_byte_counts(),
            )
        } else {
            let rows = (ifd.rows_per_strip().max(1) as usize).min(layout.height);
            (
                "strip",
                (layout.width, rows),
                ifd.strip_offsets(),
                ifd.strip_byte_counts(),
            )
        };
        let offsets = offsets.ok_or_else(|| damaged("no offsets of its pixels"))?;
        let lengths = lengths.ok_or_else(|| damaged("no lengths of its pixels"))?;
        let planes = if layout.planar_configuration == PLANAR {
            layout.samples_per_pixel
        } else {
            1
        };
        let size = (layout.width, layout.height);
        let grid = Self {
            block,
            noun,
            size,
            bands: layout.samples_per_pixel,
            planes,
            extents: Vec::new(),
        };
        let expected = grid.per_plane().saturating_mul(planes);
        if offsets.len() != expected || lengths.len() != expected {
            return Err(damaged(
                "its directory lists another number of tiles or strips than its size takes",
            ));
        }
        Ok(Self {
            extents: offsets.into_iter().zip(lengths).collect(),
            ..grid
        })
    }

    fn per_plane(&self) -> usize {
        self.size
            .0
            .div_ceil(self.block.0)
            .saturating_mul(self.size.1.div_ceil(self.block.1))
    }

    /// Checks that every block lies in a file of `stored` bytes; returns the numbers of blocks that are left out.
    pub(crate) fn check_extent(&self, path: &Path, stored: u64) -> Result<Vec<usize>> {
        let mut missing = Vec::new();
        for (index, &(offset, length)) in self.extents.iter().enumerate() {
            if length == 0 {
                missing.push(index);
            } else if offset.saturating_add(length) > stored {
                let what = self.describe(index);
                let needed = offset.saturating_add(length);
                return Err(Error::Truncated {
                    path: path.to_owned(),
                    what,
                    needed,
                    stored,
                });
            }
        }
        Ok(missing)
    }

    /// Block `index` in words: which one of how many, its band where it has one alone, its pixels.
    pub(crate) fn describe(&self, index: usize) -> String {
        let count = self.extents.len();
        if index >= count {
            return format!("{} {}", self.noun, index + 1);
        }
        let (bands, window) = self.place(index);
        let band = match bands.len() {
            1 => format!("band {}, ", bands.start + 1),
            _ => String::new(),
        };
        format!("{} {} of {count} ({band}{window})", self.noun, index + 1)
    }

    /// Place in the file and length of block `index`.
    pub(crate) fn extent(&self, index: usize) -> (u64, u64) {
        self.extents[index]
    }

    /// Columns and rows that block `index` is stored with: tiles are whole at the border, strips end with the raster.
    pub(crate) fn stored_size(&self, index: usize) -> (usize, usize) {
        let (_, place) = self.place(index);
        let rows = if self.noun == TILE {
            self.block.1
        } else {
            place.height
        };
        (self.block.0, rows)
    }

    /// The blocks that `window`, which lies in the raster, touches.
    pub(crate) fn touching(&self, window: Window) -> Vec<usize> {
        let (width, height) = self.block;
        let across = self.size.0.div_ceil(width);
        let columns = window.col / width..window.col_end().div_ceil(width);
        let rows = window.row / height..window.row_end().div_ceil(height);
        let mut touched = Vec::with_capacity(self.planes * rows.len() * columns.len());
        for plane in 0..self.planes {
            for row in rows.clone() {
                let first = plane * self.per_plane() + row * across;
                touched.extend(columns.clone().map(|column| first + column));
            }
        }
        touched
    }

    /// The bands and pixels of block `index`. Planar files list all blocks of one band, then those of the next.
    pub(crate) fn place(&self, index: usize) -> (Range<usize>, Window) {
        let (plane, index) = (index / self.per_plane(), index % self.per_plane());
        let across = self.size.0.div_ceil(self.block.0);
        let (col, row) = (index % across * self.block.0, index / across * self.block.1);
        let window = Window::new(
            col,
            row,
            self.block.0.min(self.size.0 - col),
            self.block.1.min(self.size.1 - row),
        );
        (
            if self.planes == 1 {
                0..self.bands
            } else {
                plane..plane + 1
            },
            window,
        )
    }
}
