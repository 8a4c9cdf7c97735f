//! Damaged, incomplete and hostile checkpoints: refused by name.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use terrashard_checkpoint::{Checkpoint, Fault, Kind, Piece, Saver, Source, TensorSpec};
use terrashard_layout::ElementType::F32;

use crate::fixture::{parameters, save, state, tensors, values};

/// Saves at 2 ranks, damages the step's folder and checks the message on opening and reading all of it.
fn check(damage: impl FnOnce(&Path), expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 7, 2);
    damage(&folder.path().join("step-000007"));
    let message = Checkpoint::open(folder.path())
        .and_then(|checkpoint| checkpoint.verify())
        .unwrap_err()
        .to_string();
    assert!(message.contains(expected), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

/// Changes the manifest as JSON.
fn edit(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("manifest.json");
    let mut manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(path, manifest.to_string()).unwrap();
}

/// A tensor's entry in the manifest.
fn entry<'a>(manifest: &'a mut Value, name: &str, kind: &str) -> &'a mut Value {
    manifest["tensors"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|entry| entry["name"] == name && entry["kind"] == kind)
        .unwrap()
}

#[test]
fn a_flipped_byte_is_refused_with_file_and_tensor() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 7, 2);
    let step = folder.path().join("step-000007");
    let mut manifest: Value =
        serde_json::from_slice(&fs::read(step.join("manifest.json")).unwrap()).unwrap();
    let piece = entry(&mut manifest, "stem.weight", "v")["pieces"][1].clone();
    let path = step.join(piece["file"].as_str().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[piece["bytes"][0].as_u64().unwrap() as usize + 2] ^= 0x10;
    fs::write(&path, bytes).unwrap();

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    // The first 18 elements lie in the other rank's file.
    checkpoint.read("stem.weight", Kind::V, 0..18).unwrap();
    checkpoint.read("stem.weight", Kind::M, 0..35).unwrap();
    for message in [
        checkpoint.read("stem.weight", Kind::V, 30..31).map(|_| ()),
        checkpoint.verify().map(|_| ()),
    ]
    .map(|result| result.unwrap_err().to_string())
    {
        assert!(
            message.contains("rank-00001.safetensors is damaged")
                && message.contains("v `stem.weight`"),
            "{message}"
        );
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_or_changes_nothing() {
    // A small checkpoint, so that every byte of it can be tried.
    let folder = tempfile::tempdir().unwrap();
    let saver = Saver::create(folder.path(), 7, 0, 1).unwrap();
    saver.prepare().unwrap();
    let pieces = [("a", 1), ("b", 2)].map(|(name, byte)| Piece {
        tensor: TensorSpec::new(name, Kind::M, [3], F32),
        start: 0,
        bytes: vec![byte; 12].into(),
    });
    saver.write(&pieces).unwrap();
    saver.publish(&state(7)).unwrap();
    let expected: Vec<TensorSpec> = pieces.iter().map(|piece| piece.tensor.clone()).collect();
    for file in ["manifest.json", "rank-00000.safetensors"] {
        let path = folder.path().join("step-000007").join(file);
        let sound = fs::read(&path).unwrap();
        let mut refused = 0;
        for position in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[position] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let source = Source::open(folder.path()).and_then(|source| {
                source.require(&expected)?;
                source.verify()?;
                Ok(source)
            });
            let Ok(source) = source else {
                refused += 1;
                continue;
            };
            // Only who wrote it, and digits past a number's precision, may change unseen.
            for piece in &pieces {
                let read = source.read(&piece.tensor.name, Kind::M, 0..3).unwrap();
                assert_eq!(read, *piece.bytes, "{file} at {position}");
            }
            let Source::Checkpoint(checkpoint) = source else {
                panic!("a folder is a checkpoint");
            };
            assert_eq!(checkpoint.state(), &state(7), "{file} at {position}");
        }
        assert!(
            sound.len() - refused < 70,
            "{file}: {refused} of {} flips refused",
            sound.len()
        );
        fs::write(&path, sound).unwrap();
    }
}

#[test]
fn incomplete_checkpoints_are_refused() {
    let truncate = |folder: &Path, name: &str| {
        let bytes = fs::read(folder.join(name)).unwrap();
        fs::write(folder.join(name), &bytes[..bytes.len() * 2 / 3]).unwrap();
    };
    check(
        |folder| truncate(folder, "manifest.json"),
        "manifest.json is truncated or damaged",
    );
    check(
        |folder| fs::write(folder.join("manifest.json"), "").unwrap(),
        "manifest.json is truncated or damaged",
    );
    check(
        |folder| truncate(folder, "rank-00001.safetensors"),
        "rank-00001.safetensors has ",
    );
    check(
        |folder| fs::remove_file(folder.join("rank-00001.safetensors")).unwrap(),
        "rank-00001.safetensors is missing, it holds parameter `coarse.weight` (and 20 more)",
    );
    check(
        |folder| fs::remove_file(folder.join("manifest.json")).unwrap(),
        "latest names \"step-000007\", which is no complete checkpoint",
    );
    let nowhere = Checkpoint::open("no/such/run").unwrap_err().to_string();
    assert!(
        nowhere.contains("no checkpoint at no/such/run"),
        "{nowhere}"
    );
}

/// The names of all tensors that cannot be read, and no other tensor differs.
fn faults(damage: impl FnOnce(&Path)) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 7, 2);
    damage(&folder.path().join("step-000007"));
    let checkpoint = Checkpoint::open_damaged(folder.path()).unwrap();
    let faults = checkpoint.faults();
    for tensor in tensors() {
        if faults
            .iter()
            .any(|fault| (&fault.name, fault.kind) == (&tensor.name, tensor.kind))
        {
            continue;
        }
        let read = checkpoint.read_whole(&tensor.name, tensor.kind);
        // A tied tensor is its owner's values, which may be among the faults.
        match read {
            Ok(read) => assert!(read == values(&tensor), "{}", tensor.name),
            Err(_) => assert!(tensor.tied_to.is_some(), "{}", tensor.name),
        }
    }
    for fault in &faults {
        let read = checkpoint.read_whole(&fault.name, fault.kind);
        assert!(read.is_err(), "{} {}", fault.kind, fault.name);
    }
    let name = |fault: &Fault| format!("{} {}", fault.kind, fault.name);
    faults.iter().map(name).collect()
}

