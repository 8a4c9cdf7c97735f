//! Whole scenes: what users of other tools ran into, each named by its number in the list of their problems.

use std::fs;
use std::process::Stdio;

use serde_json::json;
use terrashard_raster::{Raster, RasterSource};

use crate::folder::{Folder, GROUND, SCALE, pattern, small};

fn floats(raster: &Raster) -> Vec<f32> {
    raster.band_f32(0)
}

#[test]
fn geo_10_a_constant_model_gives_a_constant_map() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 9), |name, values| match name {
        "tail.seg.conv1.weight" => values.fill(0.0),
        "tail.seg.conv1.bias" => values.fill(0.4),
        _ => {}
    });
    folder.image("in.tif", (77, 60), 2, None, pattern);
    let (told, warned) = folder.predict(&[
        "in.tif",
        "-o",
        "map.tif",
        "--probability",
        "p.tif",
        "--probability-type",
        "f32",
    ]);
    let expected = 1.0 / (1.0 + (-0.4_f32).exp());
    let probabilities = floats(&folder.whole("p.tif"));
    assert_eq!(probabilities.len(), 77 * 60 * 25);
    for (at, p) in probabilities.iter().enumerate() {
        assert!(
            (p - expected).abs() < 1e-6,
            "{p} in place of {expected} at {at}"
        );
    }
    assert!(
        floats(&folder.whole("map.tif"))
            .iter()
            .all(|class| *class == 1.0)
    );
    // 49: a map of one class.
    assert!(
        warned.contains("100 % of the pixels with data are of class 1"),
        "{warned}"
    );
    assert_eq!(
        told["classes"][0],
        json!({ "0": 0, "1": 77 * 60 * 25, "nodata": 0 })
    );
    // In steps of a 200th.
    folder.predict(&["in.tif", "--probability", "steps.tif"]);
    let steps = (f64::from(expected) * 200.0).round();
    let found = folder.whole("steps.tif");
    assert!((0..found.samples().len()).all(|at| found.samples().get(at) == steps));
}

/// A model that sees some ten pixels far: without attention, and with the deeper levels left out of the head.
fn near_sighted(name: &str, values: &mut [f32]) {
    let deeper = [
        "tail.head.linear.1.",
        "tail.head.linear.2.",
        "tail.head.linear.3.",
    ];
    if name.contains(".attn.proj.") || deeper.iter().any(|level| name.starts_with(level)) {
        values.fill(0.0);
    }
    // Logits of some size, so that a difference would show.
    if name == "tail.seg.conv1.weight" {
        values.iter_mut().for_each(|value| *value *= 4.0);
    }
}

#[test]
fn geo_08_no_seam_shows_where_windows_meet() {
    let folder = Folder::new();
    let (tile, overlap) = (96, 48);
    folder.model(&small(2), (tile, overlap), near_sighted);
    let (width, height) = (230, 150);
    folder.image("in.tif", (width, height), 2, None, pattern);
    let whole = [
        "--probability",
        "whole.tif",
        "--probability-type",
        "f32",
        "--tile",
        "256",
    ];
    folder.predict(&[&["in.tif"][..], &whole].concat());
    let tiled = ["--probability", "tiled.tif", "--probability-type", "f32"];
    folder.predict(&[&["in.tif"][..], &tiled].concat());
    let (whole, tiled) = (
        floats(&folder.whole("whole.tif")),
        floats(&folder.whole("tiled.tif")),
    );
    let line = width * SCALE;
    let (mut worst, mut least, mut most) = ((0.0, 0, 0), 1.0_f32, 0.0_f32);
    for row in 0..height * SCALE {
        for col in 0..width * SCALE {
            let p = whole[row * line + col];
            let apart = (p - tiled[row * line + col]).abs();
            if apart > worst.0 {
                worst = (apart, col / SCALE, row / SCALE);
            }
            (least, most) = (least.min(p), most.max(p));
        }
    }
    let (worst, col, row) = worst;
    println!(
        "probabilities from {least} to {most}; tiled ones differ by at most {worst}, at column {col}, row {row}"
    );
    assert!(
        most - least > 0.05,
        "a map that shows something: {least} to {most}"
    );
    assert!(
        worst <= 1e-3,
        "tiled and whole probabilities differ by {worst}"
    );
}

