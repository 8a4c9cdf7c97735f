//! Checkpoints of other projects: what their tensors are here, and which model they make.
//!
//! Plain names, shapes and values; whoever imports reads the files.

mod names;
mod sizes;

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use self::names::Rows;
pub use self::sizes::{HuggingFaceConfig, Told};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::weights;

/// By whose names a checkpoint calls its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// `SegformerModel` and its kin in transformers.
    #[serde(rename = "hf")]
    HuggingFace,
    /// MiT and SegFormer of NVlabs.
    Nvlabs,
    /// mmsegmentation, alone or within weiji14/s2s2net.
    Mmseg,
    /// The names that models have here.
    Safetensors,
}

impl Origin {
    const ALL: [Self; 4] = [
        Self::HuggingFace,
        Self::Nvlabs,
        Self::Mmseg,
        Self::Safetensors,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::HuggingFace => "hf",
            Self::Nvlabs => "nvlabs",
            Self::Mmseg => "mmseg",
            Self::Safetensors => "safetensors",
        }
    }
}

/// What an import would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Import {
    /// The model: sizes as the source has them, epsilons as the source's project has them.
    pub config: ModelConfig,
    /// What the source has of it, in the model's order; buffers last.
    pub tensors: Vec<Imported>,
    /// What of it the source lacks, in the model's order.
    pub missing: Vec<String>,
    /// The source's tensors that the model has no place for.
    pub unexpected: Vec<String>,
}

/// A tensor of the model, put together of rows of the source's.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Whether it is trained, as buffers are not.
    pub is_parameter: bool,
    parts: Vec<Part>,
    /// Bands of the source, where they become others.
    bands: Option<usize>,
}

/// Rows of a tensor of the source.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    source: String,
    rows: Range<usize>,
    /// Values in a row.
    width: usize,
    order: usize,
    /// How many parts make the whole.
    of: usize,
}

/// The first layer's weight, the only one whose shape depends on the bands.
const STEM: &str = "stages.0.embed.weight";

impl Import {
    /// What of the tensors of a source, given by name and shape, a model can use; `bands` are those of the model, by default the
    /// source's.
    ///
    /// # Errors
    /// [`Error::Origin`] if no name is of this origin, [`Error::ImportNothing`] if none is of the model,
    /// [`Error::ImportContradiction`] if what is told of it is not what the tensors are of, [`Error::Config`] if no model has such
    /// sizes, [`Error::ImportShape`] for a tensor that does not fit the others.
    pub fn new(
        origin: Origin,
        source: &[(String, Vec<usize>)],
        told: Told,
        bands: Option<usize>,
    ) -> Result<Self> {
        let (found, unexpected) = find(origin, source)?;
        let config = sizes::config(origin, &told, &found, source)?;
        Self::of(config, found, unexpected, bands)
    }

    /// The same of a source that says which model it holds and calls its tensors as models do here.
    ///
    /// # Errors
    /// Those of [`Import::new`].
    pub fn described(
        config: ModelConfig,
        source: &[(String, Vec<usize>)],
        bands: Option<usize>,
    ) -> Result<Self> {
        let (found, unexpected) = find(Origin::Safetensors, source)?;
        Self::of(config, found, unexpected, bands)
    }

    fn of(
        config: ModelConfig,
        mut found: Parts,
        mut unexpected: Vec<String>,
        bands: Option<usize>,
    ) -> Result<Self> {
        let own_bands = config.bands;
        let config = ModelConfig {
            bands: bands.unwrap_or(own_bands),
            ..config
        };
        let model = config.init(&Device::flex())?;
        let parameters = weights::parameters(&model).into_iter();
        let buffers = model.buffers().into_iter();
        let all = parameters
            .map(|(name, shape)| (name, shape, true))
            .chain(buffers.map(|(name, values)| (name, vec![values.len()], false)));
        let (mut tensors, mut missing) = (Vec::new(), Vec::new());
        for (name, shape, is_parameter) in all {
            let Some(parts) = found.remove(&name) else {
                missing.push(name);
                continue;
            };
            // Of keys and values in two tensors, one alone is neither.
            if parts.len() < parts[0].of {
                unexpected.extend(parts.into_iter().map(|part| part.source));
                missing.push(name);
                continue;
            }
            let changes = name == STEM && own_bands != config.bands;
            let mut expected = shape.clone();
            if changes {
                expected[1] = own_bands;
            }
            let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
            let width: usize = expected.iter().skip(1).product();
            if rows != expected[0] || parts.iter().any(|part| part.width != width) {
                return Err(Error::ImportShape {
                    name,
                    source_name: parts[0].source.clone(),
                    expected: [expected[0], width],
                    got: [rows, parts[0].width],
                });
            }
            tensors.push(Imported {
                name,
                shape,
                is_parameter,
                parts,
                bands: changes.then_some(own_bands),
            });
        }
        let others = found.into_values().flatten().map(|part| part.source);
        unexpected.extend(others);
        unexpected.sort();
        unexpected.dedup();
        if tensors.is_empty() {
            let example = unexpected.swap_remove(0);
            return Err(Error::ImportNothing { example });
        }
        Ok(Self {
            config,
            tensors,
            missing,
            unexpected,
        })
    }

