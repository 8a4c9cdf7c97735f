//! The trivial super-resolution that a model has to be compared with: bicubic enlargement.
//!
//! Cubic convolution with a = -1/2 ([Keys 1981](https://doi.org/10.1109/TASSP.1981.1163711)), between the centres of pixels; beyond
//! the scene's border its outer pixels are repeated.

use terrashard_raster::Window;

use crate::{Result, Scene};

/// Pixels that are needed beyond a window on each side.
const MARGIN: usize = 2;

/// Reflectance of a window of an image, enlarged to the mask's grid. Beside a pixel without data, a pixel's own value stands in.
///
/// # Shapes
/// `bands`: places in the image's file, from 0. The result is `[bands, window.height * scale, window.width * scale]`, NaN over
/// pixels without data.
///
/// # Errors
/// [`Error::Raster`](crate::Error::Raster).
pub fn enlarge(scene: &Scene, bands: &[usize], window: Window) -> Result<Vec<f32>> {
    let (left, top) = (
        window.col.saturating_sub(MARGIN),
        window.row.saturating_sub(MARGIN),
    );
    let right = (window.col_end() + MARGIN).min(scene.width());
    let bottom = (window.row_end() + MARGIN).min(scene.height());
    let around = Window::new(left, top, right - left, bottom - top);
    let raster = scene.image().read_window(around)?;
    let data = scene.image().read_mask(around)?;
    let scaling = scene.scaling();
    let scale = scene.scale();
    let across = taps(window.col, window.width, scale, left, scene.width());
    let down = taps(window.row, window.height, scale, top, scene.height());
    let mut enlarged = Vec::with_capacity(bands.len() * window.scaled(scale).pixels());
    for &band in bands {
        let reflectance = |(at, dn): (usize, f32)| {
            let masked = data.as_ref().is_some_and(|data| !data[at]);
            let has_data = dn.is_finite() && !scene.metadata().is_nodata(f64::from(dn));
            if has_data && !masked {
                (dn + scaling.offset) * scaling.scale
            } else {
                f32::NAN
            }
        };
        let samples = raster.band_f32(band).into_iter().enumerate();
        let values: Vec<f32> = samples.map(reflectance).collect();
        let rows: Vec<f32> = values
            .chunks_exact(around.width)
            .flat_map(|row| across.iter().map(|taps| taps.of(|at| row[at])))
            .collect();
        for (row, taps) in down.iter().enumerate() {
            for col in 0..across.len() {
                let value = taps.of(|at| rows[at * across.len() + col]);
                let own = (window.row - top + row / scale) * around.width + window.col - left
                    + col / scale;
                enlarged.push(if value.is_nan() { values[own] } else { value });
            }
        }
    }
    Ok(enlarged)
}

/// The four pixels that a fine one lies between, counted from where the read window begins, and their weights.
struct Taps {
    at: [usize; 4],
    weights: [f32; 4],
}

impl Taps {
    fn of(&self, value: impl Fn(usize) -> f32) -> f32 {
        let products = self.at.iter().zip(self.weights);
        products.map(|(&at, weight)| weight * value(at)).sum()
    }
}

/// The taps of each fine pixel over `length` pixels from `first` on, along a side of `side` pixels of which those from `read` on
/// are at hand.
fn taps(first: usize, length: usize, scale: usize, read: usize, side: usize) -> Vec<Taps> {
    let tap = |fine: usize| {
        let centre = (fine as f64 + 0.5) / scale as f64 - 0.5;
        let below = centre.floor();
        let within = |at: f64| (at.clamp(0.0, (side - 1) as f64) as usize) - read;
        let offsets = [-1.0, 0.0, 1.0, 2.0];
        Taps {
            at: offsets.map(|offset| within(below + offset)),
            weights: offsets.map(|offset| keys(centre - below - offset) as f32),
        }
    };
    (first * scale..(first + length) * scale).map(tap).collect()
}

/// Keys's kernel at a distance in pixels.
fn keys(distance: f64) -> f64 {
    let x = distance.abs();
    match x {
        ..=1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        ..2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_known() {
        // At quarters, as exact fractions of 128.
        let check = |distance: f64, of_128: f64| assert_eq!(keys(distance) * 128.0, of_128);
        check(0.0, 128.0);
        check(0.25, 111.0);
        check(0.75, 29.0);
        check(-1.0, 0.0);
        check(1.25, -9.0);
        check(1.75, -3.0);
        check(2.0, 0.0);
        for scale in 1..7 {
            for taps in taps(3, 4, scale, 1, 9) {
                assert!((taps.weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            }
        }
    }
}
