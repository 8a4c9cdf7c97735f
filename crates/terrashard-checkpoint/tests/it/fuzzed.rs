//! Inputs that fuzzing has kept: each reads or is refused in one line, within what the files hold, and none panics.

use std::path::Path;

use crate::{checkpoints, kept};

fn each(name: &str, attempt: impl Fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    assert!(
        kept::each(&fuzz, &[name], attempt) > 0,
        "{name} holds inputs"
    );
}

#[test]
fn manifests_read_or_are_refused() {
    each("manifest", checkpoints::manifest);
}

#[test]
fn pointers_name_the_step_or_are_refused() {
    each("pointer", checkpoints::pointer);
}

#[test]
fn safetensors_files_read_or_are_refused() {
    each("safetensors", checkpoints::safetensors);
}

#[test]
fn pickles_read_or_are_refused() {
    each("pickle", checkpoints::pickle);
}
