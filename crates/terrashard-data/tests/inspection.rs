//! What is found wrong with files: all of it, and nothing where nothing is.

use std::path::{Path, PathBuf};

use terrashard_data::{
    BandSelection, Finding, Kind, Level, SceneFiles, SceneOptions, TargetOptions, inspect,
};
use terrashard_raster::{
    DataType, GeoTiffSink, Georeference, Raster, RasterSink, RasterSpec, Samples, Transform, Window,
};

fn water(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/water")
        .join(name)
}

const IMAGE: &str = "S2A_T33UUU_20170216_L1C_6band.tif";
const MASK: &str = "osm_water_mask_2m_ignore255.tif";

fn options() -> SceneOptions {
    SceneOptions::new(BandSelection::names([
        "B02", "B03", "B04", "B08", "B11", "B12",
    ]))
}

fn files(image: PathBuf, mask: PathBuf) -> SceneFiles {
    SceneFiles {
        image,
        mask: Some(mask),
        ..SceneFiles::default()
    }
}

fn kinds(findings: &[Finding]) -> Vec<(Level, Kind)> {
    findings
        .iter()
        .map(|finding| (finding.level, finding.kind))
        .collect()
}

#[test]
fn the_shipped_scene_has_no_finding() {
    assert_eq!(
        inspect(&files(water(IMAGE), water(MASK)), &options(), None),
        []
    );
}

#[test]
fn geo_52_all_that_is_missing_or_damaged_is_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let whole = std::fs::read(water(IMAGE)).expect("the shipped scene");
    std::fs::write(at("cut.tif"), &whole[..whole.len() * 6 / 10]).expect("written");
    std::fs::write(at("text.tif"), "not a raster").expect("written");
    let mut scene = files(at("cut.tif"), at("gone.tif"));
    scene.highres = Some(at("text.tif"));
    let target = TargetOptions {
        bands: BandSelection::All(4),
        scaling: Default::default(),
        nodata: None,
    };
    let findings = inspect(&scene, &options(), Some(&target));
    let expected = [Kind::Corrupt, Kind::Missing, Kind::Corrupt].map(|kind| (Level::Wrong, kind));
    assert_eq!(kinds(&findings), expected, "{findings:#?}");
    assert!(
        findings[0].message.starts_with("truncated"),
        "{findings:#?}"
    );
    assert_eq!(findings[1].file, at("gone.tif"));

    // A tile that does not decode is found though the file opens.
    let mut damaged = whole;
    let middle = damaged.len() / 2;
    damaged[middle..middle + 4000].fill(0xa5);
    std::fs::write(at("damaged.tif"), damaged).expect("written");
    let findings = inspect(&files(at("damaged.tif"), water(MASK)), &options(), None);
    assert_eq!(
        kinds(&findings),
        [(Level::Wrong, Kind::Corrupt)],
        "{findings:#?}"
    );
}

/// A label of 8 x 6 pixels of 2 m, whose upper left corner lies here.
fn label(path: &Path, epsg: u32, corner: (f64, f64), size: (usize, usize), values: Vec<u8>) {
    let ground = Georeference {
        epsg: Some(epsg),
        transform: Some(Transform::north_up(corner.0, corner.1, 2.0)),
    };
    let spec = RasterSpec::new(size.0, size.1, 1, DataType::U8).georeference(ground);
    let mut sink = GeoTiffSink::create(path, spec.tile(16)).expect("a folder");
    let window = Window::new(0, 0, size.0, size.1);
    sink.write(&Raster::new(window, 1, Samples::U8(values)).expect("filled"))
        .expect("written");
    Box::new(sink).finish().expect("complete");
}

/// An image of 4 x 3 pixels of 4 m over the same ground.
fn image(path: &Path) {
    let ground = Georeference {
        epsg: Some(32633),
        transform: Some(Transform::north_up(500_000.0, 5_000_000.0, 4.0)),
    };
    let spec = RasterSpec::new(4, 3, 1, DataType::U16).georeference(ground);
    let mut sink = GeoTiffSink::create(path, spec.tile(16)).expect("a folder");
    let samples = Samples::U16((0..12).map(|i| 300 + 50 * i).collect());
    sink.write(&Raster::new(Window::new(0, 0, 4, 3), 1, samples).expect("filled"))
        .expect("written");
    Box::new(sink).finish().expect("complete");
}

