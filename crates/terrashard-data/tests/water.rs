//! The shipped scene: the figures that are known of it, and the errors that a user meets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrashard_data::baseline::{self, Upsampling};
use terrashard_data::{
    Balance, BandSelection, ChipOptions, Chips, Region, Scaling, Scene, SceneOptions, Selection,
    Split,
};
use terrashard_raster::{RasterSource, Window};

fn water(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/water")
        .join(name)
}

const BANDS: [&str; 6] = ["B02", "B03", "B04", "B08", "B11", "B12"];

fn scene(cache_bytes: usize) -> Scene {
    let options = SceneOptions {
        cache_bytes,
        ..SceneOptions::new(BandSelection::names(BANDS))
    };
    let (image, mask) = (
        water("S2A_T33UUU_20170216_L1C_6band.tif"),
        water("osm_water_mask_2m_ignore255.tif"),
    );
    Scene::open(image, Some(&mask), options).expect("the shipped scene")
}

fn half(scene: &Scene, region: Region) -> Window {
    region
        .window("region", scene.width(), scene.height())
        .expect("half of the scene")
}

#[test]
fn the_baseline_scores_what_is_known() {
    let scene = scene(512 << 20);
    let check = |region: Region, upsampling: Upsampling, all: f64, shore: Option<f64>| {
        let score = baseline::score(&scene, half(&scene, region), upsampling).expect("scores");
        let (got_all, got_shore) = (
            score.all.iou().expect("water"),
            score.shore.iou().expect("shores"),
        );
        println!(
            "{region:?} {upsampling:?}: {got_all:.5}, shore {got_shore:.5} of {} pixels",
            score.shore.pixels()
        );
        assert!(
            (got_all - all).abs() < 5e-4,
            "{region:?}: {got_all} instead of {all}"
        );
        assert!(
            shore.is_none_or(|shore| (got_shore - shore).abs() < 5e-4),
            "{region:?}: {got_shore} instead of {shore:?}"
        );
    };
    check(Region::West, Upsampling::Nearest, 0.919, None);
    check(Region::East, Upsampling::Nearest, 0.954, Some(0.830));
    let bilinear =
        baseline::score(&scene, half(&scene, Region::East), Upsampling::Bilinear).expect("scores");
    let shore = bilinear.shore.iou().expect("shores");
    println!("bilinear shore {shore:.5}");
    assert!((shore - 0.848).abs() < 5e-4, "{shore} instead of 0.848");
}

#[test]
fn chips_count_what_is_known() {
    let scene = Arc::new(scene(512 << 20));
    let chips = |region: Region, selection: Selection| {
        let options = ChipOptions {
            selection,
            ..ChipOptions::default()
        };
        Chips::new(vec![(scene.clone(), half(&scene, region))], options).expect("chips")
    };
    let all = chips(Region::All, Selection::default());
    assert_eq!(all.report().cut, 288);
    assert_eq!(
        all.chips()
            .iter()
            .filter(|chip| chip.counts[1] > 500)
            .count(),
        42
    );
    let (land, lake) = all.chips().iter().fold((0, 0), |(l, w), chip| {
        (l + chip.counts[0], w + chip.counts[1])
    });
    let pixels = (3840 * 7680) as f64;
    assert!(
        (lake as f64 / pixels - 0.013).abs() < 5e-4,
        "{lake} pixels of water"
    );
    assert!(
        (1.0 - (land + lake) as f64 / pixels - 0.183).abs() < 5e-4,
        "{land} + {lake} valid pixels"
    );

    let only = |region| {
        chips(
            region,
            Selection {
                min_valid: 0.0,
                balance: Balance::Only {
                    min_foreground: 501,
                },
            },
        )
    };
    assert_eq!(only(Region::West).len() + only(Region::East).len(), 42);
    let share = Balance::Share {
        min_foreground: 501,
        share: 0.75,
    };
    let west = chips(
        Region::West,
        Selection {
            min_valid: 0.1,
            balance: share,
        },
    );
    let rich = (0..west.len())
        .filter(|&s| west.chip(s).expect("a sample").counts[1] >= 501)
        .count();
    assert!(
        (rich as f64 / west.len() as f64 - 0.75).abs() < 0.01,
        "{rich} of {} samples",
        west.len()
    );
    let region = half(&scene, Region::West);
    assert!(
        west.chips()
            .iter()
            .all(|chip| region.contains(&chip.window)),
        "no chip crosses the split"
    );
}

