//! Checkpoints of other projects: imported, trained on from, and mapped with.

use std::path::Path;

use serde_json::Value;
use terrashard_checkpoint::{ForeignFile, Kind, Source};

use crate::scenario::Scenario;

/// A file of the reference sets.
pub(crate) fn fixture(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    fixtures.join(name).display().to_string()
}

#[track_caller]
pub(crate) fn run(scenario: &Scenario, arguments: &[&str]) -> Result<String, String> {
    let output = scenario.terrashard(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => {
            assert_eq!(output.status.code(), Some(2));
            Err(text(output.stderr))
        }
    }
}

#[track_caller]
fn import(scenario: &Scenario, from: &str, source: &str, more: &[&str]) -> Value {
    let source = fixture(source);
    let arguments = ["import", "--from", from, &source, "--json"];
    let told = run(scenario, &[&arguments[..], more].concat()).unwrap();
    serde_json::from_str(&told).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (chunks, _) = bytes.as_chunks();
    chunks
        .iter()
        .map(|chunk| f32::from_le_bytes(*chunk))
        .collect()
}

/// The settings of the model in `hf_import/rgb`, with two bands.
const RGB: [&str; 12] = [
    "--set",
    "model.dims=[8, 16, 20, 32]",
    "--set",
    "model.depths=[1, 2, 1, 1]",
    "--set",
    "model.heads=[1, 2, 5, 8]",
    "--set",
    "model.head_channels=32",
    "--set",
    "train.weight_decay=0.0",
    "--set",
    "train.lr=1e-30",
];

#[test]
fn a_whole_checkpoint_of_s2s2net_makes_maps() {
    let scenario = Scenario::new();
    let told = import(&scenario, "mmseg", "single/upstream.pt", &[]);
    for key in ["missing", "unexpected"] {
        assert_eq!(
            told[key].as_array().unwrap().len(),
            0,
            "{key}: {}",
            told[key]
        );
    }
    assert_eq!(told["model"]["upsampling"], "progressive");
    assert_eq!(told["model"]["activation"], "silu");
    scenario.write_image("six.tif", 6);
    let arguments = [
        "predict",
        "six.tif",
        "-o",
        "map.tif",
        "--checkpoint",
        "model.safetensors",
    ];
    run(&scenario, &[&arguments[..], &["--quiet"]].concat()).unwrap();
    assert!(scenario.path("map.tif").is_file());
}

#[test]
fn what_is_there_and_what_is_not_is_told() {
    let scenario = Scenario::new();
    let told = import(&scenario, "hf", "hf_import/bands6", &[]);
    let names = ["conv0.weight", "conv0.bias", "conv1.weight", "conv1.bias"];
    let missing: Vec<String> = names
        .iter()
        .map(|name| format!("tail.seg.{name}"))
        .collect();
    assert_eq!(told["missing"], serde_json::json!(missing));
    assert_eq!(
        told["unexpected"],
        serde_json::json!(["decode_head.batch_norm.num_batches_tracked"])
    );
    assert_eq!(told["model"]["layer_norm_eps"], 1e-5);
    // A model without its branch makes no map.
    scenario.write_image("six.tif", 6);
    let arguments = [
        "predict",
        "six.tif",
        "-o",
        "map.tif",
        "--checkpoint",
        "model.safetensors",
    ];
    let error = run(&scenario, &arguments).unwrap_err();
    assert!(error.contains("tail.seg.conv0.bias"), "{error}");

    let told = import(
        &scenario,
        "nvlabs",
        "hf_import/rgb/nvlabs_segmentor.pt",
        &[],
    );
    let epsilons = ["layer_norm_eps", "embed_norm_eps", "attn_norm_eps"];
    let epsilons = epsilons.map(|key| told["model"][key].as_f64().unwrap());
    assert_eq!(epsilons, [1e-6, 1e-5, 1e-5]);
    assert_eq!(told["model"]["head_outputs"], 5);
}

