//! What LibTorch computes and its Rust bindings leave out: gradients of convolution and layer normalisation, attention
//! that never builds its matrix of scores, AdamW in one pass, what the device's memory holds, deterministic algorithms.
//!
//! Without the feature `tch` the crate is empty and compiles anywhere. With it, it needs LibTorch, which
//! `cargo xtask libtorch` sets up.
//!
//! Everything goes through a few C++ files, built against LibTorch's headers alone: `shim.cc`, and `branch.cc` and `attention.cc` for what
//! is more than one of LibTorch's kernels; and `shim.rs`, which calls them. A tensor is [`tch::Tensor`](https://docs.rs/tch), as burn's backend holds it.
#![cfg_attr(
    feature = "tch",
    doc = r#"
```
use terrashard_torch::{conv2d_backward, tch::{Device, Kind, Tensor}};

let of = |shape: &[i64]| Tensor::ones(shape, (Kind::Float, Device::Cpu));
let (gradient, x, weight) = (of(&[1, 1, 4, 4]), of(&[1, 1, 4, 4]), of(&[1, 1, 3, 3]));
let [_, _, bias] = conv2d_backward(&gradient, &x, &weight, [1, 1, 1], [false, false, true])?;
assert_eq!(bias.expect("asked for").double_value(&[0]), 16.0);
# Ok::<(), terrashard_torch::Error>(())
```
"#
)]
//!
//! # Invariants
//! - Nothing here panics: what C++ throws comes back as an [`Error`](crate) with its text.
//! - Every handle is owned by a value that frees it, after an error, too.
//! - LibTorch's own autograd is out of play: nothing is recorded, whatever a tensor requires.

#[cfg(feature = "tch")]
mod adamw;
#[cfg(feature = "tch")]
mod attention;
#[cfg(feature = "tch")]
mod backend;
#[cfg(feature = "tch")]
mod branch;
#[cfg(feature = "tch")]
mod columns;
#[cfg(feature = "tch")]
mod device;
#[cfg(feature = "tch")]
mod error;
#[cfg(feature = "tch")]
mod flat;
#[cfg(feature = "tch")]
mod gradients;
#[cfg(feature = "tch")]
mod graphs;
#[cfg(feature = "tch")]
mod host_buffer;
#[cfg(feature = "tch")]
mod loss;
#[cfg(feature = "tch")]
mod profile;
#[cfg(feature = "tch")]
mod resize;
#[cfg(feature = "tch")]
mod shim;
#[cfg(feature = "tch")]
mod view;

#[cfg(feature = "tch")]
pub use {
    adamw::{AdamW, Gate},
    attention::Attention,
    backend::{LibTorch, Primitive, cpu, gpu, inner, is_unshared, outer},
    branch::{AttentionBranch, BranchActivation, FeedForwardBranch, Saved},
    columns::{columns, columns_backward},
    device::{
        Memory, cpu_peak, empty_cache, is_deterministic, limit_memory, load_cuda,
        set_deterministic, set_tf32, version,
    },
    error::{Error, Result},
    flat::{Pieces, sums_of_squares},
    gradients::{conv2d_backward, layer_norm, layer_norm_backward},
    graphs::{Graphs, WithoutGraphs},
    host_buffer::{HostBuffer, Upload},
    loss::{LossAndSlope, MaskLoss, Numbers, l1_loss, mask_loss},
    profile::{Profile, ProfileRow},
    resize::{resize_bilinear, resize_bilinear_backward},
    tch,
    view::reshaped,
};

/// The README's example, compiled.
#[cfg(all(doctest, feature = "tch"))]
#[doc = include_str!("../README.md")]
struct Readme;
