//! One page about a raster, in one streamed pass.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::{RasterSource, Result, Window};

/// Bytes of one window of the streamed pass.
const PASS_BYTES: usize = 16 << 20;

/// What `info` prints: the keys are the fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bands.
    pub bands: usize,
    /// numpy's name of the sample type.
    pub dtype: &'static str,
    /// EPSG code, if there is one.
    pub epsg: Option<u32>,
    /// The letters `a` to `f` of the [`Transform`](crate::Transform), if there is one.
    pub affine: Option<[f64; 6]>,
    /// The declared nodata value; NaN and the infinities, which JSON lacks, are serialized as text (`"nan"`, `"inf"`).
    #[serde(serialize_with = "number_or_text")]
    pub nodata: Option<f64>,
    /// How many times smaller each overview is.
    pub overviews: Vec<usize>,
    /// Per band, the mean over all pixels that are not NaN, nodata included; `None` where every pixel is NaN.
    pub mean: Vec<Option<f64>>,
    /// Per band, its description.
    pub descriptions: Vec<Option<String>>,
    /// Per band, by what a sample is multiplied to become a quantity.
    pub scales: Vec<f64>,
    /// Per band, what is added after that.
    pub offsets: Vec<f64>,
    /// Which pixels are data, by the names of GDAL's mask flags: `all_valid`, `nodata`, `per_dataset`, `alpha`.
    pub mask: &'static [&'static str],
    /// Number of ground control points, where there is no affine.
    pub gcps: usize,
    /// Names and values that belong to the whole raster.
    pub tags: BTreeMap<String, String>,
}

fn number_or_text<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(v) if !v.is_finite() => serializer.serialize_str(&v.to_string().to_lowercase()),
        value => value.serialize(serializer),
    }
}

/// Reads the whole raster once, in windows of about 16 MiB, and describes it.
///
/// # Errors
/// Those of [`RasterSource::read_window`]: so a file whose tail is damaged is found here at the latest.
pub fn summarize(source: &dyn RasterSource) -> Result<Summary> {
    let metadata = source.metadata();
    let (width, height, bands) = (metadata.width, metadata.height, metadata.bands);
    let mut sums = vec![(0.0_f64, 0_u64); bands];
    for window in pass(
        metadata.window(),
        metadata.block,
        bands * metadata.data_type.bytes(),
    ) {
        let raster = source.read_window(window)?;
        for (band, (sum, count)) in sums.iter_mut().enumerate() {
            // Sums of one window first: adding a small number to a large one loses its digits.
            let mut part = 0.0;
            raster.samples().for_each(raster.band_range(band), |value| {
                if !value.is_nan() {
                    part += value;
                    *count += 1;
                }
            });
            *sum += part;
        }
    }
    let annotations = source.annotations();
    Ok(Summary {
        width,
        height,
        bands,
        dtype: metadata.data_type.name(),
        epsg: metadata.georeference.epsg,
        affine: metadata.georeference.transform.map(|t| t.coefficients()),
        nodata: metadata.nodata,
        overviews: metadata.overviews.clone(),
        mean: sums
            .into_iter()
            .map(|(sum, count)| (count > 0).then(|| sum / count as f64))
            .collect(),
        descriptions: metadata.descriptions.clone(),
        scales: annotations.scales,
        offsets: annotations.offsets,
        mask: annotations.validity.flags(),
        gcps: annotations.control_points,
        tags: annotations.tags,
    })
}

/// Windows that cover `whole` once, along the grid of blocks, each at most [`PASS_BYTES`] where a block allows it.
fn pass(whole: Window, block: (usize, usize), pixel_bytes: usize) -> impl Iterator<Item = Window> {
    let pixels = (PASS_BYTES / pixel_bytes).max(1);
    let fit = |block: usize, room: usize| (room / block * block).max(block.min(room)).max(1);
    let width = whole.width.min(fit(block.0, pixels / block.1.min(pixels)));
    let height = whole.height.min(fit(block.1, pixels / width));
    (0..whole.height).step_by(height).flat_map(move |row| {
        let place = move |col| {
            Window::new(
                col,
                row,
                width.min(whole.width - col),
                height.min(whole.height - row),
            )
        };
        (0..whole.width).step_by(width).map(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_covers_all_pixels_in_bounded_windows() {
        let check = |width: usize, height: usize, block: (usize, usize), pixel_bytes: usize| {
            let windows: Vec<Window> =
                pass(Window::new(0, 0, width, height), block, pixel_bytes).collect();
            assert_eq!(
                windows.iter().map(Window::pixels).sum::<usize>(),
                width * height
            );
            let largest = windows.iter().map(|w| w.pixels() * pixel_bytes).max();
            assert!(
                largest <= Some(PASS_BYTES.max(pixel_bytes)),
                "{width} x {height}: {largest:?}"
            );
        };
        check(1, 1, (1, 1), 1);
        check(10_980, 10_980, (512, 512), 12);
        check(10_980, 10_980, (10_980, 1), 12);
        check(100_000, 1, (100_000, 1), 8);
        check(54_900, 600, (54_900, 600), 1);
        check(3, 70_000_000, (3, 70_000_000), 1);
    }
}
