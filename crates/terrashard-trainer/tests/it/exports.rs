//! Exports: in any element type, and back.

use std::collections::BTreeMap;
use std::{env, fs};

use burn::tensor::{Device, Tensor, TensorData};
use serde_json::Value;
use terrashard_checkpoint::{ElementType, Kind, ModelDescription, ModelFile, Source, TensorSpec};
use terrashard_layout::counter;
use terrashard_models::{ModelConfig, Plain};
use terrashard_raster::RasterSource;
use terrashard_trainer::trained_model::TrainedModel;

use crate::scenario::Scenario;

#[track_caller]
fn succeed(scenario: &Scenario, arguments: &[&str]) -> String {
    let output = scenario.terrashard(arguments);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).unwrap()
}

/// A run's model in each element type: values rounded to it, and a map that is nearly the same.
/// The classes of a map.
fn classes(scenario: &Scenario, name: &str) -> Vec<f32> {
    let map = terrashard_raster::open(scenario.path(name)).unwrap();
    let whole = map.read_window(map.metadata().window()).unwrap();
    whole.band_f32(0)
}

#[test]
fn geo_46_an_export_in_any_type_makes_a_map() {
    let scenario = Scenario::new();
    scenario.fit("run", None, &["zero.ranks=2", "zero.stage=3"]);
    let run = Source::open(scenario.path("run")).unwrap();
    let predict = |checkpoint: &str, more: &[&str]| {
        let arguments = [
            "predict",
            "image.tif",
            "-o",
            "map.tif",
            "--checkpoint",
            checkpoint,
            "--quiet",
        ];
        succeed(&scenario, &[&arguments[..], more].concat());
        fs::read(scenario.path("map.tif")).unwrap()
    };
    let whole = predict("run", &[]);
    let mapped = classes(&scenario, "map.tif");
    for (dtype, bits) in [("fp32", 23), ("bf16", 7), ("fp16", 10)] {
        succeed(&scenario, &["export", "run", "--dtype", dtype]);
        let export = Source::open(scenario.path("model.safetensors")).unwrap();
        for tensor in export.tensors() {
            let all = 0..tensor.numel();
            let (name, kind) = (tensor.name.as_str(), tensor.kind);
            let (ours, theirs) = (
                export.read_f64(name, kind, all.clone()).unwrap(),
                run.read_f64(name, kind, all).unwrap(),
            );
            for (ours, theirs) in ours.into_iter().zip(theirs) {
                let bound = match kind {
                    Kind::Buffer => 0.0,
                    // Half a unit in the last place; below its least normal number f16 has steps of 2^-24.
                    _ => (theirs.abs() * 2f64.powi(-bits - 1)).max(2f64.powi(-25)),
                };
                assert!(
                    (ours - theirs).abs() <= bound,
                    "{dtype} {name}: {ours} and {theirs}"
                );
            }
        }
        let map = predict("model.safetensors", &[]);
        // However the weights are read.
        assert_eq!(
            map,
            predict("model.safetensors", &["--stage", "3", "--ranks", "2"])
        );
        if dtype == "fp32" {
            assert_eq!(map, whole);
        }
        let classes = classes(&scenario, "map.tif");
        let other = classes.iter().zip(&mapped).filter(|(a, b)| a != b).count();
        assert!(
            other <= mapped.len() / 100,
            "{dtype}: {other} pixels differ"
        );
    }
}