#[test]
fn all_that_is_damaged_is_named() {
    assert!(faults(|_| ()).is_empty());
    // Both shards of one tensor, and one of another.
    let flip = |step: &Path, name: &str, kind: &str, piece: usize| {
        let mut manifest: Value =
            serde_json::from_slice(&fs::read(step.join("manifest.json")).unwrap()).unwrap();
        let piece = entry(&mut manifest, name, kind)["pieces"][piece].clone();
        let path = step.join(piece["file"].as_str().unwrap());
        let mut bytes = fs::read(&path).unwrap();
        bytes[piece["bytes"][1].as_u64().unwrap() as usize - 1] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let found = faults(|step| {
        flip(step, "wide.weight", "v", 0);
        flip(step, "wide.weight", "v", 1);
        flip(step, "stem.bias", "ema", 1);
    });
    assert_eq!(found, ["ema stem.bias", "v wide.weight"]);
    // Without a rank's file nothing can be read of what it has a part of: all but what has no elements or fewer than ranks.
    let found = faults(|step| fs::remove_file(step.join("rank-00001.safetensors")).unwrap());
    assert_eq!(found.len(), 21, "{found:?}");
    assert!(found.contains(&"parameter frozen.weight".to_owned()));
    assert!(
        !found
            .iter()
            .any(|name| name.ends_with("scale") || name.ends_with("none")),
        "{found:?}"
    );
    // What lies before the end of a file that was cut is sound: all but the last, one of the narrow types.
    let found = faults(|step| {
        let path = step.join("rank-00000.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    });
    assert_eq!(found, ["parameter frozen.weight"]);
}

#[test]
fn a_newer_format_is_refused_as_such() {
    check(
        |folder| {
            edit(folder, |manifest| {
                manifest["version"] = json!(2);
                manifest["tensors"] = json!("in a way unknown today");
            });
        },
        "has format version 2, this build reads up to 1: update terrashard",
    );
    check(
        |folder| edit(folder, |manifest| manifest["format"] = json!("other")),
        "format: it must be terrashard-checkpoint",
    );
}

#[test]
fn hostile_manifests_are_refused_before_anything_is_read() {
    let edited = |change: fn(&mut Value), expected| check(|folder| edit(folder, change), expected);
    edited(
        |manifest| {
            let files = manifest["files"].as_object_mut().unwrap();
            let length = files.remove("rank-00001.safetensors").unwrap();
            files.insert("../rank-00001.safetensors".into(), length);
        },
        "file \"../rank-00001.safetensors\": it must be a plain name",
    );
    edited(
        |manifest| {
            let files = manifest["files"].as_object_mut().unwrap();
            files.insert("/etc/passwd".into(), json!(1));
        },
        "file \"/etc/passwd\": it must be a plain name",
    );
    edited(
        |manifest| {
            entry(manifest, "pair", "m")["shape"] = json!([1_u64 << 40]);
        },
        "m `pair`: no rank wrote elements 2..1099511627776",
    );
    edited(
        |manifest| {
            entry(manifest, "pair", "m")["shape"] = json!([u64::MAX, u64::MAX]);
        },
        "m `pair`: it must have a name, and a shape whose bytes can be counted",
    );
    // Many pieces over the same bytes: a small file that would be read as a huge tensor.
    edited(
        |manifest| {
            let pieces = entry(manifest, "pair", "m")["pieces"].clone();
            entry(manifest, "pair", "v")["pieces"] = pieces;
        },
        "v `pair`: no two tensors may share bytes of a file",
    );
    edited(
        |manifest| {
            let piece = &mut entry(manifest, "pair", "m")["pieces"][0];
            piece["bytes"] = json!([1_u64 << 50, (1_u64 << 50) + 4]);
        },
        "m `pair`: its bytes must lie within the file",
    );
    edited(
        |manifest| {
            entry(manifest, "pair", "m")["pieces"][0]["hashes"] = json!([]);
        },
        "m `pair`: it must have one hash for each chunk",
    );
    edited(
        |manifest| {
            let entries = manifest["tensors"].as_array_mut().unwrap();
            entries.push(entries[3].clone());
        },
        "it must be listed once",
    );
    edited(
        |manifest| {
            entry(manifest, "head.weight", "parameter")["tied_to"] = json!("head.weight");
        },
        "parameter `head.weight`: a tied tensor",
    );
    edited(
        |manifest| manifest["state"]["cursor"] = json!(3),
        "state: it must have the hash it was written with",
    );
    edited(
        |manifest| {
            entry(manifest, "pair", "m")["pieces"][0]["key"] = json!("m/other@0");
        },
        "m `pair`: the file's header must place it as the manifest does",
    );
}

#[test]
fn a_renamed_parameter_is_told_by_both_names() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 7, 2);
    edit(&folder.path().join("step-000007"), |manifest| {
        entry(manifest, "pair", "parameter")["name"] = json!("couple");
    });
    let source = Source::open(folder.path()).unwrap();
    let expected: Vec<TensorSpec> = parameters()
        .iter()
        .map(|parameter| TensorSpec::of(parameter, Kind::Parameter))
        .collect();
    let message = source.require(&expected).unwrap_err().to_string();
    assert!(
        message.ends_with("8 match; missing: parameter `pair`; unexpected: parameter `couple`"),
        "{message}"
    );
    let matching = source.matching(&expected);
    assert_eq!(matching.matched.len(), 8);
}
