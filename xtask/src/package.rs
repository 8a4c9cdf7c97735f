//! `cargo xtask package`: the archives that would be published, and whether all that they need is in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::step::Step;
use crate::workspace::{cargo, root, target_dir};

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Build each crate from its archive, too: takes as long as building everything anew, and needs the registry
    #[arg(long)]
    build: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let names = published()?;
    let mut package = cargo(&["package", "--allow-dirty"]);
    for name in &names {
        package = package.args(["--package", name]);
    }
    if !args.build {
        // What the crates depend on was downloaded to build them.
        package = package.args(["--no-verify", "--offline"]);
    }
    package.run()?;
    let target = target_dir()?.join("package");
    for name in &names {
        let archive = archive(&target, name)?;
        let list = Step::new("tar", "tar")
            .args(["--list", "--gzip", "--file"])
            .arg(&archive)
            .capture()?;
        let packaged: BTreeSet<&str> = list
            .lines()
            .filter_map(|line| Some(line.split_once('/')?.1))
            .collect();
        let files = Step::new("git", "git")
            .args(["ls-files"])
            .dir(root().join("crates").join(name))
            .capture()?;
        if let Some(missing) = files
            .lines()
            .find(|file| needed(file) && !packaged.contains(file))
        {
            return Err(Error::content(
                archive.display(),
                format!("lacks {missing}"),
            ));
        }
        println!("{name}: {} files", packaged.len());
    }
    Ok(())
}

/// What a crate is built, read and tried out from.
fn needed(file: &str) -> bool {
    file.starts_with("src/")
        || file.starts_with("examples/")
        || ["Cargo.toml", "README.md", "build.rs"].contains(&file)
}

/// Names of the folders in `crates/`.
fn published() -> Result<Vec<String>> {
    let folder = root().join("crates");
    let entries = fs::read_dir(&folder).map_err(|source| Error::file(&folder, source))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| folder.join(name).join("Cargo.toml").is_file())
        .collect();
    names.sort();
    Ok(names)
}

/// The newest archive of a crate, of whatever version.
fn archive(target: &Path, name: &str) -> Result<std::path::PathBuf> {
    let entries = fs::read_dir(target).map_err(|source| Error::file(target, source))?;
    let archives = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let file = entry.file_name().into_string().ok()?;
        let version = file
            .strip_prefix(name)?
            .strip_prefix('-')?
            .strip_suffix(".crate")?;
        let is_version = version.starts_with(|first: char| first.is_ascii_digit());
        Some((
            is_version.then(|| entry.metadata().ok()?.modified().ok())??,
            entry.path(),
        ))
    });
    let newest = archives.max();
    newest
        .map(|(_, path)| path)
        .ok_or_else(|| Error::content(target.display(), format!("has no archive of {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_found_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["a-0.1.0.crate", "a-b-0.1.0.crate", "a-0.1.0.txt"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        assert_eq!(
            archive(dir.path(), "a").unwrap(),
            dir.path().join("a-0.1.0.crate")
        );
        assert!(
            archive(dir.path(), "c")
                .unwrap_err()
                .to_string()
                .contains("no archive of c")
        );
    }

    #[test]
    fn sources_are_needed_and_tests_are_not() {
        for (file, expected) in [
            ("src/a/b.rs", true),
            ("src/shim.cc", true),
            ("build.rs", true),
            ("tests/a.rs", false),
            ("fuzz/a.rs", false),
        ] {
            assert_eq!(needed(file), expected, "{file}");
        }
    }
}
