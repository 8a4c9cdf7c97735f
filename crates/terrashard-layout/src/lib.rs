//! Who owns which elements of a sharded model: pure arithmetic.
//!
//! A model with `R` ranks is described by one [`ShardTable`], the same on every rank. Its rows are the
//! parameters, sorted by name; each parameter is cut on its own, flat, into `R` pieces of
//! `ceil(numel / R)` elements, so that a checkpoint can be read at another rank count by interval
//! arithmetic and no border cuts a neighbour. Its [`Bucket`]s say how pieces travel together.
//!
//! One meaning for each word, here and in the other crates:
//!
//! | word | meaning |
//! |---|---|
//! | rank | one of the equal workers of a run, `0..ranks` |
//! | shard | the elements of one parameter that one rank owns |
//! | bucket | parameters of one group, element type and residence that are communicated in one call |
//! | residence | how a rank holds a parameter's value between its uses: whole, or as its shard |
//! | chunk | one rank's part of a bucket, padding included |
//! | piece | one parameter's part of a chunk |
//! | group | parameters with the same learning rate and weight decay |
//!
//! ```
//! use terrashard_layout::{ElementType, LayoutConfig, ParameterSpec, ShardTable, Stage};
//!
//! let bias = ParameterSpec::new("head.bias", [5], ElementType::F32);
//! let config = LayoutConfig { ranks: 2, stage: Stage::Two, ..LayoutConfig::default() };
//! let table = ShardTable::new(vec![bias], &config)?;
//! let row = table.row("head.bias").expect("the only parameter");
//! assert_eq!(row.interval(0, 2), 0..3);
//! assert_eq!(row.interval(1, 2), 3..5);
//! # Ok::<(), terrashard_layout::Error>(())
//! ```
//!
//! Invariants: this crate holds no tensor and does no input or output; it knows nothing of burn, of devices
//! and of how ranks talk. Everything is a function of its arguments: equal arguments give equal tables,
//! sample orders and random numbers on every rank and every machine.

mod bucket;
pub mod counter;
mod element;
mod error;
mod memory;
mod row;
mod sample;
mod stage;
mod states;
mod table;
mod traffic;
mod window;

pub use bucket::{Bucket, Piece, Residence};
pub use element::ElementType;
pub use error::{Error, Result};
pub use memory::RankBytes;
pub use row::{ParameterSpec, Row};
pub use sample::SampleOrder;
pub use stage::Stage;
pub use states::{BUCKETS_IN_FLIGHT, Offload, ReduceType, StateConfig};
pub use table::{LayoutConfig, ShardTable};
pub use traffic::{StepTraffic, VerbBytes};
pub use window::{BatchShape, Window, global_batch, micro_batch};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
