//! Checkpoints of other projects that are not whole, contradict themselves or are damaged.

use std::path::PathBuf;

use serde_json::{Value, json};
use terrashard_checkpoint::{ForeignFile, ModelFile};

use crate::imports::{fixture, run};
use crate::scenario::Scenario;

/// A checkpoint of the reference sets, to be written again with changes.
struct Source {
    origin: &'static str,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    config: Value,
    /// The tensor that is said to be of whole numbers.
    integers: &'static str,
}

impl Source {
    fn hf() -> Self {
        let config = std::fs::read(fixture("hf_import/rgb/config.json")).unwrap();
        Self {
            config: serde_json::from_slice(&config).unwrap(),
            ..Self::of("hf", "hf_import/rgb/model.safetensors")
        }
    }

    fn nvlabs() -> Self {
        Self::of("nvlabs", "hf_import/rgb/nvlabs_mit.pt")
    }

    fn of(origin: &'static str, file: &str) -> Self {
        let file = ForeignFile::open(fixture(file)).unwrap();
        let tensors = file.tensors().filter_map(|(name, shape)| {
            // Counts of batches are no floats.
            let values = file.read(name).ok()?;
            Some((name.to_owned(), shape.to_vec(), values))
        });
        Self {
            origin,
            tensors: tensors.collect(),
            config: Value::Null,
            integers: "",
        }
    }

    fn without(mut self, part: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|(name, ..)| !name.contains(part));
        assert!(self.tensors.len() < before, "{part}");
        self
    }

    fn configured(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    fn write(&self, scenario: &Scenario) -> PathBuf {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, shape, values) in &self.tensors {
            let start = data.len();
            data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let dtype = match name == self.integers {
                true => "I32",
                false => "F32",
            };
            header.insert(
                name.clone(),
                json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }),
            );
        }
        let header = Value::Object(header).to_string();
        let length = (header.len() as u64).to_le_bytes();
        let path = scenario.path("source.safetensors");
        std::fs::write(&path, [&length, header.as_bytes(), &data].concat()).unwrap();
        std::fs::write(scenario.path("config.json"), self.config.to_string()).unwrap();
        path
    }

    /// What `import --json` says, or its error.
    fn import(&self, more: &[&str]) -> Result<Value, String> {
        let scenario = Scenario::new();
        self.write(&scenario);
        let arguments = ["import", "--from", self.origin, "source.safetensors"];
        let told = run(&scenario, &[&arguments[..], &["--json"], more].concat())?;
        Ok(serde_json::from_str(&told).unwrap())
    }
}

