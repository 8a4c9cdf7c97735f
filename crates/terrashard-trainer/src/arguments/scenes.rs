//! The command lines of what is done with scenes before a training.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `terrashard check`.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// Configuration in TOML
    pub config: PathBuf,
    /// Set a key of the configuration, the value in TOML: `--set data.nodata=0`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// End with 0 where nothing is wrong, though something is suspicious
    #[arg(long)]
    pub allow_suspicious: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `terrashard stats`.
#[derive(Debug, Args)]
pub struct StatsArguments {
    /// Configuration in TOML, for reflectance of its bands in all scenes and by part of its split; or raster files, for the numbers
    /// of all their bands together
    #[arg(required = true, value_name = "CONFIG|FILE")]
    pub inputs: Vec<PathBuf>,
    /// Set a key of the configuration, the value in TOML: `--set data.train=all`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Number that means "no data" in raster files, in place of what they declare
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub nodata: Option<f64>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `terrashard chip`.
#[derive(Debug, Args)]
pub struct ChipArguments {
    /// Configuration in TOML: its scenes, `data.chip`, `data.selection`, `data.ignore_from` and seed
    pub config: PathBuf,
    /// Index of the chips to be written, GeoJSON, for `data.chips`
    #[arg(short, long, value_name = "OUT", default_value = "chips.geojson")]
    pub output: PathBuf,
    /// Write chips as files of their own below this folder [default: the index names windows of the scenes]
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
    /// How scenes are split: by `data.train` and `data.test`, by whole scenes, or by squares of ground
    #[arg(long, value_enum, default_value = "regions")]
    pub split: SplitFlag,
    /// How much train, validation and test get of scenes or squares
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', num_args = 3, default_values_t = [0.7, 0.15, 0.15])]
    pub shares: Vec<f64>,
    /// Side of a square of ground in pixels of an image [default: four chips]
    #[arg(long, value_name = "PX")]
    pub block: Option<usize>,
    /// Pixels from one chip for training to the next [default: each pixel is in one chip, as for validation and test anyway]
    #[arg(long, value_name = "PX")]
    pub stride: Option<usize>,
    /// Set a key of the configuration, the value in TOML: `--set data.chip=128`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `--split`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitFlag {
    /// By the regions of the configuration.
    Regions,
    /// By whole scenes; those that lie over each other stay together.
    Scenes,
    /// By squares of ground, the same for all scenes of a reference system.
    Blocks,
}
