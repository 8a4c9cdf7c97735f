//! Makes a square scene of any size of the shipped one, mirrored about its edges again and again: real pixels in a whole product's
//! layout. `cargo run -p terrashard-data --example mirrored_scene -- SIZE IMAGE [MASK]`

use std::{error::Error, path::Path};

use terrashard_raster::{
    GeoTiffSink, Raster, RasterSink, RasterSource, RasterSpec, Samples, Window, open,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (size, files) = arguments
        .split_first()
        .ok_or("expected SIZE IMAGE [MASK]")?;
    let (size, water) = (size.parse::<usize>()?, env!("CARGO_MANIFEST_DIR"));
    let shipped = [
        ("S2A_T33UUU_20170216_L1C_6band.tif", size),
        ("osm_water_mask_2m_ignore255.tif", 5 * size),
    ];
    for ((name, size), out) in shipped.iter().zip(files) {
        let water = Path::new(water).join("../../examples/water");
        mirror(&water.join(name), *size, Path::new(out))?;
    }
    Ok(())
}

fn mirror(from: &Path, size: usize, to: &Path) -> Result<(), Box<dyn Error>> {
    let source = open(from)?;
    let image = source.metadata();
    let spec = RasterSpec::new(size, size, image.bands, image.data_type);
    let spec = RasterSpec {
        nodata: image.nodata,
        descriptions: image.descriptions.clone(),
        ..spec.georeference(image.georeference)
    };
    let mut sink: Box<dyn RasterSink> = Box::new(GeoTiffSink::create(to, spec)?);
    let whole = source.read_window(image.window())?;
    for row in (0..size).step_by(512) {
        let window = Window::new(0, row, size, (size - row).min(512));
        let places = (0..image.bands).flat_map(|band| {
            let rows = window.row..window.row_end();
            let from = rows.map(move |row| band * image.height + mirrored(row, image.height));
            from.flat_map(|row| (0..size).map(move |col| (row, mirrored(col, image.width))))
        });
        let places = places.map(|(row, col)| row * image.width + col);
        let samples = match whole.samples() {
            Samples::U8(from) => Samples::U8(places.map(|at| from[at]).collect()),
            Samples::U16(from) => Samples::U16(places.map(|at| from[at]).collect()),
            other => return Err(format!("samples of {}", other.data_type()).into()),
        };
        sink.write(&Raster::new(window, image.bands, samples)?)?;
    }
    Ok(sink.finish()?)
}

/// The place in `0..length` that `index` is mirrored to; the edge is repeated.
fn mirrored(index: usize, length: usize) -> usize {
    let at = index % (2 * length);
    at.min(2 * length - 1 - at)
}