#[test]
fn geo_12_any_size_is_mapped_at_exactly_five_times_it() {
    let folder = Folder::new();
    folder.model(&small(6), (256, 16), |_, _| {});
    for (height, width) in [(379, 578), (400, 400), (24, 42), (1, 1), (768, 1536)] {
        folder.image("in.tif", (width, height), 6, None, pattern);
        folder.predict(&["in.tif", "-o", "map.tif"]);
        let map = terrashard_raster::open(folder.path("map.tif")).unwrap();
        let metadata = map.metadata();
        let size = (metadata.width, metadata.height);
        assert_eq!(size, (width * SCALE, height * SCALE));
        // 5: the same ground.
        let transform = metadata.georeference.transform.unwrap();
        let apart = transform.corner_distance(size, &GROUND, (width, height));
        assert!(
            apart <= 1e-9,
            "corners of {width} x {height} are {apart} m apart"
        );
        assert_eq!((transform.a, transform.e), (2.0, -2.0));
        assert_eq!(metadata.georeference.epsg, Some(32633));
    }
}

#[test]
fn geo_23_no_data_stays_no_data_at_every_pixel_above_it() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    let gap = |x: usize, y: usize| (x * 7 + y * 3).is_multiple_of(11) || (20..40).contains(&x);
    let value = |band, x, y| if gap(x, y) { 9 } else { pattern(band, x, y) };
    folder.image("in.tif", (70, 45), 2, Some(9.0), value);
    folder.predict(&[
        "in.tif",
        "-o",
        "map.tif",
        "--probability",
        "p.tif",
        "--probability-type",
        "f32",
    ]);
    let (map, p) = (folder.whole("map.tif"), folder.whole("p.tif"));
    for (row, col) in (0..45 * SCALE).flat_map(|r| (0..70 * SCALE).map(move |c| (r, c))) {
        let none = gap(col / SCALE, row / SCALE);
        assert_eq!(
            map.at(0, col, row) == 255.0,
            none,
            "column {col}, row {row}"
        );
        assert_eq!(p.at(0, col, row).is_nan(), none, "column {col}, row {row}");
    }

    folder.image("nothing.tif", (70, 45), 2, Some(9.0), |_, _, _| 9);
    let (told, warned) = folder.predict(&["nothing.tif", "-o", "map.tif"]);
    assert!(
        floats(&folder.whole("map.tif"))
            .iter()
            .all(|class| *class == 255.0)
    );
    assert!(
        warned.contains("100 % of the pixels have no data"),
        "{warned}"
    );
    assert_eq!(told["classes"][0]["nodata"], 70 * 45 * 25);
}

#[test]
fn geo_23_what_a_mask_leaves_out_is_no_data() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    let gap = |x: usize, y: usize| (x * 7 + y * 3).is_multiple_of(11) || (20..40).contains(&x);
    // Without the mask every pixel is data: no value stands for none.
    folder.image("in.tif", (70, 45), 2, None, pattern);
    folder.image("one.tif", (70, 45), 1, None, |_, x, y| pattern(0, x, y));
    folder.image("two.tif", (70, 45), 1, None, |_, x, y| pattern(1, x, y));
    for (name, first) in [("in.tif.msk", 0), ("one.tif.msk", 0), ("two.tif.msk", 40)] {
        folder.image(name, (70, 45), 1, None, |_, x, y| {
            if gap(x, y) && x >= first { 0 } else { 255 }
        });
    }
    let bands = ["--bands", "1=one.tif,2=two.tif"];
    for input in [&["in.tif"][..], &bands] {
        folder.predict(&[input, &["-o", "map.tif"]].concat());
        let map = folder.whole("map.tif");
        for (row, col) in (0..45 * SCALE).flat_map(|r| (0..70 * SCALE).map(move |c| (r, c))) {
            assert_eq!(
                map.at(0, col, row) == 255.0,
                gap(col / SCALE, row / SCALE),
                "{input:?}: column {col}, row {row}"
            );
        }
    }
}

