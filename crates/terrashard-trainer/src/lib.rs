//! Trains, tests and runs Sentinel-2 super-resolution segmentation models on sharded model states.
//!
//! This crate composes the others and holds no algorithm: a [`config`] becomes a run, a run leaves a
//! [`run_directory`] behind.

pub mod arguments;
pub mod band_stack;
pub mod commands;
pub mod config;
pub mod dataset;
mod error;
pub mod evaluation;
pub mod export;
pub mod mapping;
pub mod prediction;
pub mod record;
pub mod report;
pub mod run_directory;
pub mod schedule;
pub mod trained_model;
pub mod training;

pub use error::{Error, Result};
