//! High-resolution images beside scenes: their grid, their gaps, and that they turn with the image.

use std::sync::Arc;

use terrashard_data::{
    Augmentation, BandSelection, Batch, ChipOptions, Chips, Scaling, Scene, SceneOptions,
    TargetImages, TargetOptions,
};
use terrashard_layout::SampleOrder;
use terrashard_raster::{
    Georeference, MemorySource, Metadata, RasterSource, Samples, Transform, Window,
};

const GROUND: Transform = Transform::north_up(399_960.0, 5_800_020.0, 10.0);

fn raster(
    name: &str,
    (width, height): (usize, usize),
    samples: Samples,
    transform: Transform,
    nodata: Option<f64>,
) -> Box<dyn RasterSource> {
    let bands = samples.len() / (width * height);
    let metadata = Metadata {
        width,
        height,
        bands,
        data_type: samples.data_type(),
        georeference: Georeference {
            epsg: Some(32633),
            transform: Some(transform),
        },
        nodata,
        descriptions: vec![None; bands],
        overviews: Vec::new(),
        block: (width, 1),
    };
    Box::new(MemorySource::new(name, metadata, samples).expect("filled"))
}

fn plain() -> Scaling {
    Scaling {
        scale: 1.0,
        ..Scaling::default()
    }
}

/// A scene of one band whose value is the pixel's number, all labelled 1.
fn scene((width, height): (usize, usize), scale: usize, gap: Option<usize>) -> Scene {
    let pixels = width * height;
    let mut values: Vec<f32> = (0..pixels).map(|i| i as f32).collect();
    gap.into_iter().for_each(|gap| values[gap] = f32::NAN);
    let image = raster("image", (width, height), Samples::F32(values), GROUND, None);
    let labels = Samples::U8(vec![1; pixels * scale * scale]);
    let (fine, size) = (GROUND.scaled(scale as f64), (width * scale, height * scale));
    let options = SceneOptions {
        scale,
        scaling: plain(),
        ..SceneOptions::new(BandSelection::All(1))
    };
    Scene::new(
        image,
        Some(raster("mask", size, labels, fine, None)),
        options,
    )
    .expect("sound")
}

fn two_bands(scaling: Scaling) -> TargetOptions {
    TargetOptions {
        bands: BandSelection::All(2),
        scaling,
        nodata: None,
    }
}

#[test]
fn only_the_exact_multiple_of_the_grid_is_taken() {
    let check = |size: (usize, usize), transform: Transform, bands: usize, expected: &str| {
        let samples = Samples::U16(vec![1; size.0 * size.1 * bands]);
        let target = raster("fine", size, samples, transform, None);
        let result = scene((3, 2), 4, None).with_target(target, &two_bands(plain()));
        let message = result.map_or_else(|e| e.to_string(), |_| String::new());
        assert!(
            message.contains(expected) && message.is_empty() == expected.is_empty(),
            "{message:?}"
        );
    };
    let fine = GROUND.scaled(4.0);
    check((12, 8), fine, 2, "");
    check(
        (15, 8),
        fine,
        2,
        "fine: the high-resolution image is 15 x 8 pixels (width x height), 4 times the image image is 12 x 8; cut or resample",
    );
    check((3, 2), GROUND, 2, "is 3 x 2 pixels");
    let moved = Transform {
        f: fine.f - 1.25,
        ..fine
    };
    check(
        (12, 8),
        moved,
        2,
        "fine: the high-resolution image lies elsewhere than the image image: corners are up to 1.250 apart",
    );
    check((12, 8), fine, 3, "expected 2 bands, found 3");
    let normal = Scaling {
        mean: vec![0.1; 2],
        std: vec![0.2; 2],
        ..plain()
    };
    let samples = Samples::U16(vec![1; 12 * 8 * 2]);
    let refused = scene((3, 2), 4, None)
        .with_target(
            raster("fine", (12, 8), samples, fine, None),
            &two_bands(normal),
        )
        .expect_err("a mean");
    assert!(
        refused.to_string().contains("neither mean nor std"),
        "{refused}"
    );
}

