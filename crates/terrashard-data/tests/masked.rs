//! What a mask stored beside pixels leaves out has no data, wherever a scene, a label or a high-resolution image is read.

use std::path::Path;
use std::sync::Arc;

use terrashard_data::{
    BandSelection, ChipFiles, ChipOptions, Chips, CutOptions, IGNORE, IgnoreFrom, Part, Region,
    Scaling, Scene, SceneFiles, SceneOptions, Selection, Split, SplitRule, Statistics,
    TargetOptions, bicubic, cut, inspect, write_files,
};
use terrashard_raster::{
    DataType, GeoTiffSink, Georeference, MemorySource, Metadata, Raster, RasterSink, RasterSource,
    RasterSpec, Samples, Transform,
};

const SCALE: usize = 2;
const SIZE: (usize, usize) = (6, 4);
const GROUND: Transform = Transform::north_up(399_960.0, 5_800_020.0, 10.0);

/// The image's pixels without data by its mask: every fifth.
fn gap(at: usize) -> bool {
    at.is_multiple_of(5)
}

fn raster(
    name: &str,
    (width, height): (usize, usize),
    ground: Transform,
    samples: Samples,
    nodata: Option<f64>,
) -> MemorySource {
    let bands = samples.len() / (width * height);
    let metadata = Metadata {
        width,
        height,
        bands,
        data_type: DataType::U8,
        georeference: Georeference {
            epsg: Some(32633),
            transform: Some(ground),
        },
        nodata,
        descriptions: ["B03", "B08", "SCL"][..bands]
            .iter()
            .map(|b| Some((*b).to_owned()))
            .collect(),
        overviews: Vec::new(),
        block: (width, 1),
    };
    MemorySource::new(name, metadata, samples).expect("filled")
}

/// Two bands: 500 more than the pixel's number, and 3000 more; 60000 under the mask.
fn image() -> MemorySource {
    let pixels = SIZE.0 * SIZE.1;
    let value = |at: usize| match gap(at % pixels) {
        true => 60_000,
        false => (500 + 2500 * (at / pixels) + at % pixels) as u16,
    };
    let samples = Samples::U16((0..2 * pixels).map(value).collect());
    let mask = (0..pixels).map(|at| !gap(at)).collect();
    let image = raster("image", SIZE, GROUND, samples, None);
    image.with_mask(mask).expect("filled")
}

fn fine() -> (usize, usize) {
    (SIZE.0 * SCALE, SIZE.1 * SCALE)
}

/// The number of the image's pixel under one of the fine grid.
fn under(at: usize) -> usize {
    let (width, scale) = (fine().0, SCALE);
    at / width / scale * SIZE.0 + at % width / scale
}

/// A label of class 1, without data in its last row by its mask and in the row before by a nodata value; both hold values that are
/// no class.
fn label() -> MemorySource {
    let (width, height) = fine();
    let value = |at: usize| match height - at / width {
        1 => 77,
        2 => 99,
        _ => 1,
    };
    let samples = Samples::U8((0..width * height).map(value).collect());
    let mask = (0..width * height)
        .map(|at| at / width + 1 < height)
        .collect();
    let label = raster(
        "label",
        fine(),
        GROUND.scaled(SCALE as f64),
        samples,
        Some(99.0),
    );
    label.with_mask(mask).expect("filled")
}

fn highres() -> MemorySource {
    let (width, height) = fine();
    let samples = Samples::U16((0..width * height).map(|at| 2000 + at as u16).collect());
    let mask = (0..width * height)
        .map(|at| !at.is_multiple_of(7))
        .collect();
    let highres = raster(
        "highres",
        fine(),
        GROUND.scaled(SCALE as f64),
        samples,
        None,
    );
    highres.with_mask(mask).expect("filled")
}

fn options() -> SceneOptions {
    SceneOptions {
        scale: SCALE,
        ..SceneOptions::new(BandSelection::names(["B03", "B08"]))
    }
}

fn target() -> TargetOptions {
    TargetOptions {
        bands: BandSelection::All(1),
        scaling: Scaling::default(),
        nodata: None,
    }
}

