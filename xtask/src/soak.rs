//! `cargo xtask soak`: training, testing, saving, predicting in a loop of one process, which judges what it holds.

use std::fs;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::step::Step;
use crate::workspace::{Profile, build_binary, target_dir};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Where its files are, which is emptied first [default: `soak` in the target folder]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Use this `soak` binary of `terrashard-tests` instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let bin = match &args.bin {
        Some(bin) => bin.clone(),
        None => build_binary("soak", Profile::Dev)?,
    };
    let out = match &args.out {
        Some(out) => out.clone(),
        None => target_dir()?.join("soak"),
    };
    let temporary = out.join("temporary");
    if out.exists() {
        fs::remove_dir_all(&out).map_err(|error| Error::file(&out, error))?;
    }
    fs::create_dir_all(&temporary).map_err(|error| Error::file(&temporary, error))?;
    Step::new("soak", bin)
        .arg(&out)
        .arg(args.minutes.to_string())
        // So that what is left there can be counted, twice over.
        .env("TMPDIR", temporary.display().to_string())
        // The commands' results are its standard output, of no interest here; what it holds it tells on the other.
        .run_captured()
        .map(drop)
}