#[test]
fn a_gap_in_one_band_or_in_the_image_is_a_gap_in_all() {
    // Twice as fine, 6 x 4 pixels: 100, 101, … and 200, 201, …, with 0 for no data.
    let mut samples: Vec<u16> = (100..124).chain(200..224).collect();
    samples[7] = 0;
    samples[24 + 8] = 0;
    let scaling = Scaling {
        offset: -100.0,
        scale: 0.5,
        ..Scaling::default()
    };
    for cache in [usize::MAX, 0] {
        let mut scene = scene((3, 2), 2, Some(5));
        assert_eq!(scene.target_bands(), None);
        let missing = scene.target(scene.window()).expect_err("none yet");
        assert!(
            missing.to_string().contains("name one with `highres`"),
            "{missing}"
        );
        if cache == 0 {
            let options = SceneOptions {
                scale: 2,
                scaling: plain(),
                cache_bytes: 0,
                ..SceneOptions::new(BandSelection::All(1))
            };
            let values = vec![0.0, 1.0, 2.0, 3.0, 4.0, f32::NAN];
            let image = raster("image", (3, 2), Samples::F32(values), GROUND, None);
            scene = Scene::new(image, None, options).expect("sound");
        }
        let source = raster(
            "fine",
            (6, 4),
            Samples::U16(samples.clone()),
            GROUND.scaled(2.0),
            Some(0.0),
        );
        let scene = scene
            .with_target(source, &two_bands(scaling.clone()))
            .expect("its grid");
        assert_eq!(scene.target_bands(), Some(2));
        // The right two columns of the image: fine columns 2 to 5.
        let values = scene.target(Window::new(1, 0, 2, 2)).expect("inside");
        // Row 1 of the fine grid begins at 6, so pixels 7 and 8 are its columns 1 and 2; the image lacks its last pixel.
        let gap = f32::NAN;
        let first = [
            [1.0, 1.5, 2.0, 2.5],
            [gap, 4.5, 5.0, 5.5],
            [7.0, 7.5, gap, gap],
            [10.0, 10.5, gap, gap],
        ];
        let second = first.map(|row| row.map(|value| value + 50.0));
        let expected = [first, second].concat().concat();
        let text = |values: &[f32]| format!("{values:?}");
        assert_eq!(text(&values), text(&expected), "cache of {cache} bytes");
        let whole = scene.target(scene.window()).expect("inside");
        assert_eq!(
            whole.iter().filter(|value| value.is_nan()).count(),
            2 * (2 + 4)
        );
    }
}

/// A scene whose high-resolution image has in each pixel its image pixel's number, and in a second band the same plus 1000.
fn repeated(size: (usize, usize), scale: usize) -> Scene {
    let fine = (size.0 * scale, size.1 * scale);
    let number = |at: usize| (at / fine.0 / scale * size.0 + at % fine.0 / scale) as f32;
    let band = |more: f32| (0..fine.0 * fine.1).map(move |at| number(at) + more);
    let samples = Samples::F32(band(0.0).chain(band(1000.0)).collect());
    let source = raster("fine", fine, samples, GROUND.scaled(scale as f64), None);
    scene(size, scale, None)
        .with_target(source, &two_bands(plain()))
        .expect("its grid")
}

#[test]
fn image_and_target_are_cut_and_turned_together() {
    for scale in [1, 3, 5] {
        let scene = Arc::new(repeated((9, 7), scale));
        let options = ChipOptions {
            chip: 4,
            stride: 3,
            augmentation: Augmentation::turned(3),
            ..ChipOptions::default()
        };
        let chips = Chips::new(vec![(scene.clone(), scene.window())], options).expect("chips");
        let indices: Vec<usize> = (0..chips.len()).collect();
        let (side, fine) = (4, 4 * scale);
        let mut turned = 0;
        for epoch in 0..3 {
            let Batch {
                images, targets, ..
            } = chips.batch(&indices, epoch).expect("samples");
            let targets = targets.expect("scenes have them");
            assert_eq!(targets.len(), indices.len() * 2 * fine * fine);
            let targets = targets.reflectance();
            for sample in 0..indices.len() {
                let image = &images[sample * side * side..][..side * side];
                turned += usize::from(image[0] > image[side * side - 1]);
                for (band, more) in [(0, 0.0), (1, 1000.0)] {
                    let target = &targets[(sample * 2 + band) * fine * fine..][..fine * fine];
                    for (at, value) in target.iter().enumerate() {
                        let coarse = at / fine / scale * side + at % fine / scale;
                        assert_eq!(*value, image[coarse] + more);
                    }
                }
            }
        }
        assert!(turned > 0, "some samples are turned");
    }
}

#[test]
fn values_are_counted_without_gaps_and_padding() {
    let scale = 2;
    // 5 x 3 pixels in chips of 4: each chip is padded by one row.
    let scene = Arc::new(repeated((5, 3), scale));
    let options = ChipOptions {
        chip: 4,
        stride: 4,
        ..ChipOptions::default()
    };
    let chips = Chips::new(vec![(scene.clone(), scene.window())], options).expect("chips");
    assert_eq!(chips.len(), 2);
    let order = SampleOrder::new(2, 1).expect("samples");
    let each = 2 * (4 * 3 * scale * scale) as u64;
    assert_eq!(chips.target_values(&order, 0..1).expect("known"), each);
    assert_eq!(chips.target_values(&order, 0..3).expect("known"), 3 * each);
    let batch = chips.batch(&[0, 1], 0).expect("samples");
    let there = batch
        .targets
        .expect("targets")
        .reflectance()
        .iter()
        .filter(|v| !v.is_nan())
        .count();
    assert_eq!(there as u64, 2 * each);

    let plain = Arc::new(self::scene((5, 3), scale, None));
    let mixed = vec![
        (scene.clone(), scene.window()),
        (plain.clone(), plain.window()),
    ];
    let refused = Chips::new(mixed, ChipOptions::default()).expect_err("one has none");
    assert!(
        refused.to_string().contains("high-resolution images"),
        "{refused}"
    );
}

