//! Which model the tensors of a source are of, by their shapes and by what is told of it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Origin, Parts, STEM};
use crate::config::{FeedForward, HeadNorm, LevelActivation, ModelConfig, Upsampling};
use crate::error::{Error, Result};

/// What a configuration beside a source tells of its model. What it does not tell is as the shapes have it, else as in MiT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    /// Channels of each stage.
    pub dims: Option<[usize; 4]>,
    /// Transformer blocks of each stage.
    pub depths: Option<[usize; 4]>,
    /// Attention heads of each stage. Default: 1, 2, 5, 8.
    pub heads: Option<[usize; 4]>,
    /// By what each stage reduces keys and values.
    pub sr_ratios: Option<[usize; 4]>,
    /// Hidden channels of the feed-forward part by the channels of each stage.
    pub mlp_ratios: Option<[usize; 4]>,
    /// Kernel of each stage's patch embedding.
    pub patch: Option<[usize; 4]>,
    /// Stride of each stage's patch embedding. Default: 4, 2, 2, 2.
    pub stride: Option<[usize; 4]>,
    /// Bands of the input.
    pub bands: Option<usize>,
    /// Activation of the feed-forward parts. Default: silu within s2s2net, else gelu.
    pub activation: Option<FeedForward>,
}

/// Transformers' `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HuggingFaceConfig {
    hidden_sizes: Option<[usize; 4]>,
    depths: Option<[usize; 4]>,
    num_attention_heads: [usize; 4],
    sr_ratios: Option<[usize; 4]>,
    mlp_ratios: Option<[usize; 4]>,
    patch_sizes: Option<[usize; 4]>,
    strides: [usize; 4],
    num_channels: Option<usize>,
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
            dims: self.hidden_sizes,
            depths: self.depths,
            heads: Some(self.num_attention_heads),
            sr_ratios: self.sr_ratios,
            mlp_ratios: self.mlp_ratios,
            patch: self.patch_sizes,
            stride: Some(self.strides),
            bands: self.num_channels,
            activation: Some(activation),
        })
    }
}

/// Shapes of a source's tensors, by the names that they have here.
struct Shapes(BTreeMap<String, Vec<usize>>);

impl Shapes {
    fn new(found: &Parts, source: &[(String, Vec<usize>)]) -> Self {
        let shapes: BTreeMap<&str, &[usize]> = source
            .iter()
            .map(|(name, shape)| (name.as_str(), &shape[..]))
            .collect();
        let whole = found.iter().filter_map(|(name, parts)| {
            let mut shape = shapes.get(parts.first()?.source.as_str())?.to_vec();
            *shape.first_mut()? = parts.iter().map(|part| part.rows.len()).sum();
            Some((name.clone(), shape))
        });
        Self(whole.collect())
    }

    fn size(&self, name: &str, axis: usize) -> Option<usize> {
        self.0.get(name)?.get(axis).copied()
    }