fn scene(cache_bytes: usize) -> Scene {
    let options = SceneOptions {
        cache_bytes,
        ..options()
    };
    let scene = Scene::new(Box::new(image()), Some(Box::new(label())), options).expect("sound");
    scene
        .with_target(Box::new(highres()), &target())
        .expect("its grid")
}

/// The label of a fine pixel as it is trained on.
fn expected_label(at: usize) -> u8 {
    let (width, height) = fine();
    match gap(under(at)) || at / width + 2 >= height {
        true => IGNORE,
        false => 1,
    }
}

#[test]
fn geo_22_what_masks_leave_out_is_ignored() {
    for cache_bytes in [0, 1 << 20] {
        let scene = scene(cache_bytes);
        let (width, height) = fine();
        let patch = scene.patch(scene.window()).expect("reads");
        for (at, (valid, value)) in patch.valid.iter().zip(&patch.values).enumerate() {
            assert_eq!(*valid, !gap(at), "pixel {at}");
            assert_eq!(*value == 0.0, gap(at), "pixel {at}");
        }
        let labels = scene
            .labels(scene.window())
            .expect("values under the mask are not looked at");
        let expected: Vec<u8> = (0..width * height).map(expected_label).collect();
        assert_eq!(labels, expected);
        let target = scene.target(scene.window()).expect("reads");
        for (at, value) in target.iter().enumerate() {
            let missing = at.is_multiple_of(7) || gap(under(at));
            assert_eq!(value.is_nan(), missing, "fine pixel {at}");
        }
        let chips = ChipOptions {
            chip: 6,
            stride: 6,
            ..ChipOptions::default()
        };
        let window = scene.window();
        let chips = Chips::new(vec![(Arc::new(scene), window)], chips).expect("one chip");
        let ones = expected.iter().filter(|label| **label == 1).count() as u64;
        assert_eq!(chips.chips()[0].counts, [0, ones]);
        let values = target.iter().filter(|value| !value.is_nan()).count() as u64;
        assert_eq!(chips.chips()[0].target_pixels, values);
    }
}

#[test]
fn statistics_medians_and_baselines_leave_masked_pixels_out() {
    let scene = scene(0);
    let valid = (0..24).filter(|at| !gap(*at)).count() as u64;
    let mut statistics = [Statistics::new(2, true)];
    scene
        .add_statistics(&[(0, scene.window())], &mut statistics)
        .expect("reads");
    let mut whole = Statistics::new(2, true);
    whole.add_raster(&image(), None).expect("reads");
    for statistics in [&statistics[0], &whole] {
        assert_eq!((statistics.valid(), statistics.pixels()), (valid, 24));
        let band = &statistics.bands(&["B03".into(), "B08".into()], 1.0)[1];
        assert_eq!((band.min, band.max), (Some(3001.0), Some(3023.0)));
    }
    let sampled = scene.sampled_statistics().expect("reads");
    // Half of nineteen values of 1 to 23 without multiples of 5: the tenth is 12.
    let medians = [0, 1].map(|band| sampled.percentile(band, 50.0));
    assert_eq!(medians, [512.0, 3012.0]);
    let water = terrashard_data::baseline::ndwi_water(
        &scene,
        scene.window(),
        terrashard_data::baseline::Upsampling::Nearest,
    );
    let enlarged = bicubic::enlarge(&scene, &[0], scene.window()).expect("reads");
    for (at, (class, value)) in water.expect("reads").iter().zip(enlarged).enumerate() {
        assert_eq!(*class == IGNORE, gap(under(at)), "fine pixel {at}");
        assert_eq!(value.is_nan(), gap(under(at)), "fine pixel {at}");
        assert!(
            value.is_nan() || value < 0.11,
            "60000 does not leak: {value}"
        );
    }
}

