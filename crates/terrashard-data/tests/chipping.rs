//! Scenes to lists of chips: every pixel once, parts that share no ground, ignored classes, and files that read as their scenes do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrashard_data::{
    Balance, BandSelection, ChipFiles, ChipIndex, ChipOptions, Chips, CutOptions, CutReport,
    DropReason, IGNORE, IgnoreFrom, Part, Region, Scene, SceneOptions, Selection, Shares, Split,
    SplitRule, TargetOptions, cut, write_files,
};
use terrashard_raster::{
    DataType, Georeference, MemorySource, Metadata, RasterSource, Samples, Transform, Window,
};

/// Side of an image's pixel and of a label's in metres.
const FINE: usize = 2;

fn raster(
    name: &str,
    size: (usize, usize),
    ground: Option<Transform>,
    samples: Samples,
) -> Box<dyn RasterSource> {
    let bands = samples.len() / (size.0 * size.1);
    let metadata = Metadata {
        width: size.0,
        height: size.1,
        bands,
        data_type: DataType::U8,
        georeference: Georeference {
            epsg: ground.map(|_| 32633),
            transform: ground,
        },
        nodata: None,
        descriptions: (0..bands)
            .map(|band| Some(format!("B0{}", band + 2)))
            .collect(),
        overviews: Vec::new(),
        block: (size.0, 1),
    };
    Box::new(MemorySource::new(name, metadata, samples).expect("filled"))
}

fn at(x: f64, y: f64) -> Transform {
    Transform::north_up(500_000.0 + x, 5_000_000.0 - y, 10.0)
}

/// A scene of two bands whose label is 1 in its left third, 0 elsewhere and 255 in its first row.
fn scene(
    name: &str,
    (width, height): (usize, usize),
    ground: Transform,
) -> (ChipFiles, Arc<Scene>) {
    let values = (0..2 * width * height)
        .map(|i| (1000 + i % 5000) as u16)
        .collect();
    let image = raster(name, (width, height), Some(ground), Samples::U16(values));
    let label = |i: usize| match (i % (width * FINE), i / (width * FINE)) {
        (_, 0) => IGNORE,
        (col, _) => u8::from(3 * col < width * FINE),
    };
    let labels = (0..width * height * FINE * FINE).map(label).collect();
    let mask = raster(
        "mask",
        (width * FINE, height * FINE),
        Some(ground.scaled(FINE as f64)),
        Samples::U8(labels),
    );
    let options = SceneOptions {
        scale: FINE,
        ..SceneOptions::new(BandSelection::All(2))
    };
    let files = ChipFiles {
        image: name.into(),
        mask: Some("mask".into()),
        ..ChipFiles::default()
    };
    (
        files,
        Arc::new(Scene::new(image, Some(mask), options).expect("sound")),
    )
}

fn options(rule: SplitRule) -> CutOptions {
    CutOptions {
        chip: 16,
        stride: None,
        selection: Selection::default(),
        rule,
    }
}

fn halves() -> SplitRule {
    SplitRule::Regions(Split {
        train: Region::West,
        validation: None,
        test: Region::East,
    })
}

#[test]
fn geo_13_each_pixel_is_in_one_chip() {
    let scenes = [scene("a.tif", (70, 41), at(0.0, 0.0))];
    let index = cut(&scenes, &options(halves())).expect("chips");
    let mut seen = vec![0; 70 * 41];
    for chip in &index.chips {
        let [left, top, width, height] = chip.window;
        assert!(width <= 16 && height <= 16);
        let part = if left < 35 { Part::Train } else { Part::Test };
        assert_eq!(chip.part, part);
        for row in top..top + height {
            seen[row * 70 + left..][..width]
                .iter_mut()
                .for_each(|n| *n += 1);
        }
    }
    assert!(seen.iter().all(|&n| n == 1));
    let labels: u64 = index.chips.iter().flat_map(|chip| &chip.counts).sum();
    assert_eq!(
        labels,
        70 * 41 * 4 - 140,
        "all pixels of the label but the ignored row"
    );
    assert_eq!(
        CutReport::of(&index).kept,
        BTreeMap::from([(Part::Train, 9), (Part::Test, 9)])
    );

    // With a stride, training overlaps, and the test still counts each pixel once.
    let stride = CutOptions {
        stride: Some(8),
        ..options(halves())
    };
    let strided = CutReport::of(&cut(&scenes, &stride).expect("chips")).kept;
    assert_eq!(
        strided,
        BTreeMap::from([(Part::Train, 4 * 5), (Part::Test, 9)])
    );
}

