//! Samples that do not depend on who loads them.

use std::sync::Arc;

use terrashard_data::{
    Augmentation, BandSelection, ChipOptions, Chips, Jitter, Loader, LoaderOptions, Scene,
    SceneOptions, TileCache,
};
use terrashard_layout::SampleOrder;
use terrashard_raster::{DataType, Georeference, MemorySource, Metadata, RasterSource, Samples};

fn raster(name: &str, side: usize, samples: Samples) -> Box<dyn RasterSource> {
    let bands = samples.len() / (side * side);
    let metadata = Metadata {
        width: side,
        height: side,
        bands,
        data_type: DataType::U8,
        georeference: Georeference::default(),
        nodata: None,
        descriptions: vec![None; bands],
        overviews: Vec::new(),
        block: (side, 1),
    };
    Box::new(MemorySource::new(name, metadata, samples).expect("filled"))
}

/// 36 chips of two scenes that share a cache of this many bytes.
fn chips(cache: usize) -> Arc<Chips> {
    let cache = Arc::new(TileCache::new(cache));
    let scene = |first: u16| {
        let image = (0..2 * 48 * 48).map(|at| first + at as u16).collect();
        let labels = (0..96 * 96).map(|at| (at % 3 == 0).into()).collect();
        let options = SceneOptions {
            scale: 2,
            ..SceneOptions::new(BandSelection::All(2))
        };
        let mask = raster("mask", 96, Samples::U8(labels));
        let scene = Scene::new(
            raster("image", 48, Samples::U16(image)),
            Some(mask),
            options,
        )
        .expect("sound");
        let scene = Arc::new(scene.with_cache(cache.clone()));
        (scene.clone(), scene.window())
    };
    let options = ChipOptions {
        chip: 16,
        stride: 12,
        augmentation: Augmentation {
            seed: 9,
            orientations: true,
            jitter: Jitter {
                scale: 0.2,
                band_scale: 0.05,
                noise: 0.01,
            },
        },
        ..ChipOptions::default()
    };
    Arc::new(Chips::new(vec![scene(100), scene(7000)], options).expect("chips"))
}

/// Every sample of two epochs: when it comes, its id, its image and its label.
fn stream(
    chips: &Arc<Chips>,
    ranks: usize,
    micro_batch: usize,
) -> Vec<(u64, u64, Vec<f32>, Vec<u8>)> {
    let order = SampleOrder::new(chips.len(), 5).expect("samples");
    let mut samples = Vec::new();
    for rank in 0..ranks {
        let options = LoaderOptions {
            rank,
            ranks,
            micro_batch,
            accumulate: 2,
            cursor: 0,
            end: Some(2 * chips.len() as u64),
            steps: None,
            prefetch: 3,
        };
        for batch in Loader::new(chips.clone(), order, options).expect("a loader") {
            let batch = batch.expect("reads");
            let cursors = batch.window.clone();
            let side = chips.side() * chips.scale();
            let images = batch
                .batch
                .images
                .chunks_exact(chips.bands() * chips.side().pow(2));
            let masks = batch.batch.masks.chunks_exact(side * side);
            for ((id, image), mask) in batch.batch.ids.iter().zip(images).zip(masks) {
                // Within a step each sample comes once.
                let epoch = cursors
                    .clone()
                    .find(|cursor| order.at(*cursor) as u64 == *id)
                    .map(|cursor| order.epoch(cursor));
                samples.push((
                    epoch.expect("of the step"),
                    *id,
                    image.to_vec(),
                    mask.to_vec(),
                ));
            }
        }
    }
    samples.sort_by_key(|sample| (sample.0, sample.1));
    samples
}

#[test]
fn samples_are_the_same_on_one_and_on_three_ranks() {
    let chips = chips(1 << 20);
    let alone = stream(&chips, 1, 6);
    assert_eq!(alone.len(), 2 * chips.len());
    assert!(
        stream(&chips, 3, 2) == alone,
        "images, labels, turns and noise"
    );
    let (first, second) = alone.split_at(chips.len());
    let again = first.iter().zip(second).filter(|(a, b)| a.2 == b.2).count();
    assert_eq!(again, 0, "each epoch draws anew");
}

#[test]
fn samples_do_not_depend_on_what_is_kept() {
    let expected = stream(&chips(1 << 20), 1, 6);
    for cache in [0, 12_000, 70_000] {
        let chips = chips(cache);
        assert!(stream(&chips, 1, 6) == expected, "{cache} bytes");
    }
}
