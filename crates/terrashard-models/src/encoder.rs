//! The Mix Transformer ([Xie et al. 2021](https://arxiv.org/abs/2105.15203)): four stages, each a patch embedding and
//! transformer blocks.

use crate::blocks::BlockInfo;
use crate::config::ModelConfig;
use crate::scope::{Scope, take};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use terrashard_ops::{
    Activation, AttentionLayers, Conv2d, ConvShape, DropPath, FeedForwardLayers, LayerNorm, Linear,
    Pass, attention_branch, feed_forward_branch,
};

/// Height and width of a map whose pixels are in a row as tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) height: usize,
    pub(crate) width: usize,
}

impl Grid {
    fn sides(self) -> [usize; 2] {
        [self.height, self.width]
    }
}

/// `[N, C, H, W]` to `[N, H W, C]`.
pub(crate) fn to_tokens(map: Tensor<4>) -> (Tensor<3>, Grid) {
    let [n, c, height, width] = map.dims();
    (
        map.permute([0, 2, 3, 1]).reshape([n, height * width, c]),
        Grid { height, width },
    )
}

/// `[N, H W, C]` to `[N, C, H, W]`.
pub(crate) fn to_map(tokens: Tensor<3>, grid: Grid) -> Tensor<4> {
    let [n, _, c] = tokens.dims();
    tokens
        .reshape([n, grid.height, grid.width, c])
        .permute([0, 3, 1, 2])
}

/// Attention whose keys and values come from a map reduced in height and width.
#[derive(Module, Debug)]
pub struct Attention {
    q: Linear,
    sr: Option<Conv2d>,
    norm: Option<LayerNorm>,
    kv: Linear,
    proj: Linear,
    heads: usize,
}

impl Attention {
    fn new(config: &ModelConfig, stage: usize, device: &Device) -> Self {
        let (dim, ratio) = (config.dims[stage], config.sr_ratios[stage]);
        let shape = ConvShape {
            stride: ratio,
            padding: 0,
            groups: 1,
        };
        Self {
            q: Linear::new(dim, dim, device),
            sr: (ratio > 1).then(|| Conv2d::new(dim, dim, ratio, shape, device)),
            norm: (ratio > 1).then(|| {
                let epsilon = config.attn_norm_eps.unwrap_or(config.layer_norm_eps);
                LayerNorm::new(dim, epsilon, device)
            }),
            kv: Linear::new(dim, 2 * dim, device),
            proj: Linear::new(dim, dim, device),
            heads: config.heads[stage],
        }
    }

    /// The residual branch of a block: `x + drop(f(norm(x)))`.
    fn branch(
        &self,
        norm: &LayerNorm,
        x: Tensor<3>,
        grid: Grid,
        drop: DropPath<'_>,
        pass: &Pass,
    ) -> Tensor<3> {
        let layers = AttentionLayers {
            norm,
            q: &self.q,
            kv: &self.kv,
            proj: &self.proj,
            reduction: self.sr.as_ref().zip(self.norm.as_ref()),
            heads: self.heads,
        };
        attention_branch(x, &layers, grid.sides(), drop, pass)
    }
}

/// A feed-forward part with a depthwise 3x3 convolution between its two layers.
#[derive(Module, Debug)]
pub struct MixFeedForward {
    fc1: Linear,
    dw: Conv2d,
    fc2: Linear,
    #[module(skip)]
    activation: Activation,
}

impl MixFeedForward {
    fn new(config: &ModelConfig, dim: usize, device: &Device) -> Self {
        let hidden = config.mlp_ratio * dim;
        let shape = ConvShape {
            stride: 1,
            padding: 1,
            groups: hidden,
        };
        Self {
            fc1: Linear::new(dim, hidden, device),
            dw: Conv2d::new(hidden, hidden, 3, shape, device),
            fc2: Linear::new(hidden, dim, device),
            activation: config.activation.into(),
        }
    }

    /// The residual branch of a block: `x + drop(f(norm(x)))`.
    fn branch(
        &self,
        norm: &LayerNorm,
        x: Tensor<3>,
        grid: Grid,
        drop: DropPath<'_>,
        pass: &Pass,
    ) -> Tensor<3> {
        let layers = FeedForwardLayers {
            norm,
            fc1: &self.fc1,
            dw: &self.dw,
            activation: self.activation,
            fc2: &self.fc2,
        };
        feed_forward_branch(x, &layers, grid.sides(), drop, pass)
    }
}

