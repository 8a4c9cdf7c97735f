//! `model.preset`: the sizes of an encoder by its name.

use terrashard_models::ModelConfig;
use toml::{Table, Value};

use crate::error::{Error, Result};

/// Writes the sizes of `model.preset`, `b0` to `b5`, out where the configuration gives none of its own, and takes the key out.
///
/// # Errors
/// [`Error::Model`] for a name that there is not, [`Error::InvalidValue`] for what is no name.
pub(super) fn expand(table: &mut Table) -> Result<()> {
    let Some(model) = table.get_mut("model").and_then(Value::as_table_mut) else {
        return Ok(());
    };
    let Some(name) = model.remove("preset") else {
        return Ok(());
    };
    let Some(name) = name.as_str() else {
        return Err(Error::invalid("model.preset", name, "\"b0\" to \"b5\""));
    };
    let ModelConfig { dims, depths, .. } = ModelConfig::preset(name)?;
    for (key, sizes) in [("dims", dims), ("depths", depths)] {
        let sizes = sizes.iter().map(|size| Value::Integer(*size as i64));
        let entry = model.entry(key);
        entry.or_insert_with(|| Value::Array(sizes.collect()));
    }
    Ok(())
}
