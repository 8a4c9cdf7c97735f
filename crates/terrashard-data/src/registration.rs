//! How far two images of the same ground are shifted against each other, by phase correlation.
//!
//! Kuglin and Hines 1975: the phases of the product of one spectrum with the other's conjugate are those of a shift alone. Weighted by a
//! Gaussian, they give a Gaussian around the shift, so that a parabola through the logarithms of three values finds its fraction of a pixel.

use serde::Serialize;
use terrashard_raster::{RasterSource, Window};

use crate::spectrum::{self, Complex};
use crate::{BandSelection, Result};

/// Above this shift, in image pixels, two images are not laid over each other.
pub const LARGEST_SHIFT: f64 = 0.5;

/// Side of a window that is compared, in image pixels.
const SIDE: usize = 128;

/// Windows smaller than this tell nothing.
const SMALLEST_SIDE: usize = 32;

/// Windows across and down an image.
const WINDOWS: usize = 4;

/// Standard deviation of the weights, in cycles for each pixel: half a pixel's detail counts for nothing.
const BANDWIDTH: f64 = 0.15;

/// The least height of a peak: 1 is that of an image with itself, noise reaches a tenth.
const LEAST_PEAK: f64 = 0.15;

/// The least share of a window that has data in both images.
const LEAST_DATA: f64 = 0.9;

/// How far an image lies from another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shift {
    /// Image pixels to the right, the median of all windows.
    pub right: f64,
    /// Image pixels down.
    pub down: f64,
    /// The height of the peak, the median: 1 is that of an image with itself, noise reaches a tenth.
    pub peak: f64,
    /// Windows that told it.
    pub windows: usize,
}

impl Shift {
    /// Its length in image pixels.
    pub fn length(&self) -> f64 {
        self.right.hypot(self.down)
    }

    /// Whether it is above [`LARGEST_SHIFT`].
    pub fn is_large(&self) -> bool {
        self.length() > LARGEST_SHIFT
    }
}

/// One window: what lies where, and what is missing.
struct Plane {
    values: Vec<f32>,
    data: Vec<bool>,
}

/// Measures how far `fine`, which is meant to cover exactly the ground of `image` with `scale` pixels for one, lies from it. None where
/// no window has enough data and detail to tell.
///
/// Bands of the same names are compared, else the visible bands of the image, else its first three, with the first three of `fine`.
///
/// # Errors
/// [`Error::Raster`](crate::Error::Raster).
pub fn measure(
    image: &dyn RasterSource,
    fine: &dyn RasterSource,
    scale: usize,
) -> Result<Option<Shift>> {
    let (width, height) = (image.metadata().width, image.metadata().height);
    let side = SIDE.min(prior_power_of_two(width.min(height)));
    if side < SMALLEST_SIDE {
        return Ok(None);
    }
    let (bands, fine_bands) = compared(image, fine);
    let mut shifts: Vec<(f64, f64, f64)> = Vec::new();
    for row in starts(height, side) {
        for col in starts(width, side) {
            let window = Window::new(col, row, side, side);
            let first = averaged(image, window, 1, &bands)?;
            let second = averaged(fine, window.scaled(scale), scale, &fine_bands)?;
            shifts.extend(shift_of(first, second, side));
        }
    }
    if shifts.is_empty() {
        return Ok(None);
    }
    let median = |value: fn(&(f64, f64, f64)) -> f64| {
        let mut values: Vec<f64> = shifts.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        (low + high) / 2.0
    };
    Ok(Some(Shift {
        right: median(|shift| shift.0),
        down: median(|shift| shift.1),
        peak: median(|shift| shift.2),
        windows: shifts.len(),
    }))
}

fn prior_power_of_two(number: usize) -> usize {
    match number {
        0 => 0,
        number => 1 << number.ilog2(),
    }
}

/// Where windows begin that are spread evenly over a length.
fn starts(length: usize, side: usize) -> Vec<usize> {
    let windows = WINDOWS.min(length / side).max(1);
    let room = length - side;
    let mut starts: Vec<usize> = (0..windows)
        .map(|window| (2 * window + 1) * room / (2 * windows))
        .collect();
    starts.dedup();
    starts
}

