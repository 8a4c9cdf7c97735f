//! Which keys a configuration may hold, read off the section structs themselves.

use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use toml::{Table, Value};

use terrashard_data::{Jitter, Scaling, Selection};
use terrashard_models::ModelConfig;

use super::sections::{
    CheckpointSection, Config, DataSection, HighresSection, LogSection, SceneEntry,
};
use super::train::{GroupEntry, TrainSection};
use super::zero::ZeroSection;
use crate::error::{Error, Result};

/// The sections, each a table.
pub(super) const SECTIONS: [&str; 6] = ["model", "data", "train", "zero", "checkpoint", "log"];

/// Refuses unknown keys.
pub(super) fn check(table: &Table, path: &Path) -> Result<()> {
    walk("", table, &known(), path)
}

/// Every key with its sections, as dotted paths.
fn known() -> Vec<String> {
    let mut keys: Vec<String> = fields::<Config>()
        .iter()
        .map(|name| name.to_string())
        .collect();
    let nested: [(&str, &[&str]); 13] = [
        ("model", fields::<ModelConfig>()),
        ("data", fields::<DataSection>()),
        ("data.scenes", fields::<SceneEntry>()),
        ("data.scaling", fields::<Scaling>()),
        ("data.highres", fields::<HighresSection>()),
        ("data.highres.scaling", fields::<Scaling>()),
        ("data.jitter", fields::<Jitter>()),
        ("data.selection", fields::<Selection>()),
        ("train", fields::<TrainSection>()),
        ("train.groups", fields::<GroupEntry>()),
        ("zero", fields::<ZeroSection>()),
        ("checkpoint", fields::<CheckpointSection>()),
        ("log", fields::<LogSection>()),
    ];
    // Written out before keys are checked.
    keys.push("model.preset".into());
    for (prefix, names) in nested {
        keys.extend(names.iter().map(|name| format!("{prefix}.{name}")));
    }
    keys
}

fn walk(prefix: &str, table: &Table, known: &[String], path: &Path) -> Result<()> {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        if !known.contains(&key) {
            return Err(Error::UnknownKey {
                path: path.into(),
                nearest: nearest(&key, known),
                key,
            });
        }
        let has_known_keys = known.iter().any(|each| {
            each.strip_prefix(&key)
                .is_some_and(|rest| rest.starts_with('.'))
        });
        match value {
            Value::Table(table) if has_known_keys => walk(&key, table, known, path)?,
            Value::Array(entries) if has_known_keys => {
                for table in entries.iter().filter_map(Value::as_table) {
                    walk(&key, table, known, path)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Names less alike than this are not worth suggesting; 1 is the same name.
const SIMILAR: f64 = 0.6;

/// The known key with the most similar last part, if it is similar at all; one in the same section wins a tie.
fn nearest(key: &str, known: &[String]) -> Option<String> {
    let split = |key: &str| {
        key.rsplit_once('.')
            .map_or((String::new(), key.to_string()), |(a, b)| {
                (a.into(), b.into())
            })
    };
    let (section, name) = split(key);
    let distance = |candidate: &&String| {
        let (other_section, other_name) = split(candidate);
        2 * strsim::damerau_levenshtein(&name, &other_name) + usize::from(section != other_section)
    };
    let similar =
        |other: &&String| strsim::normalized_damerau_levenshtein(&name, &split(other).1) > SIMILAR;
    known.iter().filter(similar).min_by_key(distance).cloned()
}

/// The field names that a struct's `Deserialize` asks for.
fn fields<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // It always fails: the names are all that is wanted.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(de::Error::custom("only the names are wanted"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
