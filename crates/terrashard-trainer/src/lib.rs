//! Trains, tests and runs Sentinel-2 super-resolution segmentation models on sharded model states.
//!
//! A [`config::Config`] becomes a run ([`training::fit`]), a run leaves a [`run_directory`] behind, and what stands there is
//! measured ([`evaluation`]), laid over scenes ([`prediction`]), exported ([`export`]; checkpoints of others are read by [`import`]) and shown ([`report`]); [`planning`] says
//! beforehand what each stage would take, [`doctor`] what the machine lacks, [`inspection`] what is wrong with the files, [`alignment`] lays them onto one grid, [`chipping`] cuts them and [`statistics`] what is in them, and [`launching`] makes processes of the ranks. [`explanation`] has the codes of errors. [`commands`] is
//! the program `terrashard` around that.
//!
//! ```
//! use std::path::Path;
//! use terrashard_trainer::config::Config;
//!
//! let text = r#"data.scenes = [{ image = "scene.tif", mask = "label.tif" }]"#;
//! let config = Config::parse(text, Path::new("run.toml"), Path::new("/data"), &["train.steps=20".into()])?;
//! assert_eq!(config.train.steps, Some(20));
//! assert_eq!(config.data.scenes[0].image, Path::new("/data/scene.tif"));
//!
//! let misspelt = Config::parse(text, Path::new("run.toml"), Path::new("/data"), &["train.stpes=20".into()]);
//! let message = misspelt.unwrap_err().to_string();
//! assert!(message.contains("unknown key `train.stpes`; the nearest known one is `train.steps`"));
//! # Ok::<(), terrashard_trainer::Error>(())
//! ```
//!
//! # Invariants
//! - It composes the other crates and holds no algorithm: no layer, loss, update, blending or metric is written here.
//! - Bad input is refused before any work starts, and leaves no file.
//! - A configuration is never changed quietly: what does not work is an error that names the key.

pub mod alignment;
pub mod arguments;
pub mod band_stack;
pub mod checkpoints;
pub mod chipping;
pub mod commands;
mod concerns;
pub mod config;
pub mod console;
pub mod dataset;
pub mod device_memory;
pub mod doctor;
mod energy;
mod error;
pub mod evaluation;
pub mod explanation;
pub mod export;
mod footprint;
pub mod import;
pub mod info;
pub mod inspection;
pub mod launching;
pub mod mapping;
mod output_file;
mod pictures;
pub mod planning;
pub mod prediction;
mod process_memory;
pub mod record;
pub mod report;
pub mod run_directory;
pub mod schedule;
pub mod sharding;
pub mod statistics;
pub mod trained_model;
pub mod training;

pub use error::{Error, Result};
