//! What users met with, made of the shipped scene: what has to be found, and that nothing is found where nothing is wrong.

use std::path::{Path, PathBuf};

use terrashard_raster::{MemorySource, Metadata, RasterSource, Samples, Window};

use super::{Finding, Kind, Level, inspect_image};
use crate::{Band, BandSelection, Scaling, SceneOptions};

const BANDS: [&str; 6] = ["B02", "B03", "B04", "B08", "B11", "B12"];

/// A part of the shipped scene with land and water, as it was changed, under this name.
fn part(name: &str, change: impl FnOnce(&mut Vec<u16>, &mut Metadata)) -> MemorySource {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/water/S2A_T33UUU_20170216_L1C_6band.tif");
    let scene = terrashard_raster::open(path).expect("the shipped scene");
    let raster = scene
        .read_window(Window::new(900, 200, 256, 256))
        .expect("inside");
    let mut metadata = Metadata {
        width: 256,
        height: 256,
        ..scene.metadata().clone()
    };
    let Samples::U16(mut samples) = raster.into_samples() else {
        panic!("the scene is of 16 bits")
    };
    change(&mut samples, &mut metadata);
    MemorySource::new(name, metadata, Samples::U16(samples)).expect("filled")
}

fn options(offset: f32) -> SceneOptions {
    SceneOptions {
        scaling: Scaling {
            offset,
            ..Scaling::default()
        },
        ..SceneOptions::new(BandSelection::names(BANDS))
    }
}

fn found(image: &dyn RasterSource, options: &SceneOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    inspect_image(image, options, &mut findings);
    findings
}

#[track_caller]
fn only(image: &dyn RasterSource, options: &SceneOptions, level: Level, kind: Kind) -> Finding {
    let findings = found(image, options);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!(
        (findings[0].level, findings[0].kind),
        (level, kind),
        "{findings:#?}"
    );
    assert_eq!(findings[0].file, PathBuf::from(image.path()));
    findings[0].clone()
}

#[test]
fn a_sound_image_has_no_finding() {
    assert_eq!(found(&part("scene", |_, _| {}), &options(0.0)), []);
    let later = part("S2A_T33UUU_N0400", |samples, _| {
        samples.iter_mut().for_each(|sample| *sample += 1000);
    });
    assert_eq!(found(&later, &options(-1000.0)), []);
}

#[test]
fn geo_20_zeros_without_declared_nodata_warn() {
    let border = |samples: &mut Vec<u16>, _: &mut Metadata| {
        samples
            .chunks_exact_mut(256)
            .for_each(|row| row[..5].fill(0));
    };
    let finding = only(
        &part("scene", border),
        &options(0.0),
        Level::Suspicious,
        Kind::UndeclaredZeros,
    );
    assert_eq!(
        (finding.found, finding.expected),
        (Some(5.0 / 256.0), Some(0.01))
    );
    assert!(
        finding.message.contains("2.0 %") && finding.message.contains("1 %"),
        "{finding:?}"
    );
    let told = SceneOptions {
        nodata: Some(0.0),
        ..options(0.0)
    };
    assert_eq!(found(&part("scene", border), &told), []);
    let declared = part("scene", |samples, metadata| {
        border(samples, metadata);
        metadata.nodata = Some(0.0);
    });
    assert_eq!(found(&declared, &options(0.0)), []);
}

#[test]
fn geo_20_a_fill_of_the_largest_number_without_declared_nodata_warns() {
    let border = |pixels: usize| {
        move |samples: &mut Vec<u16>, _: &mut Metadata| {
            samples
                .chunks_exact_mut(256)
                .for_each(|row| row[..pixels].fill(u16::MAX));
        }
    };
    let kinds = |pixels: usize, options: &SceneOptions| -> Vec<Kind> {
        let findings = found(&part("scene", border(pixels)), options);
        findings.iter().map(|finding| finding.kind).collect()
    };
    assert!(kinds(5, &options(0.0)).contains(&Kind::UndeclaredFill));
    // Less than one in a hundred.
    assert!(!kinds(2, &options(0.0)).contains(&Kind::UndeclaredFill));
    let told = SceneOptions {
        nodata: Some(65535.0),
        ..options(0.0)
    };
    assert_eq!(kinds(5, &told), []);
}

#[test]
fn geo_20_a_nodata_value_that_cannot_occur_warns() {
    let declared = |nodata: f64| part("scene", move |_, metadata| metadata.nodata = Some(nodata));
    let finding = only(
        &declared(-9999.0),
        &options(0.0),
        Level::Suspicious,
        Kind::ImpossibleNodata,
    );
    assert!(finding.message.contains("-9999"), "{finding:?}");
    assert_eq!(found(&declared(65535.0), &options(0.0)), []);
}

