//! Where a result may be written: never over something that the same command reads, nor over a device.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Refuses `output`, the value of the flag `key`, if it is one of the `read` files by whatever name, lies inside a run or checkpoint that is read, or
/// exists and is no regular file.
///
/// # Errors
/// [`Error::InvalidValue`] that names the output.
pub(crate) fn check<'a>(
    key: &str,
    output: &Path,
    read: impl IntoIterator<Item = &'a Path>,
) -> Result<()> {
    let refuse = |expected: &str| Err(Error::invalid(key, output.display(), expected));
    if let Ok(metadata) = fs::metadata(output)
        && !metadata.is_file()
    {
        return refuse("a file, or a name that is not taken");
    }
    let place = place(output);
    for path in read {
        let Ok(path) = fs::canonicalize(path) else {
            continue;
        };
        if place == path {
            return refuse("another file than those that are read");
        }
        // Results may lie in a run directory, beside what it holds.
        let checkpoints = path.join("checkpoints");
        let held = if checkpoints.is_dir() {
            checkpoints
        } else {
            path
        };
        if place.starts_with(held) {
            return refuse("a file outside the checkpoint that is read");
        }
    }
    Ok(())
}

/// Whether two results would lie in one file.
pub(crate) fn same(a: &Path, b: &Path) -> bool {
    place(a) == place(b)
}

/// The path without links and dots, as far as it exists.
fn place(output: &Path) -> PathBuf {
    if let Ok(whole) = fs::canonicalize(output) {
        return whole;
    }
    let name = output.file_name().unwrap_or_default();
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    match fs::canonicalize(folder.unwrap_or(Path::new("."))) {
        Ok(folder) => folder.join(name),
        Err(_) => output.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_never_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("run/checkpoints/step-000001")).unwrap();
        for name in [
            "in.tif",
            "model.safetensors",
            "run/checkpoints/step-000001/manifest.json",
        ] {
            fs::write(at(name), "x").unwrap();
        }
        let read = [at("in.tif"), at("run"), at("model.safetensors")];
        let check = |output: &str, allowed: bool| {
            let result = super::check("--output", &at(output), read.iter().map(PathBuf::as_path));
            assert_eq!(result.is_ok(), allowed, "{output}: {result:?}");
        };
        check("out.tif", true);
        check("new/out.tif", true);
        check("run/out.tif", true);
        check("in.tif", false);
        check("run/../in.tif", false);
        check("model.safetensors", false);
        check("run/checkpoints/step-000001/manifest.json", false);
        check("run/checkpoints/step-000001/new.tif", false);
        check("run", false);
        assert!(super::check("--output", Path::new("/dev/null"), []).is_err());
    }
}
