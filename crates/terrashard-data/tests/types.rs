//! Whatever type an image's samples have, a batch has their values: nothing is narrowed on the way.

use terrashard_data::{BandSelection, Scaling, Scene, SceneOptions};
use terrashard_raster::{
    GeoTiffSink, MemorySource, Metadata, Raster, RasterSink, RasterSource, RasterSpec, Samples,
    Window, open,
};

const SIDE: (usize, usize) = (5, 3);

/// What a model gets of one band of these samples, once from memory and once from a file.
fn seen(samples: Samples) -> Vec<f32> {
    let options = || SceneOptions {
        scaling: Scaling {
            scale: 1.0,
            ..Scaling::default()
        },
        ..SceneOptions::new(BandSelection::All(1))
    };
    let values = |source: Box<dyn RasterSource>| {
        let scene = Scene::new(source, None, options()).expect("sound");
        let patch = scene.patch(scene.window()).expect("reads");
        assert!(patch.valid.iter().all(|valid| *valid));
        patch.values
    };
    let (width, height) = SIDE;
    let data_type = samples.data_type();
    let metadata = Metadata {
        width,
        height,
        bands: 1,
        data_type,
        georeference: Default::default(),
        nodata: None,
        descriptions: vec![None],
        overviews: Vec::new(),
        block: (width, 1),
    };
    let memory = MemorySource::new("image", metadata, samples.clone()).expect("filled");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image.tif");
    let spec = RasterSpec::new(width, height, 1, data_type).tile(16);
    let mut sink = GeoTiffSink::create(&path, spec).expect("a new file");
    let window = Window::new(0, 0, width, height);
    sink.write(&Raster::new(window, 1, samples).expect("filled"))
        .expect("written");
    Box::new(sink).finish().expect("complete");
    let of_file = values(open(&path).expect("our own file"));
    assert_eq!(of_file, values(Box::new(memory)), "{data_type:?}");
    of_file
}

#[test]
fn geo_28_floats_stay_floats() {
    // Backscatter in decibels, which whole numbers would destroy.
    let decibels = |at: usize| -23.75 + 1.375 * at as f32;
    let got = seen(Samples::F32((0..15).map(decibels).collect()));
    assert!(got.into_iter().eq((0..15).map(decibels)));
    let fine = |at: usize| -0.000_122_070_312_5 * at as f64 - 1e-3;
    let got = seen(Samples::F64((0..15).map(fine).collect()));
    assert!(got.into_iter().eq((0..15).map(|at| fine(at) as f32)));
}

#[test]
fn geo_29_whole_numbers_of_every_type_keep_their_values() {
    fn check<T: Copy>(values: [T; 15], wrap: impl Fn(Vec<T>) -> Samples, float: impl Fn(T) -> f32) {
        let got = seen(wrap(values.to_vec()));
        assert!(got.iter().copied().eq(values.map(float)), "{got:?}");
    }
    let at = std::array::from_fn::<i64, 15, _>(|at| at as i64);
    check(at.map(|at| (at * 18) as u8), Samples::U8, f32::from);
    check(at.map(|at| (at * 18 - 128) as i8), Samples::I8, f32::from);
    check(at.map(|at| (at * 4681) as u16), Samples::U16, f32::from);
    check(
        at.map(|at| (at * 4681 - 32_768) as i16),
        Samples::I16,
        f32::from,
    );
    // What a float holds exactly.
    check(
        at.map(|at| (at * 1_000_000) as u32),
        Samples::U32,
        |value| value as f32,
    );
    check(
        at.map(|at| (at * 1_000_000 - 7_000_000) as i32),
        Samples::I32,
        |value| value as f32,
    );
    // Where the widest type of 16 bits ends.
    let highest = seen(Samples::U16([40_000, u16::MAX, 32_768].repeat(5)));
    assert_eq!(highest[..3], [40_000.0, 65_535.0, 32_768.0]);
}
