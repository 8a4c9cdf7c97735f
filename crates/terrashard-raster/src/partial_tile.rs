//! One tile that fills up window by window.

use std::ops::Range;

use crate::{DataType, Raster, Samples, Window};

/// The pixels of one tile, and which of them have been given.
#[derive(Debug)]
pub(crate) struct PartialTile {
    window: Window,
    bands: usize,
    samples: Samples,
    given: Vec<Spans>,
    complete: usize,
}

/// The columns of one row that have been given: sorted, apart from one another.
type Spans = Vec<Range<usize>>;

impl PartialTile {
    pub(crate) fn new(window: Window, bands: usize, data_type: DataType) -> Self {
        let samples = Samples::filled(data_type, 0.0, window.pixels() * bands);
        Self {
            window,
            bands,
            samples,
            given: vec![Spans::new(); window.height],
            complete: 0,
        }
    }

    /// Gives up the samples, `[bands, height, width]` of the tile.
    pub(crate) fn into_samples(self) -> Samples {
        self.samples
    }

    /// Whether every pixel has been given.
    pub(crate) const fn is_complete(&self) -> bool {
        self.complete == self.window.height
    }

    /// Whether the tile's row `row`, counted from its first, lacks pixels.
    pub(crate) fn lacks(&self, row: usize) -> bool {
        let whole = self.window.col..self.window.col_end();
        self.given[row].first() != Some(&whole)
    }

    /// The first row in which `part` meets pixels that have been given already.
    pub(crate) fn overlap(&self, part: Window) -> Option<usize> {
        let columns = part.col..part.col_end();
        let taken = |row: &usize| {
            let spans = &self.given[row - self.window.row];
            spans
                .iter()
                .any(|span| span.start < columns.end && columns.start < span.end)
        };
        (part.row..part.row_end()).find(taken)
    }

    /// Takes the pixels of `part`, which lies in this tile and in `raster`, and meets no pixel given before.
    pub(crate) fn take(&mut self, raster: &Raster, part: Window) {
        let from = raster.window();
        for row in part.row..part.row_end() {
            for band in 0..self.bands {
                let to_at = (band * self.window.height + row - self.window.row) * self.window.width
                    + part.col
                    - self.window.col;
                let from_at =
                    (band * from.height + row - from.row) * from.width + part.col - from.col;
                self.samples
                    .copy_from(to_at, raster.samples(), from_at, part.width);
            }
            let spans = &mut self.given[row - self.window.row];
            let at = spans.partition_point(|span| span.start < part.col);
            spans.insert(at, part.col..part.col_end());
            spans.dedup_by(|right, left| {
                let touching = left.end == right.start;
                if touching {
                    left.end = right.end;
                }
                touching
            });
            if spans.len() == 1 && spans[0] == (self.window.col..self.window.col_end()) {
                self.complete += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_up_in_any_order_and_once() {
        let mut tile = PartialTile::new(Window::new(0, 4, 6, 2), 1, DataType::U8);
        let mut give = |col: usize, row: usize, width: usize, height: usize, value: u8| {
            let window = Window::new(col, row, width, height);
            let raster =
                Raster::new(window, 1, Samples::U8(vec![value; width * height])).expect("filled");
            if tile.overlap(window).is_none() {
                tile.take(&raster, window);
            }
            let lacking = (0..2).filter(|row| tile.lacks(*row)).count();
            (lacking, tile.is_complete())
        };
        assert_eq!(give(4, 4, 2, 2, 1), (2, false));
        assert_eq!(give(0, 4, 2, 1, 2), (2, false));
        assert_eq!(give(1, 4, 3, 1, 9), (2, false), "overlaps and is not taken");
        assert_eq!(give(2, 4, 2, 2, 3), (1, false));
        assert_eq!(give(0, 5, 2, 1, 4), (0, true));
        assert_eq!(
            tile.into_samples(),
            Samples::U8(vec![2, 2, 3, 3, 1, 1, 4, 4, 3, 3, 1, 1])
        );
    }
}
