//! Small scenes whose every value is known: nodata, padding, augmentation, ranks, and the way back to a file.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrashard_data::{
    Augmentation, BandSelection, ChipOptions, Chips, IGNORE, Loader, LoaderOptions, Mosaic,
    Scaling, Scene, SceneOptions, prediction_spec,
};
use terrashard_layout::SampleOrder;
use terrashard_raster::{
    DataType, GeoTiffSink, Georeference, MemorySource, Metadata, RasterSink, RasterSource, Samples,
    Transform, Window, open,
};

const GROUND: Transform = Transform {
    a: 10.0,
    b: 0.0,
    c: 399_960.1,
    d: 0.0,
    e: -10.0,
    f: 5_800_020.3,
};

fn metadata(width: usize, height: usize, bands: usize) -> Metadata {
    Metadata {
        width,
        height,
        bands,
        data_type: DataType::F32,
        georeference: Georeference {
            epsg: Some(32633),
            transform: Some(GROUND),
        },
        nodata: None,
        descriptions: vec![None; bands],
        overviews: Vec::new(),
        block: (width, 1),
    }
}

fn image(
    width: usize,
    height: usize,
    samples: Samples,
    nodata: Option<f64>,
) -> Box<dyn RasterSource> {
    let bands = samples.len() / (width * height);
    Box::new(
        MemorySource::new(
            "image",
            Metadata {
                nodata,
                ..metadata(width, height, bands)
            },
            samples,
        )
        .expect("filled"),
    )
}

fn mask(
    width: usize,
    height: usize,
    scale: usize,
    labels: Vec<u8>,
    ground: Transform,
) -> Box<dyn RasterSource> {
    let georeference = Georeference {
        epsg: Some(32633),
        transform: Some(ground),
    };
    let metadata = Metadata {
        georeference,
        ..metadata(width * scale, height * scale, 1)
    };
    Box::new(MemorySource::new("mask", metadata, Samples::U8(labels)).expect("filled"))
}

fn options(bands: usize, scale: usize) -> SceneOptions {
    let scaling = Scaling {
        scale: 1.0,
        ..Scaling::default()
    };
    SceneOptions {
        scale,
        scaling,
        ..SceneOptions::new(BandSelection::All(bands))
    }
}

/// A scene of one band whose value is the pixel's number, with a mask of zeros and ones that follows from it.
fn numbered(width: usize, height: usize, scale: usize) -> Arc<Scene> {
    let samples = Samples::F32((0..width * height).map(|i| i as f32).collect());
    let label = |i: usize| {
        u8::from(
            (i / (width * scale) / scale * width + i % (width * scale) / scale).is_multiple_of(3),
        )
    };
    let labels = (0..width * height * scale * scale).map(label).collect();
    let mask = mask(width, height, scale, labels, GROUND.scaled(scale as f64));
    Arc::new(
        Scene::new(
            image(width, height, samples, None),
            Some(mask),
            options(1, scale),
        )
        .expect("sound"),
    )
}

fn chips(scene: &Arc<Scene>, chip: usize, augmentation: Augmentation) -> Chips {
    let options = ChipOptions {
        chip,
        stride: chip,
        augmentation,
        ..ChipOptions::default()
    };
    Chips::new(vec![(scene.clone(), scene.window())], options).expect("chips")
}

/// User problems: NaN in a batch, nodata learned as a class.
#[test]
fn nodata_is_ignored_and_never_reaches_a_batch() {
    let values = vec![
        1.0,
        f32::NAN,
        3.0,
        -9999.0,
        5.0,
        6.0,
        f32::INFINITY,
        7.0,
        8.0,
        9.0,
        10.0,
        11.0,
    ];
    for cache_bytes in [0, 1 << 20] {
        let mask = mask(3, 2, 2, vec![1; 24], GROUND.scaled(2.0));
        let options = SceneOptions {
            cache_bytes,
            ..options(2, 2)
        };
        let scene = Scene::new(
            image(3, 2, Samples::F32(values.clone()), Some(-9999.0)),
            Some(mask),
            options,
        )
        .expect("sound");
        let patch = scene.patch(scene.window()).expect("reads");
        // The infinity is in the second band of the first pixel.
        assert_eq!(patch.valid, [false, false, true, false, true, true]);
        assert_eq!(
            patch.values,
            [0.0, 0.0, 3.0, 0.0, 5.0, 6.0, 0.0, 0.0, 8.0, 0.0, 10.0, 11.0]
        );
        let i = IGNORE;
        let expected = [
            i, i, i, i, 1, 1, i, i, i, i, 1, 1, i, i, 1, 1, 1, 1, i, i, 1, 1, 1, 1,
        ];
        assert_eq!(scene.labels(scene.window()).expect("reads"), expected);
        let batch = chips(&Arc::new(scene), 3, Augmentation::OFF)
            .batch(&[0], 0)
            .expect("one sample");
        assert!(batch.images.iter().all(|v| v.is_finite()));
        assert_eq!(batch.class_counts(), [0, 12]);
    }
}

