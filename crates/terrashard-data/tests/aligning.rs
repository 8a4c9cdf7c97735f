//! Images and labels onto the fine grid over an image: exactly, with gaps kept, and with the shift measured.

use std::path::{Path, PathBuf};

use proj4rs::Proj;
use terrashard_data::{AlignOptions, Aligned, Content, IGNORE, Resampling, align, measure};
use terrashard_raster::{
    DataType, Georeference, MemorySource, Metadata, RasterSource, Samples, Transform, Window,
};

fn metadata(size: (usize, usize), epsg: u32, ground: Transform) -> Metadata {
    Metadata {
        width: size.0,
        height: size.1,
        bands: 1,
        data_type: DataType::U8,
        georeference: Georeference {
            epsg: Some(epsg),
            transform: Some(ground),
        },
        nodata: None,
        descriptions: vec![Some("B04".to_owned())],
        overviews: Vec::new(),
        block: (size.0, 1),
    }
}

fn source(metadata: Metadata, samples: Samples) -> MemorySource {
    MemorySource::new("source", metadata, samples).expect("filled")
}

fn image(content: Content) -> AlignOptions {
    AlignOptions {
        scale: 5,
        content,
        resampling: None,
        nodata: None,
    }
}

struct Made {
    _folder: tempfile::TempDir,
    told: Aligned,
    raster: Box<dyn RasterSource>,
}

fn made(
    target: &Metadata,
    source: &dyn RasterSource,
    options: &AlignOptions,
) -> Result<Made, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("aligned.tif");
    match align(target, source, &path, options) {
        Ok(told) => Ok(Made {
            told,
            raster: terrashard_raster::open(&path).expect("a raster"),
            _folder: folder,
        }),
        Err(error) => {
            assert!(!path.exists(), "nothing is left behind");
            Err(error.to_string())
        }
    }
}

fn values(raster: &dyn RasterSource) -> Vec<f32> {
    raster
        .read_window(raster.metadata().window())
        .expect("reads")
        .band_f32(0)
}

const UTM: Transform = Transform::north_up(300_000.0, 5_800_000.0, 10.0);

#[test]
fn a_label_in_its_place_comes_back_as_it_was() {
    let target = metadata((60, 40), 32633, UTM);
    let labels: Vec<u8> = (0..300 * 200).map(|at| [0, 1, 255, 0, 1][at % 5]).collect();
    let label = source(
        metadata((300, 200), 32633, UTM.scaled(5.0)),
        Samples::U8(labels.clone()),
    );
    let made = made(&target, &label, &image(Content::Label)).expect("its place");
    let grid = made.raster.metadata();
    assert_eq!(
        (grid.width, grid.height, grid.georeference),
        (300, 200, target.georeference.scaled(5.0))
    );
    assert_eq!((grid.nodata, grid.data_type), (Some(255.0), DataType::U8));
    assert_eq!(
        values(&*made.raster),
        labels
            .iter()
            .map(|&label| f32::from(label))
            .collect::<Vec<_>>()
    );
    assert_eq!(
        (made.told.resampling, made.told.valid),
        (Resampling::Nearest, 1.0)
    );
}

#[test]
fn what_lies_beyond_is_ignored_and_classes_are_checked() {
    let target = metadata((4, 2), 32633, UTM);
    // Of 2 m, over the right half and beyond.
    let ground = Transform::north_up(300_020.0, 5_800_000.0, 2.0);
    let label = source(metadata((30, 10), 32633, ground), Samples::U8(vec![1; 300]));
    let half = made(&target, &label, &image(Content::Label)).expect("half");
    assert_eq!(half.told.valid, 0.5);
    for (at, value) in values(&*half.raster).into_iter().enumerate() {
        assert_eq!(value, if at % 20 < 10 { f32::from(IGNORE) } else { 1.0 });
    }
    let wide = source(
        metadata((30, 10), 32633, ground),
        Samples::U16(vec![300; 300]),
    );
    let error = made(&target, &wide, &image(Content::Label))
        .err()
        .expect("no class");
    assert!(
        error.contains("value 300 at column 0, row 0 is no class"),
        "{error}"
    );
    let far = source(
        metadata((30, 10), 32633, Transform::north_up(0.0, 0.0, 2.0)),
        Samples::U8(vec![1; 300]),
    );
    let error = made(&target, &far, &image(Content::Label))
        .err()
        .expect("nothing");
    assert!(
        error.contains("no data over the ground of the image"),
        "{error}"
    );
    let mut nowhere = metadata((30, 10), 32633, ground);
    nowhere.georeference = Georeference::default();
    let error = made(
        &target,
        &source(nowhere, Samples::U8(vec![1; 300])),
        &image(Content::Label),
    )
    .err()
    .expect("nowhere");
    assert!(
        error.contains("source: one of them says nothing of its ground"),
        "{error}"
    );
}

