//! The all-MLP head and the branches that enlarge its output.

use crate::blocks::BlockInfo;
use crate::config::{HeadNorm, ModelConfig, Upsampling};
use crate::encoder::{to_map, to_tokens};
use crate::progressive;
use crate::scope::{Scope, take};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use terrashard_ops::{
    Activation, BatchNorm, Conv2d, ConvShape, Enlarged, Factor, LevelOrder, Linear, Pass, activate,
    dropout, fuse_levels, linear, resize_bilinear,
};

/// Channels of a branch between its two convolutions.
const BRANCH_CHANNELS: usize = 8;
/// The head works at a quarter of the input's resolution.
const HEAD_STRIDE: usize = 4;

/// The head: each level through a linear layer, enlarged to the first level's size, fused.
#[derive(Module, Debug)]
pub struct Head {
    linear: Vec<Linear>,
    fuse: Conv2d,
    bn: Option<BatchNorm>,
    cls: Conv2d,
    #[module(skip)]
    activation: Option<Activation>,
    dropout: f64,
}

impl Head {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let channels = config.head_channels;
        let fuse = Conv2d::new(4 * channels, channels, 1, ConvShape::POINTWISE, device);
        let (fuse, bn) = match config.head_norm {
            HeadNorm::Batch => (fuse.without_bias(), Some(BatchNorm::new(channels, device))),
            HeadNorm::None => (fuse, None),
        };
        Self {
            linear: config
                .dims
                .iter()
                .map(|dim| Linear::new(*dim, channels, device))
                .collect(),
            fuse,
            bn,
            cls: Conv2d::new(
                channels,
                config.head_outputs,
                1,
                ConvShape::POINTWISE,
                device,
            ),
            activation: config.level_activation().into(),
            dropout: config.dropout,
        }
    }

    fn forward(&self, features: &[Tensor<4>; 4], pass: &Pass) -> Tensor<4> {
        let order = if self.bn.is_some() {
            LevelOrder::DeepestFirst
        } else {
            LevelOrder::ShallowFirst
        };
        let fused = match self.activation {
            Some(activation) => self.fuse_activated(features, activation, order),
            None => self.fuse_linear(features, order),
        };
        let fused = match &self.bn {
            Some(bn) => bn.forward(fused, pass),
            None => fused,
        };
        let head = self.cls.forward(activate(fused, Activation::Relu));
        dropout(head, self.dropout, HEAD, pass)
    }
}

impl Head {
    fn fuse_activated(
        &self,
        features: &[Tensor<4>; 4],
        activation: Activation,
        order: LevelOrder,
    ) -> Tensor<4> {
        let levels = std::array::from_fn(|level| {
            let (tokens, grid) = to_tokens(features[level].clone());
            let tokens = activate(self.linear[level].forward(tokens), activation);
            to_map(tokens, grid)
        });
        let bias = self.fuse.bias.as_ref().map(Param::val);
        fuse_levels(levels, self.fuse.weight.val(), bias, order)
    }

    /// With nothing between them, a level's linear layer and its part of the fusing convolution are one linear layer, whose
    /// weight is their product: unless a level has fewer tokens than channels, that is less work, and the level's map between them is
    /// never made.
    fn fuse_linear(&self, features: &[Tensor<4>; 4], order: LevelOrder) -> Tensor<4> {
        let weight = self.fuse.weight.val();
        let [out, inputs, ..] = weight.dims();
        let weight: Tensor<2> = weight.reshape([out, inputs]);
        let channels = inputs / features.len();
        let [_, _, height, width] = features[0].dims();
        let levels = features.iter().zip(&self.linear).enumerate();
        let maps = levels.map(|(level, (feature, own))| {
            let start = order.position(level, features.len()) * channels;
            let part = weight.clone().narrow(1, start, channels);
            let (tokens, grid) = to_tokens(feature.clone());
            let [n, count, dim] = tokens.dims();
            let tokens = if n * count > dim {
                let bias = own.bias.val().reshape([channels, 1]);
                let bias = part.clone().matmul(bias).reshape([out]);
                linear(tokens, part.matmul(own.weight.val()), bias)
            } else {
                let none = Tensor::zeros([out], (&part.device(), part.dtype()));
                linear(own.forward(tokens), part, none)
            };
            let map = resize_bilinear(to_map(tokens, grid), [height, width]);
            // Channels last is how maps lie in memory.
            map.permute([0, 2, 3, 1])
        });
        let sum = maps
            .reduce(|sum, map| sum + map)
            .expect("there are four levels");
        let sum = match &self.fuse.bias {
            Some(bias) => sum + bias.val().reshape([1, 1, 1, out]),
            None => sum,
        };
        sum.permute([0, 3, 1, 2])
    }
}