#[test]
fn an_import_is_the_inverse_of_an_export() {
    let scenario = Scenario::new();
    let settings = [
        "model.heads=[2, 1, 4, 2]",
        "model.layer_norm_eps=1e-5",
        "data.scaling.scale=5000.0",
    ];
    scenario.fit("run", Some(1), &settings);
    succeed(&scenario, &["export", "run", "-o", "first.safetensors"]);
    let import = [
        "import",
        "--from",
        "safetensors",
        "first.safetensors",
        "-o",
        "second.safetensors",
        "--json",
    ];
    let told: Value = serde_json::from_str(&succeed(&scenario, &import)).unwrap();
    assert_eq!(
        (&told["missing"], &told["unexpected"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let diff = ["ckpt", "diff", "first.safetensors", "second.safetensors"];
    succeed(&scenario, &diff);
    let predict = |checkpoint: &str| {
        let arguments = [
            "predict",
            "image.tif",
            "-o",
            "map.tif",
            "--checkpoint",
            checkpoint,
            "--quiet",
        ];
        succeed(&scenario, &arguments);
        fs::read(scenario.path("map.tif")).unwrap()
    };
    assert_eq!(predict("first.safetensors"), predict("second.safetensors"));
    // In sixteen bits, too: what is read is what is written, in single precision.
    succeed(
        &scenario,
        &["export", "run", "-o", "half.safetensors", "--dtype", "fp16"],
    );
    succeed(
        &scenario,
        &[
            "import",
            "--from",
            "safetensors",
            "half.safetensors",
            "-o",
            "third.safetensors",
        ],
    );
    assert_eq!(predict("half.safetensors"), predict("third.safetensors"));
}

/// Side of the image and distance of the positions that are compared, as `benches/torch_export.py` has them.
const SIDE: usize = 32;
const STEP: usize = 1009;

/// The logits of an export are those of plain PyTorch, which reads the file by `safetensors`: `export_logits.json` is what
/// `benches/torch_export.py` printed.
#[test]
fn an_export_has_pytorchs_logits() {
    let scenario = Scenario::new();
    scenario.write_image("image.tif", 6);
    scenario.write_highres("fine.tif", |_, _| false);
    let settings = [
        "model.superres=true",
        "model.bands=6",
        "model.dims=[8, 16, 20, 32]",
        "model.heads=[1, 2, 5, 8]",
        "model.head_channels=16",
        "data.bands=[1, 2, 3, 4, 5, 6]",
        "data.scenes=[{ image = \"image.tif\", mask = \"mask.tif\", highres = \"fine.tif\" }]",
        "data.highres.bands=[1, 2, 3, 4]",
        // A step of this rate changes no weight.
        "train.lr=1e-30",
        "train.weight_decay=0.0",
        "train.init=weights.safetensors",
        "zero.ranks=2",
        "zero.stage=3",
    ];
    let config = terrashard_trainer::config::Config::load(
        &scenario.path("run.toml"),
        &settings.map(String::from),
    );
    write_weights(&scenario, &config.unwrap().model);
    scenario.fit("run", Some(1), &settings);
    succeed(&scenario, &["export", "run", "-o", "model.safetensors"]);
    let path = scenario.path("model.safetensors");
    if let Some(kept) = env::var_os("TERRASHARD_KEEP_EXPORT") {
        fs::copy(&path, kept).unwrap();
    }

    let device = Device::flex();
    let network = TrainedModel::open(&path).unwrap().network(&device).unwrap();
    let pixel = |at: usize| {
        let (c, y, x) = (at / SIDE / SIDE, at / SIDE % SIDE, at % SIDE);
        ((37 * x + 91 * y + 13 * c) % 200) as f32 / 100.0 - 1.0
    };
    let pixels: Vec<f32> = (0..6 * SIDE * SIDE).map(pixel).collect();
    let image = Tensor::<4>::from_data(TensorData::new(pixels, [1, 6, SIDE, SIDE]), &device);
    let maps = network.forward(image, &Plain::inference());
    let expected: BTreeMap<String, Vec<f64>> =
        serde_json::from_str(include_str!("export_logits.json")).unwrap();
    let superres = maps.superres.unwrap().pixels();
    for (name, map) in [
        ("head", maps.head),
        ("segmentation", maps.segmentation.pixels()),
        ("superres", superres),
    ] {
        let got: Vec<f64> = map.into_data().iter::<f64>().step_by(STEP).collect();
        let expected = &expected[name];
        assert_eq!(got.len(), expected.len(), "{name}");
        let largest = expected
            .iter()
            .fold(0.0_f64, |most, value| most.max(value.abs()));
        for (got, expected) in got.iter().zip(expected) {
            assert!(
                (got - expected).abs() <= 1e-5 * largest.max(1.0),
                "{name}: {got} and {expected}"
            );
        }
        assert!(largest > 1e-2, "{name} says something");
    }
}

/// Weights of a model that no two tensors share, as a file for `train.init`.
fn write_weights(scenario: &Scenario, model: &ModelConfig) {
    let network = model.init(&Device::flex()).unwrap();
    let specs: Vec<TensorSpec> = terrashard_models::parameters(&network)
        .into_iter()
        .map(|(name, shape)| TensorSpec::new(name, Kind::Parameter, shape, ElementType::F32))
        .collect();
    let description = ModelDescription {
        architecture: serde_json::to_value(model).unwrap(),
        scaling: serde_json::json!({}),
        values: serde_json::json!({ "bands": [1, 2, 3, 4, 5, 6], "tile": 32, "overlap": 0 })
            .as_object()
            .unwrap()
            .clone(),
        ..ModelDescription::default()
    };
    let path = scenario.path("weights.safetensors");
    ModelFile::write(path, &description, &specs, |spec| {
        let fan = spec.shape.iter().skip(1).product::<usize>() as f64;
        let value = |index: usize| {
            let noise = 2.0 * counter::uniform(3, &spec.name, index as u64) - 1.0;
            match (spec.shape.len(), spec.name.ends_with("weight")) {
                (1, true) => 1.0 + 0.1 * noise,
                (1, false) => 0.1 * noise,
                _ => (3.0 / fan).sqrt() * noise,
            }
        };
        let values = (0..spec.numel()).flat_map(|index| (value(index) as f32).to_le_bytes());
        Ok::<_, std::io::Error>(values.collect::<Vec<u8>>().into())
    })
    .unwrap();
}
