//! What a configuration may say but no run can do yet. Each entry is deleted when the part behind it works.

use toml::{Table, Value};

use crate::error::{Error, Result};

/// Options whose names are settled but that no section holds yet, each with the value that means "off" and is accepted.
const LATER: [(&str, &str); 2] = [("checkpoint.keep_best", "0"), ("checkpoint.async", "false")];

/// Refuses options that no section holds yet, and takes them out of the table where they are off.
pub(super) fn strip(table: &mut Table) -> Result<()> {
    for (key, off) in LATER {
        let (section, name) = key.split_once('.').expect("each has a section");
        let Some(section) = table.get_mut(section).and_then(Value::as_table_mut) else {
            continue;
        };
        let Some(value) = section.get(name) else {
            continue;
        };
        if value.to_string() != off {
            return Err(Error::NotSupported {
                key: key.into(),
                remedy: format!("leave it out, or write `{off}`"),
            });
        }
        section.remove(name);
    }
    Ok(())
}