/// The same values as digital numbers and as floats: two bands on twice the grid of 5 x 3 pixels, one of which has no data.
fn both_ways(numbers: &[u16], nodata: Option<f64>, scaling: &Scaling) -> [Arc<Scene>; 2] {
    let (size, fine) = ((10, 6), GROUND.scaled(2.0));
    let floats = numbers.iter().map(|number| f32::from(*number)).collect();
    [Samples::U16(numbers.to_vec()), Samples::F32(floats)].map(|samples| {
        let target = raster("fine", size, samples, fine, nodata);
        let scene = scene((5, 3), 2, Some(7)).with_target(target, &two_bands(scaling.clone()));
        Arc::new(scene.expect("the same ground"))
    })
}

fn chips_of(scenes: &[&Arc<Scene>]) -> Chips {
    let options = ChipOptions {
        chip: 4,
        stride: 3,
        augmentation: Augmentation::turned(3),
        ..ChipOptions::default()
    };
    let regions = scenes
        .iter()
        .map(|scene| ((*scene).clone(), scene.window()));
    Chips::new(regions.collect(), options).expect("chips")
}

#[test]
fn numbers_stay_as_they_are_stored_and_mean_what_floats_are() {
    let scaling = Scaling {
        offset: -1000.0,
        scale: 1e-4,
        ..Scaling::default()
    };
    let mut numbers: Vec<u16> = (0..120).map(|i| i * 531 + 1).collect();
    numbers[3] = 0;
    // Saturated: a reflectance like any other where nothing says otherwise.
    numbers[60] = u16::MAX;
    for nodata in [Some(0.0), Some(-9999.0), Some(65_535.0), None] {
        let [stored, floats] = both_ways(&numbers, nodata, &scaling);
        let [stored, floats] = [stored, floats].map(|scene| chips_of(&[&scene]));
        assert_eq!(
            [stored.target_value_bytes(), floats.target_value_bytes()],
            [2, 4]
        );
        let values = 2 * 8 * 8;
        assert_eq!(floats.batch_bytes(1) - stored.batch_bytes(1), 2 * values);
        assert_eq!(stored.chips(), floats.chips());
        let indices: Vec<usize> = (0..stored.len()).collect();
        for epoch in 0..3 {
            let targets = |chips: &Chips| {
                let batch = chips.batch(&indices, epoch).expect("samples");
                batch.targets.expect("scenes have them")
            };
            let TargetImages::Numbers(values, coding) = targets(&stored) else {
                panic!("numbers are kept");
            };
            let TargetImages::Reflectance(expected) = targets(&floats) else {
                panic!("floats are kept");
            };
            assert_eq!(values.len(), expected.len());
            for (number, expected) in values.iter().zip(&expected) {
                let got = coding.reflectance(*number);
                assert_eq!(got.to_bits(), expected.to_bits(), "{number}");
            }
            assert!(
                values
                    .iter()
                    .any(|number| *number > 32_767 && *number != coding.missing)
            );
        }
    }
}

#[test]
fn floats_are_batched_where_numbers_would_mean_different_things() {
    let numbers: Vec<u16> = (0..120).collect();
    let [stored, floats] = both_ways(&numbers, None, &plain());
    let halved = Scaling {
        scale: 0.5,
        ..plain()
    };
    let [other, _] = both_ways(&numbers, None, &halved);
    assert_eq!(chips_of(&[&stored, &stored]).target_value_bytes(), 2);
    for unlike in [&floats, &other] {
        let chips = chips_of(&[&stored, unlike]);
        assert_eq!(chips.target_value_bytes(), 4);
        let last = chips.len() - 1;
        let targets = chips.batch(&[0, last], 0).expect("samples").targets;
        let Some(TargetImages::Reflectance(values)) = targets else {
            panic!("they have only reflectance in common");
        };
        let largest = |values: &[f32]| values.iter().copied().fold(0.0, f32::max);
        let (first, last) = values.split_at(values.len() / 2);
        assert!(largest(first) > 60.0 && largest(last) > 50.0);
    }
}
