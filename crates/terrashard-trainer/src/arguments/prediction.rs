//! The command line of `terrashard predict`.

use std::path::PathBuf;

use clap::Args;
use terrashard_data::Offset;

use super::{DeviceFlags, bytes, scene};
use crate::prediction::ProbabilityType;

/// `terrashard predict`.
#[derive(Debug, Args)]
pub struct PredictArguments {
    /// Scenes: files, products, or addresses of GeoTIFF files
    #[arg(value_name = "IN", value_parser = scene())]
    pub inputs: Vec<PathBuf>,
    /// Map of classes: a file, or a folder for several inputs
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Write the probabilities: a file, or a folder for several inputs
    #[arg(long, value_name = "OUT")]
    pub probability: Option<PathBuf>,
    /// How probabilities are stored
    #[arg(long, value_enum, default_value = "u8")]
    pub probability_type: ProbabilityType,
    /// Write the super-resolved image too, reflectance in float32, of a model with the branch: a file, or a folder for several inputs
    #[arg(long, value_name = "OUT")]
    pub image: Option<PathBuf>,
    /// Write the areas of every class but 0 in EPSG:4326 as GeoJSON, or as GeoParquet where the name ends in .parquet, beside the
    /// map: a file, or a folder for several inputs
    #[arg(long, value_name = "OUT")]
    pub polygons: Option<PathBuf>,
    /// Write one map of classes over all scenes, beside theirs; they lie on one grid, and where they overlap, the first one given that has
    /// data counts
    #[arg(long, value_name = "OUT")]
    pub mosaic: Option<PathBuf>,
    /// Write a STAC item beside each scene's first file
    #[arg(long)]
    pub stac: bool,
    /// Run directory, checkpoint, or exported file
    #[arg(long, value_name = "RUN_OR_FILE")]
    pub checkpoint: PathBuf,
    /// Memory to stay below, for example 1GiB [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Side of the windows in pixels of the image [default: the checkpoint's `data.tile`]
    #[arg(long, value_name = "PX")]
    pub tile: Option<usize>,
    /// Pixels of the image that neighbouring windows share [default: the checkpoint's `data.overlap`]
    #[arg(long, value_name = "PX")]
    pub overlap: Option<usize>,
    /// Digital number that means "no data" [default: the checkpoint's `data.nodata`, else what a scene declares]
    #[arg(long, value_name = "DN", allow_negative_numbers = true)]
    pub nodata: Option<f64>,
    /// Added to digital numbers: a number, or `auto` for what the product's name or metadata says of its processing baseline
    /// [default: the checkpoint's `data.scaling.offset`]
    #[arg(long, value_name = "auto|DN", allow_negative_numbers = true)]
    pub offset: Option<Offset>,
    /// One scene from files of single bands: `B02=a.tif,B03=b.tif:1`
    #[arg(long, value_name = "NAME=FILE[:BAND]", value_delimiter = ',')]
    pub bands: Vec<String>,
    /// Number of ranks, each a thread [default: one for each core]
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// At stage 3 each rank holds a shard of the weights and gathers them block by block; below, all share one copy
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub stage: u8,
    /// Keep the shards of stage 3 in host memory
    #[arg(long)]
    pub offload: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub device: DeviceFlags,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Show no progress
    #[arg(long)]
    pub quiet: bool,
}
