//! Benchmarks of the model, with records.
//!
//! `cargo xtask bench` runs the binary `bench`; records of measured runs lie in `benches/runs/`, a folder each.

pub mod memory;
pub mod model;
pub mod record;
