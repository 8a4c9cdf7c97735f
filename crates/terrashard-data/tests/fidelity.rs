//! PSNR and SSIM against scikit-image's values, and bicubic enlargement against values by hand.

use terrashard_data::{BandSelection, Comparison, Fidelity, Scaling, Scene, SceneOptions, bicubic};
use terrashard_raster::{DataType, Georeference, MemorySource, Metadata, Samples, Window};

const WIDTH: usize = 19;
const HEIGHT: usize = 16;

/// Two bands of a pattern with a little noise, which `salt` chooses.
fn image(salt: usize) -> Vec<f32> {
    let value = |band: usize, row: usize, col: usize| {
        let base = (row * 7 + col * 5 + band * 3) % 23;
        let noise = (row * 31 + col * 17 + salt * 13 + band * 29) % 29;
        (base as f64 / 46.0 + noise as f64 / 290.0) as f32
    };
    let rows = |band| (0..HEIGHT).flat_map(move |row| (0..WIDTH).map(move |col| (band, row, col)));
    let places = (0..2).flat_map(rows);
    places
        .map(|(band, row, col)| value(band, row, col))
        .collect()
}

/// Compares in pieces of so many rows.
fn compare(x: &[f32], y: &[f32], rows: &[usize]) -> Fidelity {
    let mut comparison = Comparison::new(WIDTH, 2);
    let mut first = 0;
    for &count in rows {
        let piece = |image: &[f32]| -> Vec<f32> {
            let plane = WIDTH * HEIGHT;
            let range = first * WIDTH..(first + count) * WIDTH;
            let second = range.start + plane..range.end + plane;
            [&image[range], &image[second]].concat()
        };
        comparison.add(&piece(x), &piece(y));
        first += count;
    }
    assert_eq!(first, HEIGHT);
    comparison.finish()
}

#[track_caller]
fn near(value: Option<f64>, expected: f64) {
    let value = value.expect("something was compared");
    assert!(
        (value - expected).abs() < 1e-9,
        "{value} instead of {expected}"
    );
}

/// The expected values are those of scikit-image 0.26.0 (BSD-3-Clause), computed for this test from the same images in float64:
/// `peak_signal_noise_ratio(y, x, data_range=1)`, and the mean over bands of `structural_similarity(x, y, data_range=1,
/// gaussian_weights=True, sigma=1.5, use_sample_covariance=False)`.
#[test]
fn agrees_with_scikit_image_however_rows_come() {
    let (x, y) = (image(1), image(4));
    let whole = compare(&x, &y, &[HEIGHT]);
    near(whole.psnr(), 26.476_695_272_532_595);
    near(whole.ssim(), 0.948_600_908_954_087_8);
    assert_eq!(whole.values, 2 * 19 * 16);
    assert_eq!(whole.windows, 2 * 9 * 6);
    for rows in [&[1; HEIGHT][..], &[3, 12, 1]] {
        let pieces = compare(&x, &y, rows);
        assert_eq!(
            (pieces.values, pieces.windows),
            (whole.values, whole.windows)
        );
        near(pieces.psnr(), 26.476_695_272_532_595);
        near(pieces.ssim(), 0.948_600_908_954_087_8);
    }
    let mut twice = whole;
    twice.merge(&whole);
    assert_eq!(
        (twice.psnr(), twice.values),
        (whole.psnr(), 2 * whole.values)
    );
}

#[test]
fn what_is_missing_is_in_no_sum_and_no_window() {
    let (x, mut y) = (image(1), image(4));
    let whole = compare(&x, &y, &[HEIGHT]);
    // The pixel in the corner of both bands: one window each.
    let corner = [0, WIDTH * HEIGHT];
    let gone: f64 = corner
        .iter()
        .map(|&at| (f64::from(x[at]) - f64::from(y[at])).powi(2))
        .sum();
    corner.iter().for_each(|&at| y[at] = f32::NAN);
    let part = compare(&x, &y, &[HEIGHT]);
    assert_eq!(
        (part.values, part.windows),
        (whole.values - 2, whole.windows - 2)
    );
    assert!((part.squares - (whole.squares - gone)).abs() < 1e-12);
    assert!(
        part.ssim()
            .is_some_and(|ssim| ssim.is_finite() && ssim != 1.0)
    );

    let nothing = compare(&x, &vec![f32::NAN; x.len()], &[HEIGHT]);
    assert_eq!((nothing.psnr(), nothing.ssim()), (None, None));
    let equal = compare(&x, &x, &[HEIGHT]);
    assert_eq!(equal.psnr(), Some(f64::INFINITY));
    near(equal.ssim(), 1.0);
    // Narrower than a window of SSIM.
    let mut narrow = Comparison::new(10, 1);
    narrow.add(&[0.5; 200], &[0.6; 200]);
    let narrow = narrow.finish();
    assert!(narrow.ssim().is_none());
    assert!((narrow.psnr().expect("compared") - 20.0).abs() < 1e-5);
}

