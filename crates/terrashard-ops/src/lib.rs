//! Differentiable operations that burn lacks or does slowly, each with a hand-written backward, and the few layers that
//! are built of them.
//!
//! Every operation has one *portable* body, written with plain burn tensors, that runs on any backend, and may have a faster
//! one for a backend in the trait `Kernels`. Only this pair is known to the autodiff graph: an operation is one node however much it
//! computes.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use terrashard_ops::{ConvShape, conv2d};
//!
//! let device = Device::flex().autodiff();
//! let x = Tensor::<4>::ones([1, 1, 4, 4], &device);
//! let weight = Tensor::<4>::ones([1, 1, 3, 3], &device).require_grad();
//! let y = conv2d(x, weight.clone(), None, ConvShape { stride: 1, padding: 1, groups: 1 });
//! let gradients = y.sum().backward();
//! assert_eq!(weight.grad(&gradients).unwrap().dims(), [1, 1, 3, 3]);
//! ```
//!
//! # Invariants
//! - Knows nothing of ranks: what has to be summed over them goes through [`SumOverRanks`].
//! - No operation keeps a parameter or an input in its backward state: it keeps the node's identity and asks the
//!   checkpointer for the value, or the parameter's slot, so that a parameter whose value is gathered again in backward is not held in between.
//! - A loss on LibTorch computes its gradient with its value and keeps that alone: neither the map nor its target is read twice.
//! - Everything works in `f32` and in `f64`, and takes `bf16` and `f16`: those are computed in `f32` and rounded at the border of an
//!   operation, except that a loss is an `f32`. LibTorch's kernels take them as they are where they add up in `f32` themselves.

mod activation;
mod affinity;
mod attention;
mod batch_norm;
#[cfg_attr(
    feature = "tch",
    expect(deprecated, reason = "the macro names burn's LibTorch backend itself")
)]
mod branch;
mod convolution;
mod cross_entropy;
mod dropout;
mod enlarged;
mod flex;
mod focal;
mod fuse;
#[cfg_attr(
    feature = "tch",
    expect(deprecated, reason = "the macro names burn's LibTorch backend itself")
)]
mod graph;
mod image;
mod kernels;
mod l1;
mod labels;
mod layer_norm;
#[cfg(feature = "tch")]
mod libtorch;
mod linear;
mod modules;
mod operation;
mod overlap;
mod parameter;
mod pass;
mod random;
mod replay;
mod resize;
mod slots;
mod sum_over_ranks;
mod upsample;

pub use activation::{Activation, activate};
pub use affinity::{affinity, similarity};
pub use attention::attention;
pub use batch_norm::{BatchStatistics, batch_norm, batch_sums};
pub use branch::{
    AttentionLayers, DropPath, FeedForwardLayers, attention_branch, feed_forward_branch,
};
pub use convolution::{ConvShape, conv2d};
pub use cross_entropy::{class_dice, cross_entropy};
pub use dropout::{drop_path, dropout};
pub use enlarged::{Enlarged, enlarge_conv2d};
pub use focal::{Focal, focal};
pub use fuse::{LevelOrder, fuse_levels};
pub use image::{Coding, Image};
pub use l1::l1;
pub use labels::Labels;
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use modules::{BatchNorm, Conv2d, LayerNorm, Linear, Running};
pub use overlap::{Dice, SoftBce, dice, soft_bce};
pub use parameter::Initial;
pub use pass::{Masks, Mode, Pass};
pub use replay::{Recorder, Replay};
pub use resize::resize_bilinear;
pub use slots::{ParameterSlots, Slots, Wanted};
pub use sum_over_ranks::{Alone, SumOverRanks};
pub use upsample::{Factor, upsample_conv2d};

/// The label of a pixel that counts for nothing: its loss and its gradient are exactly zero.
pub const IGNORE: u8 = 255;

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
