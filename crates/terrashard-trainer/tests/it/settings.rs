//! Stage, offload, recomputation, precision and the like change where things are, not what is trained.

use std::collections::BTreeMap;

use serde_json::Value;
use terrashard_checkpoint::{Checkpoint, Kind, Source};
use terrashard_trainer::config::{Config, Device};
use terrashard_trainer::evaluation::{self, TestOptions};
use terrashard_trainer::record::Display;
use terrashard_trainer::training::verification::verify;

use crate::scenario::Scenario;

fn config(scenario: &Scenario, settings: &[&str]) -> Config {
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    Config::load(&scenario.path("run.toml"), &settings).unwrap()
}

/// The weights of a checkpoint or a model file, by name.
fn weights(scenario: &Scenario, path: &str, kind: Kind) -> BTreeMap<String, Vec<f32>> {
    let source = Source::open(scenario.path(path)).unwrap();
    let tensors = source.tensors();
    let own = tensors.iter().filter(|tensor| tensor.kind == kind);
    let values = |name: &str, numel| {
        let bytes = source.read(name, kind, 0..numel).unwrap();
        let chunks = bytes.as_chunks().0.iter();
        chunks.map(|chunk| f32::from_le_bytes(*chunk)).collect()
    };
    own.map(|tensor| {
        let numel = tensor.shape.iter().product();
        (tensor.name.clone(), values(&tensor.name, numel))
    })
    .collect()
}

#[test]
fn verify_finds_every_setting_equal_to_plain_training() {
    let scenario = Scenario::new();
    let check = |settings: &[&str]| {
        let found = verify(&config(&scenario, settings), Device::Cpu, 3).unwrap();
        assert!(found.equal, "{settings:?}: {found:?}");
        assert!(!found.per_parameter.is_empty());
    };
    check(&["zero.ranks=3", "zero.stage=3", "zero.prefetch=2"]);
    check(&[
        "zero.ranks=2",
        "zero.stage=3",
        "zero.offload=parameters",
        "zero.recompute={ \"stages.*\" = \"recompute\", \"tail.head\" = \"offload\" }",
        "model.dropout=0.2",
        "model.drop_path=0.3",
    ]);
    check(&[
        "zero.ranks=2",
        "train.accumulate=2",
        "train.global_batch=12",
        "zero.stage=2",
    ]);
    check(&[
        "zero.ranks=4",
        "zero.stage=2",
        "zero.shard_group=2",
        "zero.offload=optimizer",
        "zero.overlap=false",
    ]);
    check(&[
        "zero.ranks=2",
        "zero.stage=1",
        "train.optimizer=sgd",
        "train.batch_norm=average_at_save",
        "train.ema=0.9",
    ]);
}

