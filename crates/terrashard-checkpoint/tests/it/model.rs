//! Model files: self-describing, readable by others, read like a checkpoint.

use std::borrow::Cow;
use std::fs;

use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use terrashard_checkpoint::{
    Checkpoint, Error, Export, Kind, ModelDescription, ModelFile, Piece, Saver, Source, State,
    TensorSpec, Weights, export,
};
use terrashard_layout::ElementType::{Bf16, F16, F32};

use crate::fixture::{buffer, save, tensors, values};

/// The parameters as the checkpoint has them.
const PLAIN: Export = Export {
    weights: Weights::Plain,
    dtype: None,
};

fn description() -> ModelDescription {
    ModelDescription {
        architecture: json!({ "dims": [8, 16], "head_norm": "batch", "eps": 1e-6 }),
        bands: ["B02", "B03"].map(String::from).into(),
        scaling: json!({ "divide": 10000.0 }),
        threshold: Some(1.0 / 3.0),
        tool: "terrashard 0.1.0 \"x\"".into(),
        values: json!({ "step": 7 }).as_object().unwrap().clone(),
    }
}

#[test]
fn an_exported_checkpoint_reads_like_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 7, 3);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let path = folder.path().join("out/model.safetensors");
    export(&checkpoint, &path, &description(), PLAIN).unwrap();
    let Source::Model(model) = Source::open(&path).unwrap() else {
        panic!("a file is a model");
    };
    assert_eq!(model.description(), &description());
    let expected: Vec<TensorSpec> = tensors()
        .into_iter()
        .filter(|spec| matches!(spec.kind, Kind::Parameter | Kind::Buffer))
        .collect();
    assert_eq!(model.tensors().count(), expected.len());
    let source = Source::Model(model);
    source.require(&expected).unwrap();
    for spec in &expected {
        let whole = values(spec);
        let read = |interval| source.read(&spec.name, spec.kind, interval).unwrap();
        assert!(read(0..spec.numel()) == whole, "{}", spec.name);
        let (middle, width) = (spec.numel() / 3..spec.numel() / 2, spec.dtype.bytes());
        assert!(read(middle.clone()) == whole[middle.start * width..middle.end * width]);
        assert_eq!(source.tensor(&spec.name, spec.kind), Some(spec));
    }
    let message = source.read("pair", Kind::M, 0..1).unwrap_err().to_string();
    assert!(
        message.contains("model.safetensors has no m `pair`"),
        "{message}"
    );
    let names: Vec<_> = fs::read_dir(folder.path().join("out")).unwrap().collect();
    assert_eq!(names.len(), 1, "nothing but the model is left");
}

#[test]
fn averages_replace_parameters_that_have_them() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 7, 2);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let path = folder.path().join("model.safetensors");
    let averages = Export {
        weights: Weights::Ema,
        ..PLAIN
    };
    export(&checkpoint, &path, &description(), averages).unwrap();
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let check = |name: &str, kind| {
        let spec = tensors()
            .into_iter()
            .find(|spec| spec.name == name && spec.kind == kind)
            .unwrap();
        let view = file.tensor(name).unwrap();
        assert!(
            view.data() == values(&spec) && view.shape() == spec.shape,
            "{name}"
        );
    };
    check("stem.weight", Kind::Ema);
    check("coarse.weight", Kind::Ema);
    check("frozen.weight", Kind::Parameter);
    check("bn.running_mean", Kind::Buffer);
    assert!(
        file.tensor("head.weight").is_err(),
        "tied values are stored once"
    );
    ModelFile::open(&path).unwrap().verify().unwrap();
}