    /// The first of these sizes that is there: names behind the prefix, and their axes.
    fn first(&self, prefix: &str, sizes: &[(&str, usize)]) -> Option<usize> {
        let mut sizes = sizes.iter();
        sizes.find_map(|(name, axis)| self.size(&format!("{prefix}{name}"), *axis))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// One more than the largest number behind this prefix.
    fn count(&self, prefix: &str) -> Option<usize> {
        let names = self.0.keys();
        let numbers = names.filter_map(|name| {
            let (number, _) = name.strip_prefix(prefix)?.split_once('.')?;
            number.parse::<usize>().ok()
        });
        Some(numbers.max()?.saturating_add(1))
    }

    /// The prefixes of a stage's blocks of which there is anything.
    fn blocks(&self, stage: usize) -> impl Iterator<Item = String> {
        let prefix = format!("stages.{stage}.blocks.");
        let names = self.0.keys();
        let mut blocks: Vec<String> = names
            .filter_map(|name| {
                let (block, _) = name.strip_prefix(&prefix)?.split_once('.')?;
                Some(format!("{prefix}{block}."))
            })
            .collect();
        blocks.dedup();
        blocks.into_iter()
    }

    /// Channels of a stage, by any of its tensors, or by one that takes what it gives.
    fn dim(&self, stage: usize) -> Option<usize> {
        let own = [
            ("embed.weight", 0),
            ("embed.bias", 0),
            ("embed_norm.weight", 0),
            ("embed_norm.bias", 0),
            ("norm.weight", 0),
            ("norm.bias", 0),
        ];
        let of_blocks = [
            ("norm1.weight", 0),
            ("norm1.bias", 0),
            ("norm2.weight", 0),
            ("norm2.bias", 0),
            ("attn.q.weight", 1),
            ("attn.q.bias", 0),
            ("attn.kv.weight", 1),
            ("attn.proj.weight", 0),
            ("attn.proj.bias", 0),
            ("attn.sr.weight", 0),
            ("attn.sr.bias", 0),
            ("attn.norm.weight", 0),
            ("attn.norm.bias", 0),
            ("ffn.fc1.weight", 1),
            ("ffn.fc2.weight", 0),
            ("ffn.fc2.bias", 0),
        ];
        let next = format!("stages.{}.embed.weight", stage + 1);
        self.first(&format!("stages.{stage}."), &own)
            .or_else(|| {
                let mut blocks = self.blocks(stage);
                blocks.find_map(|block| self.first(&block, &of_blocks))
            })
            .or_else(|| self.size(&next, 1))
            .or_else(|| self.size(&format!("tail.head.linear.{stage}.weight"), 1))
    }

    /// By what a stage reduces keys and values.
    fn sr_ratio(&self, stage: usize) -> Option<usize> {
        let mut blocks = self.blocks(stage);
        blocks.find_map(|block| self.size(&format!("{block}attn.sr.weight"), 2))
    }

    /// Whether a stage has anything of what only a reduction has.
    fn reduces(&self, stage: usize) -> bool {
        let mut blocks = self.blocks(stage);
        let parts = ["attn.sr.bias", "attn.norm.weight", "attn.norm.bias"];
        blocks.any(|block| parts.iter().any(|part| self.has(&format!("{block}{part}"))))
    }

    /// Hidden channels of a stage's feed-forward parts by its channels.
    fn mlp_ratio(&self, stage: usize) -> Option<usize> {
        let hidden = [
            ("ffn.fc1.weight", 0),
            ("ffn.fc1.bias", 0),
            ("ffn.dw.weight", 0),
            ("ffn.dw.bias", 0),
            ("ffn.fc2.weight", 1),
        ];
        let mut blocks = self.blocks(stage);
        let hidden = blocks.find_map(|block| self.first(&block, &hidden))?;
        hidden.checked_div(self.dim(stage)?)
    }
}

/// What a list of four is called in a configuration, what it has there, and what the tensors have of it.
type Compared<'a> = (&'static str, Option<[usize; 4]>, [Option<usize>; 4]);

/// The first thing in which what is told and what the tensors have cannot both be true.
fn contradiction(told: &Told, shapes: &Shapes) -> Result<()> {
    let of_stages = |value: &dyn Fn(usize) -> Option<usize>| [0, 1, 2, 3].map(value);
    let kernel = |stage| shapes.size(&format!("stages.{stage}.embed.weight"), 2);
    let compared: [Compared<'_>; 4] = [
        ("hidden_sizes", told.dims, of_stages(&|i| shapes.dim(i))),
        (
            "sr_ratios",
            told.sr_ratios,
            of_stages(&|i| shapes.sr_ratio(i)),
        ),
        (
            "mlp_ratios",
            told.mlp_ratios,
            of_stages(&|i| shapes.mlp_ratio(i)),
        ),
        ("patch_sizes", told.patch, of_stages(&kernel)),
    ];
    let error = |key: String, told, found: String| Error::ImportContradiction { key, told, found };
    for (key, told, found) in compared {
        for (stage, found) in found.into_iter().enumerate() {
            let told = told.map(|told| told[stage]);
            if let (Some(told), Some(found), true) = (told, found, told != found) {
                return Err(error(format!("{key}[{stage}]"), told, found.to_string()));
            }
        }
    }
    for stage in 0..4 {
        if told.sr_ratios.is_some_and(|told| told[stage] == 1) && shapes.reduces(stage) {
            let key = format!("sr_ratios[{stage}]");
            return Err(error(key, 1, "parts of a reduction".into()));
        }
        let count = shapes.count(&format!("stages.{stage}.blocks."));
        // Fewer than are told are missing.
        if let (Some(told), Some(count)) = (told.depths.map(|told| told[stage]), count)
            && count > told
        {
            let key = format!("depths[{stage}]");
            return Err(error(key, told, count.to_string()));
        }
    }
    match (told.bands, shapes.size(STEM, 1)) {
        (Some(told), Some(found)) if told != found => {
            Err(error("num_channels".into(), told, found.to_string()))
        }
        _ => Ok(()),
    }
}

