//! The binary on the shipped scene with a model that trains in seconds.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of the shipped scene and label.
pub fn water() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/water")
}

/// The shipped image.
pub fn scene() -> PathBuf {
    water().join("S2A_T33UUU_20170216_L1C_6band.tif")
}

/// The shipped label at 2 m.
pub fn label() -> PathBuf {
    water().join("osm_water_mask_2m_ignore255.tif")
}

/// Writes a configuration into `dir` and returns its path. The model is tiny; 12 samples a step.
pub fn configuration(dir: &Path, image: &Path, mask: &Path) -> PathBuf {
    let path = dir.join("tiny.toml");
    let text = format!(
        r#"
[model]
dims = [8, 16, 20, 32]
depths = [1, 1, 1, 1]
heads = [1, 2, 5, 8]
head_channels = 32
superres = false

[data]
scenes = [{{ image = {image:?}, mask = {mask:?} }}]
chip = 32
stride = 32

[train]
steps = 10
global_batch = 12
lr = 1e-3
clip_norm = 1.0
loss = "bce_dice"

[checkpoint]
keep_last = 9
"#
    );
    std::fs::write(&path, text).expect("the folder is writable");
    path
}

/// Runs the binary.
pub fn terrashard(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrashard"));
    command.args(arguments).output().expect("the binary starts")
}

/// Runs the binary, which has to succeed, and returns its standard output.
pub fn succeed(arguments: &[&str]) -> String {
    let output = terrashard(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "terrashard {arguments:?}: {errors}"
    );
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}
