//! Benchmarks of the model and of the optimizer, with records.
//!
//! `cargo xtask bench` runs the binary `bench`; records of measured runs lie in `benches/runs/`, a folder each.

pub mod branch;
pub mod checkpoint;
pub mod host_adam;
pub mod memory;
pub mod model;
pub mod npy;
pub mod numbers;
pub mod raster;
pub mod record;
pub mod report;
pub mod stages;
pub mod torch;
pub mod training_step;