#[test]
fn geo_14_a_scene_smaller_than_a_chip_is_one_chip() {
    let scenes = [scene("small.tif", (7, 5), at(0.0, 0.0))];
    let all = SplitRule::Scenes(Shares {
        shares: [1.0, 0.0, 0.0],
        seed: 0,
    });
    let index = cut(&scenes, &options(all)).expect("a chip");
    assert_eq!(index.chips.len(), 1);
    assert_eq!(index.chips[0].window, [0, 0, 7, 5]);
    let windows = vec![(scenes[0].1.clone(), vec![Window::new(0, 0, 7, 5)])];
    let chips = Chips::of_windows(
        windows,
        ChipOptions {
            chip: 16,
            ..ChipOptions::default()
        },
    )
    .expect("a chip");
    let batch = chips.batch(&[0], 0).expect("reads");
    assert_eq!(
        (batch.images.len(), batch.masks.len()),
        (2 * 16 * 16, 32 * 32)
    );
    let beyond = batch.masks.chunks_exact(32).enumerate();
    let ignored = beyond.flat_map(|(row, line)| {
        line.iter()
            .enumerate()
            .filter(move |(col, _)| row >= 10 || *col >= 14)
    });
    assert!(
        ignored.into_iter().all(|(_, label)| *label == IGNORE),
        "padding counts for nothing"
    );
}

#[test]
fn geo_21_what_is_dropped_is_listed_with_its_reason() {
    let scenes = [scene("a.tif", (64, 32), at(0.0, 0.0))];
    let selection = Selection {
        min_valid: 0.99,
        balance: Balance::Only { min_foreground: 1 },
    };
    let some = CutOptions {
        selection,
        ..options(halves())
    };
    let index = cut(&scenes, &some).expect("chips");
    let dropped: Vec<_> = index
        .header
        .dropped
        .iter()
        .map(|chip| (chip.window, chip.part, chip.reason))
        .collect();
    let few_valid = |col, part| ([col, 0, 16, 16], part, DropReason::FewValid);
    // The first row of chips lacks a thirty-second of its labels. The second has foreground everywhere in the west half.
    assert_eq!(
        dropped,
        [
            few_valid(0, Part::Train),
            few_valid(16, Part::Train),
            few_valid(32, Part::Test),
            few_valid(48, Part::Test)
        ]
    );
    let much = CutOptions {
        selection: Selection {
            balance: Balance::Only {
                min_foreground: 900,
            },
            ..Selection::default()
        },
        ..options(halves())
    };
    let report = CutReport::of(&cut(&scenes, &much).expect("chips"));
    assert_eq!(
        report.dropped,
        BTreeMap::from([(DropReason::FewForeground, 2)]),
        "test keeps all"
    );
    let none = CutOptions {
        selection: Selection {
            balance: Balance::Only {
                min_foreground: 2000,
            },
            ..Selection::default()
        },
        ..options(halves())
    };
    let error = cut(&scenes, &none)
        .expect_err("nothing to train on")
        .to_string();
    assert!(
        error.contains("no chip is left") && error.contains("4 have too little foreground"),
        "{error}"
    );
}

