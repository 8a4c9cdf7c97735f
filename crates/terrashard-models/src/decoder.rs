//! The all-MLP head and the branches that enlarge its output.

use crate::config::{HeadNorm, ModelConfig};
use crate::encoder::{Grid, to_map, to_tokens};
use crate::scope::Scope;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use terrashard_ops::{
    Activation, BatchNorm, Conv2d, ConvShape, Linear, activate, conv2d, resize_bilinear,
};

/// Channels that the head gives to the branches.
pub const HEAD_OUTPUT: usize = 16;
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
            cls: Conv2d::new(channels, HEAD_OUTPUT, 1, ConvShape::POINTWISE, device),
        }
    }

    /// Enlarging is linear, so each level goes through its part of the fusing convolution before it is enlarged: the same
    /// values at a fraction of the work, and the levels are never concatenated.
    fn forward(&self, features: &[Tensor<4>], scope: &impl Scope) -> Tensor<4> {
        let [_, _, h, w] = features[0].dims();
        let weight = self.fuse.weight.val();
        let [channels, ..] = weight.dims();
        let levels =
            self.linear
                .iter()
                .zip(features)
                .enumerate()
                .map(|(level, (linear, feature))| {
                    let (tokens, grid) = to_tokens(feature.clone());
                    let tokens = linear.forward(tokens);
                    let (tokens, position) = match &self.bn {
                        Some(_) => (tokens, features.len() - 1 - level),
                        None => (activate(tokens, Activation::Relu), level),
                    };
                    let weight = weight.clone().narrow(1, position * channels, channels);
                    let bias = self
                        .fuse
                        .bias
                        .as_ref()
                        .filter(|_| level == 0)
                        .map(Param::val);
                    let fused = conv2d(to_map(tokens, grid), weight, bias, ConvShape::POINTWISE);
                    to_tokens(resize_bilinear(fused, [h, w])).0
                });
        let fused = levels
            .reduce(|sum, level| sum + level)
            .expect("the encoder has stages");
        let fused = to_map(
            fused,
            Grid {
                height: h,
                width: w,
            },
        );
        let fused = match &self.bn {
            Some(bn) => bn.forward(fused, scope.mode(), &scope.ranks()),
            None => fused,
        };
        self.cls.forward(activate(fused, Activation::Relu))
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
    fn new(outputs: usize, scale: usize, device: &Device) -> Self {
        Self {
            conv0: Conv2d::new(HEAD_OUTPUT, BRANCH_CHANNELS, 3, ConvShape::SAME_3X3, device),
            conv1: Conv2d::new(BRANCH_CHANNELS, outputs, 3, ConvShape::SAME_3X3, device),
            scale,
        }
    }

    /// The map at the input's resolution and the final one.
    fn forward(&self, x: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let low = self.conv0.forward_upsampled(x, HEAD_STRIDE);
        (low.clone(), self.conv1.forward_upsampled(low, self.scale))
    }
}

/// Channels that the super-resolution branch learns.
pub const SUPERRES_CHANNELS: usize = 4;

/// Everything behind the encoder.
#[derive(Module, Debug)]
pub struct Tail {
    head: Head,
    seg: Branch,
    sr: Option<Branch>,
}

/// What the [`Tail`] makes, at the padded size.
pub(crate) struct TailMaps {
    pub(crate) head: Tensor<4>,
    pub(crate) segmentation: (Tensor<4>, Tensor<4>),
    pub(crate) superres: Option<(Tensor<4>, Tensor<4>)>,
}

impl Tail {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        Self {
            head: Head::new(config, device),
            seg: Branch::new(config.classes, config.scale, device),
            sr: config
                .superres
                .then(|| Branch::new(SUPERRES_CHANNELS, config.scale, device)),
        }
    }

    /// The batch normalisation of the head with its name in the model.
    pub(crate) fn batch_norm(&self) -> Option<(&'static str, &BatchNorm)> {
        self.head.bn.as_ref().map(|bn| ("tail.head.bn", bn))
    }

    pub(crate) fn forward(&self, features: &[Tensor<4>], scope: &impl Scope) -> TailMaps {
        let deepest = features.last().expect("the encoder has stages");
        let head = scope.enter(&self.head, deepest).forward(features, scope);
        let segmentation = scope.enter(&self.seg, &head).forward(head.clone());
        let superres = self
            .sr
            .as_ref()
            .map(|sr| scope.enter(sr, &head).forward(head.clone()));
        TailMaps {
            head,
            segmentation,
            superres,
        }
    }
}