#[test]
fn a_masked_classification_does_not_say_that_a_pixel_is_clear() {
    let clear = Samples::U8(vec![4; SIZE.0 * SIZE.1]);
    let mask = (0..SIZE.0 * SIZE.1).map(|at| at != 8).collect();
    let classes = raster("scl", SIZE, GROUND, clear, None)
        .with_mask(mask)
        .expect("filled");
    let ignore: IgnoreFrom = "SCL:8,9".parse().expect("classes");
    let scene = scene(0)
        .ignoring(&ignore, Some(Box::new(classes)))
        .expect("its ground");
    let labels = scene.labels(scene.window()).expect("reads");
    for (at, label) in labels.iter().enumerate() {
        let expected = if under(at) == 8 {
            IGNORE
        } else {
            expected_label(at)
        };
        assert_eq!(*label, expected, "fine pixel {at}");
    }
}

#[test]
fn chips_in_files_keep_what_masks_leave_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = ChipFiles {
        image: "image.tif".into(),
        mask: Some("label".into()),
        ..ChipFiles::default()
    };
    let scene = Arc::new(scene(0));
    let scenes = [(files, scene.clone())];
    let rule = SplitRule::Regions(Split {
        train: Region::West,
        validation: None,
        test: Region::East,
    });
    let options_of = CutOptions {
        chip: 3,
        stride: None,
        selection: Selection::default(),
        rule,
    };
    let mut index = cut(&scenes, &options_of).expect("chips");
    let windows: Vec<_> = index
        .chips
        .iter()
        .map(|chip| (chip.part, chip.window))
        .collect();
    write_files(&mut index, &scenes, folder.path()).expect("written");
    assert!(windows.iter().any(|(part, _)| *part == Part::Test));
    for (chip, (_, [col, row, width, height])) in index.chips.iter().zip(windows) {
        let window = terrashard_raster::Window::new(col, row, width, height);
        let own =
            Scene::open(&chip.files.image, chip.files.mask.as_deref(), options()).expect("opens");
        let highres = terrashard_raster::open(chip.files.highres.as_ref().expect("there"));
        let own = own
            .with_target(highres.expect("opens"), &target())
            .expect("its grid");
        assert_eq!(
            own.patch(own.window()).expect("reads"),
            scene.patch(window).expect("reads")
        );
        assert_eq!(
            own.labels(own.window()).expect("reads"),
            scene.labels(window).expect("reads")
        );
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(
            bits(own.target(own.window()).expect("reads")),
            bits(scene.target(window).expect("reads"))
        );
    }
}

fn write(path: &Path, source: &dyn RasterSource) {
    let whole = source.metadata().window();
    let metadata = source.metadata();
    let put = |path: &Path, samples: Samples, bands: usize| {
        let mut spec = RasterSpec::new(whole.width, whole.height, bands, samples.data_type())
            .georeference(metadata.georeference)
            .tile(16);
        if bands == metadata.bands && samples.data_type() == metadata.data_type {
            spec.descriptions = metadata.descriptions.clone();
            spec.nodata = metadata.nodata;
        }
        let mut sink = GeoTiffSink::create(path, spec).expect("begun");
        sink.write(&Raster::new(whole, bands, samples).expect("filled"))
            .expect("written");
        Box::new(sink).finish().expect("finished");
    };
    put(
        path,
        source.read_window(whole).expect("reads").into_samples(),
        metadata.bands,
    );
    let mask = source.read_mask(whole).expect("reads").expect("a mask");
    let mask = Samples::U16(
        mask.into_iter()
            .map(|data| if data { 255 } else { 0 })
            .collect(),
    );
    put(&path.with_extension("tif.msk"), mask, 1);
}

#[test]
fn a_check_looks_at_what_masks_keep() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    write(&path("image.tif"), &image());
    write(&path("label.tif"), &label());
    let files = SceneFiles {
        image: path("image.tif"),
        mask: Some(path("label.tif")),
        ..SceneFiles::default()
    };
    // 60000 under the mask would be a reflectance of 6, and 77 no class.
    assert_eq!(inspect(&files, &options(), None), []);
    std::fs::remove_file(path("label.tif.msk")).expect("there");
    let findings = inspect(&files, &options(), None);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(
        findings[0].message.contains("no class: 77 (12 pixels)"),
        "{findings:?}"
    );
}
