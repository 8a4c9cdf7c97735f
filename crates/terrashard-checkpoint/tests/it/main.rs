//! Behaviour of the crate as its users see it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod damage;
mod fixture;
mod foreign;
mod model;
mod reshard;
mod size;
