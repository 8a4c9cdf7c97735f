//! Sentinel-2 scenes to training batches, and predictions back to scenes.
//!
//! - in: [`Scene`] (an image and a mask on a finer grid), [`Region`] and [`Split`], [`tile`], [`Chips`] (samples by
//!   [`Selection`], augmented), [`Batch`], [`Loader`] (prepared ahead, by rank);
//! - out: [`Mosaic`] (overlapping windows blended row by row, written as they are complete);
//! - beside them: [`Confusion`], the [`shore`] zone and the NDWI [`baseline`].
//!
//! ```
//! use terrashard_data::{Region, tile};
//!
//! let east = Region::East.window("test", 1536, 768)?;
//! assert_eq!(tile(east, 64, 64)?.len(), 144);
//! # Ok::<(), terrashard_data::Error>(())
//! ```
//!
//! # Invariants
//! - Numbers in plain vectors: knows nothing of tensors, models, devices or losses.
//! - What a sample is, when it comes and how it is turned depends on scenes, options and seed, never on the number of ranks.
//! - No value of a batch is NaN or infinite; a pixel without data is ignored (255) at every mask pixel over it.
//! - No chip reaches beyond its region, and every pixel of a region is in a chip before selection.
//! - Image and mask cover the same ground, `scale` mask pixels to one image pixel along each side, checked when a scene opens.

mod bands;
pub mod baseline;
mod chips;
mod confusion;
mod error;
mod loader;
mod mosaic;
mod orientation;
mod planes;
mod region;
mod rows;
mod scaling;
mod scene;
mod selection;
pub mod shore;
mod tiling;

pub use bands::{Band, BandSelection};
pub use chips::{Augmentation, Batch, Chip, ChipOptions, Chips};
pub use confusion::Confusion;
pub use error::{Error, Result};
pub use loader::{Loader, LoaderOptions, MicroBatch};
pub use mosaic::Mosaic;
pub use orientation::Orientation;
pub use planes::{crop, mirror_pad};
pub use region::{Region, Split, SplitWindows};
pub use rows::{Rows, prediction_spec};
pub use scaling::Scaling;
pub use scene::{IGNORE, Patch, Scene, SceneOptions};
pub use selection::{Balance, ChipReport, Selection};
pub use tiling::tile;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
