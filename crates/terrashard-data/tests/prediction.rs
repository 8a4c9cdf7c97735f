//! Parts of a prediction: what is counted of them, and where the windows of all scenes lie.

use terrashard_data::baseline::{Score, Truth};
use terrashard_data::{BandSelection, IGNORE, Mosaic, Scene, SceneOptions};
use terrashard_raster::{
    DataType, Georeference, MemorySource, Metadata, Samples, Transform, Window,
};

const SCALE: usize = 5;

fn source(width: usize, height: usize, scale: usize, samples: Samples) -> Box<MemorySource> {
    let ground = Transform::north_up(399_960.0, 5_800_020.0, 10.0 / scale as f64);
    let metadata = Metadata {
        width,
        height,
        bands: 1,
        data_type: DataType::U8,
        georeference: Georeference {
            epsg: Some(32633),
            transform: Some(ground),
        },
        nodata: Some(0.0),
        descriptions: vec![None],
        overviews: Vec::new(),
        block: (width, 1),
    };
    Box::new(MemorySource::new("scene", metadata, samples).expect("filled"))
}

/// Edges of the class in every place of a window, and pixels without data.
fn scene(width: usize, height: usize) -> Scene {
    let image = (0..width * height).map(|i| u8::from(i % 97 != 5)).collect();
    let label = |i: usize| match (i % (width * SCALE) / 7 + i / (width * SCALE) / 11) % 5 {
        0 | 1 => 1,
        4 if i.is_multiple_of(13) => IGNORE,
        _ => 0,
    };
    let mask = (0..width * height * SCALE * SCALE).map(label).collect();
    Scene::new(
        source(width, height, 1, Samples::U8(image)),
        Some(source(
            width * SCALE,
            height * SCALE,
            SCALE,
            Samples::U8(mask),
        )),
        SceneOptions::new(BandSelection::All(1)),
    )
    .expect("sound")
}

/// User problem: memory of an evaluation that grows with each scene.
#[test]
fn geo_03_windows_are_counted_as_the_whole_region() {
    let scene = scene(41, 33);
    let region = Window::new(3, 2, 37, 30);
    let map = |window: Window| -> Vec<u8> {
        let fine = window.scaled(SCALE);
        let value = |row: usize, col: usize| u8::from((row / 9 + col / 4).is_multiple_of(2));
        (fine.row..fine.row_end())
            .flat_map(|row| (fine.col..fine.col_end()).map(move |col| value(row, col)))
            .collect()
    };
    let labels = scene.labels(region).expect("reads");
    let whole = Score::of(&map(region), &labels, region.width * SCALE);
    assert!(whole.shore.pixels() > 1000 && whole.shore.pixels() < whole.all.pixels());
    for (tile, overlap) in [(16, 4), (7, 0), (64, 0)] {
        let mut score = Score::default();
        let mut mosaic =
            Mosaic::new(region.width, region.height, tile, overlap, SCALE).expect("sound");
        for window in mosaic.windows() {
            let nothing = vec![0.0; window.scaled(SCALE).pixels()];
            let block = mosaic
                .add(window, &nothing)
                .expect("its turn")
                .expect("a block");
            let Window {
                col,
                row,
                width,
                height,
            } = block.image;
            let place = Window::new(region.col + col, region.row + row, width, height);
            let truth = Truth::read(&scene, region, place).expect("reads");
            score.add(&map(place), &truth);
        }
        assert_eq!(score, whole, "windows of {tile} pixels");
    }
}

/// User problems: predictions larger or smaller than their scene, right and lower edges that no window reaches, scenes smaller
/// than a window that are dropped.
#[test]
fn geo_12_blocks_cover_every_size_once() {
    for (width, height) in [
        (578, 379),
        (400, 400),
        (42, 24),
        (1, 1),
        (1536, 768),
        (1068, 1068),
    ] {
        for (tile, overlap) in [(64, 16), (256, 0), (96, 60)] {
            let mut mosaic = Mosaic::new(width, height, tile, overlap, 1).expect("sound");
            let mut seen = vec![0_u8; width * height];
            for window in mosaic.windows() {
                let nothing = vec![0.0; window.pixels()];
                let block = mosaic
                    .add(window, &nothing)
                    .expect("its turn")
                    .expect("a block");
                for row in block.image.row..block.image.row_end() {
                    let line = &mut seen[row * width..][block.image.col..block.image.col_end()];
                    line.iter_mut().for_each(|count| *count += 1);
                }
            }
            assert!(mosaic.is_complete());
            assert!(
                seen.iter().all(|&count| count == 1),
                "{width} x {height} in {tile}"
            );
        }
    }
}