    /// The source's bands and the model's, if they are not as many.
    pub fn widened(&self) -> Option<(usize, usize)> {
        let stem = self.tensors.iter().find(|tensor| tensor.name == STEM)?;
        Some((stem.bands?, self.config.bands))
    }

    /// Names of the encoder that the source lacks.
    pub fn missing_of_encoder(&self) -> impl Iterator<Item = &str> {
        let missing = self.missing.iter().map(String::as_str);
        missing.filter(|name| name.starts_with("stages."))
    }
}

impl Imported {
    /// Its values from those of the source's tensors.
    ///
    /// Where the source has other bands, every band gets the mean of the source's kernels, times the source's number of bands by that of
    /// the model: an image that is the same in all bands has the same response.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn values<E>(
        &self,
        mut read: impl FnMut(&str) -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<Vec<f32>, E> {
        let mut values = Vec::new();
        for part in &self.parts {
            let source = read(&part.source)?;
            let (start, end) = (part.rows.start * part.width, part.rows.end * part.width);
            values.extend_from_slice(&source[start..end]);
        }
        let Some(from) = self.bands else {
            return Ok(values);
        };
        let (to, kernel) = (self.shape[1], self.shape[2] * self.shape[3]);
        let widened = values.chunks_exact(from * kernel).flat_map(|row| {
            let mean: Vec<f32> = (0..kernel)
                .map(|tap| {
                    let taps = row.iter().skip(tap).step_by(kernel);
                    let sum: f64 = taps.map(|value| f64::from(*value)).sum();
                    (sum / to as f64) as f32
                })
                .collect();
            mean.repeat(to)
        });
        Ok(widened.collect())
    }
}

/// By names of ours, what of the source each is put together of.
type Parts = BTreeMap<String, Vec<Part>>;

/// The source's tensors by what they are here, and those that are nothing.
fn find(origin: Origin, source: &[(String, Vec<usize>)]) -> Result<(Parts, Vec<String>)> {
    let (mut found, mut unexpected) = (Parts::new(), Vec::new());
    for (name, shape) in source {
        let parts = names::parts(origin, name);
        if parts.is_empty() {
            unexpected.push(name.clone());
        }
        for part in parts {
            let rows = shape.first().copied().unwrap_or(1);
            let third = rows / 3;
            let range = match part.rows {
                Rows::All => 0..rows,
                Rows::FirstThird => 0..third,
                Rows::LastTwoThirds => third..rows,
            };
            found.entry(part.name).or_default().push(Part {
                source: name.clone(),
                rows: range,
                width: shape.iter().skip(1).product(),
                order: part.order,
                of: part.of,
            });
        }
    }
    if found.is_empty() {
        return Err(wrong_origin(origin, source));
    }
    found
        .values_mut()
        .for_each(|parts| parts.sort_by_key(|part| part.order));
    Ok((found, unexpected))
}

fn wrong_origin(origin: Origin, source: &[(String, Vec<usize>)]) -> Error {
    let knows = |other: &Origin| {
        let mut names = source.iter();
        names.any(|(name, _)| !names::parts(*other, name).is_empty())
    };
    let remedy = match Origin::ALL.into_iter().find(knows) {
        Some(other) => format!("they look like those of `--from {}`", other.name()),
        None => {
            let names: Vec<&str> = source.iter().take(3).map(|(name, _)| &name[..]).collect();
            format!(
                "it has {} tensors, such as {}",
                source.len(),
                names.join(", ")
            )
        }
    };
    Error::Origin {
        origin: origin.name(),
        remedy,
    }
}