#[test]
fn geo_20_zeros_without_declared_nodata_warn() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    // An edge of zeros of 2 % of the pixels; one band that is zero alone is data.
    let value = |band, x: usize, y| match (x, band) {
        (0, _) | (7, 1) => 0,
        _ => pattern(band, x, y),
    };
    folder.image("edge.tif", (50, 70), 2, None, value);
    let (_, warned) = folder.predict(&["edge.tif", "-o", "map.tif"]);
    assert!(
        warned.contains("2.0 % of the pixels are 0") && warned.contains("--nodata 0"),
        "{warned}"
    );
    let (told, warned) = folder.predict(&["edge.tif", "-o", "map.tif", "--nodata", "0"]);
    assert!(!warned.contains("are 0"), "{warned}");
    // A pixel that lacks one band lacks all.
    assert_eq!(told["classes"][0]["nodata"], 2 * 70 * 25);
    folder.image("declared.tif", (50, 70), 2, Some(0.0), value);
    let (_, warned) = folder.predict(&["declared.tif", "-o", "map.tif"]);
    assert!(!warned.contains("are 0"), "{warned}");
}

#[test]
fn geo_06_a_killed_prediction_goes_on_and_leaves_no_file_that_looks_whole() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    folder.image("in.tif", (400, 300), 2, None, pattern);
    let outputs = |name: &str| {
        let p = format!("p-{name}");
        [
            name.to_string(),
            "--probability".into(),
            p,
            "--probability-type".into(),
            "f32".into(),
        ]
    };
    let predict = |name: &str| {
        let outputs = outputs(name);
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        [&["in.tif", "-o"][..], &outputs]
            .concat()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    fn strs(line: &[String]) -> Vec<&str> {
        line.iter().map(String::as_str).collect()
    }
    let whole = predict("whole.tif");
    let (told, _) = folder.predict(&strs(&whole));
    assert_eq!(told["resumed_windows"], 0);

    let line = predict("map.tif");
    let mut child = folder
        .command(&[&strs(&line)[..], &["--ranks", "1"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let journal = folder.path(".map.tif.journal");
    // A third of the windows.
    let far = 80 * 24 * 24 * 25 * 5;
    let length = || fs::metadata(&journal).map_or(0, |found| found.len());
    while length() < far / 2 && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!folder.path("map.tif").exists() && !folder.path("p-map.tif").exists());
    assert!(journal.exists());

    // On another number of ranks, with the same bits.
    let (told, _) = folder.predict(&[&strs(&line)[..], &["--ranks", "3"]].concat());
    assert!(told["resumed_windows"].as_u64().unwrap() >= 17, "{told}");
    for (a, b) in [("map.tif", "whole.tif"), ("p-map.tif", "p-whole.tif")] {
        let (a, b) = (
            fs::read(folder.path(a)).unwrap(),
            fs::read(folder.path(b)).unwrap(),
        );
        assert!(a == b, "the files differ");
    }
    let left: Vec<String> = fs::read_dir(folder.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn geo_06_another_prediction_begins_anew() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    folder.image("in.tif", (100, 40), 2, None, pattern);
    let line = ["in.tif", "-o", "map.tif"];
    folder.predict(&line);
    let whole = fs::read(folder.path("map.tif")).unwrap();
    // A journal of something else, and one that another process holds.
    let journal = folder.path(".map.tif.journal");
    fs::write(&journal, "terrashard prediction of something else\nrecords").unwrap();
    let (told, _) = folder.predict(&line);
    assert_eq!(told["resumed_windows"], 0);
    assert_eq!(fs::read(folder.path("map.tif")).unwrap(), whole);
    let held = fs::File::create(&journal).unwrap();
    held.lock().unwrap();
    let output = folder.command(&line).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("map.tif: another `predict` is writing it"),
        "{told}"
    );
}

#[test]
fn geo_01_memory_is_planned_or_refused_with_both_numbers() {
    let folder = Folder::new();
    folder.model(&small(2), (512, 16), |_, _| {});
    folder.image("in.tif", (600, 40), 2, None, pattern);
    let output = folder
        .command(&["in.tif", "-o", "map.tif", "--memory", "20MiB"])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("`--memory`: got 20971520 bytes, expected at least")
            && !told.contains(" 0 bytes"),
        "{told}"
    );
    assert!(!folder.path("map.tif").exists() && !folder.path(".map.tif.journal").exists());
    let (told, warned) = folder.predict(&["in.tif", "-o", "map.tif", "--memory", "1GiB"]);
    assert!(!warned.contains("in place of"), "{warned}");
    assert!(told["planned_bytes"].as_u64().unwrap() <= 1 << 30);
    // Too little for windows of 512 pixels; how many ranks there are changes nothing.
    folder.image("large.tif", (600, 600), 2, None, pattern);
    let line = ["large.tif", "-o", "map.tif", "--memory", "96MiB"];
    let (_, warned) = folder.predict(&[&line[..], &["--ranks", "1"]].concat());
    assert!(warned.contains("pixels in place of 512"), "{warned}");
    let one = fs::read(folder.path("map.tif")).unwrap();
    folder.predict(&[&line[..], &["--ranks", "2"]].concat());
    assert_eq!(fs::read(folder.path("map.tif")).unwrap(), one);
}

#[test]
fn geo_09_less_overlap_than_the_model_is_tested_with_warns() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    folder.image("in.tif", (50, 40), 2, None, pattern);
    let (_, warned) = folder.predict(&["in.tif", "-o", "map.tif", "--overlap", "4"]);
    assert!(
        warned.contains("share 4 pixels in place of the 8"),
        "{warned}"
    );
    let (told, warned) = folder.predict(&["in.tif", "-o", "map.tif", "--overlap", "12"]);
    assert!(!warned.contains("in place of"), "{warned}");
    let seconds = |key: &str| told[key].as_f64().unwrap();
    assert!(seconds("reading_seconds") > 0.0 && seconds("writing_seconds") > 0.0);
    assert!(seconds("writing_seconds") < seconds("seconds"));
    let share = seconds("input_output_share");
    assert!(share > seconds("writing_seconds") / seconds("seconds") && share < 1.0);
}

