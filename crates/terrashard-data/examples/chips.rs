//! Cuts a scene into chips and prints how many pixels of each class they hold, and what a baseline makes of the scene.
//!
//! `cargo run -p terrashard-data --example chips -- [IMAGE MASK]`

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrashard_data::baseline::{self, Upsampling};
use terrashard_data::{BandSelection, ChipOptions, Chips, Region, Scene, SceneOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let water = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/water");
    let (image, mask) = match arguments.as_slice() {
        [image, mask] => (image.clone(), mask.clone()),
        _ => (
            water.join("S2A_T33UUU_20170216_L1C_6band.tif"),
            water.join("osm_water_mask_2m_ignore255.tif"),
        ),
    };
    let options = SceneOptions::new(BandSelection::names([
        "B02", "B03", "B04", "B08", "B11", "B12",
    ]));
    let scene = Arc::new(Scene::open(&image, Some(&mask), options)?);
    println!(
        "{}: {} x {} pixels",
        image.display(),
        scene.width(),
        scene.height()
    );

    for region in [Region::West, Region::East] {
        let window = region.window("region", scene.width(), scene.height())?;
        let chips = Chips::new(vec![(scene.clone(), window)], ChipOptions::default())?;
        let counts = chips.chips().iter().map(|chip| &chip.counts);
        let (land, water) = counts
            .clone()
            .fold((0, 0), |(l, w), c| (l + c[0], w + c[1]));
        let wet = counts.filter(|c| c[1] > 500).count();
        println!(
            "{region:?}: {} chips, {wet} with more than 500 water pixels",
            chips.len()
        );
        println!("  land {land}, water {water} mask pixels");

        let score = baseline::score(&scene, window, Upsampling::Nearest)?;
        let (all, shore) = (score.all.iou(), score.shore.iou());
        println!(
            "  NDWI: IoU {:.3}, along the shore {:.3}",
            all.unwrap_or(f64::NAN),
            shore.unwrap_or(f64::NAN)
        );
    }
    Ok(())
}