#[test]
fn a_cached_scene_and_a_read_one_are_the_same() {
    let (cached, read) = (scene(512 << 20), scene(0));
    for window in [
        Window::new(0, 0, 64, 64),
        Window::new(700, 300, 33, 17),
        Window::new(1535, 767, 1, 1),
    ] {
        assert!(
            cached.patch(window).expect("inside") == read.patch(window).expect("inside"),
            "image at {window}"
        );
        assert!(
            cached.labels(window).expect("inside") == read.labels(window).expect("inside"),
            "mask at {window}"
        );
    }
    assert!(cached.patch(Window::new(1500, 0, 64, 64)).is_err());
    assert!(cached.cache().bytes() > 0 && read.cache().bytes() == 0);
    // Room for two tiles, so that tiles go and are decoded again.
    let little = scene(2 << 20);
    for window in [Window::new(0, 0, 64, 64), Window::new(100, 200, 400, 300)] {
        assert!(little.patch(window).expect("inside") == read.patch(window).expect("inside"));
        assert!(little.labels(window).expect("inside") == read.labels(window).expect("inside"));
    }
    assert!(little.cache().bytes() <= 2 << 20);
}

#[test]
fn reflectance_comes_from_the_file() {
    let image = water("S2A_T33UUU_20170216_L1C_6band.tif");
    let source = terrashard_raster::open(&image).expect("the shipped scene");
    let window = Window::new(1000, 500, 2, 2);
    let raw = source.read_window(window).expect("inside");
    let options = SceneOptions {
        scaling: Scaling {
            offset: -100.0,
            mean: vec![0.1; 2],
            std: vec![0.05; 2],
            ..Scaling::default()
        },
        ..SceneOptions::new(BandSelection::names(["B12", "b03"]))
    };
    let patch = Scene::open(&image, None, options)
        .expect("two bands")
        .patch(window)
        .expect("inside");
    for (place, band) in [(0, 5), (1, 1)] {
        for pixel in 0..4 {
            let dn = raw.at(band, pixel % 2, pixel / 2);
            let expected = ((dn - 100.0) * 1e-4 - 0.1) / 0.05;
            let got = f64::from(patch.values[place * 4 + pixel]);
            assert!((got - expected).abs() < 1e-5, "{got} instead of {expected}");
        }
    }
}

#[test]
fn mistakes_are_told_by_file_and_remedy() {
    let (image, mask) = (
        water("S2A_T33UUU_20170216_L1C_6band.tif"),
        water("osm_water_mask_2m_ignore255.tif"),
    );
    let check = |image: &Path, mask: &Path, options: SceneOptions, parts: &[&str]| {
        let scene = Scene::open(image, Some(mask), options);
        let message = scene
            .and_then(|scene| scene.labels(scene.window()))
            .expect_err("a mistake")
            .to_string();
        assert!(
            parts.iter().all(|part| message.contains(part)) && !message.contains('\n'),
            "{message}"
        );
    };
    let options = || SceneOptions::new(BandSelection::names(BANDS));
    check(
        &image,
        &image,
        options(),
        &["6band.tif: expected 1 bands, found 6"],
    );
    check(
        &mask,
        &mask,
        options(),
        &["ignore255.tif: expected 6 bands, found 1"],
    );
    let scale = SceneOptions {
        scale: 4,
        ..options()
    };
    check(
        &image,
        &mask,
        scale,
        &[
            "7680 x 3840",
            "6band.tif is 6144 x 3072",
            "resample the mask",
        ],
    );
    check(
        &image,
        Path::new("absent.tif"),
        options(),
        &["absent.tif: no such file"],
    );
    let few = SceneOptions {
        classes: 1,
        ..options()
    };
    check(
        &image,
        &mask,
        few,
        &[
            "ignore255.tif: value 1 at column",
            "allowed are 0 to 0 and 255",
            "`classes`",
        ],
    );
}

#[test]
fn the_split_is_west_and_east() {
    let split = Split {
        train: Region::West,
        validation: None,
        test: Region::East,
    };
    let parts = split.windows(1536, 768).expect("halves");
    assert_eq!(
        (parts.train, parts.test),
        (Window::new(0, 0, 768, 768), Window::new(768, 0, 768, 768))
    );
}
