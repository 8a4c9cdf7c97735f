//! Models for Sentinel-2: a Mix Transformer, an all-MLP head, and branches that enlarge its output to several times the
//! input's resolution, with their losses.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use terrashard_models::{ModelConfig, Plain};
//!
//! let config = ModelConfig { dims: [8, 16, 20, 32], depths: [1; 4], head_channels: 8, ..ModelConfig::b0() };
//! let device = Device::flex();
//! let model = config.init(&device)?.initialize(42);
//! let maps = model.forward(Tensor::zeros([1, 6, 32, 40], &device), &Plain::inference());
//! assert_eq!(maps.segmentation.dims(), [1, 1, 160, 200]);
//! # Ok::<_, terrashard_models::Error>(())
//! ```
//!
//! # Invariants
//! - Single-device code that knows nothing of ranks: a [`Scope`] runs each block with its parameters, [`Normalizers`] bring the
//!   counts of the whole window.
//! - A block may be run twice: see [`Scope`].
//! - The names of parameters are their paths in the module tree, and the order of declaration is that of a forward pass.
//! - Building a model allocates no parameter.

mod blocks;
mod config;
mod decoder;
mod encoder;
mod error;
mod foreign;
mod losses;
mod net;
mod padding;
mod progressive;
mod scope;
mod weights;

pub use blocks::BlockInfo;
pub use config::{FeedForward, HeadNorm, LevelActivation, ModelConfig, Upsampling};
pub use decoder::{Branch, Head, SUPERRES_CHANNELS, Tail};
pub use encoder::{Attention, Block, MixFeedForward, Stage};
pub use error::{Error, Result};
pub use foreign::{HuggingFaceConfig, Import, Imported, Origin, Told};
pub use losses::{L1_WEIGHT, Loss, Losses, Normalizers, Targets};
pub use net::{Maps, S2s2Net};
pub use scope::{Plain, Scope};
pub use terrashard_ops::{
    Alone, IGNORE, Labels, Masks, Mode, Pass, Recorder, Replay, SumOverRanks,
};
pub use weights::{assign, initial_value, parameters};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