/// Both trainings on LibTorch, and LibTorch's own against that of burn's backend, which rounds otherwise.
#[cfg(feature = "tch")]
#[test]
fn libtorch_trains_tests_and_predicts_on_the_processor() {
    let scenario = Scenario::new();
    let settings = ["zero.ranks=2", "zero.stage=3", "train.clip_norm=0.5"];
    let found = verify(&config(&scenario, &settings), Device::CpuLibTorch, 3).unwrap();
    assert!(found.equal, "{found:?}");

    let fit = |run: &str, backend: &str| -> Vec<f64> {
        let arguments = ["fit", "run.toml", "--run", run, "--backend", backend];
        let arguments = [&arguments[..], &["--quiet", "--stop-after", "3"]].concat();
        let output = scenario.terrashard(&arguments);
        assert!(output.status.success(), "{output:?}");
        let metrics = std::fs::read_to_string(scenario.path(run).join("metrics.jsonl")).unwrap();
        let steps = metrics
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        steps
            .map(|step: Value| step["loss"].as_f64().unwrap())
            .collect()
    };
    let (flex, torch) = (fit("flex", "flex"), fit("torch", "tch"));
    assert_eq!((flex.len(), torch.len()), (3, 3));
    for (a, b) in flex.iter().zip(&torch) {
        assert!((a - b).abs() < 1e-3 * b, "{flex:?} and {torch:?}");
    }
    assert_ne!(flex, torch, "no two ways of adding round alike everywhere");
    let test = |backend: &str| {
        let arguments = [
            "test",
            "run.toml",
            "--checkpoint",
            "torch",
            "--backend",
            backend,
        ];
        let output = scenario.terrashard(&[&arguments[..], &["--json", "--quiet"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (flex, torch) = (test("flex"), test("tch"));
    assert_eq!(flex["valid_pixels"], torch["valid_pixels"]);
    let iou = |record: &Value| record["iou"].as_f64().unwrap();
    assert!((iou(&flex) - iou(&torch)).abs() < 1e-2, "{flex} {torch}");
}

/// It is looked for where it was when the program was built.
#[cfg(all(unix, feature = "tch"))]
#[test]
fn libtorch_is_found_without_a_path_for_the_loader() {
    let scenario = Scenario::new();
    let mut command = scenario.command(&["--version"]);
    let output = command.env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn verify_says_what_it_compared_with() {
    let scenario = Scenario::new();
    let output = scenario.terrashard(&[
        "verify", "run.toml", "--stage", "2", "--ranks", "2", "--steps", "2", "--json",
    ]);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["max_rel"].as_f64().unwrap() < 1e-6, "{found}");
    assert_eq!(
        (&found["steps"], &found["applied_steps"]),
        (&2.into(), &2.into())
    );
    assert_eq!(found["precision"], "double precision");
    // In sixteen bits, other shares of the samples round otherwise: the reference has as many ranks.
    let output = scenario.terrashard(&[
        "verify",
        "run.toml",
        "--set",
        "train.precision=bf16",
        "--ranks",
        "3",
        "--stage",
        "3",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("on 3 ranks"),
        "{text}"
    );
}

#[test]
fn verify_does_not_mistake_rounding_for_a_difference() {
    let scenario = Scenario::new();
    for seed in 1..=8 {
        let seed = format!("train.seed={seed}");
        let settings = [
            seed.as_str(),
            "zero.ranks=2",
            "zero.stage=3",
            "train.lr=1e-2",
        ];
        let found = verify(&config(&scenario, &settings), Device::Cpu, 4).unwrap();
        assert!(found.equal, "{seed}: {found:?}");
    }
}

#[test]
fn c3_what_is_switched_on_at_a_resume_begins_anew() {
    let scenario = Scenario::new();
    let frozen = "train.groups=[{ match = \"stages.*\", frozen = true }]";
    scenario.fit("run", Some(2), &[frozen]);
    let before = weights(&scenario, "run", Kind::Parameter);
    let moments = weights(&scenario, "run", Kind::M);
    let name = "stages.0.embed.weight";
    assert!(before.contains_key(name) && !moments.contains_key(name));
    scenario.fit("run", Some(3), &["train.ema=0.5"]);
    let after = weights(&scenario, "run", Kind::Parameter);
    assert_ne!(before[name], after[name]);
    assert!(weights(&scenario, "run", Kind::M).contains_key(name));
    // From the parameters before the step and after it.
    for (i, ema) in weights(&scenario, "run", Kind::Ema)[name]
        .iter()
        .enumerate()
    {
        let expected = 0.5 * before[name][i] + 0.5 * after[name][i];
        assert!((ema - expected).abs() < 1e-6, "{ema} {expected}");
    }
}

#[test]
fn what_does_not_fit_the_model_is_refused_before_anything_is_written() {
    let scenario = Scenario::new();
    let check = |setting: &str, expected: &str| {
        let output = scenario.terrashard(&["fit", "run.toml", "--run", "x", "--set", setting]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!scenario.path("x").exists());
    };
    check(
        "zero.recompute={ \"stage.*\" = \"recompute\" }",
        "tail.seg.conv1",
    );
    check(
        "train.groups=[{ match = \"*\", frozen = true }]",
        "all are frozen",
    );
}

#[test]
fn sharded_weights_test_and_predict_as_whole_ones() {
    let scenario = Scenario::new();
    scenario.fit("run", None, &["zero.stage=3", "zero.ranks=2"]);
    let tested = |settings: &[&str], ranks| {
        let config = config(&scenario, settings);
        let run = scenario.path("run");
        evaluation::test(
            &config,
            &run,
            &TestOptions {
                device: Device::Cpu,
                ranks,
                memory: None,
                display: Display::Quiet,
            },
        )
        .unwrap()
        .scores
    };
    let whole = tested(&[], 1);
    assert!(whole.iou.is_some());
    for (ranks, offload) in [(1, "none"), (2, "parameters"), (3, "none")] {
        let offload = format!("zero.offload={offload}");
        assert_eq!(
            tested(&["zero.stage=3", &offload], ranks),
            whole,
            "{ranks} ranks, {offload}"
        );
    }
    let predict = |output: &str, more: &[&str]| {
        let arguments = [
            "predict",
            "image.tif",
            "-o",
            output,
            "--checkpoint",
            "run",
            "--json",
        ];
        let output = scenario.terrashard(&[&arguments, more].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    predict("whole.tif", &[]);
    let told = predict("shards.tif", &["--stage", "3", "--ranks", "3", "--offload"]);
    let bytes = |name: &str| std::fs::read(scenario.path(name)).unwrap();
    assert_eq!(bytes("whole.tif"), bytes("shards.tif"));
    let all: usize = weights(&scenario, "run", Kind::Parameter)
        .values()
        .map(Vec::len)
        .sum();
    let held = |key: &str| told["held_parameters"][key].as_u64().unwrap() as usize;
    // A third of the parameters, and the largest block with the one that is gathered ahead.
    assert!(held("shards") < 4 * all / 2, "{told} of {all}");
    assert!(
        held("gathered") > 0 && held("gathered") < 4 * all,
        "{told} of {all}"
    );
}

#[test]
fn c10_the_moving_average_is_saved_resumed_and_exported() {
    let scenario = Scenario::new();
    let settings = [
        "zero.stage=3",
        "zero.ranks=2",
        "train.ema=0.5",
        "checkpoint.every=1",
    ];
    scenario.fit("whole", None, &settings);
    scenario.fit("parts", Some(3), &settings);
    scenario.fit(
        "parts",
        None,
        &[
            "zero.stage=1",
            "zero.ranks=3",
            "train.ema=0.5",
            "checkpoint.every=1",
        ],
    );
    // What the first step left, which began at the first weights, followed by the weights after each further step.
    let at = |step: u64| format!("whole/checkpoints/step-{step:06}");
    let doubles = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let first = weights(&scenario, &at(1), Kind::Ema).into_iter();
    let mut average: BTreeMap<String, Vec<f64>> = first
        .map(|(name, values)| (name, doubles(values)))
        .collect();
    for step in 2..=6 {
        for (name, values) in weights(&scenario, &at(step), Kind::Parameter) {
            let average = average.get_mut(&name).unwrap();
            for (average, value) in average.iter_mut().zip(values) {
                *average = 0.5 * *average + 0.5 * f64::from(value);
            }
        }
    }
    let output = scenario.terrashard(&["export", "whole", "--ema", "-o", "average.safetensors"]);
    assert!(output.status.success(), "{output:?}");
    let exported = weights(&scenario, "average.safetensors", Kind::Parameter);
    let start = weights(&scenario, "whole/checkpoints/step-000001", Kind::Parameter);
    assert_eq!(exported.len(), start.len());
    for (run, bound) in [("whole", 1e-6), ("parts", 1e-4)] {
        for (name, ema) in weights(&scenario, run, Kind::Ema) {
            // Gradients that are zero in mathematics, as those of some biases, are other noise at another rank count.
            if run == "parts" && !name.ends_with("weight") {
                continue;
            }
            let expected = &average[&name];
            let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-3);
            let away = ema
                .iter()
                .zip(expected)
                .map(|(a, b)| (f64::from(*a) - b).powi(2));
            let away = away.sum::<f64>().sqrt();
            assert!(away <= bound * norm, "{run} {name}: {away} of {norm}");
            if run == "whole" {
                assert_eq!(exported[&name], ema, "{name}");
            }
        }
    }
    scenario.fit("without", None, &[]);
    let refused = scenario.terrashard(&["export", "without", "--ema", "-o", "x.safetensors"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn an_overflow_in_fp16_is_skipped_with_its_origin_and_survives_a_resume() {
    let scenario = Scenario::new();
    let settings = ["zero.stage=2", "zero.ranks=2", "train.precision=fp16"];
    let output = scenario.terrashard(&[
        "fit",
        "run.toml",
        "--run",
        "told",
        "--set",
        "train.precision=fp16",
        "--ranks",
        "2",
        "--stage",
        "2",
    ]);
    assert!(output.status.success(), "{output:?}");
    scenario.fit("whole", None, &settings);
    scenario.fit("parts", Some(3), &settings);
    scenario.fit("parts", None, &settings);
    let steps = scenario.run("whole").steps().unwrap();
    let again = scenario.run("parts").steps().unwrap();
    let seen = |steps: &[terrashard_trainer::record::StepRecord]| -> Vec<(f64, f64, bool)> {
        steps
            .iter()
            .map(|step| (step.loss, step.lr, step.skipped))
            .collect()
    };
    assert_eq!(seen(&steps), seen(&again));
    let checkpoint = Checkpoint::open(scenario.path("parts")).unwrap();
    let skipped = steps.iter().filter(|step| step.skipped).count() as u64;
    let values = &checkpoint.state().values;
    assert_eq!(values["applied_steps"].as_u64(), Some(6 - skipped));
    assert_eq!(
        values["loss_scale"].as_f64(),
        Some(65536.0 / f64::from(1 << skipped))
    );
    if skipped > 0 {
        let text =
            String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("was skipped") && text.contains("image.tif ["),
            "{text}"
        );
    }
}

#[test]
fn a_step_tells_where_its_time_went_and_what_it_sent() {
    let scenario = Scenario::new();
    let session = scenario.fit("run", None, &["zero.stage=2", "zero.ranks=2"]);
    for step in scenario.run("run").steps().unwrap() {
        // Saving and looking at the model came before it.
        let own = step.times.total() - step.times.checkpoint - step.times.validation;
        assert!(own > 0.0 && own <= step.seconds * 1.001, "{step:?}");
        // Two ranks: a half of all gradients out, a half of all parameters out.
        assert_eq!(
            step.sent.reduce_scatter + step.sent.all_gather,
            session.predicted_sent
        );
    }
    assert!(session.times.checkpoint > 0.0);
    assert!(session.counted.buckets > 0);
}
