//! Files that other projects wrote: read as they are, damaged ones refused.

use std::path::{Path, PathBuf};

use terrashard_checkpoint::{Error, ForeignFile};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(name)
}

/// A copy of a file after a change of its bytes, in a folder that lives as long as it is held.
fn changed(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut bytes = std::fs::read(fixture(name)).expect("the file is shipped");
    change(&mut bytes);
    let path = folder.path().join("changed.pt");
    std::fs::write(&path, bytes).expect("written");
    (folder, path)
}

#[test]
fn a_file_of_torch_has_the_values_that_were_saved() {
    // The same weights stand in both files, in rows of other tensors.
    let torch = ForeignFile::open(fixture("hf_import/rgb/nvlabs_segmentor.pt")).expect("opens");
    let hf = ForeignFile::open(fixture("hf_import/rgb/model.safetensors")).expect("opens");
    let kv = torch
        .read("backbone.block2.1.attn.kv.weight")
        .expect("read");
    let part = |name: &str| {
        let name = format!("segformer.encoder.block.1.1.attention.self.{name}.weight");
        hf.read(&name).expect("read")
    };
    assert_eq!(kv, [part("key"), part("value")].concat());
    let shapes: Vec<_> = torch
        .tensors()
        .filter(|(name, _)| name.ends_with("linear_fuse.conv.weight"))
        .collect();
    assert_eq!(
        shapes,
        [("decode_head.linear_fuse.conv.weight", &[32, 128, 1, 1][..])]
    );
    // A count of batches is a whole number, which no model here has.
    let error = torch.read("decode_head.linear_fuse.bn.num_batches_tracked");
    let error = error.expect_err("no float type").to_string();
    assert!(
        error.ends_with("`decode_head.linear_fuse.bn.num_batches_tracked` is of no float type"),
        "{error}"
    );
    assert!(matches!(torch.read("nothing"), Err(Error::Foreign { .. })));
}

#[test]
fn every_truncation_is_an_error() {
    let length = std::fs::metadata(fixture("hf_import/rgb/nvlabs_mit.pt"))
        .expect("shipped")
        .len();
    for end in [
        0,
        1,
        2,
        3,
        50,
        1000,
        20_000,
        length / 2,
        length - 23,
        length - 1,
    ] {
        let (_folder, path) = changed("hf_import/rgb/nvlabs_mit.pt", |bytes| {
            bytes.truncate(end as usize);
        });
        assert!(ForeignFile::open(&path).is_err(), "cut at {end}");
    }
}

#[test]
fn no_changed_byte_of_the_pickle_is_a_panic() {
    // The pickle is the first entry; a changed one may be another valid one.
    for at in (0..14_000).step_by(61) {
        let (_folder, path) = changed("single/upstream.pt", |bytes| bytes[at] ^= 0x55);
        let Ok(file) = ForeignFile::open(&path) else {
            continue;
        };
        let names: Vec<String> = file.tensors().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            drop(file.read(&name));
        }
    }
}

#[test]
fn torch_s_old_format_and_other_files_are_named() {
    let check = |content: &[u8], expected: &str| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.pt");
        std::fs::write(&path, content).expect("written");
        let error = ForeignFile::open(&path).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(
        b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9",
        "format of before version 1.6",
    );
    check(b"PK\x05\x06 and nothing more", "zip directory is damaged");
    check(b"hello world", "is no safetensors file");
}

/// A safetensors file of one tensor, its header filled up with blanks to this length.
fn with_header(length: usize) -> Vec<u8> {
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (length as u64).to_le_bytes().to_vec();
    bytes.extend(format!("{header:<length$}").bytes());
    bytes.extend(1.5f32.to_le_bytes());
    bytes
}

#[test]
fn a_header_of_any_length_is_one_of_safetensors() {
    // Lengths whose first bytes are those of a zip file or of a pickle.
    for length in [0x80, 0x180, u16::from_le_bytes(*b"PK").into()] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, with_header(length)).expect("written");
        let file = ForeignFile::open(&path).expect("opens");
        assert_eq!(file.read("a").expect("read"), [1.5], "{length}");
    }
}

#[test]
fn a_tensor_without_its_values_is_named() {
    // The directory's name of one entry becomes that of none.
    let entry = b"nvlabs_mit/data/3PK";
    let (_folder, path) = changed("hf_import/rgb/nvlabs_mit.pt", |bytes| {
        let mut places = bytes.windows(entry.len());
        let at = places.position(|window| window == entry).expect("there");
        bytes[at] = b'm';
    });
    let file = ForeignFile::open(&path).expect("opens");
    let error = file.read("block1.0.attn.kv.weight");
    let error = error.expect_err("no values").to_string();
    let (name, entry) = (path.display(), "its entry `nvlabs_mit/data/3` is missing");
    assert_eq!(
        error,
        format!(
            "failed to read {name} as a checkpoint of another project: its tensor `block1.0.attn.kv.weight` cannot be read: {entry}"
        )
    );
}
