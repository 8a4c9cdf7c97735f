//! The file of a configuration.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// A configuration longer than this is none.
const LONGEST: u64 = 16 << 20;

/// The text of a configuration. Whatever else the path leads to is not read into memory.
pub(crate) fn text(path: &Path) -> Result<String> {
    let mut text = String::new();
    let unlike = |message: &str| Error::Syntax {
        path: path.into(),
        message: message.into(),
    };
    // A pipe would be waited for.
    if !path.metadata().map_err(Error::read(path))?.is_file() {
        return Err(unlike("it is no regular file"));
    }
    let file = File::open(path).map_err(Error::read(path))?;
    file.take(LONGEST + 1)
        .read_to_string(&mut text)
        .map_err(Error::read(path))?;
    if text.len() as u64 > LONGEST {
        return Err(unlike(
            "it is longer than 16 MiB, which no configuration is",
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [&pipe, folder.path()] {
            let error = text(path).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{error}");
        }
    }
}
