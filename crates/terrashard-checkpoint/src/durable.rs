//! File operations whose result survives a crash: what returned `Ok` is on the disk.
//!
//! Every operation first passes [`crash_point`], where tests end a save as a kill would.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Turns a system error into ours, for `map_err`.
pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    crash_point(path)?;
    let folder = File::open(path).map_err(io("open", path))?;
    folder.sync_all().map_err(io("flush", path))
}

/// Creates a folder with its parents, durably.
pub(crate) fn create_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = parent(path);
    create_folder(parent)?;
    crash_point(path)?;
    match fs::create_dir(path) {
        Ok(()) => sync_folder(parent),
        // Another rank may have been quicker.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(io("create", path)(error)),
    }
}

/// Renames within one folder, durably.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    crash_point(to)?;
    fs::rename(from, to).map_err(io("rename to", to))?;
    sync_folder(parent(to))
}

/// Removes a folder and all in it, or does nothing where there is none. File by file: a death on the way leaves
/// some of them.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io("list", path))?,
    };
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(io("list", path))?;
    paths.sort_unstable();
    for path in paths.iter().filter(|path| path.is_file()) {
        remove_file(path)?;
    }
    crash_point(path)?;
    // Whatever else somebody put there.
    fs::remove_dir_all(path).map_err(io("remove", path))
}

/// Removes a file, or does nothing where there is none.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    crash_point(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Writes a file and flushes it to the disk. The folder's entry is the caller's to sync.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    crash_point(path)?;
    let mut file = File::create(path).map_err(io("create", path))?;
    // In two halves, so that a test can die between them.
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    file.write_all(head).map_err(io("write", path))?;
    crash_point(path)?;
    file.write_all(tail).map_err(io("write", path))?;
    crash_point(path)?;
    file.sync_all().map_err(io("flush", path))
}

/// Replaces a file at once: readers see the old one or the new one, whatever `write` does.
pub(crate) fn replace_file(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let temporary = temporary(path);
    write(&temporary)
        .and_then(|()| rename(&temporary, path))
        .inspect_err(|_| {
            // Best effort: the error that is returned matters more. A crash leaves the file, the next
            // replacement overwrites it.
            let _ = remove_file(&temporary);
        })
}

/// Where the replacement of a file grows: beside it, hidden.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// The folder that holds a path; the current one for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Where tests end a save as a kill would; nothing in a build for use.
pub(crate) fn crash_point(path: &Path) -> Result<()> {
    #[cfg(test)]
    crate::crash::point(path)?;
    #[cfg(feature = "faults")]
    crate::faults::point(path)?;
    #[cfg(not(any(test, feature = "faults")))]
    let _ = path;
    Ok(())
}
