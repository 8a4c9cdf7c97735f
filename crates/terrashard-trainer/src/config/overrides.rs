//! What the command line lays over a configuration, and which of the two an error is told of.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::typed;
use crate::error::{Error, Result};

/// Lays one `section.key=value` over a table.
pub(super) fn set(table: &mut Table, assignment: &str) -> Result<()> {
    let malformed = || {
        Error::invalid(
            "--set",
            assignment,
            "`section.key=value`, for example `zero.stage=1`",
        )
    };
    let (key, text) = assignment.split_once('=').ok_or_else(malformed)?;
    let mut parts: Vec<&str> = key.trim().split('.').collect();
    let last = parts
        .pop()
        .filter(|last| !last.is_empty())
        .ok_or_else(malformed)?;
    let mut at = table;
    for part in parts {
        let entry = at.entry(part).or_insert_with(|| Value::Table(Table::new()));
        at = entry.as_table_mut().ok_or_else(malformed)?;
    }
    at.insert(last.into(), value(text.trim()));
    Ok(())
}

/// A TOML value, or a bare word as a string: shells eat quotes, so `--set train.schedule=cosine` has to do.
fn value(text: &str) -> Value {
    match format!("value = {text}").parse::<Table>() {
        Ok(mut table) if table.len() == 1 => table.remove("value").expect("the only key"),
        _ => Value::String(text.into()),
    }
}

/// An error of a file with overrides, told of whichever of them it came with: the file alone may be right.
pub(super) fn blamed(error: Error, file: Table, path: &Path, overrides: &[String]) -> Error {
    let mut table = file;
    if typed(table.clone(), path).is_err() {
        return error;
    }
    for each in overrides {
        let source = PathBuf::from(format!("--set {each}"));
        let laid = set(&mut table, each).and_then(|()| typed(table.clone(), &source));
        if let Err(error) = laid {
            return error;
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn an_error_names_the_file_or_the_flag_that_it_stands_in() {
        let told = |extra: &str, overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
            let text = format!("data.scenes = [{{ image = \"a.tif\" }}]\n[train]\n{extra}");
            let (path, folder) = (Path::new("run.toml"), Path::new("/scenes"));
            let parsed = Config::parse(&text, path, folder, &overrides);
            parsed.unwrap_err().to_string()
        };
        let wrong = told("", &["zero.stage=1", "train.steps=many", "train.lr=1e-2"]);
        assert!(
            wrong.starts_with("failed to parse --set train.steps=many: "),
            "{wrong}"
        );
        let unknown = told("", &["train.stpes=3"]);
        assert!(
            unknown.starts_with("failed to use --set train.stpes=3: unknown key `train.stpes`"),
            "{unknown}"
        );
        // What is wrong in the file stays the file's.
        let unknown = told("stpes = 3", &["zero.stage=1"]);
        assert!(unknown.starts_with("failed to use run.toml: "), "{unknown}");
        let wrong = told("clip_norm = \"no\"", &["zero.stage=1"]);
        assert!(wrong.starts_with("failed to parse run.toml: "), "{wrong}");
    }
}
