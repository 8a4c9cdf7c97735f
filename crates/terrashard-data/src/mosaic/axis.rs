//! Where windows begin along one side of an image, and what they weigh.

/// The coarsest grid of windows that matters, in image pixels: networks reduce an image to a 32nd.
const GRID: usize = 32;

/// What the outer third of an overlap weighs: it counts only where there is nothing else.
const LEAST_WEIGHT: f64 = 1e-6;

/// The windows along one axis.
#[derive(Debug)]
pub(super) struct Axis {
    /// Pixels of the image.
    pub(super) side: usize,
    /// Where each window begins.
    pub(super) starts: Vec<usize>,
    /// The length of every window but perhaps the last.
    pub(super) length: usize,
    /// For each window, the weight of each of its map pixels; over all windows they sum to one.
    pub(super) weights: Vec<Vec<f32>>,
}

impl Axis {
    pub(super) fn new(side: usize, tile: usize, overlap: usize, scale: usize) -> Self {
        let starts = starts(side, tile, tile - overlap);
        // Nothing of it at the window's edge, all of it at its other end; there the neighbour has nothing. The scene's own edge is
        // that of every window there.
        let ramp = |start: usize, x: usize, fine: usize| {
            let left = match start {
                0 => f64::INFINITY,
                _ => x as f64 + 0.5,
            };
            let right = match start * scale + fine == side * scale {
                true => f64::INFINITY,
                false => (fine - x) as f64 - 0.5,
            };
            match overlap {
                0 => 1.0,
                _ => {
                    let share = left.min(right) / (overlap * scale) as f64;
                    (3.0 * share - 1.0).clamp(LEAST_WEIGHT, 1.0)
                }
            }
        };
        let fine = |start: usize| tile.min(side - start) * scale;
        let mut sums = vec![0.0; side * scale];
        for start in &starts {
            let fine = fine(*start);
            (0..fine).for_each(|x| sums[start * scale + x] += ramp(*start, x, fine));
        }
        let share = |start: &usize| {
            let fine = fine(*start);
            (0..fine)
                .map(|x| (ramp(*start, x, fine) / sums[start * scale + x]) as f32)
                .collect()
        };
        let weights = starts.iter().map(share).collect();
        Self {
            side,
            starts,
            length: tile.min(side),
            weights,
        }
    }

    /// The length of a window.
    pub(super) fn length(&self, index: usize) -> usize {
        self.length.min(self.side - self.starts[index])
    }

    /// Where the pixels end that begin with window `index` and that no later window covers.
    pub(super) fn end(&self, index: usize) -> usize {
        self.starts.get(index + 1).copied().unwrap_or(self.side)
    }
}

/// Where windows begin: each `stride` behind the one before, the last where it reaches the end, on the same grid.
fn starts(side: usize, tile: usize, stride: usize) -> Vec<usize> {
    if side <= tile {
        return vec![0];
    }
    let grid = (1 << stride.trailing_zeros()).min(GRID);
    let last = (side - tile).next_multiple_of(grid);
    (0..last).step_by(stride).chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_keep_to_one_grid() {
        let check = |side: usize, tile: usize, overlap: usize, expected: &[usize]| {
            assert_eq!(
                starts(side, tile, tile - overlap),
                expected,
                "{side}, {tile}"
            );
        };
        check(64, 64, 16, &[0]);
        check(112, 64, 16, &[0, 48]);
        check(113, 64, 16, &[0, 48, 64]);
        check(160, 64, 16, &[0, 48, 96]);
        check(230, 96, 48, &[0, 48, 96, 144]);
        check(200, 96, 32, &[0, 64, 128]);
        check(201, 128, 0, &[0, 96]);
        check(10, 4, 1, &[0, 3, 6]);
    }
}
