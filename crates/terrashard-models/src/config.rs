//! The configuration of a model: the `[model]` table.

use crate::error::{Error, Result};
use crate::net::S2s2Net;
use crate::progressive;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use terrashard_ops::{Activation, Factor};

/// Normalisation inside the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadNorm {
    /// As SegFormer: levels concatenated deepest first, fused without bias, batch-norm, ReLU.
    Batch,
    /// As mmsegmentation without `norm_cfg`: an activation after each level, levels concatenated shallowest first, fused with
    /// bias, ReLU.
    None,
}

/// Activation after the linear layer of each level in the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LevelActivation {
    /// Nothing, as in SegFormer.
    None,
    /// `max(x, 0)`, mmsegmentation's default.
    Relu,
    /// `x sigmoid(x)`, as in s2s2net with a single branch.
    Silu,
}

impl From<LevelActivation> for Option<Activation> {
    fn from(activation: LevelActivation) -> Self {
        match activation {
            LevelActivation::None => None,
            LevelActivation::Relu => Some(Activation::Relu),
            LevelActivation::Silu => Some(Activation::Silu),
        }
    }
}

/// How the segmentation is enlarged from the head's output to the final map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Upsampling {
    /// Nearest x4 and a convolution to 8 channels, nearest by the scale and a convolution.
    Direct,
    /// Nearest x2 and a convolution to half as many channels, again and again, Mish between them; the last step by what is left of
    /// four times the scale (x2.5 where that is 20).
    Progressive,
}

/// Activation of the feed-forward parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeedForward {
    /// `x Phi(x)` by the error function.
    Gelu,
    /// `x sigmoid(x)`.
    Silu,
}

impl From<FeedForward> for Activation {
    fn from(activation: FeedForward) -> Self {
        match activation {
            FeedForward::Gelu => Self::Gelu,
            FeedForward::Silu => Self::Silu,
        }
    }
}

/// A Mix Transformer with an all-MLP head and one or two branches that enlarge its output.
///
/// Unknown keys are errors; every key has a default, those of [`ModelConfig::b0`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Channels of the four stages. Default: 32, 64, 160, 256.
    pub dims: [usize; 4],
    /// Transformer blocks of each stage. Default: 2, 2, 2, 2.
    pub depths: [usize; 4],
    /// Attention heads of each stage; each divides its stage's channels. Default: 1, 2, 5, 8.
    pub heads: [usize; 4],
    /// Keys and values of each stage come from a map reduced by this in height and width. Default: 8, 4, 2, 1.
    pub sr_ratios: [usize; 4],
    /// Hidden channels of the feed-forward part by the stage's channels. Default: 4.
    pub mlp_ratio: usize,
    /// Kernel of each stage's patch embedding, in pixels of its input. Default: 7, 3, 3, 3.
    pub patch: [usize; 4],
    /// Stride of each stage's patch embedding. Default: 4, 2, 2, 2.
    pub stride: [usize; 4],
    /// Bands of the input. Default: 6.
    pub bands: usize,
    /// Channels of the head before its last convolution. Default: 256.
    pub head_channels: usize,
    /// Default: batch.
    pub head_norm: HeadNorm,
    /// After the linear layer of each level in the head. Default: none where `head_norm` is batch, else relu.
    pub head_activation: Option<LevelActivation>,
    /// Channels that the head gives to the branches. Default: 16.
    pub head_outputs: usize,
    /// In the feed-forward parts. Default: gelu.
    pub activation: FeedForward,
    /// Default: direct.
    pub upsampling: Upsampling,
    /// Whether the second branch, which learns the image itself at high resolution, exists. Default: true.
    pub superres: bool,
    /// Channels of the segmentation: 1 logit for a binary task, else one a class. Default: 1.
    pub classes: usize,
    /// Output pixels along one input pixel: 5 takes 10 m to 2 m. Default: 5.
    pub scale: usize,
    /// Added to variances in layer normalisation. Default: 1e-6.
    pub layer_norm_eps: f64,
    /// The same in the norms behind patch embeddings. Default: `layer_norm_eps`.
    pub embed_norm_eps: Option<f64>,
    /// The same in the norms behind the reduction of keys and values. Default: `layer_norm_eps`.
    pub attn_norm_eps: Option<f64>,
    /// Stochastic depth: the probability with which the last transformer block leaves its input as it is for a sample, in
    /// training. It rises linearly over the blocks, from 0 at the first. Default: 0.
    pub drop_path: f64,
    /// Probability with which a value of the head's output is dropped in training. Default: 0.
    pub dropout: f64,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self::b0()
    }
}

