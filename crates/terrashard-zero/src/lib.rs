//! The sharded optimizer: ZeRO stages 0 to 3 over any burn module.
//!
//! A model of one's own, any burn module with its loss, implements [`Trainable`]; [`Training`] then trains it at any stage. That is
//! the way to begin with.
//!
//! Below it, each rank builds its own model and a [`ZeroOptimizer`] from it. In forward, the model's blocks are run one by one with
//! [`ShardedParameters::block`], or entered with [`ShardedParameters::enter`]; their parameters join the autodiff graph at
//! the depth of the activation that goes into the block, so that [`ZeroOptimizer::backward`] reduces gradients block by
//! block while backward goes on. [`ZeroOptimizer::step`] clips and updates the rank's shard, and at stages 1 and 2 gathers
//! the parameters. At stage 3 they stay shards, and a block's are gathered for each use. For test and prediction,
//! [`ShardedParameters`] is that without gradients and states.
//!
//! A user who changes the stage, offload, recomputation, the rank count or the accumulation gets the same training within
//! rounding: stages at equal rank count and accumulation 1 are bitwise equal, since sums run in rank order and the update
//! is element-wise.
//!
//! Invariants: knows nothing of images, models or files; every collective is issued in an order that follows from the
//! shard table, and at stage 3 from the order of blocks, which all ranks run alike; a rank holds what
//! [`terrashard_layout::Stage`] says and no more between steps.

#[cfg_attr(
    feature = "tch",
    expect(deprecated, reason = "the macro names burn's LibTorch backend itself")
)]
mod anchor;
mod averages;
mod block;
mod bucket_updates;
mod comparison;
mod config;
mod decision;
mod entrance;
mod error;
#[cfg(feature = "tch")]
mod gate;
mod gather;
mod groups;
pub mod host;
mod host_memory;
#[cfg(feature = "tch")]
mod libtorch;
mod packing;
mod parameter_group;
mod parameters;
mod policy;
mod reading;
mod reducer;
mod rule;
#[cfg_attr(
    feature = "tch",
    expect(deprecated, reason = "the macro names burn's LibTorch backend itself")
)]
mod segment;
mod setup;
mod sharded_parameters;
mod signs;
mod slots;
mod state;
mod training;
mod update;
mod values;
mod zero_optimizer;

pub use block::{Recompute, Round};
pub use config::{
    AdamW, NonFinite, Offload, Optimizer, Precision, ReduceDtype, Reduction, Sgd, Unused,
    ZeroConfig,
};
pub use decision::{LossScale, Origin, Progress, StepOutcome};
pub use error::{Error, Result};
pub use groups::RankGroups;
pub use parameter_group::{ParameterGroup, Select};
pub use parameters::{Declared, declared};
pub use segment::MAX_INPUTS;
pub use setup::Initial;
pub use sharded_parameters::ShardedParameters;
pub use slots::Slots;
pub use state::{ReadState, StateKind, StatePiece};
pub use training::{Blocks, Trainable, Trained, Training};
pub use zero_optimizer::{HeldBytes, ZeroOptimizer};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