/// The bands of both images that are compared.
fn compared(image: &dyn RasterSource, fine: &dyn RasterSource) -> (Vec<usize>, Vec<usize>) {
    let (i, f) = (image.metadata(), fine.metadata());
    let named = f.descriptions.iter().enumerate();
    let (ours, theirs): (Vec<usize>, Vec<usize>) = named
        .filter_map(|(place, name)| Some((i.band_named(name.as_deref()?)?, place)))
        .unzip();
    if !ours.is_empty() {
        return (ours, theirs);
    }
    let visible = BandSelection::names(["B02", "B03", "B04"]).resolve(image.path(), i);
    let first = |bands: usize| (0..bands.min(3)).collect::<Vec<_>>();
    (visible.unwrap_or_else(|_| first(i.bands)), first(f.bands))
}

/// The mean of some bands over blocks of `scale` x `scale` pixels; a block has data where half of it has in all bands.
fn averaged(
    source: &dyn RasterSource,
    window: Window,
    scale: usize,
    bands: &[usize],
) -> Result<Plane> {
    let raster = source.read_window(window)?;
    let mut valid = source
        .read_mask(window)?
        .unwrap_or_else(|| vec![true; window.pixels()]);
    let mut sums = vec![0.0_f32; window.pixels()];
    for &band in bands {
        for ((sum, ok), sample) in sums.iter_mut().zip(&mut valid).zip(raster.band_f32(band)) {
            *ok &= sample.is_finite() && !source.metadata().is_nodata(f64::from(sample));
            *sum += sample;
        }
    }
    let (width, height) = (window.width / scale, window.height / scale);
    let mut plane = Plane {
        values: Vec::with_capacity(width * height),
        data: Vec::with_capacity(width * height),
    };
    for row in 0..height {
        for col in 0..width {
            let (mut sum, mut count) = (0.0_f64, 0);
            for y in row * scale..(row + 1) * scale {
                for at in y * window.width + col * scale..y * window.width + (col + 1) * scale {
                    if valid[at] {
                        sum += f64::from(sums[at]);
                        count += 1;
                    }
                }
            }
            plane.values.push(if count > 0 {
                (sum / f64::from(count)) as f32
            } else {
                0.0
            });
            plane
                .data
                .push(2 * count as usize >= scale * scale && count > 0);
        }
    }
    Ok(plane)
}

/// How far the second window lies right and down of the first, with the height of the peak; none where that is not clear.
fn shift_of(first: Plane, second: Plane, side: usize) -> Option<(f64, f64, f64)> {
    let both: Vec<bool> = first
        .data
        .iter()
        .zip(&second.data)
        .map(|(a, b)| *a && *b)
        .collect();
    let count = both.iter().filter(|both| **both).count();
    if (count as f64) < LEAST_DATA * both.len() as f64 {
        return None;
    }
    let mut first = tapered(&first.values, &both, side)?;
    let mut second = tapered(&second.values, &both, side)?;
    spectrum::transform(&mut first, side);
    spectrum::transform(&mut second, side);
    let frequency = |index: usize| {
        let index = index as f64;
        let side = side as f64;
        if index < side / 2.0 {
            index / side
        } else {
            index / side - 1.0
        }
    };
    let mut total = 0.0;
    for row in 0..side {
        for col in 0..side {
            let at = row * side + col;
            let product = first[at].conjugate().times(second[at]);
            let length = product.length();
            let (u, v) = (frequency(col), frequency(row));
            let weight = (-(u * u + v * v) / (2.0 * BANDWIDTH * BANDWIDTH)).exp();
            first[at] = match length > 0.0 {
                true => product.scaled(weight / length),
                false => Complex::default(),
            };
            total += weight;
        }
    }
    spectrum::inverse(&mut first, side);
    let value = |row: usize, col: usize| first[row * side + col].real;
    let at = (0..side * side).max_by(|&a, &b| first[a].real.total_cmp(&first[b].real))?;
    let (row, col) = (at / side, at % side);
    let peak = value(row, col) * (side * side) as f64 / total;
    if peak < LEAST_PEAK {
        return None;
    }
    let around = |at: usize| ((at + side - 1) % side, (at + 1) % side);
    let (left, right) = around(col);
    let (above, below) = around(row);
    let signed = |at: usize| {
        if at < side / 2 {
            at as f64
        } else {
            at as f64 - side as f64
        }
    };
    let right = signed(col) + fraction(value(row, left), value(row, col), value(row, right));
    let down = signed(row) + fraction(value(above, col), value(row, col), value(below, col));
    Some((right, down, peak))
}

