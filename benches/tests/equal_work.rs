//! `bench stages` does the work that the peers do: equal losses after equal numbers of steps.

use std::process::Command;

use serde_json::Value;

/// Rows of a call on the CPU, as they are printed.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args([
            "stages",
            "--json",
            "--models",
            "tiny",
            "--steps",
            "4",
            "--warm-up",
            "2",
        ])
        .args(arguments)
        .output()
        .expect("the benchmark starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let rows = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row a line"));
    rows.collect()
}

/// PyTorch 2.11's losses of the same model, weights and batches in fp32: two samples on one rank, and two on each of two ranks
/// with gradients averaged by its `DistributedDataParallel`. By step.
const ONE: [(&str, f64); 4] = [
    ("1", 0.391_784_787),
    ("2", 0.374_688_596),
    ("5", 0.330_185_890),
    ("6", 0.318_181_425),
];
const TWO: [(&str, f64); 4] = [
    ("1", 0.379_934_669),
    ("2", 0.366_915_882),
    ("5", 0.333_008_796),
    ("6", 0.323_415_995),
];

/// Compares with PyTorch's. In `bf16` only that the work is the same can be told, not the rounding.
fn check(row: &Value, tolerance: f64) {
    assert!(row["error"].is_null(), "{row}");
    let expected = match row["ranks"].as_u64() {
        Some(1) => ONE,
        _ => TWO,
    };
    for (step, loss) in expected {
        let ours = row["loss"][step].as_f64().expect("the step is told");
        assert!(
            (ours - loss).abs() <= tolerance * loss,
            "step {step}, {loss}: {row}"
        );
    }
}

fn check_backend(backend: &str) {
    let device = ["--backend", backend, "--ranks", "1,2"];
    let stages = ["--stages", "0,2,3+recompute,3+offload"];
    let fp32 = rows(&[&device[..], &stages, &["--precision", "fp32"]].concat());
    assert_eq!(fp32.len(), 8);
    for row in &fp32 {
        check(row, 2e-6);
        assert!(row["step_ms"].as_f64().expect("was timed") > 0.0, "{row}");
        let two = row["ranks"] == 2;
        assert_eq!(
            row["wire_bytes"].as_u64().expect("was counted") > 0,
            two,
            "{row}"
        );
        assert_eq!(row["exposed_comm"].is_null(), !two, "{row}");
    }
    for row in rows(&[&device[..], &["--precision", "bf16"]].concat()) {
        check(&row, 5e-3);
    }
}

#[test]
fn losses_are_the_peers() {
    check_backend("flex");
}

#[cfg(feature = "tch")]
#[test]
fn losses_are_the_peers_on_libtorch() {
    check_backend("tch");
}

#[cfg(not(feature = "tch"))]
#[test]
fn a_build_without_libtorch_says_which_is_needed() {
    for arguments in [["--backend", "tch"], ["--device", "cuda"]] {
        let row = &rows(&arguments)[0];
        let error = row["error"].as_str().expect("it has no libtorch");
        assert!(error.contains("terrashard-benches/"), "{error}");
    }
}