impl ModelConfig {
    /// MiT-B0 ([Xie et al. 2021](https://arxiv.org/abs/2105.15203)) with a head of 256 channels.
    pub fn b0() -> Self {
        Self {
            dims: [32, 64, 160, 256],
            depths: [2, 2, 2, 2],
            heads: [1, 2, 5, 8],
            sr_ratios: [8, 4, 2, 1],
            mlp_ratio: 4,
            patch: [7, 3, 3, 3],
            stride: [4, 2, 2, 2],
            bands: 6,
            head_channels: 256,
            head_norm: HeadNorm::Batch,
            head_activation: None,
            head_outputs: 16,
            activation: FeedForward::Gelu,
            upsampling: Upsampling::Direct,
            superres: true,
            classes: 1,
            scale: 5,
            layer_norm_eps: 1e-6,
            embed_norm_eps: None,
            attn_norm_eps: None,
            drop_path: 0.0,
            dropout: 0.0,
        }
    }

    /// MiT-B0 to B5 by name: `b0` to `b5`.
    ///
    /// # Errors
    /// [`Error::Preset`] for another name.
    pub fn preset(name: &str) -> Result<Self> {
        let depths = match name {
            "b0" => return Ok(Self::b0()),
            "b1" => [2, 2, 2, 2],
            "b2" => [3, 4, 6, 3],
            "b3" => [3, 4, 18, 3],
            "b4" => [3, 8, 27, 3],
            "b5" => [3, 6, 40, 3],
            _ => return Err(Error::Preset { name: name.into() }),
        };
        Ok(Self {
            dims: [64, 128, 320, 512],
            depths,
            ..Self::b0()
        })
    }

    /// What weiji14/s2s2net trains since May 2022: one branch that enlarges step by step, SiLU in place of GELU, a head without
    /// batch-norm. Of the sizes of MiT-B0.
    pub fn single_branch() -> Self {
        Self {
            head_norm: HeadNorm::None,
            head_activation: Some(LevelActivation::Silu),
            activation: FeedForward::Silu,
            upsampling: Upsampling::Progressive,
            superres: false,
            ..Self::b0()
        }
    }

    /// What follows the linear layer of each level in the head.
    pub fn level_activation(&self) -> LevelActivation {
        let default = match self.head_norm {
            HeadNorm::Batch => LevelActivation::None,
            HeadNorm::None => LevelActivation::Relu,
        };
        self.head_activation.unwrap_or(default)
    }

    /// Checks what no model can have.
    ///
    /// # Errors
    /// [`Error::Config`] names the first key that is wrong.
    pub fn validate(&self) -> Result<()> {
        let wrong = |key, problem: String| Err(Error::Config { key, problem });
        for (key, values, largest) in [
            ("dims", &self.dims[..], 1 << 14),
            ("depths", &self.depths, 1000),
            ("heads", &self.heads, 1 << 14),
            ("sr_ratios", &self.sr_ratios, 64),
            ("patch", &self.patch, 63),
            ("stride", &self.stride, 16),
            ("mlp_ratio", &[self.mlp_ratio], 64),
            ("bands", &[self.bands], 1000),
            ("head_channels", &[self.head_channels], 1 << 14),
            ("head_outputs", &[self.head_outputs], 1 << 14),
            ("classes", &[self.classes], 254),
            ("scale", &[self.scale], 64),
        ] {
            if values.contains(&0) {
                return wrong(key, "has a zero: every value must be at least 1".into());
            }
            // Bounds far above any model that is trained, so that a slip is an error and no attempt to allocate.
            if let Some(value) = values.iter().find(|value| **value > largest) {
                return wrong(key, format!("has {value}: the largest value is {largest}"));
            }
        }
        for (dim, heads) in self.dims.iter().zip(&self.heads) {
            if dim % heads != 0 {
                return wrong(
                    "heads",
                    format!("has {heads} heads for {dim} channels: use a divisor of {dim}"),
                );
            }
        }
        if let Some(even) = self.patch.iter().find(|patch| patch.is_multiple_of(2)) {
            return wrong(
                "patch",
                format!("has a kernel of {even} pixels: use odd ones, which have a middle"),
            );
        }
        if self.classes == 2 {
            return wrong(
                "classes",
                "is 2: a binary task has one logit, so use 1".into(),
            );
        }
        for (key, epsilon) in [
            ("layer_norm_eps", Some(self.layer_norm_eps)),
            ("embed_norm_eps", self.embed_norm_eps),
            ("attn_norm_eps", self.attn_norm_eps),
        ] {
            let epsilon = epsilon.unwrap_or(self.layer_norm_eps);
            if !(epsilon > 0.0 && epsilon < 1.0) {
                return wrong(
                    key,
                    format!("is {epsilon}: use a small positive number such as 1e-6"),
                );
            }
        }
        for (key, rate) in [("drop_path", self.drop_path), ("dropout", self.dropout)] {
            if !(0.0..1.0).contains(&rate) {
                return wrong(
                    key,
                    format!("is {rate}: use a probability of at least 0 and below 1"),
                );
            }
        }
        if self.stride[0] != 4 {
            return wrong(
                "stride",
                format!(
                    "begins with {}: the branches enlarge the head's output by 4, so use 4",
                    self.stride[0]
                ),
            );
        }
        Ok(())
    }

