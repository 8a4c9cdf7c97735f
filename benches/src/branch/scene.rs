//! The scene that stands for a pair of images.

use std::path::Path;

use terrashard_raster::{GeoTiffSink, Raster, RasterSink, RasterSpec, Samples, Window};

use super::{BranchBench, Error, SCALE};
use crate::npy;

/// Writes `coarse.tif`, `fine.tif` (red, green, blue, near infrared) and `mask.tif`.
pub(super) fn write(bench: &BranchBench, folder: &Path) -> Result<(), Error> {
    let (image, mask) = (npy::read(&bench.image)?, npy::read(&bench.mask)?);
    let [height, width, bands] = match image.shape[..] {
        [height, width, bands] if bands >= 6 && mask.values.len() == height * width => {
            [height, width, bands]
        }
        _ => {
            return Err(Error::Shapes {
                image: image.shape,
                mask: mask.shape,
            });
        }
    };
    let (columns, rows) = (width / SCALE, height / SCALE);
    let at = |row: usize, col: usize, band: usize| image.values[(row * width + col) * bands + band];
    let average = |band: usize, row: usize, col: usize| {
        let square =
            (0..SCALE * SCALE).map(|i| at(row * SCALE + i / SCALE, col * SCALE + i % SCALE, band));
        square.sum::<f32>() / (SCALE * SCALE) as f32
    };
    let coarse = planes(6, rows, columns, average);
    let fine_size = (columns * SCALE, rows * SCALE);
    let red_first = |band: usize, row: usize, col: usize| at(row, col, [2, 1, 0, 3][band]);
    let fine = planes(4, fine_size.1, fine_size.0, red_first);
    let foreground = |_: usize, row: usize, col: usize| {
        u8::from(mask.values[row * width + col] == f32::from(bench.class))
    };
    let labels = planes(1, fine_size.1, fine_size.0, foreground);
    save(
        &folder.join("coarse.tif"),
        (columns, rows),
        6,
        Samples::F32(coarse),
    )?;
    save(&folder.join("fine.tif"), fine_size, 4, Samples::F32(fine))?;
    save(&folder.join("mask.tif"), fine_size, 1, Samples::U8(labels))
}

/// `[bands, rows, columns]` of the values of `value(band, row, column)`.
fn planes<T>(
    bands: usize,
    rows: usize,
    columns: usize,
    value: impl Fn(usize, usize, usize) -> T,
) -> Vec<T> {
    let plane = rows * columns;
    (0..bands * plane)
        .map(|i| value(i / plane, i % plane / columns, i % columns))
        .collect()
}

fn save(
    path: &Path,
    (width, height): (usize, usize),
    bands: usize,
    samples: Samples,
) -> Result<(), Error> {
    let spec = RasterSpec::new(width, height, bands, samples.data_type()).tile(128);
    let mut sink = Box::new(GeoTiffSink::create(path, spec)?);
    sink.write(&Raster::new(
        Window::new(0, 0, width, height),
        bands,
        samples,
    )?)?;
    Ok(sink.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scene_is_the_average_of_its_target() {
        let folder = tempfile::tempdir().expect("a folder");
        // 11 x 12 pixels: one row and two columns are left over.
        let (height, width) = (11, 12);
        let values: Vec<u8> = (0..height * width * 6)
            .map(|i| (i * 7 % 251) as u8)
            .collect();
        let array = |name: &str, shape: &str, data: &[u8]| {
            let header =
                format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n");
            let length = u16::try_from(header.len()).expect("short").to_le_bytes();
            let bytes = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat();
            std::fs::write(folder.path().join(name), bytes).expect("writable");
        };
        array("image.npy", "(11, 12, 6)", &values);
        let classes: Vec<u8> = (0..height * width).map(|i| (i % 5) as u8).collect();
        array("mask.npy", "(11, 12, 1)", &classes);
        let bench = BranchBench {
            image: folder.path().join("image.npy"),
            mask: folder.path().join("mask.npy"),
            class: 4,
            steps: 1,
            seeds: 1,
            l1_weights: vec![0.001],
        };
        write(&bench, folder.path()).expect("a scene");
        let open = |name: &str| {
            use terrashard_raster::RasterSource;
            let source = terrashard_raster::open(folder.path().join(name)).expect("a raster");
            source
                .read_window(source.metadata().window())
                .expect("whole")
        };
        let (coarse, fine, mask) = (open("coarse.tif"), open("fine.tif"), open("mask.tif"));
        assert_eq!((coarse.window().width, coarse.window().height), (2, 2));
        assert_eq!((fine.window().width, fine.window().height), (10, 10));
        // Blue is the image's first band and the target's third.
        let blue = |row: usize, col: usize| f64::from(values[(row * width + col) * 6]);
        assert_eq!(fine.at(2, 7, 6), blue(6, 7));
        let mean = (0..25).map(|i| blue(5 + i / 5, 5 + i % 5)).sum::<f64>() / 25.0;
        assert!((coarse.at(0, 1, 1) - mean).abs() < 1e-4);
        assert_eq!(mask.at(0, 4, 0), 1.0);
        assert_eq!(
            mask.at(0, 4, 1),
            f64::from(u8::from(classes[width + 4] == 4))
        );
    }
}