/// A transformer block.
#[derive(Module, Debug)]
pub struct Block {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    ffn: MixFeedForward,
    drop_path: f64,
}

impl Block {
    fn new(config: &ModelConfig, stage: usize, block: usize, device: &Device) -> Self {
        let dim = config.dims[stage];
        Self {
            norm1: LayerNorm::new(dim, config.layer_norm_eps, device),
            attn: Attention::new(config, stage, device),
            norm2: LayerNorm::new(dim, config.layer_norm_eps, device),
            ffn: MixFeedForward::new(config, dim, device),
            drop_path: config.drop_path_at(stage, block),
        }
    }

    fn forward(&self, name: &str, x: Tensor<3>, grid: Grid, pass: &Pass) -> Tensor<3> {
        let rate = self.drop_path;
        let layer = &format!("{name}.attn");
        let x = self
            .attn
            .branch(&self.norm1, x, grid, DropPath { rate, layer }, pass);
        let layer = &format!("{name}.ffn");
        self.ffn
            .branch(&self.norm2, x, grid, DropPath { rate, layer }, pass)
    }
}

/// A stage of the encoder.
#[derive(Module, Debug)]
pub struct Stage {
    embed: Conv2d,
    embed_norm: LayerNorm,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Stage {
    pub(crate) fn new(config: &ModelConfig, stage: usize, device: &Device) -> Self {
        let dim = config.dims[stage];
        let inputs = if stage == 0 {
            config.bands
        } else {
            config.dims[stage - 1]
        };
        let patch = config.patch[stage];
        let embed_eps = config.embed_norm_eps.unwrap_or(config.layer_norm_eps);
        let shape = ConvShape {
            stride: config.stride[stage],
            padding: patch / 2,
            groups: 1,
        };
        Self {
            embed: Conv2d::new(inputs, dim, patch, shape, device),
            embed_norm: LayerNorm::new(dim, embed_eps, device),
            blocks: (0..config.depths[stage])
                .map(|block| Block::new(config, stage, block, device))
                .collect(),
            norm: LayerNorm::new(dim, config.layer_norm_eps, device),
        }
    }

    /// The blocks in the order of [`forward`](Self::forward).
    pub(crate) fn list(&self, prefix: &str) -> Vec<BlockInfo> {
        let embed = BlockInfo::new(format!("{prefix}.embed"), &self.embed)
            .with(&format!("{prefix}.embed_norm"), &self.embed_norm);
        let mut blocks = vec![embed];
        for (i, block) in self.blocks.iter().enumerate() {
            blocks.push(BlockInfo::new(format!("{prefix}.blocks.{i}"), block));
        }
        blocks.push(BlockInfo::new(format!("{prefix}.norm"), &self.norm));
        blocks
    }

    /// # Shapes
    /// `[N, C, H, W]` to `[N, dim, H / stride, W / stride]`.
    pub(crate) fn forward(&self, prefix: &str, x: Tensor<4>, scope: &impl Scope) -> Tensor<4> {
        let [.., height, width] = x.dims();
        let grid = self.grid(height, width);
        // Embedding and norm are used together, so they are one block.
        let embed = (self.embed.clone(), self.embed_norm.clone());
        let name = format!("{prefix}.embed");
        let mut x: Tensor<3> = scope.block(&name, &embed, vec![x], |(embed, norm), x, _| {
            let [x] = take(x);
            norm.forward(to_tokens(embed.forward(x)).0)
        });
        for (i, block) in self.blocks.iter().enumerate() {
            let name = format!("{prefix}.blocks.{i}");
            let layer = name.clone();
            x = scope.block(&name, block, vec![x], move |block, x, pass| {
                let [x] = take(x);
                block.forward(&layer, x, grid, pass)
            });
        }
        let name = format!("{prefix}.norm");
        scope.block(&name, &self.norm, vec![x], move |norm, x, _| {
            let [x] = take(x);
            to_map(norm.forward(x), grid)
        })
    }

    /// What the embedding makes of a map of this size.
    fn grid(&self, height: usize, width: usize) -> Grid {
        let kernel = self.embed.weight.lazy_shape()[2];
        let extent = |extent| self.embed.shape().output(extent, kernel);
        Grid {
            height: extent(height),
            width: extent(width),
        }
    }
}