#[test]
fn nodata_can_be_named_where_the_file_does_not() {
    let samples = || Samples::U16(vec![0, 40_000, 65_535, 7]);
    let named = SceneOptions {
        nodata: Some(0.0),
        ..options(1, 5)
    };
    let patch = |options| {
        let scene = Scene::new(image(2, 2, samples(), None), None, options).expect("sound");
        scene.patch(scene.window()).expect("reads")
    };
    assert_eq!(patch(named).valid, [false, true, true, true]);
    let plain = patch(options(1, 5));
    assert_eq!(
        (plain.valid, plain.values),
        (vec![true; 4], vec![0.0, 40_000.0, 65_535.0, 7.0])
    );
}

#[test]
fn a_mask_elsewhere_or_with_other_values_is_refused() {
    let check = |ground: Transform, label: u8, expected: &str| {
        let samples = Samples::U8(vec![0; 16]);
        let mut labels = vec![0; 64];
        labels[37] = label;
        let scene = Scene::new(
            image(4, 4, samples, None),
            Some(mask(4, 4, 2, labels, ground)),
            options(1, 2),
        );
        let result = scene.and_then(|scene| scene.labels(scene.window()));
        let message = result.map_or_else(|e| e.to_string(), |_| String::new());
        assert!(
            message.contains(expected) && message.is_empty() == expected.is_empty(),
            "{message:?}"
        );
    };
    let fine = GROUND.scaled(2.0);
    check(fine, 1, "");
    check(fine, IGNORE, "");
    check(fine, 7, "mask: value 7 at column 5, row 4 is no class");
    check(
        Transform {
            c: fine.c + 5.0,
            ..fine
        },
        1,
        "mask: the mask lies elsewhere than the image image: corners are up to 5.000 apart",
    );
    check(GROUND, 1, "corners are up to 40.000 apart");
    check(
        Transform {
            a: f64::NAN,
            ..fine
        },
        1,
        "corners are up to",
    );
}

#[test]
fn a_region_smaller_than_a_chip_is_mirrored_and_ignored_there() {
    let scene = numbered(3, 2, 2);
    let chips = chips(&scene, 4, Augmentation::OFF);
    let batch = chips.batch(&[0], 0).expect("one sample");
    assert_eq!(
        batch.images,
        [
            0., 1., 2., 1., 3., 4., 5., 4., 0., 1., 2., 1., 3., 4., 5., 4.
        ]
    );
    let i = IGNORE;
    let upper = [1, 1, 0, 0, 0, 0, i, i];
    assert_eq!(
        batch.masks,
        [upper, upper, upper, upper, [i; 8], [i; 8], [i; 8], [i; 8]].concat()
    );
    assert_eq!(batch.valid, [vec![16, 8]]);
}

#[test]
fn augmentation_turns_image_and_mask_together() {
    let scene = numbered(16, 16, 2);
    let augmented = chips(&scene, 4, Augmentation::turned(5));
    let indices: Vec<usize> = (0..16).collect();
    let (first, second) = (
        augmented.batch(&indices, 0).expect("all"),
        augmented.batch(&indices, 1).expect("all"),
    );
    assert_ne!(first.images, second.images, "each epoch is turned anew");
    for batch in [&first, &second] {
        for sample in 0..16 {
            for (row, col) in (0..8).flat_map(|r| (0..8).map(move |c| (r, c))) {
                let number = batch.images[sample * 16 + row / 2 * 4 + col / 2] as usize;
                assert_eq!(
                    batch.masks[sample * 64 + row * 8 + col],
                    u8::from(number.is_multiple_of(3)),
                    "the mask under its pixel"
                );
            }
        }
    }
    let alone = augmented.batch(&[11], 1).expect("one sample");
    assert_eq!(
        alone.images,
        second.images[11 * 16..12 * 16],
        "whatever else is in the batch"
    );
}

