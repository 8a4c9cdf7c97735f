//! The file of a configuration.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// A configuration longer than this is none.
const LONGEST: u64 = 16 << 20;

/// The text of a configuration. Whatever else the path leads to is not read into memory.
pub(super) fn text(path: &Path) -> Result<String> {
    let mut text = String::new();
    let file = File::open(path).map_err(Error::read(path))?;
    file.take(LONGEST + 1)
        .read_to_string(&mut text)
        .map_err(Error::read(path))?;
    if text.len() as u64 > LONGEST {
        return Err(Error::Syntax {
            path: path.into(),
            message: "it is longer than 16 MiB, which no configuration is".into(),
        });
    }
    Ok(text)
}