#[test]
fn geo_25_gaps_of_an_image_need_a_nodata_value_and_keep_it() {
    let target = metadata((2, 1), 32633, UTM);
    // Of 1 m: four pixels for one.
    let ground = |x: f64| Transform::north_up(300_000.0 + x, 5_800_000.0, 1.0);
    let numbers = |x: f64, nodata: Option<f64>| {
        let mut metadata = metadata((20, 10), 32633, ground(x));
        metadata.nodata = nodata;
        // Its first two columns are 0, the others 7 and 8 in turns.
        let value = |at: usize| if at % 20 < 2 { 0 } else { 7 + (at % 2) as u16 };
        source(metadata, Samples::U16((0..200).map(value).collect()))
    };
    let whole = made(&target, &numbers(0.0, None), &image(Content::Image)).expect("covers all");
    assert_eq!(
        (whole.told.resampling, whole.raster.metadata().nodata),
        (Resampling::Area, None)
    );
    assert_eq!(
        values(&*whole.raster)[..3],
        [0.0, 8.0, 8.0],
        "7.5 is rounded"
    );

    let error = made(&target, &numbers(4.0, None), &image(Content::Image))
        .err()
        .expect("no value");
    assert!(
        error.contains("does not cover the whole image") && error.contains("--nodata"),
        "{error}"
    );
    let named = AlignOptions {
        nodata: Some(65_535.0),
        ..image(Content::Image)
    };
    let beyond = made(&target, &numbers(4.0, None), &named).expect("a value");
    assert_eq!(
        values(&*beyond.raster)[..5],
        [65_535.0, 65_535.0, 0.0, 8.0, 8.0]
    );
    assert_eq!(beyond.raster.metadata().nodata, Some(65_535.0));
    let declared =
        made(&target, &numbers(0.0, Some(0.0)), &image(Content::Image)).expect("declared");
    assert_eq!(values(&*declared.raster)[..3], [0.0, 8.0, 8.0]);
    assert_eq!(declared.told.valid, 0.9);

    // Means of values on both sides of the nodata value are not taken for it.
    let mut metadata = metadata((20, 10), 32633, ground(0.0));
    metadata.nodata = Some(7.0);
    let around = Samples::U16((0..200).map(|at| 6 + 2 * (at % 2) as u16).collect());
    let around =
        made(&target, &source(metadata, around), &image(Content::Image)).expect("declared");
    assert_eq!((around.told.valid, values(&*around.raster)[0]), (1.0, 8.0));
}

#[test]
fn geo_34_another_zone_is_reprojected_to_a_hundredth_of_a_pixel() {
    let target = metadata((30, 20), 32633, UTM);
    // Values are coordinates of the source's own zone, which bilinear interpolation gives back exactly between centres.
    let ground = Transform::north_up(708_900.0, 5_800_500.0, 4.0);
    let size = (150, 110);
    let value = |at: usize| {
        (4.0 * ((at % size.0) as f64 + 0.5) - 3.0 * 4.0 * ((at / size.0) as f64 + 0.5)) as f32
    };
    let coarse = source(
        metadata(size, 32632, ground),
        Samples::F32((0..size.0 * size.1).map(value).collect()),
    );
    let made = made(&target, &coarse, &image(Content::Image)).expect("over each other");
    assert_eq!(
        (made.told.resampling, made.told.valid),
        (Resampling::Bilinear, 1.0)
    );
    assert_eq!((made.told.from_epsg, made.told.to_epsg), (32632, 32633));
    let zone = |epsg: u16| Proj::from_epsg_code(epsg).expect("a zone");
    let (from, to) = (zone(32633), zone(32632));
    let grid = made
        .raster
        .metadata()
        .georeference
        .transform
        .expect("placed");
    for (at, got) in values(&*made.raster).into_iter().enumerate() {
        let mut point = grid.apply((at % 150) as f64 + 0.5, (at / 150) as f64 + 0.5);
        proj4rs::transform::transform(&from, &to, &mut point).expect("both meet");
        let expected = (point.0 - ground.c) - 3.0 * (ground.f - point.1);
        assert!(
            (f64::from(got) - expected).abs() < 0.02,
            "{at}: {got} instead of {expected}"
        );
    }
}

/// The shipped scene's bands as a fine image, and their means over blocks of 4 x 4 pixels as the image.
fn pair() -> (MemorySource, Samples) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/water/S2A_T33UUU_20170216_L1C_6band.tif");
    let scene = terrashard_raster::open(path).expect("the shipped scene");
    let fine = scene
        .read_window(Window::new(100, 50, 640, 640))
        .expect("inside")
        .band_f32(2);
    let mean = |at: usize| {
        let (col, row) = (4 * (at % 160), 4 * (at / 160));
        let block = (row..row + 4).flat_map(|row| (col..col + 4).map(move |col| (row, col)));
        block.map(|(row, col)| fine[row * 640 + col]).sum::<f32>() / 16.0
    };
    let coarse = source(
        metadata((160, 160), 32633, UTM),
        Samples::F32((0..160 * 160).map(mean).collect()),
    );
    (coarse, Samples::F32(fine))
}

#[test]
fn geo_30_a_shift_of_three_pixels_is_detected() {
    let (image, fine) = pair();
    let options = AlignOptions {
        scale: 4,
        nodata: Some(0.0),
        ..self::image(Content::Image)
    };
    for (right, down) in [(0.0, 0.0), (30.0, 0.0), (-10.0, 20.0), (2.5, 0.0)] {
        // A file that says that it lies further right and down than it does.
        let ground = Transform::north_up(300_000.0 + right, 5_800_000.0 - down, 2.5);
        let moved = source(metadata((640, 640), 32633, ground), fine.clone());
        let made = made(image.metadata(), &moved, &options).expect("over each other");
        let shift = measure(&image, &*made.raster, 4)
            .expect("reads")
            .expect("clear");
        let apart = (shift.right - right / 10.0)
            .abs()
            .max((shift.down - down / 10.0).abs());
        assert!(apart < 0.05, "{shift:?} instead of {right}, {down} m");
        assert_eq!(shift.is_large(), right.abs() > 5.0);
    }
}
