//! Overlapping predictions blended into one map, block by block.
//!
//! # What an overlap can do
//! A network that sees less far than a third of the overlap gives the same map whatever the windows: the part of a window that lacks
//! something of what lies around has next to no weight. The test `geo_08` holds one without attention to 1e-3 of the map of a single window.
//!
//! A transformer attends to its whole window at once, so its map is one of the window as much as of the pixel, and no overlap makes tiles
//! agree with a larger window. What can be asked for is that the borders do not show. Measured with the model of `cargo xtask demo`, which was
//! trained on chips of 64, on 512 x 512 pixels of the example's scene (columns 800 to 1311, rows 128 to 639): the mean step of
//! the probability between neighbouring columns of the middle third of overlaps (without one: across the borders), divided by that of all
//! other columns; the mean difference to the map of one window of 512, away from the outer 64 pixels; and the scores of `test`.
//!
//! | window | overlap | steps | difference | IoU | shore IoU |
//! |---|---|---|---|---|---|
//! | 64 | 0 | 10.7 | 0.032 | 0.938 | 0.916 |
//! | 64 | 16 | 0.6 | 0.033 | 0.929 | 0.913 |
//! | 64 | 32 | 1.0 | 0.035 | 0.940 | 0.919 |
//! | 128 | 32 | 1.1 | 0.020 | 0.948 | 0.910 |
//! | 256 | 0 | 18.5 | 0.006 | | |
//! | 256 | 64 | 1.1 | 0.002 | 0.950 | 0.907 |
//!
//! So an overlap of 16 image pixels removes the borders of small windows; half a window of 64 scores a little better, a quarter of a
//! larger one does. Windows as large as the chips of the training are best at the shore, four times as large ones over all, by a
//! hundredth each.

mod axis;

use terrashard_raster::Window;

use self::axis::Axis;
use crate::{Block, Error, Result};

/// Predictions of overlapping windows, weighted so that the weights sum to one at every pixel.
///
/// Along each axis a window weighs 1 in its middle. Of the overlap its outer third, where a network lacks what lies around, weighs
/// next to nothing, and the middle third rises linearly; at the border of the scene a window has its full weight. Weights are divided
/// by their sum, and that of a pixel is the product of both axes.
///
/// Networks reduce an image by powers of two, so what they see of a pixel depends on where their window begins. The last window of
/// an axis therefore keeps to the grid of the others, as far as that is one of a power of two up to 32 pixels, and is that much
/// shorter.
///
/// Windows are added in the order of [`Mosaic::windows`]. Each gives back the [`Block`] that no later window changes: the pixels
/// from its upper left corner to those of the next window to its right and below it. What is kept meanwhile is the overlap with
/// the next row of windows, over the whole width, and the windows at hand: it does not depend on the height of the scene.
///
/// A pixel's sum is taken in the order of the windows, so that its bits do not depend on where a mosaic began.
#[derive(Debug)]
pub struct Mosaic {
    scale: usize,
    channels: usize,
    across: Axis,
    down: Axis,
    /// (row, column) of the window whose turn it is.
    next: (usize, usize),
    /// The first row of windows whose blocks are given back.
    first: usize,
    /// For each column of windows, the pixels up to the next column.
    cells: Vec<Cell>,
}

/// Weighted sums of the pixels between the left edges of two neighbouring windows, from the first image row of the current row of
/// windows on: one `[rows * scale, columns * scale]` for each channel.
#[derive(Clone, Debug, Default)]
struct Cell {
    sums: Vec<Vec<f32>>,
    valid: Vec<bool>,
}

impl Mosaic {
    /// A mosaic of one channel over a scene of `width` x `height` image pixels, in square windows of `tile` image pixels that
    /// overlap by at least `overlap` and give `scale` map pixels to one image pixel along each side.
    ///
    /// # Errors
    /// [`Error::Setting`] where a size is 0 or the overlap is not smaller than the tile.
    pub fn new(
        width: usize,
        height: usize,
        tile: usize,
        overlap: usize,
        scale: usize,
    ) -> Result<Self> {
        for (key, size) in [
            ("width", width),
            ("height", height),
            ("tile", tile),
            ("scale", scale),
        ] {
            if size == 0 {
                return Err(Error::Setting {
                    key,
                    what: "0; choose at least 1".to_owned(),
                });
            }
        }
        if overlap >= tile {
            let what = format!("{overlap} pixels; choose less than the tile's {tile}");
            return Err(Error::Setting {
                key: "overlap",
                what,
            });
        }
        let across = Axis::new(width, tile, overlap, scale);
        let down = Axis::new(height, tile, overlap, scale);
        let cells = vec![Cell::default(); across.starts.len()];
        let mosaic = Self {
            scale,
            channels: 1,
            across,
            down,
            next: (0, 0),
            first: 0,
            cells,
        };
        Ok(mosaic.with_channels(1))
    }

