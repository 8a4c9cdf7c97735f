//! Layers: parameters and the operation that uses them. Field names are the names under which checkpoints keep them.

mod batch_norm;
mod convolution;
mod layer_norm;
mod linear;

pub use batch_norm::{BatchNorm, Running};
pub use convolution::Conv2d;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