#[test]
fn an_export_in_sixteen_bits_is_rounded_and_buffers_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let saver = Saver::create(folder.path(), 1, 0, 1).unwrap();
    saver.prepare().unwrap();
    // The largest number of f16, a third, and what f16 cannot hold.
    let piece = |name: &str, kind, values: &[f32]| Piece {
        tensor: TensorSpec::new(name, kind, [values.len()], F32),
        start: 0,
        bytes: values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
    };
    let third = 1.0_f32 / 3.0;
    let pieces = [
        piece("bn.running_mean", Kind::Buffer, &[third]),
        piece("large", Kind::Parameter, &[65504.0, third]),
        piece("larger", Kind::Parameter, &[1e5]),
    ];
    saver.write(&pieces[..2]).unwrap();
    saver
        .publish(&State {
            step: 1,
            ..State::default()
        })
        .unwrap();
    let path = folder.path().join("model.safetensors");
    let wanted = |dtype| Export {
        dtype: Some(dtype),
        ..PLAIN
    };
    let file = |dtype| {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        export(&checkpoint, &path, &description(), wanted(dtype)).map(|()| fs::read(&path).unwrap())
    };
    let bytes = file(F16).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let large = read.tensor("large").unwrap();
    // 0x7bff is 65504, 0x3555 the nearest to a third.
    assert_eq!(
        (large.dtype(), large.data()),
        (Dtype::F16, &[0xff, 0x7b, 0x55, 0x35][..])
    );
    let mean = read.tensor("bn.running_mean").unwrap();
    assert_eq!(
        (mean.dtype(), mean.data()),
        (Dtype::F32, &third.to_le_bytes()[..])
    );
    let source = Source::open(&path).unwrap();
    let values = source.read_f32("large", Kind::Parameter, 0..2).unwrap();
    assert_eq!(values, [65504.0, 0.333_251_95]);
    assert_eq!(
        source.read_f32("large", Kind::Parameter, 1..2).unwrap(),
        values[1..]
    );

    saver.prepare().unwrap();
    saver.write(&pieces).unwrap();
    saver
        .publish(&State {
            step: 1,
            ..State::default()
        })
        .unwrap();
    let message = file(F16).unwrap_err().to_string();
    assert!(
        message.contains("parameter `larger` has values that are too large for f16"),
        "{message}"
    );
    assert_eq!(
        fs::read(&path).unwrap(),
        bytes,
        "the old file is still there"
    );
    let bytes = file(Bf16).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    // 1e5 in bf16 is 99840.
    assert_eq!(
        read.tensor("larger").unwrap().data(),
        (99840.0_f32.to_bits() >> 16).to_le_bytes()[..2].as_ref()
    );
}

#[test]
fn a_damaged_model_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = [buffer(), TensorSpec::new("w", Kind::Parameter, [2], F32)];
    let fetch = |spec: &TensorSpec| Ok::<_, Error>(Cow::from(values(spec)));
    ModelFile::write(&path, &description(), &tensors, fetch).unwrap();
    let sound = fs::read(&path).unwrap();
    let mut flipped = sound.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&path, &flipped).unwrap();
    let message = ModelFile::open(&path)
        .unwrap()
        .read("w", Kind::Parameter, 0..1)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("model.safetensors is damaged") && message.contains("parameter `w`"),
        "{message}"
    );
    fs::write(&path, &sound[..sound.len() - 1]).unwrap();
    let message = ModelFile::open(&path).unwrap_err().to_string();
    assert!(message.contains("is no safetensors file"), "{message}");
    let mut bytes = sound.clone();
    let at = find(&sound, br#""terrashard.version":"1""#) + 22;
    bytes[at] = b'2';
    fs::write(&path, &bytes).unwrap();
    let message = ModelFile::open(&path).unwrap_err().to_string();
    assert!(message.contains("format version 2"), "{message}");

    let plain = safetensors::serialize::<&str, safetensors::tensor::TensorView<'_>, _>([], None);
    fs::write(&path, plain.unwrap()).unwrap();
    let message = ModelFile::open(&path).unwrap_err().to_string();
    assert!(
        message.contains("has no \"terrashard.version\""),
        "{message}"
    );
}

fn find(bytes: &[u8], text: &[u8]) -> usize {
    bytes
        .windows(text.len())
        .position(|window| window == text)
        .unwrap()
}

#[test]
fn a_failed_export_leaves_the_old_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, "old").unwrap();
    let w = |name: &str| TensorSpec::new(name, Kind::Parameter, [2], F32);
    let check = |tensors: &[TensorSpec], expected: &str| {
        let fetch = |spec: &TensorSpec| match spec.name.as_str() {
            "lost" => Err(std::io::Error::other("disk on fire")),
            "short" => Ok(Cow::from(vec![0; 7])),
            _ => Ok(Cow::from(vec![0; 8])),
        };
        let message = ModelFile::write(&path, &description(), tensors, fetch)
            .unwrap_err()
            .to_string();
        assert!(message.contains(expected), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    };
    check(
        &[w("a"), w("lost")],
        "failed to fetch parameter `lost`: disk on fire",
    );
    check(
        &[w("a"), w("short")],
        "parameter `short`: 8 bytes are to be written or read, got 7",
    );
    check(
        &[w("a"), w("a")],
        "parameter `a`: a model file holds each name once",
    );
    check(&[w("__metadata__")], "needs a key of its own");
    check(
        &[w("a"), w("b").tied_to("c")],
        "parameter `b`: its owner must be there",
    );
    check(
        &[TensorSpec::new("a", Kind::M, [2], F32)],
        "m `a`: a model file holds parameters and buffers only",
    );
}
