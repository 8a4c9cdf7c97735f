//! What a configuration may say but no run can do yet. Each entry is deleted when the part behind it works.
//!
//! `plan` computes with all of it; `fit`, `test` and `predict` refuse it.

use terrashard_layout::{Offload, Stage};
use toml::{Table, Value};

use super::Config;
use super::train::{BatchNormStatistics, Precision};
use crate::error::{Error, Result};

/// Options whose names are settled but that no section holds yet, each with the value that means "off" and is accepted.
const LATER: [(&str, &str); 3] = [
    ("train.deterministic", "true"),
    ("checkpoint.keep_best", "0"),
    ("checkpoint.async", "false"),
];

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

impl Config {
    /// Refuses what can be planned but not run yet.
    ///
    /// # Errors
    /// [`Error::NotSupported`] names the first such key.
    pub fn check_runnable(&self) -> Result<()> {
        let (train, zero) = (&self.train, &self.zero);
        let checks = [
            (
                zero.stage != Stage::Three,
                "zero.stage = 3",
                "use stage 0, 1 or 2",
            ),
            (
                zero.offload == Offload::None,
                "zero.offload",
                "write `offload = \"none\"`",
            ),
            (
                zero.recompute.keeps_all(),
                "zero.recompute",
                "write `recompute = \"keep\"`",
            ),
            (zero.prefetch == 0, "zero.prefetch", "write `prefetch = 0`"),
            (
                zero.shard_group.is_none(),
                "zero.shard_group",
                "leave it out",
            ),
            (
                train.precision == Precision::Fp32,
                "train.precision",
                "write `precision = \"fp32\"`",
            ),
            (train.ema.is_none(), "train.ema", "leave it out"),
            (
                train.batch_norm == BatchNormStatistics::Sync,
                "train.batch_norm",
                "write `batch_norm = \"sync\"`",
            ),
        ];
        match checks.into_iter().find(|(works, ..)| !works) {
            None => Ok(()),
            Some((_, key, remedy)) => Err(Error::NotSupported {
                key: key.into(),
                remedy: remedy.into(),
            }),
        }
    }
}
