//! Every file of a corpus reads with the values that `expected.json` beside it lists, or is refused with an error that
//! names the file. `tests/data/pixels.json` has the BLAKE3 hash of all samples of each file that is not lossy.
//!
//! The corpus is `tests/data`; `TERRASHARD_CORPUS` names another folder with an `expected.json` of the same form.

use std::path::PathBuf;

use serde_json::Value;
use terrashard_raster::{RasterSource, Samples, Summary, open, summarize};

/// What a file says of itself and the hash of its samples: little-endian, band after band.
fn read(path: &PathBuf) -> terrashard_raster::Result<(Summary, String)> {
    let source = open(path)?;
    let whole = source.read_window(source.metadata().window())?;
    macro_rules! bytes {
        ($($variant:ident)*) => {
            match whole.samples() { $(Samples::$variant(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),)* }
        };
    }
    let bytes = bytes!(U8 I8 U16 I16 U32 I32 U64 I64 F32 F64);
    let hash = blake3::hash(&bytes).to_hex()[..32].to_owned();
    Ok((summarize(&source)?, hash))
}

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// The first disagreement of what was read with what is expected.
fn difference(summary: &Summary, expected: &Value) -> Option<String> {
    let got = serde_json::to_value(summary).expect("a summary is plain data");
    let same = |key: &str, want: &Value| {
        (got[key] != *want).then(|| format!("{key}: {} instead of {want}", got[key]))
    };
    // Decoders of lossy files may differ by a step.
    let lossy = expected["tiff"]
        .as_str()
        .is_some_and(|t| t.contains("JPEG"));
    let tolerance = if lossy { 1e-3 } else { 1e-6 };
    let close = |a: f64, b: f64| {
        a == b || (a - b).abs() <= tolerance * b.abs().max(1.0) || (a.is_nan() && b.is_nan())
    };
    let flags = |code: &Value| match code.as_str() {
        Some("1") => "all_valid",
        Some("2") => "per_dataset",
        Some("4") => "alpha",
        _ => "nodata",
    };
    let mask: Value = expected["mask"].as_array()?.iter().map(flags).collect();
    let number = |v: &Value| {
        v.as_f64()
            .or_else(|| v.as_str().and_then(|t| t.parse().ok()))
    };
    // Without a transform rasterio reports the identity, and no reference system.
    let identity = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
    let affine = summary.affine.unwrap_or(identity);
    let affine_wanted: Vec<f64> = expected["affine"]
        .as_array()?
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    same("width", &expected["w"])
        .or_else(|| same("height", &expected["h"]))
        .or_else(|| same("bands", &expected["bands"]))
        .or_else(|| same("dtype", &expected["dtype"]))
        .or_else(|| same("epsg", &expected["epsg"]))
        .or_else(|| same("overviews", &expected["overviews"]))
        .or_else(|| same("gcps", &expected["gcps"]))
        .or_else(|| same("mask", &mask))
        .or_else(|| {
            let equal = affine
                .iter()
                .zip(&affine_wanted)
                .all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs().max(1.0));
            (!equal).then(|| format!("affine: {affine:?} instead of {affine_wanted:?}"))
        })
        .or_else(|| match (summary.nodata, number(&expected["nodata"])) {
            (None, None) => None,
            (Some(a), Some(b)) if close(a, b) => None,
            (a, b) => Some(format!("nodata: {a:?} instead of {b:?}")),
        })
        .or_else(|| {
            let (mean, wanted) = (summary.mean[0], number(&expected["mean_b1"]));
            let equal = mean.zip(wanted).is_some_and(|(a, b)| close(a, b));
            (!equal).then(|| format!("mean of band 1: {mean:?} instead of {wanted:?}"))
        })
}

#[test]
fn every_file_reads_as_expected_or_is_refused() {
    let folder = std::env::var_os("TERRASHARD_CORPUS").map_or_else(|| data(""), PathBuf::from);
    let text = std::fs::read_to_string(folder.join("expected.json"))
        .expect("the corpus has an expected.json");
    let expected: Vec<Value> = serde_json::from_str(&text).expect("expected.json is a list");
    let pixels: Value = serde_json::from_str(include_str!("data/pixels.json")).expect("JSON");
    for file in ["water_B02.jp2", "water_B11_20m.jp2", "water_rgb.jp2"] {
        let (_, hash) = read(&data(file)).expect(file);
        assert_eq!(pixels[file], hash, "{file}");
    }
    let mut wrong = Vec::new();
    for entry in &expected {
        let file = entry["file"].as_str().expect("each entry has a file");
        let result = read(&folder.join(file));
        match (entry["info"].as_str(), result) {
            (Some("ok"), Ok((summary, hash))) => {
                wrong.extend(difference(&summary, entry).map(|d| format!("{file}: {d}")));
                if pixels.get(file).is_some_and(|wanted| *wanted != hash) {
                    wrong.push(format!("{file}: samples differ from those that GDAL reads"));
                }
            }
            (Some("ok"), Err(error)) => wrong.push(format!("{file}: must be read: {error}")),
            (_, Ok(_)) => wrong.push(format!("{file}: must be refused and was read")),
            (_, Err(error)) => {
                let message = error.to_string();
                println!("{message}");
                if !message.contains(file) || message.contains('\n') {
                    wrong.push(format!(
                        "{file}: the error does not name the file in one line: {message}"
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} files: \n{}",
        wrong.len(),
        expected.len(),
        wrong.join("\n")
    );
}