#[test]
fn geo_36_an_offset_that_is_missing_is_told_with_both_numbers() {
    let later = |name: &str| {
        part(name, |samples, _| {
            samples.iter_mut().for_each(|sample| *sample += 1000)
        })
    };
    let named = later("S2A_MSIL1C_20220216T102101_N0400_R065_T33UUU.tif");
    let finding = only(&named, &options(0.0), Level::Wrong, Kind::OffsetMissing);
    assert_eq!(
        (finding.found, finding.expected),
        (Some(0.0), Some(-1000.0))
    );
    assert!(
        finding.message.contains("baseline 04.00 in its name"),
        "{finding:?}"
    );
    // Without a name that tells, the numbers do.
    let finding = only(
        &later("scene"),
        &options(0.0),
        Level::Suspicious,
        Kind::OffsetMissing,
    );
    assert!(
        finding.message.contains("set `offset` = -1000"),
        "{finding:?}"
    );
    // A product that was processed earlier may well have no dark pixel.
    let bright = later("S2A_MSIL1C_20170216T102101_N0204_R065_T33UUU.tif");
    assert_eq!(found(&bright, &options(0.0)), []);
    // Some providers take the offset away and keep the name.
    assert_eq!(
        found(&part("S2A_T33UUU_N0509", |_, _| {}), &options(0.0)),
        []
    );
}

#[test]
fn geo_36_an_offset_that_is_applied_twice_is_told_with_both_numbers() {
    let finding = only(
        &part("scene", |_, _| {}),
        &options(-1000.0),
        Level::Suspicious,
        Kind::OffsetTwice,
    );
    assert!(
        finding.found > Some(0.01) && finding.expected == Some(0.01),
        "{finding:?}"
    );
    let named = part("S2A_T33UUU_N0204", |_, _| {});
    let finding = only(&named, &options(-1000.0), Level::Wrong, Kind::OffsetTwice);
    assert_eq!(
        (finding.found, finding.expected),
        (Some(-1000.0), Some(0.0))
    );
}

#[test]
fn geo_38_values_of_another_range_are_told_with_both_numbers() {
    let bytes = part("scene", |samples, _| {
        samples
            .iter_mut()
            .for_each(|sample| *sample = (*sample / 40).min(255));
    });
    let finding = only(&bytes, &options(0.0), Level::Suspicious, Kind::Range);
    assert!(
        finding.message.contains("8 bits") && finding.found < Some(0.02),
        "{finding:?}"
    );
    assert_eq!(finding.expected, Some(0.02));

    let scene = part("scene", |_, _| {});
    let raster = scene
        .read_window(scene.metadata().window())
        .expect("inside");
    let samples = raster.samples().to_f32(0..raster.samples().len());
    let samples = Samples::F32(samples.iter().map(|sample| sample * 1e-4).collect());
    let reflectance =
        MemorySource::new("scene", scene.metadata().clone(), samples).expect("filled");
    let finding = only(&reflectance, &options(0.0), Level::Suspicious, Kind::Range);
    assert!(finding.message.contains("set `scale` = 1"), "{finding:?}");

    let mut unscaled = options(0.0);
    unscaled.scaling.scale = 1.0;
    assert_eq!(found(&reflectance, &unscaled), []);
    let finding = only(&scene, &unscaled, Level::Suspicious, Kind::Range);
    assert!(
        finding.found > Some(100.0) && finding.expected == Some(2.0),
        "{finding:?}"
    );
}

#[test]
fn geo_40_swapped_bands_are_told() {
    let swap =
        |a: usize, b: usize| part("scene", move |_, metadata| metadata.descriptions.swap(a, b));
    for (a, b) in [(0, 2), (2, 3), (3, 4), (0, 5), (1, 4)] {
        let findings = found(&swap(a, b), &options(0.0));
        assert!(!findings.is_empty(), "{} and {}", BANDS[a], BANDS[b]);
        assert!(
            findings
                .iter()
                .all(|f| f.kind == Kind::SwappedBands && f.found < f.expected)
        );
    }
    let findings = found(&swap(0, 2), &options(0.0));
    assert!(
        findings[0].message.starts_with("B04 and B02 look swapped"),
        "{findings:?}"
    );
    // By number there are no names to hold against each other; those of the file serve.
    let numbers = BandSelection::Pick((1..=6).map(Band::Number).collect());
    let by_number = SceneOptions {
        bands: numbers,
        ..options(0.0)
    };
    assert_eq!(found(&part("scene", |_, _| {}), &by_number), []);
    assert!(!found(&swap(0, 2), &by_number).is_empty());
}

#[test]
fn geo_21_values_that_are_not_finite_are_placed() {
    let scene = part("scene", |_, _| {});
    let raster = scene
        .read_window(scene.metadata().window())
        .expect("inside");
    let mut samples = raster.samples().to_f32(0..raster.samples().len());
    samples[256 * 256 + 3 * 256 + 7] = f32::NAN;
    samples[256 * 256 + 3 * 256 + 9] = f32::INFINITY;
    let metadata = scene.metadata().clone();
    let with = |nodata: Option<f64>| {
        let metadata = Metadata {
            nodata,
            ..metadata.clone()
        };
        MemorySource::new("scene", metadata, Samples::F32(samples.clone())).expect("filled")
    };
    let finding = only(
        &with(None),
        &options(0.0),
        Level::Suspicious,
        Kind::NotFinite,
    );
    assert_eq!(finding.found, Some(2.0));
    assert!(
        finding.message.starts_with(
            "B03 is NaN or infinite at 2 of 65536 pixels, the first at column 7, row 3"
        ),
        "{finding:?}"
    );
    // NaN may be nodata, an infinity is none.
    let finding = only(
        &with(Some(f64::NAN)),
        &options(0.0),
        Level::Suspicious,
        Kind::NotFinite,
    );
    assert!(finding.message.contains("column 9, row 3"), "{finding:?}");
}
