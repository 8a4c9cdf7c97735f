//! The optimizer's update in host memory: over plain slices, vectorised, on all cores.
//!
//! One pass reads parameters, states and gradients once and writes parameters and states once; a copy in the compute
//! type and the moving average of the weights, where wanted, are written in the same pass. That is the least traffic an
//! update can have, and the pass is bound by memory: `cargo xtask bench host-adam` says by how much.
//!
//! The loops are plain Rust, compiled once for each instruction set that [`pulp`] tells apart and chosen at run time.
//! No instruction set and no thread count changes a bit of the result: every operation is element-wise and rounded
//! by itself (Rust never contracts a product and a sum), roots and quotients are correctly rounded everywhere.
//!
//! Invariants: knows nothing of tensors, devices, ranks or buckets; needs no memory of its own beyond a few kilobytes of
//! stack; the first state of every rule is zero, and where parameter, gradient and state are zero they stay zero, so that
//! padding does.

mod adamw;
mod average;
mod element;
mod halves;
mod pages;
mod piece;
mod sgd;
mod sweep;

pub use adamw::{AdamWUpdate, MomentSlices};
pub use average::Average;
pub use element::Element;
pub use pages::zeroed;
pub use piece::{ComputeCopy, Gradient, Piece};
pub use sgd::SgdUpdate;
pub use sweep::instruction_set;