    /// The probability with which this block of this stage is left out.
    pub fn drop_path_at(&self, stage: usize, block: usize) -> f64 {
        let before: usize = self.depths[..stage].iter().sum();
        let last = self.depths.iter().sum::<usize>() - 1;
        // A single block is the first.
        self.drop_path * (before + block) as f64 / last.max(1) as f64
    }

    /// Height and width of the input are padded to multiples of this.
    pub fn multiple(&self) -> usize {
        let strides = self.stride.iter().scan(1, |product, stride| {
            *product *= stride;
            Some(*product)
        });
        // Each stage's map must also be divisible by its attention's reduction, or border tokens would have no key.
        strides
            .zip(&self.sr_ratios)
            .map(|(stride, ratio)| stride * ratio)
            .fold(1, least_common_multiple)
    }

    /// The factors by which a segmentation of this scale is enlarged with [`Upsampling::Progressive`], from the head's output on.
    pub fn enlargements(&self) -> Vec<Factor> {
        progressive::factors(self.scale)
    }

    /// The model on this device, its parameters not yet initialised.
    ///
    /// # Errors
    /// [`Error::Config`] as [`ModelConfig::validate`].
    pub fn init(&self, device: &Device) -> Result<S2s2Net> {
        self.validate()?;
        Ok(S2s2Net::new(self, device))
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_rejected(config: ModelConfig, message: &str) {
        assert_eq!(config.validate().unwrap_err().to_string(), message);
    }

    #[test]
    fn presets_are_those_of_the_paper() {
        assert_eq!(ModelConfig::preset("b0").unwrap(), ModelConfig::default());
        let b5 = ModelConfig::preset("b5").unwrap();
        assert_eq!((b5.dims, b5.depths), ([64, 128, 320, 512], [3, 6, 40, 3]));
        assert_eq!(
            ModelConfig::preset("b6").unwrap_err().to_string(),
            "no model preset `b6`: there are b0, b1, b2, b3, b4 and b5"
        );
    }

    #[test]
    fn impossible_values_name_their_key() {
        let b0 = ModelConfig::b0;
        check_rejected(
            ModelConfig {
                heads: [1, 3, 5, 8],
                ..b0()
            },
            "`model.heads` has 3 heads for 64 channels: use a divisor of 64",
        );
        check_rejected(
            ModelConfig {
                patch: [7, 3, 2, 3],
                ..b0()
            },
            "`model.patch` has a kernel of 2 pixels: use odd ones, which have a middle",
        );
        check_rejected(
            ModelConfig { bands: 0, ..b0() },
            "`model.bands` has a zero: every value must be at least 1",
        );
        check_rejected(
            ModelConfig { classes: 2, ..b0() },
            "`model.classes` is 2: a binary task has one logit, so use 1",
        );
        check_rejected(
            ModelConfig {
                drop_path: 1.0,
                ..b0()
            },
            "`model.drop_path` is 1: use a probability of at least 0 and below 1",
        );
        check_rejected(
            ModelConfig {
                dropout: f64::NAN,
                ..b0()
            },
            "`model.dropout` is NaN: use a probability of at least 0 and below 1",
        );
    }

    #[test]
    fn later_blocks_are_left_out_more_often() {
        let config = ModelConfig {
            depths: [2, 1, 1, 2],
            drop_path: 0.5,
            ..ModelConfig::b0()
        };
        let rate = |stage, block| config.drop_path_at(stage, block);
        let rates = [
            rate(0, 0),
            rate(0, 1),
            rate(1, 0),
            rate(2, 0),
            rate(3, 0),
            rate(3, 1),
        ];
        assert_eq!(rates, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]);
    }

    #[test]
    fn inputs_are_padded_to_what_all_stages_divide() {
        assert_eq!(ModelConfig::b0().multiple(), 32);
    }
}