/// Where between its neighbours a Gaussian has its peak: at most half a pixel away.
fn fraction(before: f64, peak: f64, after: f64) -> f64 {
    if before <= 0.0 || after <= 0.0 {
        return 0.0;
    }
    let (before, peak, after) = (before.ln(), peak.ln(), after.ln());
    let curvature = before - 2.0 * peak + after;
    if curvature >= 0.0 {
        return 0.0;
    }
    (0.5 * (before - after) / curvature).clamp(-0.5, 0.5)
}

/// Deviations from the mean, falling to 0 towards the borders (Hann), so that the borders, which the transform puts next to each other, do
/// not count. None where all is alike.
fn tapered(values: &[f32], data: &[bool], side: usize) -> Option<Vec<Complex>> {
    let counted = || {
        values
            .iter()
            .zip(data)
            .filter(|(_, data)| **data)
            .map(|(value, _)| f64::from(*value))
    };
    let count = counted().count().max(1) as f64;
    let mean = counted().sum::<f64>() / count;
    let deviation = (counted().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    if deviation <= 1e-6 * mean.abs() {
        return None;
    }
    let taper =
        |at: usize| 0.5 - 0.5 * (std::f64::consts::TAU * (at as f64 + 0.5) / side as f64).cos();
    let value = |(at, (value, data)): (usize, (&f32, &bool))| match data {
        true => (f64::from(*value) - mean) / deviation * taper(at % side) * taper(at / side),
        false => 0.0,
    };
    let reals = values.iter().zip(data).enumerate().map(value);
    Some(
        reals
            .map(|real| Complex {
                real,
                imaginary: 0.0,
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The shipped scene's green band from this place on, averaged over blocks of 4 x 4 pixels: so shifts of quarters of a pixel are true.
    fn plane(side: usize, (col, row): (usize, usize)) -> Plane {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../examples/water/S2A_T33UUU_20170216_L1C_6band.tif");
        let scene = terrashard_raster::open(path).expect("the shipped scene");
        averaged(&*scene, Window::new(col, row, 4 * side, 4 * side), 4, &[1]).expect("inside")
    }

    #[test]
    fn geo_30_shifts_are_measured_to_a_twentieth_of_a_pixel() {
        for (right, down) in [(0, 0), (12, 0), (-8, 20), (2, -1), (-1, 3), (-29, 10)] {
            // What began further right lies further left.
            let moved = (200 - right, 100 - down);
            let second = plane(128, (moved.0 as usize, moved.1 as usize));
            let (r, d, peak) = shift_of(plane(128, (200, 100)), second, 128).expect("clear");
            let (right, down) = (f64::from(right) / 4.0, f64::from(down) / 4.0);
            assert!(
                (r - right).abs() < 0.05 && (d - down).abs() < 0.05,
                "{r}, {d} instead of {right}, {down}; peak {peak}"
            );
        }
        let same = shift_of(plane(64, (0, 0)), plane(64, (0, 0)), 64).expect("clear");
        assert!(
            same.0.abs() < 1e-9 && same.1.abs() < 1e-9 && (same.2 - 1.0).abs() < 1e-6,
            "{same:?}"
        );
    }

    #[test]
    fn what_is_not_clear_is_not_told() {
        let stream = terrashard_layout::counter::Stream::new(3, "noise");
        let noise = |seed: u64| Plane {
            values: (0..128 * 128)
                .map(|at| stream.child(seed).uniform(at + 2) as f32)
                .collect(),
            data: vec![true; 128 * 128],
        };
        assert_eq!(shift_of(noise(5), noise(6), 128), None);
        let mut gaps = plane(128, (0, 0));
        gaps.data[..128 * 20].fill(false);
        assert_eq!(shift_of(plane(128, (0, 0)), gaps, 128), None);
        let flat = Plane {
            values: vec![998.0; 64 * 64],
            data: vec![true; 64 * 64],
        };
        assert_eq!(shift_of(flat, plane(64, (0, 0)), 64), None);
    }

    #[test]
    fn windows_are_spread() {
        assert_eq!(starts(128, 128), [0]);
        assert_eq!(starts(300, 128), [43, 129]);
        assert_eq!(starts(10_980, 128).len(), 4);
        assert_eq!(prior_power_of_two(127), 64);
    }
}