#[test]
fn parts_share_no_ground_over_scenes_and_zones() {
    // The second lies half over the first; the third over it, too, in the next zone's coordinates.
    let mut scenes = vec![
        scene("a.tif", (64, 64), at(0.0, 0.0)),
        scene("b.tif", (64, 64), at(325.0, 165.0)),
    ];
    for rule in [
        halves(),
        SplitRule::Blocks {
            side: 32,
            shares: Shares {
                shares: [0.5, 0.25, 0.25],
                seed: 1,
            },
        },
    ] {
        let index = cut(&scenes, &options(rule)).expect("chips");
        let ground = |window: [usize; 4], scene: &Scene| {
            let t = scene.metadata().georeference.transform.expect("placed");
            let (left, top) = t.apply(window[0] as f64, window[1] as f64);
            (
                left,
                top,
                left + 10.0 * window[2] as f64,
                top - 10.0 * window[3] as f64,
            )
        };
        let placed: Vec<_> = index
            .chips
            .iter()
            .map(|chip| {
                let (_, scene) = scenes
                    .iter()
                    .find(|(files, _)| files.image == chip.files.image)
                    .expect("its scene");
                (chip.part, ground(chip.window, scene))
            })
            .collect();
        for (at, (part, a)) in placed.iter().enumerate() {
            for (other, b) in &placed[..at] {
                let share = a.0.max(b.0) < a.2.min(b.2) && a.3.max(b.3) < a.1.min(b.1);
                assert!(part == other || !share, "{part:?} {a:?}, {other:?} {b:?}");
            }
        }
        assert!(
            matches!(rule, SplitRule::Blocks { .. })
                || CutReport::of(&index)
                    .dropped
                    .contains_key(&DropReason::SharedGround)
        );
    }
    // Whole scenes over each other are one: there is nothing to split.
    let whole = SplitRule::Scenes(Shares {
        shares: [0.5, 0.0, 0.5],
        seed: 1,
    });
    assert!(cut(&scenes, &options(whole)).is_err());
    scenes.push(scene("c.tif", (64, 64), at(50_000.0, 0.0)));
    let index = cut(&scenes, &options(whole)).expect("two groups");
    let part = |name: &str| {
        index
            .chips
            .iter()
            .find(|chip| chip.files.image == Path::new(name))
            .map(|chip| chip.part)
    };
    assert!(part("a.tif") == part("b.tif") && part("a.tif") != part("c.tif"));
}

#[test]
fn geo_22_classes_that_are_left_out_are_ignored_whatever_their_grid() {
    let (files, _) = scene("a.tif", (8, 6), at(0.0, 0.0));
    let open = || {
        let values = (0..2 * 48).map(|i| 1000 + i).collect();
        let image = raster("a.tif", (8, 6), Some(at(0.0, 0.0)), Samples::U16(values));
        let mask = raster(
            "mask",
            (16, 12),
            Some(at(0.0, 0.0).scaled(2.0)),
            Samples::U8(vec![1; 192]),
        );
        let options = SceneOptions {
            scale: FINE,
            ..SceneOptions::new(BandSelection::All(2))
        };
        Scene::new(image, Some(mask), options).expect("sound")
    };
    assert!(files.mask.is_some());
    let ignore: IgnoreFrom = "SCL:3,8,9,10".parse().expect("classes");
    // 20 m, one pixel larger on each side: image columns 2 and 3, rows 0 and 1 lie in its pixel (2, 1).
    let mut classes = vec![4_u8; 6 * 5];
    classes[6 + 2] = 9;
    let ground = Transform::north_up(500_000.0 - 20.0, 5_000_000.0 + 20.0, 20.0);
    let coarse = raster("scl", (6, 5), Some(ground), Samples::U8(classes));
    let scene = open()
        .ignoring(&ignore, Some(coarse))
        .expect("over the ground");
    let labels = scene.labels(scene.window()).expect("reads");
    for (at, label) in labels.iter().enumerate() {
        let (col, row) = (at % 16, at / 16);
        let out = (4..8).contains(&col) && row < 4;
        assert_eq!(
            *label,
            if out { IGNORE } else { 1 },
            "column {col}, row {row}"
        );
    }
    // The image itself stays.
    assert!(
        scene
            .patch(scene.window())
            .expect("reads")
            .valid
            .iter()
            .all(|valid| *valid)
    );
    // A window alone gives the same.
    let part = Window::new(3, 1, 2, 2);
    let cut: Vec<u8> = (2..6)
        .flat_map(|row| labels[row * 16 + 6..][..4].to_vec())
        .collect();
    assert_eq!(scene.labels(part).expect("reads"), cut);

    // Of a band of the image, and errors.
    let by_band: IgnoreFrom = "B03:1050".parse().expect("classes");
    let scene = open().ignoring(&by_band, None).expect("its band");
    let labels = scene.labels(scene.window()).expect("reads");
    assert_eq!(labels.iter().filter(|label| **label == IGNORE).count(), 4);
    let error = open()
        .ignoring(&ignore, None)
        .expect_err("no such band")
        .to_string();
    assert!(
        error.contains("no band SCL; it has B02, B03; name the file"),
        "{error}"
    );
    let short = raster(
        "scl",
        (3, 3),
        Some(at(0.0, 0.0).scaled(0.5)),
        Samples::U8(vec![0; 9]),
    );
    let error = open()
        .ignoring(&ignore, Some(short))
        .expect_err("too small")
        .to_string();
    assert!(
        error.contains("it ends 1.0 of its pixels before the image does"),
        "{error}"
    );
}

