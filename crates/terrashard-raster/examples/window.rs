//! Cuts the upper left 128 x 128 pixels out of a scene and writes them, first band only, as a GeoTIFF in its own place.
//!
//! `cargo run -p terrashard-raster --example window -- [SCENE] [OUT]`

use std::error::Error;
use std::path::PathBuf;

use terrashard_raster::{
    DataType, GeoTiffSink, Georeference, Raster, RasterSink, RasterSource, RasterSpec, Samples,
    Window,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let scene = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/water/S2A_T33UUU_20170216_L1C_6band.tif"
    ));
    let scene = arguments.next().unwrap_or(scene);
    let out = arguments
        .next()
        .unwrap_or_else(|| std::env::temp_dir().join("terrashard-window.tif"));

    let source = terrashard_raster::open(&scene)?;
    let metadata = source.metadata();
    println!(
        "{}: {} x {} pixels, {} bands of {}",
        scene.display(),
        metadata.width,
        metadata.height,
        metadata.bands,
        metadata.data_type
    );

    let window = Window::new(
        metadata.width.min(256) / 2,
        0,
        metadata.width.min(256) / 2,
        metadata.height.min(128),
    );
    let raster = source.read_window(window)?;
    let band = raster.band_f32(0);
    println!(
        "{window}: the first band begins with {:?}",
        &band[..4.min(band.len())]
    );

    let Georeference { epsg, transform } = metadata.georeference;
    let ground = Georeference {
        epsg,
        transform: transform.map(|t| t.offset(window.col, window.row)),
    };
    let spec = RasterSpec::new(window.width, window.height, 1, DataType::F32).georeference(ground);
    let mut sink = GeoTiffSink::create(&out, spec.clone())?;
    sink.write(&Raster::new(spec.window(), 1, Samples::F32(band))?)?;
    Box::new(sink).finish()?;
    println!("wrote {}", out.display());
    Ok(())
}