#[test]
fn geo_36_the_offset_of_newer_products_is_taken_from_their_name() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    let newer = "S2B_MSIL2A_20220616T104619_N0400_R051.tif";
    folder.image(newer, (50, 40), 2, None, |b, x, y| pattern(b, x, y) + 1000);
    folder.image("older.tif", (50, 40), 2, None, pattern);
    let p = |name: &str| folder.whole(name).into_samples();
    let line = ["--probability", "p.tif", "--probability-type", "f32"];
    let predict = |more: &[&str]| folder.predict(&[&line[..], more].concat());
    let (_, warned) = predict(&[newer]);
    assert!(
        warned.contains("an offset of -1000") && warned.contains("give `--offset auto`"),
        "{warned}"
    );
    let wrong = p("p.tif");
    let (_, warned) = predict(&[newer, "--offset", "auto"]);
    assert!(!warned.contains("offset"), "{warned}");
    let automatic = p("p.tif");
    let (_, warned) = predict(&["older.tif"]);
    assert!(!warned.contains("offset"), "{warned}");
    assert_eq!(automatic, p("p.tif"));
    assert_ne!(wrong, automatic);
    // What no name tells is asked for.
    let line = ["older.tif", "-o", "map.tif", "--offset", "auto"];
    let output = folder.command(&line).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("older.tif"), "{told}");
}