#[track_caller]
fn check_refused(source: &Source, more: &[&str], expected: &[&str]) {
    let error = source.import(more).unwrap_err();
    for part in expected {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// Refused for want of these tensors, which `--allow-partial` lists, the model being that of the whole source.
#[track_caller]
fn check_incomplete(whole: &Source, source: &Source, missing: &[&str]) {
    let first = format!("it has no `{}`", missing[0]);
    check_refused(source, &[], &[&first, "--allow-partial"]);
    let told = source.import(&["--allow-partial"]).unwrap();
    let of_encoder: Vec<&str> = told["missing"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .filter(|name| name.starts_with("stages."))
        .collect();
    assert_eq!(of_encoder, missing);
    assert_eq!(told["model"], whole.import(&[]).unwrap()["model"]);
}

fn named(prefix: &str, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("{prefix}{name}")).collect()
}

const REDUCTION: [&str; 4] = ["sr.weight", "sr.bias", "norm.weight", "norm.bias"];

#[test]
fn a_reduction_that_is_missing_is_told() {
    let names = named("stages.0.blocks.0.attn.", &REDUCTION);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let hf = Source::hf()
        .without("block.0.0.attention.self.sr")
        .without("block.0.0.attention.self.layer_norm");
    check_incomplete(&Source::hf(), &hf, &names);
    let nvlabs = Source::nvlabs()
        .without("block1.0.attn.sr")
        .without("block1.0.attn.norm");
    check_incomplete(&Source::nvlabs(), &nvlabs, &names);
    // A part of it, without a configuration.
    let part = Source::nvlabs().without("block3.0.attn.sr.weight");
    let name = "stages.2.blocks.0.attn.sr.weight";
    check_incomplete(&Source::nvlabs(), &part, &[name]);
}

#[test]
fn a_part_of_a_reduction_where_mit_has_none_is_told() {
    let mut source = Source::nvlabs();
    let (name, shape, values) = source
        .tensors
        .iter()
        .find(|(name, ..)| name == "block4.0.norm1.weight")
        .unwrap()
        .clone();
    let name = name.replace("norm1", "attn.norm");
    source.tensors.push((name, shape, values));
    let first = "it has no `stages.3.blocks.0.attn.sr.weight`";
    check_refused(&source, &[], &[first]);
}

#[test]
fn blocks_and_stages_that_are_missing_are_told() {
    let parts = [
        "norm1.weight",
        "norm1.bias",
        "attn.q.weight",
        "attn.q.bias",
        "attn.sr.weight",
        "attn.sr.bias",
        "attn.norm.weight",
        "attn.norm.bias",
        "attn.kv.weight",
        "attn.kv.bias",
        "attn.proj.weight",
        "attn.proj.bias",
        "norm2.weight",
        "norm2.bias",
        "ffn.fc1.weight",
        "ffn.fc1.bias",
        "ffn.dw.weight",
        "ffn.dw.bias",
        "ffn.fc2.weight",
        "ffn.fc2.bias",
    ];
    let check = |whole: &Source, source: &Source, prefix: &str| {
        let names = named(prefix, &parts);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check_incomplete(whole, source, &names);
    };
    let hf = Source::hf();
    // The last block is known of by the configuration, a hole by the blocks behind it.
    check(
        &hf,
        &Source::hf().without("block.1.1."),
        "stages.1.blocks.1.",
    );
    let nvlabs = Source::nvlabs();
    let hole = Source::nvlabs().without("block2.0.");
    check(&nvlabs, &hole, "stages.1.blocks.0.");

    let stage = Source::hf()
        .without("encoder.block.3.")
        .without("patch_embeddings.3.")
        .without("encoder.layer_norm.3.");
    let first = "it has no `stages.3.embed.weight` and 21 more";
    check_refused(&stage, &[], &[first]);
    let told = stage.import(&["--allow-partial"]).unwrap();
    assert_eq!(told["model"], hf.import(&[]).unwrap()["model"]);
}

#[test]
fn sizes_of_a_stage_are_those_of_any_of_its_tensors() {
    let embed = [
        "embed.weight",
        "embed.bias",
        "embed_norm.weight",
        "embed_norm.bias",
    ];
    let names = named("stages.2.", &embed);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let source = Source::nvlabs().without("patch_embed3.");
    check_incomplete(&Source::nvlabs(), &source, &names);

    let keys = Source::hf().without("block.0.0.attention.self.value.weight");
    check_incomplete(&Source::hf(), &keys, &["stages.0.blocks.0.attn.kv.weight"]);
    let fc1 = Source::nvlabs().without("block1.0.mlp.fc1.weight");
    check_incomplete(
        &Source::nvlabs(),
        &fc1,
        &["stages.0.blocks.0.ffn.fc1.weight"],
    );
}

#[test]
fn a_configuration_of_another_model_is_refused() {
    for (key, value, expected) in [
        (
            "hidden_sizes",
            json!([32, 64, 160, 256]),
            "has 32 for `hidden_sizes[0]`, its tensors have 8",
        ),
        (
            "sr_ratios",
            json!([8, 2, 2, 1]),
            "has 2 for `sr_ratios[1]`, its tensors have 4",
        ),
        (
            "depths",
            json!([1, 1, 1, 1]),
            "has 1 for `depths[1]`, its tensors have 2",
        ),
        (
            "mlp_ratios",
            json!([4, 4, 2, 4]),
            "has 2 for `mlp_ratios[2]`, its tensors have 4",
        ),
        (
            "patch_sizes",
            json!([7, 3, 3, 5]),
            "has 5 for `patch_sizes[3]`, its tensors have 3",
        ),
        (
            "num_channels",
            json!(6),
            "has 6 for `num_channels`, its tensors have 3",
        ),
    ] {
        let source = Source::hf().configured(key, value);
        let file = "failed to import source.safetensors: its config.json";
        check_refused(&source, &["--allow-partial"], &[file, expected]);
    }
}

#[test]
fn a_source_that_cannot_be_read_names_the_tensor() {
    let name = "block2.1.mlp.fc1.weight";
    let source = Source {
        integers: name,
        ..Source::nvlabs()
    };
    let expected = format!(
        "source.safetensors as a checkpoint of another project: its tensor `{name}` is of no float type"
    );
    check_refused(&source, &[], &[&expected]);

    let scenario = Scenario::new();
    let entry = b"nvlabs_mit/data/3PK";
    let mut bytes = std::fs::read(fixture("hf_import/rgb/nvlabs_mit.pt")).unwrap();
    let mut places = bytes.windows(entry.len());
    let at = places.position(|window| window == entry).unwrap();
    bytes[at] = b'm';
    std::fs::write(scenario.path("damaged.pt"), bytes).unwrap();
    let error = run(&scenario, &["import", "--from", "nvlabs", "damaged.pt"]).unwrap_err();
    assert!(
        error.contains("damaged.pt") && error.contains("`block1.0.attn.kv.weight` cannot be read"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(!scenario.path("model.safetensors").exists());
}

#[test]
fn values_that_are_not_finite_are_told() {
    let mut source = Source::nvlabs();
    let name = "block1.0.attn.q.weight";
    let (.., values) = source
        .tensors
        .iter_mut()
        .find(|tensor| tensor.0 == name)
        .unwrap();
    (values[3], values[5]) = (f32::NAN, f32::NEG_INFINITY);
    let warning = format!("tensor `{name}` of the source has 2 values that are NaN or infinite");
    let told = source.import(&[]).unwrap();
    assert_eq!(told["warnings"], json!([warning]));
    assert_eq!(Source::nvlabs().import(&[]).unwrap().get("warnings"), None);

    let scenario = Scenario::new();
    source.write(&scenario);
    let output = scenario.terrashard(&["import", "--from", "nvlabs", "source.safetensors"]);
    assert!(output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, format!("warning: {warning}\n"));
}

#[test]
fn nothing_of_a_model_is_not_imported() {
    let mut source = Source::nvlabs();
    source.tensors.truncate(1);
    source.tensors[0].0 = "block9.0.norm1.weight".into();
    let expected = "the model has none of its tensors, such as `block9.0.norm1.weight`";
    check_refused(&source, &["--allow-partial"], &[expected]);
}

const FIT: [&str; 6] = ["fit", "run.toml", "--run", "run", "--stop-after", "1"];

#[test]
fn an_export_is_the_model_that_it_says() {
    let scenario = Scenario::new();
    let settings = [
        "--quiet",
        "--set",
        "model.heads=[2, 4, 1, 8]",
        "--set",
        "model.sr_ratios=[4, 1, 1, 1]",
        "--set",
        "model.activation=silu",
        "--set",
        "model.head_norm=none",
        "--set",
        "model.head_activation=none",
        "--set",
        "model.attn_norm_eps=1e-4",
    ];
    run(&scenario, &[&FIT[..], &settings].concat()).unwrap();
    run(&scenario, &["export", "run", "-o", "own.safetensors"]).unwrap();
    let import = ["import", "--from", "safetensors", "own.safetensors"];
    run(
        &scenario,
        &[&import[..], &["-o", "again.safetensors"]].concat(),
    )
    .unwrap();
    let describe = |name: &str| {
        let file = ModelFile::open(scenario.path(name)).unwrap();
        file.description().clone()
    };
    let own = describe("own.safetensors");
    assert_eq!(own.architecture["heads"], json!([2, 4, 1, 8]));
    assert_eq!(describe("again.safetensors"), own);

    // What it says cannot be guessed if it is lost.
    let mut bytes = std::fs::read(scenario.path("own.safetensors")).unwrap();
    let key = b"terrashard.architecture";
    let mut places = bytes.windows(key.len());
    let at = places.position(|window| window == key).unwrap();
    bytes[at + key.len() - 1] = b'a';
    std::fs::write(scenario.path("own.safetensors"), bytes).unwrap();
    let error = run(&scenario, &import).unwrap_err();
    assert!(error.contains("no \"terrashard.architecture\""), "{error}");
}

#[test]
fn sizes_that_no_shape_tells_are_compared_with_those_of_the_first_values() {
    let scenario = Scenario::new();
    run(&scenario, &[&FIT[..], &["--quiet"]].concat()).unwrap();
    run(&scenario, &["export", "run", "-o", "model.safetensors"]).unwrap();
    let fit = |setting: &str| {
        let init = ["--set", "train.init=model.safetensors", "--set", setting];
        let fit = ["fit", "run.toml", "--run", "next", "--stop-after", "1"];
        scenario.terrashard(&[&fit[..], &init].concat())
    };
    for (setting, expected) in [
        ("model.heads=[1, 2, 1, 1]", "`model.heads = [1, 1, 1, 1]`"),
        ("model.stride=[4, 2, 2, 1]", "`model.stride = [4, 2, 2, 2]`"),
        (
            "model.sr_ratios=[8, 4, 2, 2]",
            "`model.sr_ratios = [8, 4, 2, 1]`",
        ),
    ] {
        let output = fit(setting);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains("train.init") && error.contains(expected),
            "{error}"
        );
    }
    let output = fit("model.head_activation=relu");
    assert!(output.status.success());
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8(told).unwrap();
    assert!(
        told.contains("it was trained with another `model.head_activation`\n"),
        "{told}"
    );
}

/// A path that is not there is named as it was given.
#[test]
fn a_missing_source_is_named_itself() {
    let scenario = Scenario::new();
    for origin in ["hf", "nvlabs"] {
        let output = scenario.terrashard(&["import", "--from", origin, "gone/"]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains("gone/: ") && !message.contains("config.json"),
            "{message}"
        );
    }
}
