//! Overlapping predictions blended into one map, row by row.

use terrashard_raster::Window;

use crate::tiling::starts;
use crate::{Error, Result, Rows};

/// Predictions of overlapping windows, weighted so that the weights sum to one at every pixel.
///
/// Along each axis a window weighs 1 in its middle and falls off linearly over the overlap; where windows overlap, weights are
/// divided by their sum, so the border of the scene, which one window covers alone, has the full weight too. The weight of a
/// pixel is the product of both axes.
///
/// Windows are added row of windows by row of windows, in any order within a row. Each complete row gives back the [`Rows`] that
/// no later window changes; memory is one row of windows, whatever the height of the scene.
#[derive(Debug)]
pub struct Mosaic {
    width: usize,
    height: usize,
    scale: usize,
    channels: usize,
    across: Axis,
    down: Axis,
    /// The row of windows that is being added.
    current: usize,
    added: Vec<bool>,
    /// Weighted sums from the first image row of `current` on: one `[rows * scale, width * scale]` for each channel.
    sums: Vec<Vec<f32>>,
    valid: Vec<bool>,
}

/// The windows along one axis.
#[derive(Debug)]
struct Axis {
    starts: Vec<usize>,
    length: usize,
    /// For each window, the weight of each of its map pixels; over all windows they sum to one.
    weights: Vec<Vec<f32>>,
}