#[test]
fn files_of_chips_read_as_their_scene_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let (files, scene) = scene("a.tif", (40, 30), at(0.0, 0.0));
    let scene = Arc::into_inner(scene).expect("ours alone");
    let highres = (0..80 * 60).map(|i| (i % 3000) as u16).collect();
    let highres = raster(
        "fine",
        (80, 60),
        Some(at(0.0, 0.0).scaled(2.0)),
        Samples::U16(highres),
    );
    let target = TargetOptions {
        bands: BandSelection::All(1),
        scaling: Default::default(),
        nodata: None,
    };
    let scene = Arc::new(scene.with_target(highres, &target).expect("its grid"));
    let scenes = [(files, scene.clone())];
    let mut index = cut(&scenes, &options(halves())).expect("chips");
    let windows: Vec<[usize; 4]> = index.chips.iter().map(|chip| chip.window).collect();
    write_files(&mut index, &scenes, folder.path()).expect("written");
    let path = folder.path().join("index.geojson");
    std::fs::write(&path, index.to_geojson(&path)).expect("written");
    let read = ChipIndex::read(&path).expect("an index");
    for (chip, [col, row, width, height]) in read.chips.iter().zip(windows) {
        let window = Window::new(col, row, width, height);
        let options = SceneOptions {
            scale: FINE,
            ..SceneOptions::new(BandSelection::names(["B02", "B03"]))
        };
        let cut = Scene::open(&chip.files.image, chip.files.mask.as_deref(), options)
            .expect("a scene of its own");
        let highres =
            terrashard_raster::open(chip.files.highres.as_ref().expect("there")).expect("opens");
        let cut = cut.with_target(highres, &target).expect("its grid");
        assert_eq!(cut.window(), Window::new(0, 0, width, height));
        assert!(cut.patch(cut.window()).expect("reads") == scene.patch(window).expect("reads"));
        assert_eq!(
            cut.labels(cut.window()).expect("reads"),
            scene.labels(window).expect("reads")
        );
        assert_eq!(
            cut.target(cut.window()).expect("reads"),
            scene.target(window).expect("reads")
        );
        let corner = |scene: &Scene, window: Window| {
            let t = scene.metadata().georeference.transform.expect("placed");
            t.apply(window.col as f64, window.row as f64)
        };
        assert_eq!(corner(&cut, cut.window()), corner(&scene, window));
    }
}
