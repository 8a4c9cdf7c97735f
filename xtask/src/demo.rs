//! `cargo xtask demo`: the main job on the shipped scene, through the `terrashard` binary.
use crate::error::Result;

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<()> {
    Ok(())
}