#[test]
fn a_training_begins_at_the_imported_encoder() {
    let scenario = Scenario::new();
    let told = import(
        &scenario,
        "nvlabs",
        "hf_import/rgb/nvlabs_mit.pt",
        &["--bands", "2"],
    );
    assert_eq!(
        told["unexpected"],
        serde_json::json!(["head.bias", "head.weight"])
    );
    let fit = [
        "fit",
        "run.toml",
        "--run",
        "run",
        "--stop-after",
        "1",
        "--quiet",
    ];
    let from = ["--set", "train.init=model.safetensors"];
    run(&scenario, &[&fit[..], &RGB, &from].concat()).unwrap();

    // The rate is too small for a step to change anything that is not zero.
    let trained = Source::open(scenario.path("run")).unwrap();
    let source = ForeignFile::open(fixture("hf_import/rgb/nvlabs_mit.pt")).unwrap();
    let read = |name: &str| {
        let tensor = trained.tensor(name, Kind::Parameter).unwrap();
        floats(
            &trained
                .read(name, Kind::Parameter, 0..tensor.numel())
                .unwrap(),
        )
    };
    let fc1 = source.read("block2.1.mlp.fc1.weight").unwrap();
    assert_eq!(read("stages.1.blocks.1.ffn.fc1.weight"), fc1);
    // Every band has the mean of three kernels times 3/2: half of their sum.
    let (wide, narrow) = (
        read("stages.0.embed.weight"),
        source.read("patch_embed1.proj.weight").unwrap(),
    );
    for (i, value) in wide.iter().enumerate() {
        let (out, tap) = (i / (2 * 49), i % 49);
        let sum: f64 = (0..3)
            .map(|band| f64::from(narrow[(out * 3 + band) * 49 + tap]))
            .sum();
        assert!(
            (f64::from(*value) - sum / 2.0).abs() < 1e-7,
            "{value} at {i}"
        );
    }

    // Another number of bands does not fit, and the message says what to do.
    import(&scenario, "nvlabs", "hf_import/rgb/nvlabs_mit.pt", &[]);
    let again = [
        "fit",
        "run.toml",
        "--run",
        "other",
        "--stop-after",
        "1",
        "--quiet",
    ];
    let error = run(&scenario, &[&again[..], &RGB, &from].concat()).unwrap_err();
    assert!(
        error.contains("`stages.0.embed.weight` is [8, 3, 7, 7] there and [8, 2, 7, 7] here"),
        "{error}"
    );
    assert!(
        error.contains("`--bands`") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn geo_45_part_of_an_encoder_is_an_error_unless_it_is_wanted() {
    let scenario = Scenario::new();
    let header =
        r#"{"patch_embed1.proj.weight":{"dtype":"F32","shape":[8,3,7,7],"data_offsets":[0,4704]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.resize(bytes.len() + 4704, 0);
    std::fs::write(scenario.path("part.safetensors"), bytes).unwrap();
    let arguments = [
        "import",
        "--from",
        "nvlabs",
        "part.safetensors",
        "-o",
        "out.safetensors",
    ];
    let error = run(&scenario, &arguments).unwrap_err();
    assert!(
        error.contains("--allow-partial") && error.contains("more of the encoder's"),
        "{error}"
    );
    assert!(!scenario.path("out.safetensors").exists());
    let told = run(&scenario, &[&arguments[..], &["--allow-partial"]].concat()).unwrap();
    assert!(told.starts_with("out.safetensors: 1 tensor\n"), "{told}");
    assert!(
        told.contains("missing in the source: stages.0.embed.bias\n"),
        "{told}"
    );

    let other = fixture("hf_import/rgb/model.safetensors");
    let error = run(&scenario, &["import", "--from", "nvlabs", &other]).unwrap_err();
    assert!(
        error.contains("they look like those of `--from hf`"),
        "{error}"
    );
}

#[test]
fn presets_and_one_branch_are_settings() {
    let scenario = Scenario::new();
    let settings = [
        "--set",
        "model.upsampling=progressive",
        "--set",
        "model.head_norm=none",
        "--set",
        "model.head_activation=silu",
        "--set",
        "model.activation=silu",
        "--set",
        "train.loss=bce_dice",
    ];
    let fit = [
        "fit",
        "run.toml",
        "--run",
        "run",
        "--stop-after",
        "1",
        "--quiet",
    ];
    run(&scenario, &[&fit[..], &settings].concat()).unwrap();
    let exported = ["export", "run", "-o", "single.safetensors", "--json"];
    let told: Value = serde_json::from_str(&run(&scenario, &exported).unwrap()).unwrap();
    let matched = told["matched"].as_array().unwrap();
    assert!(matched.contains(&"tail.up.3.weight".into()), "{told}");

    let plan = ["plan", "run.toml", "--set", "model.preset=b7"];
    let error = run(&scenario, &plan).unwrap_err();
    assert!(error.contains("no model preset `b7`"), "{error}");
    // The scenario's own sizes stand before those of the preset.
    run(&scenario, &["plan", "run.toml", "--set", "model.preset=b2"]).unwrap();
}