impl Axis {
    fn new(side: usize, tile: usize, overlap: usize, scale: usize) -> Self {
        let starts = starts(side, tile, tile - overlap);
        let length = tile.min(side);
        let fine = length * scale;
        // Distance from the window's edge to the pixel's centre, over the overlap.
        let ramp = |x: usize| {
            let distance = (x as f64 + 0.5).min((fine - x) as f64 - 0.5);
            if overlap == 0 {
                1.0
            } else {
                (distance / (overlap * scale) as f64).min(1.0)
            }
        };
        let mut sums = vec![0.0; side * scale];
        for start in &starts {
            (0..fine).for_each(|x| sums[start * scale + x] += ramp(x));
        }
        let share = |start: &usize| {
            (0..fine)
                .map(|x| (ramp(x) / sums[start * scale + x]) as f32)
                .collect()
        };
        let weights = starts.iter().map(share).collect();
        Self {
            starts,
            length,
            weights,
        }
    }
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
        let added = vec![false; across.starts.len()];
        let mut mosaic = Self {
            width,
            height,
            scale,
            channels: 1,
            across,
            down,
            current: 0,
            added,
            sums: vec![Vec::new()],
            valid: Vec::new(),
        };
        mosaic.extend();
        Ok(mosaic)
    }

    /// The same with this many channels, such as one for each class.
    pub fn with_channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self.sums = vec![Vec::new(); channels];
        self.extend();
        self
    }

    /// The windows to be predicted, row by row.
    pub fn windows(&self) -> Vec<Window> {
        let row = |row: &usize| {
            self.across
                .starts
                .iter()
                .map(|col| self.window(*col, *row))
                .collect::<Vec<_>>()
        };
        self.down.starts.iter().flat_map(row).collect()
    }

    fn window(&self, col: usize, row: usize) -> Window {
        Window::new(col, row, self.across.length, self.down.length)
    }

    /// Adds the prediction of one window whose pixels all have data.
    ///
    /// # Shapes
    /// `values`: `[channels, window.height * scale, window.width * scale]`.
    ///
    /// # Errors
    /// As [`Mosaic::add_valid`].
    pub fn add(&mut self, window: Window, values: &[f32]) -> Result<Option<Rows>> {
        self.add_valid(window, values, &vec![true; window.pixels()])
    }

    /// Adds the prediction of one window; where it completes a row of windows, gives back the rows that are final.
    ///
    /// # Shapes
    /// `values`: `[channels, window.height * scale, window.width * scale]`; `valid`, which image pixels have data:
    /// `[window.height, window.width]`.
    ///
    /// # Errors
    /// [`Error::MosaicWindow`] where the window is none of [`Mosaic::windows`], is not in the row of windows whose turn it is or
    /// was added before; [`Error::Length`] where a list has another length.
    pub fn add_valid(
        &mut self,
        window: Window,
        values: &[f32],
        valid: &[bool],
    ) -> Result<Option<Rows>> {
        let refuse = |what: String| Err(Error::MosaicWindow { window, what });
        let Some(&row) = self.down.starts.get(self.current) else {
            return refuse("every window was added before".to_owned());
        };
        let Ok(column) = self.across.starts.binary_search(&window.col) else {
            return refuse("it is none of the mosaic's windows".to_owned());
        };
        if window != self.window(window.col, row) {
            return refuse(format!("the next row of windows begins at image row {row}"));
        }
        if self.added[column] {
            return refuse("it was added before".to_owned());
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

        let (wx, wy) = (
            &self.across.weights[column],
            &self.down.weights[self.current],
        );
        let line = self.width * self.scale;
        for (sums, plane) in self.sums.iter_mut().zip(values.chunks_exact(fine.pixels())) {
            for ((sums, values), wy) in sums
                .chunks_exact_mut(line)
                .zip(plane.chunks_exact(fine.width))
                .zip(wy)
            {
                for ((sum, value), wx) in sums[fine.col..].iter_mut().zip(values).zip(wx) {
                    *sum += wx * wy * value;
                }
            }
        }
        for (kept, given) in self
            .valid
            .chunks_exact_mut(self.width)
            .zip(valid.chunks_exact(window.width))
        {
            kept[window.col..][..window.width].copy_from_slice(given);
        }
        self.added[column] = true;
        Ok(self
            .added
            .iter()
            .all(|&added| added)
            .then(|| self.advance()))
    }

    /// Whether every window has been added.
    pub fn is_complete(&self) -> bool {
        self.current == self.down.starts.len()
    }

    /// Takes out the rows above the next row of windows and makes room for it.
    fn advance(&mut self) -> Rows {
        let first = self.down.starts[self.current];
        self.current += 1;
        let end = self
            .down
            .starts
            .get(self.current)
            .copied()
            .unwrap_or(self.height);
        let height = end - first;
        let taken = height * self.scale * self.width * self.scale;
        let values = self
            .sums
            .iter_mut()
            .flat_map(|sums| sums.drain(..taken))
            .collect();
        let valid = self.valid.drain(..height * self.width).collect();
        self.added.fill(false);
        if !self.is_complete() {
            self.extend();
        }
        Rows {
            row: first,
            height,
            width: self.width,
            scale: self.scale,
            channels: self.channels,
            values,
            valid,
        }
    }

    fn extend(&mut self) {
        let pixels = self.down.length * self.width;
        self.sums
            .iter_mut()
            .for_each(|sums| sums.resize(pixels * self.scale * self.scale, 0.0));
        self.valid.resize(pixels, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds all windows with values from `value(channel, column, row)` of the map, and puts the rows together.
    fn blend(mosaic: Mosaic, value: impl Fn(usize, usize, usize) -> f32) -> (Vec<f32>, usize) {
        let mut mosaic = mosaic;
        let (mut map, mut next, mut largest) = (vec![Vec::new(); mosaic.channels], 0, 0);
        for window in mosaic.windows() {
            let fine = window.scaled(mosaic.scale);
            let pixels = |c| {
                (fine.row..fine.row_end())
                    .flat_map(move |r| (fine.col..fine.col_end()).map(move |x| (c, x, r)))
            };
            let values: Vec<f32> = (0..mosaic.channels)
                .flat_map(pixels)
                .map(|(c, x, r)| value(c, x, r))
                .collect();
            if let Some(rows) = mosaic.add(window, &values).expect("its own window") {
                assert_eq!(rows.row, next, "rows follow one another");
                next += rows.height;
                rows.values
                    .chunks_exact(rows.window().pixels())
                    .zip(&mut map)
                    .for_each(|(v, map)| map.extend(v));
                largest = largest.max(rows.height);
            }
        }
        assert!(mosaic.is_complete() && next == mosaic.height);
        (map.concat(), largest)
    }

    #[test]
    fn weights_sum_to_one_at_every_pixel() {
        for (width, height) in [(1, 1), (24, 42), (37, 58), (64, 64), (65, 16), (15, 100)] {
            for (tile, overlap) in [(16, 0), (16, 4), (16, 8), (16, 15), (64, 16)] {
                for scale in [1, 5] {
                    let mosaic = Mosaic::new(width, height, tile, overlap, scale).expect("sound");
                    let (map, largest) = blend(mosaic, |_, _, _| 1.0);
                    assert_eq!(map.len(), width * height * scale * scale);
                    let worst = map.iter().map(|v| (v - 1.0).abs()).fold(0.0, f32::max);
                    assert!(
                        worst < 5e-6,
                        "{width} x {height}, tile {tile}, overlap {overlap}: off by {worst}"
                    );
                    assert!(
                        largest <= tile,
                        "never more than one row of windows at once"
                    );
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
        let (map, _) = blend(mosaic, value);
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
        let mut mosaic = Mosaic::new(6, 1, 4, 2, 1).expect("sound");
        assert_eq!(
            mosaic.windows(),
            [Window::new(0, 0, 4, 1), Window::new(2, 0, 4, 1)]
        );
        assert!(
            mosaic
                .add(Window::new(2, 0, 4, 1), &[1.0; 4])
                .expect("any order in a row")
                .is_none()
        );
        let rows = mosaic
            .add(Window::new(0, 0, 4, 1), &[0.0; 4])
            .expect("its own")
            .expect("complete");
        assert_eq!(rows.values, [0.0, 0.0, 0.25, 0.75, 1.0, 1.0]);
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
        check(Window::new(1, 0, 4, 4), 16, "none of the mosaic's windows");
        check(
            Window::new(0, 4, 4, 4),
            16,
            "the next row of windows begins at image row 0",
        );
        check(Window::new(0, 0, 4, 4), 15, "expected 16 values, got 15");
        check(Window::new(0, 0, 4, 4), 16, "");
        check(Window::new(0, 0, 4, 4), 16, "was added before");
        check(Window::new(4, 0, 4, 4), 16, "");
        check(
            Window::new(4, 0, 4, 4),
            16,
            "the next row of windows begins at image row 4",
        );
        assert!(Mosaic::new(8, 8, 4, 4, 1).is_err() && Mosaic::new(0, 8, 4, 0, 1).is_err());
    }
}
