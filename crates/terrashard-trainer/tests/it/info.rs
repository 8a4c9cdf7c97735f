//! `terrashard info --json` says of every awkward file what GDAL says, or refuses it in one line.
//!
//! The files and what they hold are those of `terrashard-raster`; `TERRASHARD_CORPUS` names another folder of the same form.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn close(got: &Value, wanted: &Value, tolerance: f64) -> bool {
    let number = |v: &Value| v.as_f64().or_else(|| v.as_str()?.parse().ok());
    match (number(got), number(wanted)) {
        (Some(a), Some(b)) => {
            a == b || (a - b).abs() <= tolerance * b.abs().max(1.0) || (a.is_nan() && b.is_nan())
        }
        (a, b) => a == b,
    }
}

/// What differs from the entry of `expected.json`.
fn difference(got: &Value, wanted: &Value) -> Option<String> {
    let keys = [
        ("width", "w"),
        ("height", "h"),
        ("bands", "bands"),
        ("dtype", "dtype"),
        ("epsg", "epsg"),
        ("overviews", "overviews"),
        ("gcps", "gcps"),
    ];
    let unequal = keys.into_iter().find(|(a, b)| got[*a] != wanted[*b]);
    if let Some((key, name)) = unequal {
        return Some(format!("{key}: {} instead of {}", got[key], wanted[name]));
    }
    // rasterio says the identity where there is no transform.
    let identity = serde_json::json!([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let affine = match &got["affine"] {
        Value::Null => &identity,
        affine => affine,
    };
    let letters = affine.as_array()?.iter().zip(wanted["affine"].as_array()?);
    if !letters.into_iter().all(|(a, b)| close(a, b, 1e-9)) {
        return Some(format!("affine: {affine} instead of {}", wanted["affine"]));
    }
    let flags = got["mask"]
        .as_array()?
        .iter()
        .map(|flag| match flag.as_str() {
            Some("all_valid") => "1",
            Some("per_dataset") => "2",
            Some("alpha") => "4",
            _ => "8",
        });
    if !flags.eq(wanted["mask"].as_array()?.iter().filter_map(Value::as_str)) {
        return Some(format!(
            "mask: {} instead of {}",
            got["mask"], wanted["mask"]
        ));
    }
    if !close(&got["nodata"], &wanted["nodata"], 1e-6) {
        return Some(format!(
            "nodata: {} instead of {}",
            got["nodata"], wanted["nodata"]
        ));
    }
    // Decoders of lossy files may differ by a step.
    let lossy = wanted["tiff"].as_str().is_some_and(|t| t.contains("JPEG"));
    let mean = &got["mean"][0];
    (!close(mean, &wanted["mean_b1"], if lossy { 1e-3 } else { 1e-6 }))
        .then(|| format!("mean: {mean} instead of {}", wanted["mean_b1"]))
}

#[test]
fn every_awkward_file_is_described_or_refused() {
    let folder = std::env::var_os("TERRASHARD_CORPUS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../terrashard-raster/tests/data"),
        PathBuf::from,
    );
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut wrong = Vec::new();
    for entry in &expected {
        let file = entry["file"].as_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrashard"));
        command.arg("info").arg(folder.join(file)).arg("--json");
        let output = command.output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        match (entry["info"] == "ok", output.status.code()) {
            (true, Some(0)) => {
                let got: Value = serde_json::from_slice(&output.stdout).unwrap();
                wrong.extend(difference(&got, entry).map(|d| format!("{file}: {d}")));
            }
            (false, Some(2))
                if output.stdout.is_empty()
                    && message.lines().count() == 1
                    && message.contains(file) => {}
            (_, code) => wrong.push(format!("{file}: exit {code:?}, {message}")),
        }
    }
    let count = expected.len();
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// With the feature `cloud` nobody answers there; without it nobody is asked.
#[test]
fn an_address_is_shown_without_what_gives_access() {
    let address = "http://anna:s3cret@127.0.0.1:1/scene.tif?sv=2024&sig=aB%2Fc";
    let reason = match cfg!(feature = "cloud") {
        true => "no connection",
        false => "reading from a URL is not supported; build with `--features cloud`",
    };
    for line in [
        vec!["info", address],
        vec!["stats", address],
        vec!["stats", address, "--json"],
        vec!["align", "--onto", address, "--output", "/nonexistent"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_terrashard"))
            .args(&line)
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(
            told.contains("http://***@127.0.0.1:1/scene.tif?***: "),
            "{told}"
        );
        assert!(told.contains(reason), "{told}");
        for secret in ["anna", "s3cret", "sv=2024", "aB"] {
            assert!(!told.contains(secret), "{told}");
        }
    }
}
