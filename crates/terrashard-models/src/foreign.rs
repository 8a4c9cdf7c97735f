//! Checkpoints of other projects: what their tensors are here, and which model they make.
//!
//! Plain names, shapes and values; whoever imports reads the files.

mod names;

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use self::names::Rows;
use crate::config::{FeedForward, HeadNorm, LevelActivation, ModelConfig, Upsampling};
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

/// What shapes do not tell of a model. Without it, that of MiT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    /// Attention heads of each stage. Default: 1, 2, 5, 8.
    pub heads: Option<[usize; 4]>,
    /// Stride of each stage's patch embedding. Default: 4, 2, 2, 2.
    pub stride: Option<[usize; 4]>,
    /// Activation of the feed-forward parts. Default: silu within s2s2net, else gelu.
    pub activation: Option<FeedForward>,
}

/// Of transformers' `config.json`, what shapes do not tell.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HuggingFaceConfig {
    num_attention_heads: [usize; 4],
    strides: [usize; 4],
    hidden_act: String,
}

impl HuggingFaceConfig {
    /// What it tells.
    ///
    /// # Errors
    /// [`Error::ImportActivation`] for an activation that models here do not have.
    pub fn told(&self) -> Result<Told> {
        let activation = match self.hidden_act.as_str() {
            "gelu" => FeedForward::Gelu,
            "silu" | "swish" => FeedForward::Silu,
            other => {
                return Err(Error::ImportActivation { name: other.into() });
            }
        };
        Ok(Told {
            heads: Some(self.num_attention_heads),
            stride: Some(self.strides),
            activation: Some(activation),
        })
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
}

/// The first layer's weight, the only one whose shape depends on the bands.
const STEM: &str = "stages.0.embed.weight";

impl Import {
    /// What of the tensors of a source, given by name and shape, a model can use; `bands` are those of the model, by default the
    /// source's.
    ///
    /// # Errors
    /// [`Error::Origin`] if no name is of this origin, [`Error::Config`] if no model has such sizes, [`Error::ImportShape`] for a
    /// tensor that does not fit the others.
    pub fn new(
        origin: Origin,
        source: &[(String, Vec<usize>)],
        told: Told,
        bands: Option<usize>,
    ) -> Result<Self> {
        let (found, unexpected) = find(origin, source)?;
        let shapes: BTreeMap<&str, &[usize]> = source
            .iter()
            .map(|(name, shape)| (name.as_str(), &shape[..]))
            .collect();
        let shape = |name: &str| {
            let parts = found.get(name)?;
            let mut shape = shapes.get(parts.first()?.source.as_str())?.to_vec();
            *shape.first_mut()? = parts.iter().map(|part| part.rows.len()).sum();
            Some(shape)
        };
        let config = config(origin, told, &found, shape);
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

/// The model that the shapes tell of.
fn config(
    origin: Origin,
    told: Told,
    found: &Parts,
    shape: impl Fn(&str) -> Option<Vec<usize>>,
) -> ModelConfig {
    let default = ModelConfig::b0();
    let size = |name: &str, axis: usize| shape(name).and_then(|shape| shape.get(axis).copied());
    let of_stages = |value: &dyn Fn(usize) -> usize| [0, 1, 2, 3].map(value);
    let dims = of_stages(&|stage| {
        let bias = size(&format!("stages.{stage}.embed_norm.weight"), 0);
        let embed = size(&format!("stages.{stage}.embed.weight"), 0);
        embed.or(bias).unwrap_or(default.dims[stage])
    });
    let depths = of_stages(&|stage| {
        let prefix = format!("stages.{stage}.blocks.");
        let blocks = found.keys().filter_map(|name| {
            let (block, _) = name.strip_prefix(&prefix)?.split_once('.')?;
            block.parse::<usize>().ok()
        });
        blocks
            .max()
            .map_or(default.depths[stage], |last| last.saturating_add(1))
    });
    let kernel = size("stages.0.blocks.0.ffn.fc1.weight", 0).map(|hidden| hidden / dims[0].max(1));
    let has = |name: &str| found.contains_key(name);
    let head_norm = match has("tail.head.bn.weight") || !has("tail.head.fuse.bias") {
        true => HeadNorm::Batch,
        false => HeadNorm::None,
    };
    let steps = found
        .keys()
        .filter(|name| name.starts_with("tail.up.") && name.ends_with(".weight"))
        .count();
    let is_s2s2net = steps > 0;
    let last = match is_s2s2net {
        true => format!("tail.up.{}.weight", steps - 1),
        false => "tail.seg.conv1.weight".into(),
    };
    let epsilons = match origin {
        // Transformers' code never reads its configuration's `layer_norm_eps`.
        Origin::HuggingFace => (1e-5, None),
        Origin::Nvlabs => (1e-6, Some(1e-5)),
        Origin::Mmseg | Origin::Safetensors => (1e-6, None),
    };
    let silu = is_s2s2net && head_norm == HeadNorm::None;
    ModelConfig {
        dims,
        depths,
        heads: told.heads.unwrap_or(default.heads),
        sr_ratios: of_stages(&|stage| {
            size(&format!("stages.{stage}.blocks.0.attn.sr.weight"), 2).unwrap_or(1)
        }),
        mlp_ratio: kernel.unwrap_or(default.mlp_ratio),
        patch: of_stages(&|stage| {
            let kernel = size(&format!("stages.{stage}.embed.weight"), 2);
            kernel.unwrap_or(default.patch[stage])
        }),
        stride: told.stride.unwrap_or(default.stride),
        bands: size(STEM, 1).unwrap_or(default.bands),
        head_channels: size("tail.head.linear.0.weight", 0).unwrap_or(default.head_channels),
        head_norm,
        head_activation: silu.then_some(LevelActivation::Silu),
        head_outputs: size("tail.head.cls.weight", 0).unwrap_or(default.head_outputs),
        activation: told.activation.unwrap_or(match silu {
            true => FeedForward::Silu,
            false => FeedForward::Gelu,
        }),
        upsampling: match is_s2s2net {
            true => Upsampling::Progressive,
            false => Upsampling::Direct,
        },
        superres: has("tail.sr.conv1.weight"),
        classes: size(&last, 0).unwrap_or(default.classes),
        layer_norm_eps: epsilons.0,
        embed_norm_eps: epsilons.1,
        attn_norm_eps: epsilons.1,
        ..default
    }
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
