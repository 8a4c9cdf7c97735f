//! `cargo xtask sanitize`: what can be run under the address sanitizer, which reads and writes past the end of an array do not pass, nor of
//! memory that was given back.
//!
//! - The kernels of the host optimizer, with the large pages that they work on, which is all that is unsafe in our crates beside calls of
//!   LibTorch, NCCL and the driver. What they are built from needs no burn, so they are built in a package of their own below `target/`.
//! - All tests of the crates that read files of strangers, hostile ones among them. These are safe by themselves; the decoders below them are
//!   not.
//!
//! Not covered: calls into C++ and CUDA (`terrashard-torch`, `nccl`), whose libraries were built without it, and MPI, for the same reason.

use std::fs;
use std::os::unix::fs::symlink;

use crate::error::{Error, Result};
use crate::step::Step;
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this part.
    #[arg(value_enum)]
    part: Option<Part>,
}

/// What is run.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Part {
    /// The kernels of the host optimizer.
    Kernels,
    /// The tests of the crates that read files.
    Readers,
}

/// What the kernels depend on.
const DEPENDENCIES: [&str; 5] = ["bytemuck", "half", "pulp", "rayon", "rustix"];

/// Crates whose tests read files, and need no burn.
const READERS: [&str; 4] = [
    "terrashard-layout",
    "terrashard-checkpoint",
    "terrashard-raster",
    "terrashard-data",
];

pub(crate) fn run(args: &Args) -> Result<()> {
    match args.part {
        Some(Part::Kernels) => kernels(),
        Some(Part::Readers) => readers(),
        None => kernels().and_then(|()| readers()),
    }
}

fn readers() -> Result<()> {
    let packages = READERS.iter().flat_map(|package| ["-p", package]);
    sanitized("readers")?
        .args(["--lib", "--tests"])
        .args(packages)
        .dir(workspace::root())
        .run()
}

/// Tests, with the sanitizer, built below a folder of this name.
fn sanitized(folder: &str) -> Result<Step> {
    let target = workspace::target_dir()?.join("sanitize").join(folder);
    // The sanitizer is an option of nightly compilers; without a target, build scripts would be built with it too.
    let step = Step::new("rustup", "rustup")
        .args(["run", "nightly", "cargo", "test"])
        .args([
            "--target",
            &format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
        ])
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", target.display().to_string());
    Ok(step)
}

fn kernels() -> Result<()> {
    let root = workspace::root();
    let folder = workspace::target_dir()?.join("sanitize");
    let sources = folder.join("src");
    fs::create_dir_all(&sources).map_err(|source| Error::file(&sources, source))?;
    for name in ["host", "host.rs"] {
        let (ours, link) = (
            root.join("crates/terrashard-zero/src").join(name),
            sources.join(name),
        );
        if link.symlink_metadata().is_err() {
            symlink(&ours, &link).map_err(|source| Error::file(&link, source))?;
        }
    }
    let workspace = root.join("Cargo.toml");
    let text = fs::read_to_string(&workspace).map_err(|source| Error::file(&workspace, source))?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|source| Error::file(&path, source))
    };
    write("src/lib.rs", "pub mod host;\n")?;
    write("Cargo.toml", &manifest(&text))?;
    let lock = root.join("Cargo.lock");
    fs::copy(&lock, folder.join("Cargo.lock")).map_err(|source| Error::file(&lock, source))?;
    sanitized("target")?.arg("--lib").dir(folder).run()
}

/// A package with the dependencies as the workspace has them, `bytemuck` with what burn asks of it.
fn manifest(workspace: &str) -> String {
    let is_needed = |line: &&str| {
        let name = line.split(' ').next().unwrap_or_default();
        DEPENDENCIES.contains(&name)
    };
    let dependencies: Vec<String> = workspace
        .lines()
        .filter(is_needed)
        .map(|line| line.replace("[\"derive\"]", "[\"derive\", \"extern_crate_alloc\"]"))
        .collect();
    format!(
        "[package]\nname = \"sanitized\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n{}\n",
        dependencies.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_those_of_the_workspace() {
        let root = fs::read_to_string(workspace::root().join("Cargo.toml")).unwrap();
        let manifest = manifest(&root);
        for name in DEPENDENCIES {
            let lines = manifest
                .lines()
                .filter(|line| line.starts_with(&format!("{name} = ")));
            assert_eq!(lines.count(), 1, "{name}: {manifest}");
        }
        assert!(manifest.contains("extern_crate_alloc"), "{manifest}");
    }
}
