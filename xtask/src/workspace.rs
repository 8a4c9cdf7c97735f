//! Where the workspace is, and the cargo that works on it.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::libtorch::LibTorch;
use crate::step::Step;

/// The root folder: from cargo when it runs us, else the nearest one above the current directory, else where this
/// binary was built.
pub(crate) fn root() -> PathBuf {
    let is_root = |path: &Path| path.join("crates").is_dir() && path.join("xtask").is_dir();
    let from_cargo = env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .and_then(|dir| dir.parent().map(Path::to_owned));
    let above = env::current_dir()
        .ok()
        .and_then(|dir| dir.ancestors().find(|dir| is_root(dir)).map(Path::to_owned));
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_owned);
    [from_cargo, above, built]
        .into_iter()
        .flatten()
        .find(|dir| is_root(dir))
        .unwrap_or_else(|| PathBuf::from("."))
}

/// A cargo command in the root folder.
pub(crate) fn cargo(args: &[&str]) -> Step {
    let cargo = env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    Step::new("cargo", cargo).args(args).dir(root())
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let json = cargo(&["metadata", "--format-version", "1", "--no-deps"]).capture()?;
    let metadata: serde_json::Value = serde_json::from_str(&json)
        .map_err(|error| Error::content("cargo metadata", error.to_string()))?;
    let dir = metadata["target_directory"].as_str();
    Ok(PathBuf::from(dir.ok_or_else(|| {
        Error::content("cargo metadata", "has no target_directory")
    })?))
}

/// Builds the binary `name` of any package and returns where it lies.
///
/// The build selects the whole workspace, so that features resolve as they do for the tests, and nothing is compiled
/// once more for one package alone.
pub(crate) fn build_binary(name: &str, profile: Profile) -> Result<PathBuf> {
    build(
        cargo(&["build", "--workspace", "--bin", name]),
        name,
        profile,
    )
}

/// Builds the binary `name` with features of packages of the workspace.
pub(crate) fn build_binary_with_features(
    name: &str,
    profile: Profile,
    features: &str,
) -> Result<PathBuf> {
    let step = cargo(&[
        "build",
        "--workspace",
        "--bin",
        name,
        "--features",
        features,
    ]);
    build(step, name, profile)
}

/// Builds the binary `name` with LibTorch in it.
pub(crate) fn build_binary_with(
    libtorch: &LibTorch,
    name: &str,
    profile: Profile,
) -> Result<PathBuf> {
    let step = cargo(&["build", "--workspace", "--bin", name]);
    build(with_libtorch(step, libtorch), name, profile)
}

/// The features of every build with LibTorch, GPUs included, which need nothing more to build: one set, so that burn is built
/// once for it.
const WITH_LIBTORCH: &str = "terrashard-tests/nccl,terrashard-trainer/nccl,terrashard-benches/nccl";

/// The cargo command with LibTorch in the whole workspace.
pub(crate) fn with_libtorch(step: Step, libtorch: &LibTorch) -> Step {
    libtorch.surround(step.args(["--features", WITH_LIBTORCH]))
}

fn build(step: Step, name: &str, profile: Profile) -> Result<PathBuf> {
    let (step, folder) = match profile {
        Profile::Dev => (step, "debug"),
        Profile::Release => (step.arg("--release"), "release"),
    };
    step.run()?;
    let file = format!("{name}{}", env::consts::EXE_SUFFIX);
    Ok(target_dir()?.join(folder).join(file))
}

/// How a binary is built.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// As the tests are.
    Dev,
    /// For work and for measurements.
    Release,
}