#[test]
fn geo_34_a_label_elsewhere_is_told_with_both_codes() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    image(&at("image.tif"));
    let options = SceneOptions {
        scale: 2,
        ..SceneOptions::new(BandSelection::All(1))
    };
    let corner = (500_000.0, 5_000_000.0);
    let labels = vec![[0, 1].repeat(24); 1].concat();
    let check = |name: &str, expected: &[(Level, Kind)], words: &str| {
        let findings = inspect(&files(at("image.tif"), at(name)), &options, None);
        assert_eq!(kinds(&findings), expected, "{findings:#?}");
        let told = findings
            .iter()
            .any(|finding| finding.message.contains(words));
        assert!(told || words.is_empty(), "{findings:#?}");
    };
    label(&at("sound.tif"), 32633, corner, (8, 6), labels.clone());
    check("sound.tif", &[], "");
    label(&at("zone.tif"), 32632, corner, (8, 6), labels.clone());
    let registration = [(Level::Wrong, Kind::Registration)];
    check(
        "zone.tif",
        &registration,
        "EPSG:32632, the image in EPSG:32633",
    );
    check("zone.tif", &registration, "terrashard align");
    label(
        &at("moved.tif"),
        32633,
        (corner.0 + 2.0, corner.1),
        (8, 6),
        labels.clone(),
    );
    check("moved.tif", &registration, "up to 2.000 apart");
    label(
        &at("wide.tif"),
        32633,
        corner,
        (9, 6),
        [labels, vec![0; 6]].concat(),
    );
    check("wide.tif", &[(Level::Wrong, Kind::Size)], "9 x 6");
    label(&at("classes.tif"), 32633, corner, (8, 6), (0..48).collect());
    check(
        "classes.tif",
        &[(Level::Wrong, Kind::Label)],
        "2 (1 pixels)",
    );
}

#[test]
fn geo_30_a_shift_of_the_high_resolution_image_is_told_in_pixels_of_the_image() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let scene = terrashard_raster::open(water(IMAGE)).expect("the shipped scene");
    // Its pixels stand for those of 5 m; an image of 10 m is the mean of four.
    let crop = |col: usize, row: usize, side: usize| {
        let raster = scene.read_window(Window::new(col, row, side, side));
        raster.expect("inside").select(&[0, 1, 2])
    };
    let write = |name: &str, side: usize, pixel: f64, samples: Vec<u16>| {
        let ground = Georeference {
            epsg: Some(32633),
            transform: Some(Transform::north_up(500_000.0, 5_000_000.0, pixel)),
        };
        let spec = RasterSpec::new(side, side, 3, DataType::U16).georeference(ground);
        let spec = spec.descriptions(["B02", "B03", "B04"]);
        let mut sink = GeoTiffSink::create(at(name), spec).expect("a folder");
        let whole = Window::new(0, 0, side, side);
        let raster = Raster::new(whole, 3, Samples::U16(samples)).expect("filled");
        sink.write(&raster).expect("written");
        Box::new(sink).finish().expect("complete");
    };
    let fine = crop(300, 100, 512);
    let mean = |band: usize, col: usize, row: usize| {
        let four = [(0, 0), (1, 0), (0, 1), (1, 1)];
        let sum = four.map(|(x, y)| fine.at(band, 2 * col + x, 2 * row + y));
        (sum.iter().sum::<f64>() / 4.0) as u16
    };
    let places = (0..3).flat_map(|b| (0..256 * 256).map(move |i| (b, i % 256, i / 256)));
    let coarse = places
        .map(|(band, col, row)| mean(band, col, row))
        .collect();
    write("image.tif", 256, 10.0, coarse);
    let options = SceneOptions {
        scale: 2,
        ..SceneOptions::new(BandSelection::names(["B02", "B03", "B04"]))
    };
    let target = TargetOptions {
        bands: BandSelection::All(3),
        scaling: Default::default(),
        nodata: None,
    };
    // What is shown further left lies three pixels of the image too far right.
    for (moved, expected) in [(0, None), (6, Some(3.0))] {
        let Samples::U16(samples) = crop(300 - moved, 100, 512).into_samples() else {
            panic!("the scene is of 16 bits")
        };
        write("fine.tif", 512, 5.0, samples);
        let files = SceneFiles {
            image: at("image.tif"),
            highres: Some(at("fine.tif")),
            ..SceneFiles::default()
        };
        let findings = inspect(&files, &options, Some(&target));
        let Some(expected) = expected else {
            assert_eq!(findings, []);
            continue;
        };
        let registration = [(Level::Suspicious, Kind::Registration)];
        assert_eq!(kinds(&findings), registration, "{findings:#?}");
        assert_eq!(findings[0].file, at("fine.tif"));
        let (found, allowed) = (findings[0].found, findings[0].expected);
        assert!(
            found.is_some_and(|found| (found - expected).abs() < 0.1),
            "{findings:#?}"
        );
        assert_eq!(allowed, Some(0.5));
        assert!(
            findings[0].message.contains("terrashard align"),
            "{findings:#?}"
        );
    }
}
