//! Mirrors a scene at its edges until it has a given height and width: a whole Sentinel-2 scene where there is only a part.
//!
//! `cargo run --release -p terrashard-raster --example mirrored_scene -- OUT [SIZE [SCENE]]`

use std::error::Error;
use std::path::PathBuf;

use terrashard_raster::{
    GeoTiffSink, Overviews, Raster, RasterSink, RasterSource, RasterSpec, Samples, Window, open,
};

/// Rows that are mirrored at a time: as many as a tile has.
const ROWS: usize = 512;

/// The place in `0..len` that place `index` of an endless row of mirror images shows.
fn mirrored(index: usize, len: usize) -> usize {
    let index = index % (2 * len);
    index.min(2 * len - 1 - index)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = PathBuf::from(arguments.next().ok_or("name the file to write")?);
    let size: usize = arguments.next().map_or(Ok(10_980), |size| size.parse())?;
    let scene = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/water/S2A_T33UUU_20170216_L1C_6band.tif"
    );
    let source = open(arguments.next().unwrap_or_else(|| scene.into()))?;

    let metadata = source.metadata().clone();
    let whole = source.read_window(metadata.window())?;
    let Samples::U16(pixels) = whole.samples() else {
        return Err("the scene has to be of uint16".into());
    };
    let names = metadata.descriptions.iter().flatten().cloned();
    let mut spec = RasterSpec::new(size, size, metadata.bands, metadata.data_type)
        .georeference(metadata.georeference)
        .overviews(Overviews::None)
        .descriptions(names);
    spec.nodata = metadata.nodata;
    let mut sink = Box::new(GeoTiffSink::create(&out, spec)?);
    for row in (0..size).step_by(ROWS) {
        let window = Window::new(0, row, size, ROWS.min(size - row));
        let mut samples = Vec::with_capacity(window.pixels() * metadata.bands);
        for band in 0..metadata.bands {
            for row in window.row..window.row_end() {
                let at = band * metadata.height + mirrored(row, metadata.height);
                let line = &pixels[at * metadata.width..][..metadata.width];
                samples.extend((0..size).map(|col| line[mirrored(col, metadata.width)]));
            }
        }
        sink.write(&Raster::new(window, metadata.bands, Samples::U16(samples))?)?;
    }
    sink.finish()?;
    println!("{}", out.display());
    Ok(())
}