/// A branch: nearest x4, a convolution, nearest x scale, a convolution.
#[derive(Module, Debug)]
pub struct Branch {
    conv0: Conv2d,
    conv1: Conv2d,
    scale: usize,
}

impl Branch {
    fn new(config: &ModelConfig, outputs: usize, device: &Device) -> Self {
        let convolution =
            |inputs, outputs| Conv2d::new(inputs, outputs, 3, ConvShape::SAME_3X3, device);
        Self {
            conv0: convolution(config.head_outputs, BRANCH_CHANNELS),
            conv1: convolution(BRANCH_CHANNELS, outputs),
            scale: config.scale,
        }
    }

    fn list(&self, prefix: &str) -> [BlockInfo; 2] {
        [
            BlockInfo::new(format!("{prefix}.conv0"), &self.conv0),
            BlockInfo::new(format!("{prefix}.conv1"), &self.conv1),
        ]
    }

    /// The map at the input's resolution and the final one.
    fn forward(&self, prefix: &str, x: Tensor<4>, scope: &impl Scope) -> (Tensor<4>, Enlarged) {
        let name = format!("{prefix}.conv0");
        let low: Tensor<4> = scope.block(&name, &self.conv0, vec![x], |convolution, x, _| {
            let [x] = take(x);
            convolution.forward_upsampled(x, HEAD_STRIDE)
        });
        let (name, scale) = (format!("{prefix}.conv1"), self.scale);
        let inputs = vec![low.clone()];
        let map = scope.block(&name, &self.conv1, inputs, move |convolution, x, _| {
            let [x] = take(x);
            convolution.forward_enlarged(x, scale)
        });
        let [_, _, h, w] = low.dims();
        (low, Enlarged::new(map, [h, w], scale))
    }
}

/// Channels that the super-resolution branch learns.
pub const SUPERRES_CHANNELS: usize = 4;

/// Where the parts are in the model.
const HEAD: &str = "tail.head";
const SEGMENTATION: &str = "tail.seg";
const SUPERRES: &str = "tail.sr";

/// Everything behind the encoder.
#[derive(Module, Debug)]
pub struct Tail {
    head: Head,
    seg: Option<Branch>,
    /// In place of `seg`, where the segmentation is enlarged step by step.
    up: Vec<Conv2d>,
    sr: Option<Branch>,
    #[module(skip)]
    factors: Vec<Factor>,
}

/// What the [`Tail`] makes, at the padded size.
pub(crate) struct TailMaps {
    pub(crate) head: Tensor<4>,
    pub(crate) segmentation: (Tensor<4>, Enlarged),
    pub(crate) superres: Option<(Tensor<4>, Enlarged)>,
}

impl Tail {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let direct = config.upsampling == Upsampling::Direct;
        let factors = match direct {
            true => Vec::new(),
            false => progressive::factors(config.scale),
        };
        Self {
            head: Head::new(config, device),
            seg: direct.then(|| Branch::new(config, config.classes, device)),
            sr: config
                .superres
                .then(|| Branch::new(config, SUPERRES_CHANNELS, device)),
            up: progressive::convolutions(config, factors.len(), device),
            factors,
        }
    }

    /// The batch normalisation of the head with its name in the model.
    pub(crate) fn batch_norm(&self) -> Option<(&'static str, &BatchNorm)> {
        self.head.bn.as_ref().map(|bn| ("tail.head.bn", bn))
    }

    /// The blocks in the order of [`forward`](Self::forward).
    pub(crate) fn list(&self) -> Vec<BlockInfo> {
        let mut blocks = vec![BlockInfo::new(HEAD.into(), &self.head)];
        blocks.extend(self.seg.iter().flat_map(|seg| seg.list(SEGMENTATION)));
        blocks.extend(progressive::list(&self.up));
        blocks.extend(self.sr.iter().flat_map(|sr| sr.list(SUPERRES)));
        blocks
    }

    pub(crate) fn forward(&self, features: &[Tensor<4>; 4], scope: &impl Scope) -> TailMaps {
        let levels = features.to_vec();
        let head: Tensor<4> = scope.block(HEAD, &self.head, levels, |head, levels, pass| {
            head.forward(&take(levels), pass)
        });
        let segmentation = match &self.seg {
            Some(seg) => seg.forward(SEGMENTATION, head.clone(), scope),
            None => progressive::forward(&self.up, &self.factors, head.clone(), scope),
        };
        let superres = self.sr.as_ref();
        let superres = superres.map(|sr| sr.forward(SUPERRES, head.clone(), scope));
        TailMaps {
            head,
            segmentation,
            superres,
        }
    }
}
