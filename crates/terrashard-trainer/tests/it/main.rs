//! Runs from configuration to map, on a small scene that is made here.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ckpt;
mod classes;
mod commands;
mod concerns;
mod damage;
mod divergence;
mod doctor;
mod documented;
mod epochs;
mod exports;
mod folder;
mod fuzzed;
mod highres;
mod imports;
mod imports_refused;
mod info;
mod inputs;
mod limits;
mod panels;
mod plan;
mod predicted;
mod products;
mod recovery;
mod reports;
mod resident;
mod resume;
mod rules;
mod saves;
mod scenario;
mod scenes;
mod settings;
mod shell;
mod validation;
mod weights;

// Public for the target, which is another crate.
#[allow(unreachable_pub)]
#[path = "../../fuzz/src/configurations.rs"]
mod configurations;

#[allow(unreachable_pub)]
#[path = "../../../terrashard-raster/fuzz/src/kept.rs"]
mod kept;
