//! The command lines of what is done with scenes before a training.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use terrashard_data::Resampling;

use super::scene;

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
    #[arg(required = true, value_name = "CONFIG|FILE", value_parser = scene())]
    pub inputs: Vec<PathBuf>,
    /// Leave out the configuration's scenes of which a file is missing or damaged, and tell which; every file is read to its last
    /// pixel first
    #[arg(long)]
    pub skip_missing: bool,
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
    /// Leave out scenes of which a file is missing or damaged, and tell which; every file is read to its last pixel first
    #[arg(long)]
    pub skip_missing: bool,
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

/// `terrashard align`.
#[derive(Debug, Args)]
pub struct AlignArguments {
    /// Image whose ground and grid it is, at 10 m for instance
    #[arg(long, value_name = "FILE", value_parser = scene())]
    pub onto: PathBuf,
    /// Image at high resolution, in any reference system; several times for several
    #[arg(long, value_name = "FILE", value_parser = scene())]
    pub highres: Vec<PathBuf>,
    /// Label, in any reference system; several times for several
    #[arg(long, value_name = "FILE", value_parser = scene())]
    pub mask: Vec<PathBuf>,
    /// Folder for what is made, each under its own name, and for index.geojson
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Pixels of what is made for one pixel of the image, along one side
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub scale: usize,
    /// How values of images are made [default: `area` where they are finer than the grid, else `bilinear`]; labels are always `nearest`
    #[arg(long, value_enum)]
    pub resampling: Option<ResamplingFlag>,
    /// Number that means "no data" in images, in place of what they declare
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub nodata: Option<f64>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `--resampling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResamplingFlag {
    /// The mean over the area of a pixel.
    Area,
    /// Between the four nearest centres.
    Bilinear,
    /// The value of the pixel that the centre lies in.
    Nearest,
}

impl From<ResamplingFlag> for Resampling {
    fn from(flag: ResamplingFlag) -> Self {
        match flag {
            ResamplingFlag::Area => Self::Area,
            ResamplingFlag::Bilinear => Self::Bilinear,
            ResamplingFlag::Nearest => Self::Nearest,
        }
    }
}
