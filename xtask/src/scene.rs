//! `cargo xtask scene`: a scene of any size, for measuring what whole products take.

use std::path::PathBuf;

use crate::error::Result;
use crate::step::Step;
use crate::workspace::root;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Height and width in pixels: 10980 is that of a Sentinel-2 tile.
    size: usize,
    /// The image, a GeoTIFF of six bands.
    out: PathBuf,
    /// Its mask too, at five times the size.
    #[arg(long, value_name = "OUT")]
    mask: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let example = ["run", "-q", "-p", "terrashard-data", "--release"];
    let step = Step::new("cargo", "cargo")
        .args(example)
        .args(["--example", "mirrored_scene", "--"])
        .arg(args.size.to_string())
        .arg(&args.out)
        .args(&args.mask);
    step.dir(root()).run()
}
