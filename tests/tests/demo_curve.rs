//! The demo's training on LibTorch in `bf16` follows that in `f32`.

use std::path::Path;

use serde_json::Value;
use terrashard_trainer::config::{Config, Device};
use terrashard_trainer::record::Display;
use terrashard_trainer::run_directory::RunDirectory;
use terrashard_trainer::training::{FitOptions, Partial, StopRequest, fit};

const STEPS: u64 = 200;
/// Steps that are averaged: the loss of one step is that of a few samples, and two trainings part by more than their types do.
const WINDOW: usize = 50;

/// The loss of each step of the demo's training on fewer and smaller samples, since a processor is slow in `bf16`.
fn curve(settings: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/water.toml");
    let smaller = [
        "data.chip=32",
        "data.overlap=8",
        "train.global_batch=2",
        "checkpoint.every=0",
    ];
    let settings: Vec<String> = [&smaller, settings]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let config = Config::load(&demo, &settings).expect("the demo's configuration");
    let options = FitOptions {
        name: "curve".into(),
        run: RunDirectory::new(folder.path().join("run")),
        stop_after: Some(STEPS),
        stop: StopRequest::default(),
        partial: Partial::Refused,
        device: Device::CpuLibTorch,
        display: Display::Quiet,
    };
    fit(&config, &options).expect("it trains");
    let metrics = folder.path().join("run/metrics.jsonl");
    let metrics = std::fs::read_to_string(metrics).expect("a run has metrics");
    let step = |line: &str| -> Value { serde_json::from_str(line).expect("a line of JSON") };
    let loss = |line| step(line)["loss"].as_f64().expect("each step has a loss");
    let losses: Vec<f64> = metrics.lines().map(loss).collect();
    assert_eq!(losses.len() as u64, STEPS);
    losses
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn the_demos_losses_in_bf16_are_within_two_percent_of_those_in_f32() {
    let wide = curve(&[]);
    let narrow = curve(&["train.precision=bf16"]);
    assert_ne!(narrow, wide);
    assert!(mean(&wide[150..]) < 0.6 * wide[0], "it learns: {wide:?}");
    // A loss is added up in 32 bits: rounded to 16 its value would end in zeros.
    let rounded = |loss: &&f64| (**loss as f32).to_bits() & 0xffff == 0;
    let rounded = narrow.iter().filter(rounded).count();
    assert!(rounded < 5, "{rounded} losses are of 16 bits");
    let windows = narrow.chunks(WINDOW).zip(wide.chunks(WINDOW));
    let off: Vec<f64> = windows
        .map(|(narrow, wide)| mean(narrow) / mean(wide) - 1.0)
        .collect();
    assert!(off.iter().all(|off| off.abs() < 0.02), "{off:?}");
    let whole = mean(&narrow) / mean(&wide) - 1.0;
    assert!(whole.abs() < 0.01, "{whole}");
}