/// What each rank of several takes, step after step, as (cursor, micro-batch number, ids, images).
#[test]
fn ranks_share_the_samples_of_one_stream() {
    let chips = Arc::new(chips(&numbered(24, 16, 1), 4, Augmentation::turned(1)));
    let order = SampleOrder::new(chips.len(), 3).expect("24 samples");
    let stream = |ranks: usize, micro_batch: usize, accumulate: usize, steps: u64, cursor: u64| {
        let mut taken = Vec::new();
        let mut loaders: Vec<Loader> = (0..ranks)
            .map(|rank| {
                let options = LoaderOptions {
                    rank,
                    ranks,
                    micro_batch,
                    accumulate,
                    cursor,
                    end: None,
                    steps: Some(steps),
                    prefetch: 2,
                };
                Loader::new(chips.clone(), order, options).expect("a loader")
            })
            .collect();
        for step in 0..steps {
            for loader in &mut loaders {
                for number in 0..accumulate {
                    let item = loader.next().expect("not the end").expect("reads");
                    let expected = cursor + step * (ranks * micro_batch * accumulate) as u64;
                    assert_eq!((item.cursor, item.number), (expected, number));
                    let images = item.batch.images.chunks(16).map(<[f32]>::to_vec);
                    taken.extend(item.batch.ids.iter().copied().zip(images));
                }
            }
        }
        assert!(
            loaders.iter_mut().all(|loader| loader.next().is_none()),
            "no more than was asked for"
        );
        taken
    };
    let alone = stream(1, 12, 1, 6, 0);
    assert_eq!(alone.len(), 72);
    assert_eq!(stream(2, 3, 2, 6, 0), alone, "two ranks, two micro-batches");
    assert_eq!(stream(3, 2, 2, 6, 0), alone, "three ranks");
    assert_eq!(stream(2, 3, 2, 3, 36), alone[36..], "resumed half-way");
    let epoch: BTreeSet<u64> = alone[..24].iter().map(|(id, _)| *id).collect();
    assert_eq!(epoch.len(), 24, "each sample once an epoch");

    let counts = chips.class_counts(&order, 5..9).expect("known");
    assert_eq!(
        counts,
        chips.batch_at(&order, 5..9).expect("reads").class_counts()
    );
    assert_eq!(counts.iter().sum::<u64>(), 64);
}

/// 21 samples, ranks 1 to 5, micro-batches of 1 to 3, accumulation 1 to 3: each sample once, nothing filled up, and every rank
/// counts the same micro-batches.
#[test]
fn ranks_with_uneven_shares_end_together() {
    let chips = Arc::new(chips(&numbered(28, 12, 1), 4, Augmentation::OFF));
    assert_eq!(chips.len(), 21);
    let order = SampleOrder::new(21, 3).expect("21 samples");
    let shapes = (1..=5).flat_map(|ranks| (0..9).map(move |i| (ranks, 1 + i / 3, 1 + i % 3)));
    for (ranks, micro_batch, accumulate) in shapes {
        let mut ids: Vec<u64> = Vec::new();
        let mut rounds = BTreeSet::new();
        for rank in 0..ranks {
            let options = LoaderOptions {
                rank,
                ranks,
                micro_batch,
                accumulate,
                cursor: 0,
                end: Some(21),
                steps: None,
                prefetch: 2,
            };
            let loader = Loader::new(chips.clone(), order, options).expect("a loader");
            let items: Vec<_> = loader.map(|item| item.expect("reads")).collect();
            rounds.insert(items.len());
            for (at, item) in items.iter().enumerate() {
                let window = (at / accumulate * ranks * micro_batch * accumulate) as u64;
                let end = (window + (ranks * micro_batch * accumulate) as u64).min(21);
                assert_eq!((item.cursor, item.number), (window, at % accumulate));
                assert_eq!(item.window, window..end);
                assert_eq!(item.is_idle(), item.batch.ids.is_empty());
                assert_eq!(item.batch.images.len(), item.batch.samples * 16);
                ids.extend(item.batch.ids.iter().copied());
            }
        }
        ids.sort_unstable();
        assert!(
            ids.iter().copied().eq(0..21),
            "{ranks} ranks, {micro_batch} x {accumulate}: {ids:?}"
        );
        let steps = 21_usize.div_ceil(ranks * micro_batch * accumulate);
        assert_eq!(rounds, BTreeSet::from([steps * accumulate]));
    }
}