    /// The same with this many channels, such as one for each class.
    pub fn with_channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        for cell in &mut self.cells {
            cell.sums = vec![Vec::new(); channels];
        }
        self
    }

    /// The same from row of windows `row` on, to go on where another mosaic ended: the windows above that reach into its blocks
    /// are added first and give none.
    ///
    /// # Panics
    /// Where there are fewer rows.
    pub fn from_row(mut self, row: usize) -> Self {
        assert!(row <= self.rows(), "{row} of {} rows", self.rows());
        self.first = row;
        let top = self.down.starts.get(row).copied();
        let reaches = |start: &usize| top.is_none_or(|top| start + self.down.length > top);
        let begin = match top {
            Some(_) => self.down.starts.iter().position(reaches),
            None => None,
        };
        self.next = (begin.unwrap_or(row), 0);
        self
    }

    /// Rows of windows.
    pub fn rows(&self) -> usize {
        self.down.starts.len()
    }

    /// Windows in a row.
    pub fn columns(&self) -> usize {
        self.across.starts.len()
    }

    /// (width, height) of the largest block in image pixels.
    pub fn largest_block(&self) -> (usize, usize) {
        let longest = |axis: &Axis| {
            let lengths = axis.starts.iter().enumerate();
            let lengths = lengths.map(|(index, start)| axis.end(index) - start);
            lengths.max().unwrap_or(0)
        };
        (longest(&self.across), longest(&self.down))
    }

    /// Bytes that the sums take while windows are added.
    pub fn bytes(&self) -> u64 {
        let (length, width) = (self.down.length as u64, self.across.side as u64);
        let carried = (0..self.rows()).map(|row| {
            let (start, end) = (self.down.starts[row], self.down.end(row));
            (start + self.down.length).saturating_sub(end) as u64
        });
        // The window's own cell and those that it reaches into have all rows.
        let pixels = carried.max().unwrap_or(0) * width + 2 * self.across.length as u64 * length;
        pixels * ((self.scale * self.scale * 4 * self.channels) as u64 + 1)
    }

    /// The windows that are still to be predicted, row by row.
    pub fn windows(&self) -> Vec<Window> {
        let places = self.places();
        places
            .map(|(row, column)| self.window(row, column))
            .collect()
    }

    /// (row, column) of the windows that are still to be predicted.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let columns = self.columns();
        let places = (self.next.0..self.rows())
            .flat_map(move |row| (0..columns).map(move |column| (row, column)));
        places.skip(self.next.1)
    }

    /// For each of [`Mosaic::windows`], where its block lies.
    pub fn blocks(&self) -> Vec<Window> {
        let places = self.places();
        places
            .map(|(row, column)| self.block(row, column))
            .collect()
    }

    /// The pixels that the window in this row and column is the last to cover.
    fn block(&self, row: usize, column: usize) -> Window {
        let (left, top) = (self.across.starts[column], self.down.starts[row]);
        let (right, bottom) = (self.across.end(column), self.down.end(row));
        Window::new(left, top, right - left, bottom - top)
    }

    fn window(&self, row: usize, column: usize) -> Window {
        Window::new(
            self.across.starts[column],
            self.down.starts[row],
            self.across.length(column),
            self.down.length(row),
        )
    }

    /// Adds the prediction of one window whose pixels all have data.
    ///
    /// # Shapes
    /// `values`: `[channels, window.height * scale, window.width * scale]`.
    ///
    /// # Errors
    /// As [`Mosaic::add_valid`].
    pub fn add(&mut self, window: Window, values: &[f32]) -> Result<Option<Block>> {
        self.add_valid(window, values, &vec![true; window.pixels()])
    }

    /// Adds the prediction of one window and gives back the block that is final; none above the row that [`Mosaic::from_row`]
    /// began with.
    ///
    /// # Shapes
    /// `values`: `[channels, window.height * scale, window.width * scale]`; `valid`, which image pixels have data:
    /// `[window.height, window.width]`.
    ///
    /// # Errors
    /// [`Error::MosaicWindow`] where it is not the turn of this window; [`Error::Length`] where a list has another length.
    pub fn add_valid(
        &mut self,
        window: Window,
        values: &[f32],
        valid: &[bool],
    ) -> Result<Option<Block>> {
        let refuse = |what: String| Err(Error::MosaicWindow { window, what });
        let (row, column) = self.next;
        if self.is_complete() {
            return refuse("every window was added before".to_owned());
        }
        let turn = self.window(row, column);
        if window != turn {
            return refuse(format!("the next window is that of {turn}"));
        }
        let fine = window.scaled(self.scale);
        let check = |what, expected, got| {
            if expected == got {
                Ok(())
            } else {
                Err(Error::Length {
                    what,
                    expected,
                    got,
                })
            }
        };
        check(
            "prediction of a window",
            self.channels * fine.pixels(),
            values.len(),
        )?;
        check("validity of a window", window.pixels(), valid.len())?;
        for at in column..self.columns() {
            let (left, right) = (self.across.starts[at], self.across.end(at));
            if left >= window.col_end() {
                break;
            }
            self.add_to_cell(at, left..right, window, values, valid);
        }
        let block = self.take_block();
        self.next = match column + 1 == self.columns() {
            true => (row + 1, 0),
            false => (row, column + 1),
        };
        Ok((row >= self.first).then_some(block))
    }

    /// Whether every window has been added.
    pub fn is_complete(&self) -> bool {
        self.next.0 == self.rows()
    }

    /// Adds what a window holds of the image columns of a cell.
    fn add_to_cell(
        &mut self,
        at: usize,
        columns: std::ops::Range<usize>,
        window: Window,
        values: &[f32],
        valid: &[bool],
    ) {
        let (row, column) = self.next;
        let scale = self.scale;
        let width = columns.len();
        let cell = &mut self.cells[at];
        cell.valid.resize(window.height * width, false);
        let pixels = window.height * width * scale * scale;
        for sums in &mut cell.sums {
            sums.reserve_exact(pixels - sums.len());
            sums.resize(pixels, 0.0);
        }
        let (wx, wy) = (&self.across.weights[column], &self.down.weights[row]);
        let (from, to) = (
            columns.start - window.col,
            columns.end.min(window.col_end()) - window.col,
        );
        let (fine_from, fine_to) = (from * scale, to * scale);
        let fine = window.scaled(scale);
        for (sums, plane) in cell.sums.iter_mut().zip(values.chunks_exact(fine.pixels())) {
            for ((sums, values), wy) in sums
                .chunks_exact_mut(width * scale)
                .zip(plane.chunks_exact(fine.width))
                .zip(wy)
            {
                let part = values[fine_from..fine_to]
                    .iter()
                    .zip(&wx[fine_from..fine_to]);
                for (sum, (value, wx)) in sums.iter_mut().zip(part) {
                    *sum += wx * wy * value;
                }
            }
        }
        for (kept, given) in cell
            .valid
            .chunks_exact_mut(width)
            .zip(valid.chunks_exact(window.width))
        {
            kept[..to - from].copy_from_slice(&given[from..to]);
        }
    }

    /// Takes out the pixels of the current window's cell that no later window covers.
    fn take_block(&mut self) -> Block {
        let (row, column) = self.next;
        let image = self.block(row, column);
        let taken = image.pixels() * self.scale * self.scale;
        let cell = &mut self.cells[column];
        let mut values = Vec::with_capacity(self.channels * taken);
        for sums in &mut cell.sums {
            values.extend_from_slice(&sums[..taken]);
            // A copy, so that the next cell has the memory of this one; a list that shrinks would keep a hole behind it.
            *sums = sums[taken..].to_vec();
        }
        let valid = cell.valid.drain(..image.pixels()).collect();
        cell.valid.shrink_to_fit();
        Block {
            image,
            scale: self.scale,
            channels: self.channels,
            values,
            valid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds all windows with values from `value(channel, column, row)` of the map, and puts the blocks together; every pixel is
    /// given once.
    fn blend(mosaic: Mosaic, value: impl Fn(usize, usize, usize) -> f32) -> Vec<f32> {
        let mut mosaic = mosaic;
        let scale = mosaic.scale;
        let (width, height) = (mosaic.across.side * scale, mosaic.down.side * scale);
        let mut map = vec![f32::NAN; mosaic.channels * width * height];
        let mut given = 0;
        for window in mosaic.windows() {
            let fine = window.scaled(scale);
            let pixels = |c| {
                (fine.row..fine.row_end())
                    .flat_map(move |r| (fine.col..fine.col_end()).map(move |x| (c, x, r)))
            };
            let values: Vec<f32> = (0..mosaic.channels)
                .flat_map(pixels)
                .map(|(c, x, r)| value(c, x, r))
                .collect();
            let Some(block) = mosaic.add(window, &values).expect("its own window") else {
                continue;
            };
            let place = block.window();
            given += place.pixels();
            for (at, v) in block.values.iter().enumerate() {
                let (c, at) = (at / place.pixels(), at % place.pixels());
                let (row, col) = (place.row + at / place.width, place.col + at % place.width);
                let pixel = &mut map[(c * height + row) * width + col];
                assert!(pixel.is_nan(), "a pixel is given once");
                *pixel = *v;
            }
        }
        assert!(mosaic.is_complete());
        let from = mosaic.down.starts[mosaic.first] * scale;
        assert_eq!(given, width * (height - from));
        map
    }

    #[test]
    fn weights_sum_to_one_at_every_pixel() {
        for (width, height) in [(1, 1), (24, 42), (37, 58), (64, 64), (65, 16), (15, 100)] {
            for (tile, overlap) in [(16, 0), (16, 4), (16, 8), (16, 15), (64, 16)] {
                for scale in [1, 5] {
                    let mosaic = Mosaic::new(width, height, tile, overlap, scale).expect("sound");
                    let map = blend(mosaic, |_, _, _| 1.0);
                    assert_eq!(map.len(), width * height * scale * scale);
                    for v in map {
                        assert!(
                            (v - 1.0).abs() < 5e-6,
                            "{width} x {height}, tile {tile}, overlap {overlap}: {v}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn equal_predictions_blend_to_themselves() {
        let value = |c: usize, x: usize, r: usize| ((c * 31 + x * 7 + r * 3) % 17) as f32 / 17.0;
        let mosaic = Mosaic::new(37, 29, 16, 5, 2)
            .expect("sound")
            .with_channels(3);
        let map = blend(mosaic, value);
        for (at, v) in map.iter().enumerate() {
            let (c, r, x) = (at / (74 * 58), at / 74 % 58, at % 74);
            assert!(
                (v - value(c, x, r)).abs() < 1e-6,
                "channel {c}, column {x}, row {r}"
            );
        }
    }

    #[test]
    fn a_ramp_crosses_the_overlap() {
        let mut mosaic = Mosaic::new(10, 1, 8, 6, 1).expect("sound");
        let windows = [Window::new(0, 0, 8, 1), Window::new(2, 0, 8, 1)];
        assert_eq!(mosaic.windows(), windows);
        let mut add = |col, value| {
            let block = mosaic.add(Window::new(col, 0, 8, 1), &[value; 8]);
            block.expect("its own").expect("a block for each window")
        };
        let (left, right) = (add(0, 0.0), add(2, 1.0));
        assert_eq!(left.image, Window::new(0, 0, 2, 1));
        assert_eq!(left.values, [0.0, 0.0]);
        assert_eq!(right.image, Window::new(2, 0, 8, 1));
        let expected = [0.0, 0.0, 0.25, 0.75, 1.0, 1.0, 1.0, 1.0];
        for (found, expected) in right.values.iter().zip(expected) {
            assert!((found - expected).abs() < 5e-6, "{:?}", right.values);
        }
    }

    #[test]
    fn a_mosaic_that_goes_on_has_the_bits_of_a_whole_one() {
        let value = |c: usize, x: usize, r: usize| ((c * 31 + x * 7 + r * 3) % 17) as f32 / 17.0;
        for overlap in [0, 5, 11] {
            let mosaic = || {
                let mosaic = Mosaic::new(37, 60, 16, overlap, 2).expect("sound");
                mosaic.with_channels(2)
            };
            let whole = blend(mosaic(), value);
            for row in 0..mosaic().rows() {
                let part = blend(mosaic().from_row(row), value);
                let missing = mosaic().down.starts[row] * 2 * 74;
                for (plane, of_part) in whole.chunks(74 * 120).zip(part.chunks(74 * 120)) {
                    assert_eq!(plane[missing..], of_part[missing..], "from row {row}");
                    assert!(of_part[..missing].iter().all(|v| v.is_nan()));
                }
            }
            assert!(mosaic().from_row(mosaic().rows()).is_complete());
        }
    }

    #[test]
    fn wrong_windows_are_refused() {
        let mut mosaic = Mosaic::new(8, 8, 4, 0, 1).expect("sound");
        let mut check = |window: Window, values: usize, expected: &str| match mosaic
            .add(window, &vec![0.0; values])
        {
            Ok(_) => assert_eq!(expected, ""),
            Err(error) => assert!(
                !expected.is_empty() && error.to_string().contains(expected),
                "{error}"
            ),
        };
        let turn = "the next window is that of columns 0..4, rows 0..4";
        check(Window::new(1, 0, 4, 4), 16, turn);
        check(Window::new(0, 4, 4, 4), 16, turn);
        check(Window::new(0, 0, 4, 4), 15, "expected 16 values, got 15");
        check(Window::new(0, 0, 4, 4), 16, "");
        let turn = "the next window is that of columns 4..8, rows 0..4";
        check(Window::new(0, 0, 4, 4), 16, turn);
        assert!(Mosaic::new(8, 8, 4, 4, 1).is_err() && Mosaic::new(0, 8, 4, 0, 1).is_err());
    }
}