/// A scene of one band; digital numbers are hundredths of reflectance above 1000.
fn scene(width: usize, height: usize, scale: usize, reflectance: &[f32]) -> Scene {
    let metadata = Metadata {
        width,
        height,
        bands: 1,
        data_type: DataType::F32,
        georeference: Georeference::default(),
        nodata: None,
        descriptions: vec![None],
        overviews: Vec::new(),
        block: (width, 1),
    };
    let numbers = reflectance.iter().map(|r| r * 100.0 + 1000.0).collect();
    let source = MemorySource::new("image", metadata, Samples::F32(numbers)).expect("filled");
    let options = SceneOptions {
        scale,
        scaling: Scaling {
            offset: -1000.0,
            scale: 0.01,
            ..Scaling::default()
        },
        ..SceneOptions::new(BandSelection::All(1))
    };
    Scene::new(Box::new(source), None, options).expect("sound")
}

#[track_caller]
fn all_near(values: &[f32], expected: &[f32]) {
    assert_eq!(values.len(), expected.len());
    for (at, (value, expected)) in values.iter().zip(expected).enumerate() {
        let same = (value - expected).abs() < 1e-4 || value.is_nan() && expected.is_nan();
        assert!(same, "{at}: {value} instead of {expected} in {values:?}");
    }
}

#[test]
fn bicubic_enlargement_is_that_of_the_kernel() {
    // One bright pixel: the kernel itself at quarters, in units of 1 / 128, constant down a column of equal rows.
    let line = [0.0, 0.0, 0.0, 128.0, 0.0, 0.0, 0.0];
    let scene_of_rows = scene(7, 5, 2, &line.repeat(5));
    let row = [
        0.0, -3.0, -9.0, 29.0, 111.0, 111.0, 29.0, -9.0, -3.0, 0.0, 0.0, 0.0,
    ];
    let window = Window::new(1, 1, 6, 2);
    let values = bicubic::enlarge(&scene_of_rows, &[0], window).expect("inside");
    all_near(&values, &row.repeat(4));
    // At the border the outer pixel is repeated: between 1 and 0 at its outer and inner quarter.
    let step = scene(3, 1, 2, &[128.0, 0.0, 0.0]);
    let values = bicubic::enlarge(&step, &[0], step.window()).expect("inside");
    all_near(&values[..6], &[137.0, 102.0, 26.0, -9.0, -3.0, 0.0]);
}

#[test]
fn bicubic_enlargement_keeps_a_ramp_and_gaps() {
    let ramp: Vec<f32> = (0..70)
        .map(|at| (at % 10) as f32 + 10.0 * (at / 10) as f32)
        .collect();
    for scale in [1, 3, 5] {
        let scene = scene(10, 7, scale, &ramp);
        let values = bicubic::enlarge(&scene, &[0], Window::new(2, 2, 5, 3)).expect("inside");
        let place = |fine: usize| 2.0 + (fine as f32 + 0.5) / scale as f32 - 0.5;
        let expected: Vec<f32> = (0..15 * scale * scale)
            .map(|at| place(at % (5 * scale)) + 10.0 * place(at / (5 * scale)))
            .collect();
        all_near(&values, &expected);
    }
    let mut gap = ramp.clone();
    gap[33] = f32::NAN;
    let scene = scene(10, 7, 2, &gap);
    let values = bicubic::enlarge(&scene, &[0], Window::new(2, 3, 2, 1)).expect("inside");
    // Beside the gap its neighbour's own value, in the gap nothing.
    let (own, gone) = (32.0, f32::NAN);
    all_near(&values, &[own, own, gone, gone, own, own, gone, gone]);
}
