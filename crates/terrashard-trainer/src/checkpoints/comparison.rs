//! `ckpt diff`: what two checkpoints or exported files do not have in common.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};
use terrashard_checkpoint::{Source, TensorSpec};

use super::neither;
use crate::error::Result;

/// Elements that are compared at a time.
const AT_A_TIME: usize = 1 << 20;

/// How two sources compare.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Tensors with the same values, bit by bit.
    pub equal: usize,
    /// Tensors that only the first has, as kind and name.
    pub only_first: Vec<String>,
    /// Tensors that only the second has.
    pub only_second: Vec<String>,
    /// Tensors of the same name that differ.
    pub changed: Vec<Changed>,
    /// What else they say differently, by key: both values.
    pub state: Map<String, Value>,
}

/// A tensor that is not the same in both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Changed {
    /// Kind and name.
    pub tensor: String,
    /// Shape and element type of both, where those differ.
    pub form: Option<[String; 2]>,
    /// The largest absolute difference of an element.
    pub max: Option<f64>,
    /// The norm of the difference relative to that of the first.
    pub relative: Option<f64>,
}

impl Comparison {
    /// In how many places they differ.
    pub fn differences(&self) -> usize {
        let tensors = self.only_first.len() + self.only_second.len() + self.changed.len();
        tensors + self.state.len()
    }
}

/// Compares two runs' checkpoints in force, two checkpoints or two exported files. Values are compared bit by bit where they
/// have one element type.
///
/// # Errors
/// [`crate::Error::Checkpoint`] if either is damaged or missing.
pub fn compare(first: &Path, second: &Path) -> Result<Comparison> {
    let sources = [Source::open(first)?, Source::open(second)?];
    let [first, second] = &sources;
    let label = |spec: &TensorSpec| format!("{} `{}`", spec.kind, spec.name);
    let lacking = |of: &Source, other: &Source| -> Vec<String> {
        let tensors = of.tensors().into_iter();
        let lacks =
            tensors.filter(|spec| !other.tensors().iter().any(|theirs| is_same(theirs, spec)));
        lacks.map(label).collect()
    };
    let mut found = Comparison {
        equal: 0,
        only_first: lacking(first, second),
        only_second: lacking(second, first),
        changed: Vec::new(),
        state: state(first, second)?,
    };
    for ours in first.tensors() {
        let theirs = second
            .tensors()
            .into_iter()
            .find(|theirs| is_same(theirs, ours));
        let Some(theirs) = theirs else { continue };
        let form = |spec: &TensorSpec| format!("{:?} {}", spec.shape, spec.dtype);
        let forms = (form(ours) != form(theirs)).then(|| [form(ours), form(theirs)]);
        let distance = match ours.shape == theirs.shape {
            true => Distance::of(first, second, ours)?,
            false => None,
        };
        match (&forms, &distance) {
            (None, None) => found.equal += 1,
            _ => found.changed.push(Changed {
                tensor: label(ours),
                form: forms,
                max: distance.as_ref().map(|distance| distance.max),
                relative: distance.map(|distance| distance.relative),
            }),
        }
    }
    Ok(found)
}

fn is_same(a: &TensorSpec, b: &TensorSpec) -> bool {
    (&a.name, a.kind) == (&b.name, b.kind)
}

/// How far two tensors are apart.
struct Distance {
    max: f64,
    relative: f64,
}

impl Distance {
    /// None where all values are the same.
    fn of(first: &Source, second: &Source, spec: &TensorSpec) -> Result<Option<Self>> {
        let (mut max, mut squares, mut norm, mut equal) = (0.0_f64, 0.0, 0.0, true);
        for start in (0..spec.numel()).step_by(AT_A_TIME) {
            let interval = start..spec.numel().min(start + AT_A_TIME);
            let read = |source: &Source| source.read_f64(&spec.name, spec.kind, interval.clone());
            for (ours, theirs) in read(first)?.into_iter().zip(read(second)?) {
                equal &= ours.to_bits() == theirs.to_bits();
                let apart = (ours - theirs).abs();
                // What is no number must not pass for small.
                max = if apart.is_nan() && ours.to_bits() != theirs.to_bits() {
                    f64::INFINITY
                } else {
                    max.max(apart)
                };
                squares += apart * apart;
                norm += ours * ours;
            }
        }
        let relative = match squares {
            0.0 => 0.0,
            _ => (squares / norm).sqrt(),
        };
        Ok((!equal).then_some(Self { max, relative }))
    }
}

/// What both say beside their tensors, where it differs; the configuration by its keys.
fn state(first: &Source, second: &Source) -> Result<Map<String, Value>> {
    let (ours, theirs) = (flat(first)?, flat(second)?);
    let keys: std::collections::BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let differing = keys.into_iter().filter_map(|key| {
        let values = [ours.get(key), theirs.get(key)];
        let values = values.map(|value| value.cloned().unwrap_or(Value::Null));
        (values[0] != values[1]).then(|| (key.clone(), Value::from(values.to_vec())))
    });
    Ok(differing.collect())
}

/// What a source says, by dotted keys.
fn flat(source: &Source) -> Result<Map<String, Value>> {
    let said = match source {
        Source::Checkpoint(checkpoint) => serde_json::to_value(checkpoint.state()),
        Source::Model(file) => serde_json::to_value(file.description()),
        _ => return Err(neither(source.path())),
    };
    let mut said = said.expect("plain data is JSON");
    // As values and not as text, which one blank would change.
    let config = said.get("config").and_then(Value::as_str);
    if let Some(config) = config.and_then(|text| text.parse::<toml::Table>().ok()) {
        said["config"] = serde_json::to_value(config).unwrap_or_default();
    }
    let mut all = Map::new();
    walk("", &said, &mut all);
    Ok(all)
}

fn walk(prefix: &str, value: &Value, all: &mut Map<String, Value>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| match prefix {
            "" => walk(key, value, all),
            _ => walk(&format!("{prefix}.{key}"), value, all),
        }),
        value => {
            all.insert(prefix.to_owned(), value.clone());
        }
    }
}
