//! Sentinel-2 scenes to training batches, and predictions back to scenes.
//!
//! - in: [`Scene`] (an image and, on a finer grid, a mask and perhaps a high-resolution image), [`Region`] and [`Split`], [`tile`], [`Chips`] (samples by
//!   [`Selection`], augmented), [`Batch`], [`Loader`] (prepared ahead, by rank);
//! - out: [`Mosaic`] (overlapping windows blended, each giving back the [`Block`] that it completes);
//! - before them: [`cut`] (scenes to a [`ChipIndex`]), [`inspect`] (what is wrong with files), [`Statistics`] of bands, [`Offset`] by processing baseline;
//! - beside them: [`Confusion`] and [`ConfusionMatrix`], the [`shore`] zone, [`Fidelity`] of images, and the baselines: NDWI
//!   ([`baseline`]) and [`bicubic`] enlargement.
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
//! - No input of a model is NaN or infinite; a pixel without data is ignored (255) at every mask pixel over it. In a
//!   high-resolution target NaN, or of digital numbers one that no valid pixel has, and nothing else, stands for what is missing.
//! - No chip reaches beyond its region, and every pixel of a region is in a chip before selection.
//! - Image, mask and high-resolution image cover the same ground, `scale` fine pixels to one image pixel along each side, checked
//!   when a scene opens.

mod affine;
mod alignment;
mod augmentation;
mod bands;
pub mod baseline;
mod batch;
pub mod bicubic;
mod block;
mod cache;
mod chip_index;
mod chips;
mod classification;
mod coding;
mod confusion;
mod confusion_matrix;
mod crs;
mod cutting;
mod error;
#[cfg(feature = "faults")]
pub mod faults;
mod fidelity;
mod fine_grid;
mod geoparquet;
mod inspection;
mod label_values;
mod loader;
mod mosaic;
mod offset;
mod orientation;
mod outlines;
mod overlay;
mod planes;
mod plausibility;
mod region;
mod registration;
mod reopened;
mod resampling;
mod scaling;
mod scene;
mod selection;
pub mod shore;
mod spectrum;
mod splitting;
mod statistics;
mod sweep;
mod target;
mod tiling;
mod unreadable;

pub use alignment::{AlignOptions, Aligned, Content, align};
pub use augmentation::{Augmentation, Draw, Jitter};
pub use bands::{Band, BandSelection};
pub use batch::Batch;
pub use block::{Block, PROBABILITY_STEPS, image_spec, prediction_spec};
pub use cache::TileCache;
pub use chip_index::{ChipFiles, ChipHeader, ChipIndex, DropReason, DroppedChip, IndexedChip};
pub use chips::{Chip, ChipOptions, Chips};
pub use classification::IgnoreFrom;
pub use coding::{Coding, TargetImages};
pub use confusion::Confusion;
pub use confusion_matrix::ConfusionMatrix;
pub use crs::{LONGITUDE_LATITUDE, Reprojection, footprint as ground};
pub use cutting::{CutOptions, CutReport, cut, write_files};
pub use error::{Error, Result};
pub use fidelity::{Comparison, DATA_RANGE, Fidelity};
pub use fine_grid::Fine;
pub use geoparquet::{GroundArea, WRITES_GEOPARQUET, write_geoparquet};
pub use inspection::{Finding, Kind, Level, SceneFiles, inspect, unreadable};
pub use loader::{Loader, LoaderOptions, MicroBatch};
pub use mosaic::Mosaic;
pub use offset::{Offset, ProductOffset};
pub use orientation::Orientation;
pub use outlines::{Area, Outlines};
pub use overlay::Overlay;
pub use planes::{crop, mirror_pad};
pub use plausibility::unlike_training;
pub use region::{Region, Split, SplitWindows};
pub use registration::{LARGEST_SHIFT, Shift, measure};
pub use reopened::Reopened;
pub use resampling::Resampling;
pub use scaling::Scaling;
pub use scene::{IGNORE, Patch, Scene, SceneOptions};
pub use selection::{Balance, ChipReport, Selection};
pub use splitting::{Part, Shares, SplitRule, split};
pub use statistics::{BandStatistics, PERCENTILES, Statistics};
pub use target::TargetOptions;
pub use tiling::{partition, tile};
pub use unreadable::{LeftOut, OnUnreadable};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