#[test]
fn a_loader_ends_when_dropped_and_refuses_what_cannot_be() {
    let chips = Arc::new(chips(&numbered(8, 8, 1), 4, Augmentation::OFF));
    let order = SampleOrder::new(4, 0).expect("4 samples");
    let options = LoaderOptions {
        rank: 0,
        ranks: 1,
        micro_batch: 1,
        accumulate: 1,
        cursor: 0,
        end: None,
        steps: None,
        prefetch: 1,
    };
    let mut loader = Loader::new(chips.clone(), order, options).expect("a loader");
    assert!(loader.next().is_some());
    drop(loader);
    let check = |options: LoaderOptions, order: SampleOrder, expected: &str| {
        let message = Loader::new(chips.clone(), order, options)
            .expect_err("refused")
            .to_string();
        assert!(message.contains(expected), "{message}");
    };
    check(
        LoaderOptions {
            ranks: 5,
            ..options
        },
        order,
        "`ranks`: 5 ranks for 4 samples",
    );
    check(LoaderOptions { rank: 1, ..options }, order, "`ranks`");
    check(
        LoaderOptions {
            micro_batch: 0,
            ..options
        },
        order,
        "`micro_batch`",
    );
    check(
        options,
        SampleOrder::new(5, 0).expect("5 samples"),
        "`samples`",
    );
}

/// User problems: corners that moved, nodata that became data, a map of another size than the scene's.
#[test]
fn geo_05_a_prediction_lies_exactly_on_its_scene() {
    for (width, height) in [(24, 42), (37, 58), (1, 1)] {
        let samples = Samples::U16((0..width * height).map(|i| (i % 5) as u16).collect());
        let scene = Scene::new(
            image(width, height, samples, Some(0.0)),
            None,
            options(1, 5),
        )
        .expect("sound");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("prediction.tif");
        let mut sink =
            GeoTiffSink::create(&path, prediction_spec(scene.metadata(), 5)).expect("a new file");
        let mut mosaic = Mosaic::new(width, height, 16, 4, 5).expect("sound");
        for window in mosaic.windows() {
            let patch = scene.patch(window).expect("reads");
            // A model that says 0.9 where the image is above 2.
            let row = |r: usize| &patch.values[r / 5 * window.width..][..window.width];
            let values: Vec<f32> = (0..window.height * 5)
                .flat_map(|r| {
                    (0..window.width * 5).map(move |c| if row(r)[c / 5] > 2.0 { 0.9 } else { 0.1 })
                })
                .collect();
            let block = mosaic
                .add_valid(window, &values, &patch.valid)
                .expect("its own window")
                .expect("a block for each window");
            sink.write(&block.classes(0.5).expect("filled"))
                .expect("in order");
        }
        Box::new(sink).finish().expect("complete");

        let map = open(&path).expect("our own file");
        let metadata = map.metadata();
        assert_eq!(
            (metadata.width, metadata.height, metadata.nodata),
            (5 * width, 5 * height, Some(255.0))
        );
        let transform = metadata.georeference.transform.expect("georeferenced");
        let apart = GROUND.corner_distance((width, height), &transform, (5 * width, 5 * height));
        assert!(apart < 1e-9, "corners are {apart} apart");
        assert_eq!(metadata.georeference.epsg, Some(32633));
        let read = map.read_window(metadata.window()).expect("decodes");
        for (row, col) in (0..5 * height).flat_map(|r| (0..5 * width).map(move |c| (r, c))) {
            let expected = [255.0, 0.0, 0.0, 1.0, 1.0][(row / 5 * width + col / 5) % 5];
            assert_eq!(read.at(0, col, row), expected, "column {col}, row {row}");
        }
    }
}

#[test]
fn windows_outside_are_errors() {
    let scene = numbered(8, 8, 1);
    assert!(scene.patch(Window::new(7, 0, 2, 1)).is_err());
    assert!(scene.labels(Window::new(0, 8, 1, 1)).is_err());
    let chips = chips(&scene, 4, Augmentation::OFF);
    assert!(
        chips
            .batch(&[4], 0)
            .is_err_and(|e| e.to_string().contains("sample 4 of 4"))
    );
    let out = Chips::new(
        vec![(scene, Window::new(4, 4, 8, 4))],
        ChipOptions::default(),
    );
    assert!(out.is_err_and(|e| e.to_string().contains("`region`")));
}