/// The model that shapes and what is told tell of.
///
/// # Errors
/// [`Error::ImportContradiction`] if they tell of different ones.
pub(super) fn config(
    origin: Origin,
    told: &Told,
    found: &Parts,
    source: &[(String, Vec<usize>)],
) -> Result<ModelConfig> {
    let default = ModelConfig::b0();
    let shapes = Shapes::new(found, source);
    contradiction(told, &shapes)?;
    let of_stages =
        |told: Option<[usize; 4]>, found: &dyn Fn(usize) -> Option<usize>, default: [usize; 4]| {
            told.unwrap_or_else(|| [0, 1, 2, 3].map(|i| found(i).unwrap_or(default[i])))
        };
    let kernel = |stage| shapes.size(&format!("stages.{stage}.embed.weight"), 2);
    let sr_ratio = |stage: usize| {
        shapes.sr_ratio(stage).or_else(|| {
            // Whatever the ratio is, it is not 1.
            let least = shapes.reduces(stage).then_some(2)?;
            Some(default.sr_ratios[stage].max(least))
        })
    };
    let mut mlp_ratios = (0..4).filter_map(|stage| shapes.mlp_ratio(stage));
    let mlp_ratio = told.mlp_ratios.map(|told| told[0]);
    let head_norm = match shapes.has("tail.head.bn.weight") || !shapes.has("tail.head.fuse.bias") {
        true => HeadNorm::Batch,
        false => HeadNorm::None,
    };
    let steps = shapes.count("tail.up.");
    let last = match steps {
        Some(steps) => format!("tail.up.{}.", steps - 1),
        None => "tail.seg.conv1.".into(),
    };
    let head_channels = [
        ("linear.0.weight", 0),
        ("linear.1.weight", 0),
        ("linear.2.weight", 0),
        ("linear.3.weight", 0),
        ("fuse.weight", 0),
        ("bn.weight", 0),
        ("cls.weight", 1),
    ];
    let epsilons = match origin {
        // Transformers' code never reads its configuration's `layer_norm_eps`.
        Origin::HuggingFace => (1e-5, None),
        Origin::Nvlabs => (1e-6, Some(1e-5)),
        Origin::Mmseg | Origin::Safetensors => (1e-6, None),
    };
    let silu = steps.is_some() && head_norm == HeadNorm::None;
    Ok(ModelConfig {
        dims: of_stages(told.dims, &|stage| shapes.dim(stage), default.dims),
        depths: of_stages(
            told.depths,
            &|stage| shapes.count(&format!("stages.{stage}.blocks.")),
            default.depths,
        ),
        heads: told.heads.unwrap_or(default.heads),
        sr_ratios: of_stages(told.sr_ratios, &sr_ratio, default.sr_ratios),
        mlp_ratio: mlp_ratio
            .or_else(|| mlp_ratios.next())
            .unwrap_or(default.mlp_ratio),
        patch: of_stages(told.patch, &kernel, default.patch),
        stride: told.stride.unwrap_or(default.stride),
        bands: told.bands.or(shapes.size(STEM, 1)).unwrap_or(default.bands),
        head_channels: shapes
            .first("tail.head.", &head_channels)
            .unwrap_or(default.head_channels),
        head_norm,
        head_activation: silu.then_some(LevelActivation::Silu),
        head_outputs: shapes
            .first("tail.head.", &[("cls.weight", 0), ("cls.bias", 0)])
            .unwrap_or(default.head_outputs),
        activation: told.activation.unwrap_or(match silu {
            true => FeedForward::Silu,
            false => FeedForward::Gelu,
        }),
        upsampling: match steps {
            Some(_) => Upsampling::Progressive,
            None => Upsampling::Direct,
        },
        superres: shapes.0.keys().any(|name| name.starts_with("tail.sr.")),
        classes: shapes
            .first(&last, &[("weight", 0), ("bias", 0)])
            .unwrap_or(default.classes),
        layer_norm_eps: epsilons.0,
        embed_norm_eps: epsilons.1,
        attn_norm_eps: epsilons.1,
        ..default
    })
}
