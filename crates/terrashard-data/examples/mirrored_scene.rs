//! Makes a square scene of any size of the shipped one, mirrored about its edges again and again: pixels of a real image in the
//! layout of a whole product, uint16 and Deflate in tiles of 512 pixels.
//!
//! `cargo run -p terrashard-data --example mirrored_scene -- SIZE IMAGE [MASK]`

use std::error::Error;
use std::path::{Path, PathBuf};

use terrashard_raster::{
    GeoTiffSink, Raster, RasterSink, RasterSource, RasterSpec, Samples, Window, open,
};

/// Rows that are written at once.
const ROWS: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (size, files) = match arguments.split_first() {
        Some((size, files)) if (1..=2).contains(&files.len()) => (size.parse::<usize>()?, files),
        _ => return Err("expected SIZE IMAGE [MASK]".into()),
    };
    let water = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/water");
    let shipped = [
        ("S2A_T33UUU_20170216_L1C_6band.tif", size),
        ("osm_water_mask_2m_ignore255.tif", 5 * size),
    ];
    for ((name, size), out) in shipped.iter().zip(files) {
        mirror(&water.join(name), *size, &PathBuf::from(out))?;
    }
    Ok(())
}

fn mirror(from: &Path, size: usize, to: &Path) -> Result<(), Box<dyn Error>> {
    let source = open(from)?;
    let metadata = source.metadata();
    let spec = RasterSpec {
        nodata: metadata.nodata,
        descriptions: metadata.descriptions.clone(),
        ..RasterSpec::new(size, size, metadata.bands, metadata.data_type)
            .georeference(metadata.georeference)
    };
    let whole = source.read_window(metadata.window())?;
    let (width, height) = (metadata.width, metadata.height);
    let columns: Vec<usize> = (0..size).map(|col| mirrored(col, width)).collect();
    let mut sink: Box<dyn RasterSink> = Box::new(GeoTiffSink::create(to, spec)?);
    for row in (0..size).step_by(ROWS) {
        let window = Window::new(0, row, size, ROWS.min(size - row));
        let places = (0..metadata.bands).flat_map(|band| {
            let rows = window.row..window.row_end();
            rows.map(move |row| (band * height + mirrored(row, height)) * width)
        });
        let samples = match whole.samples() {
            Samples::U8(values) => Samples::U8(rows(values, places, &columns)),
            Samples::U16(values) => Samples::U16(rows(values, places, &columns)),
            other => return Err(format!("samples of {}", other.data_type()).into()),
        };
        sink.write(&Raster::new(window, metadata.bands, samples)?)?;
    }
    sink.finish()?;
    println!("{}", to.display());
    Ok(())
}

/// Rows that begin at these places, their columns mirrored.
fn rows<T: Copy>(values: &[T], places: impl Iterator<Item = usize>, columns: &[usize]) -> Vec<T> {
    places
        .flat_map(|place| columns.iter().map(move |col| values[place + col]))
        .collect()
}

/// The place in `0..length` that `index` is mirrored to; the edge is repeated.
fn mirrored(index: usize, length: usize) -> usize {
    let at = index % (2 * length);
    at.min(2 * length - 1 - at)
}
