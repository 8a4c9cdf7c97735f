//! Behaviour of the crate as its users see it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod damage;
mod fixture;
mod foreign;
mod fuzzed;
mod model;
mod reshard;
mod size;

// Public for the targets, which are another crate.
#[allow(unreachable_pub)]
#[path = "../../fuzz/src/checkpoints.rs"]
mod checkpoints;

#[allow(unreachable_pub)]
#[path = "../../../terrashard-raster/fuzz/src/kept.rs"]
mod kept;
