//! `cargo xtask parity`: losses, gradients and updates against a folder of reference values.

use std::path::{PathBuf, absolute};

use crate::error::{Error, Result};
use crate::step::Step;
use crate::workspace::{Profile, build_binary};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with `parity.json` and the files that it names.
    dir: PathBuf,
    /// Which backend computes.
    #[arg(long, default_value = "flex")]
    backend: String,
    /// Only this ZeRO stage.
    #[arg(long)]
    stage: Option<u8>,
}

/// Prints one JSON line per quantity. The comparison lives in `tests/`, since it needs the crates; it is built as the
/// tests are, so that nothing is compiled twice.
pub(crate) fn run(args: &Args) -> Result<()> {
    // Cargo runs in the root folder: a path given from elsewhere has to be made whole first.
    let dir = absolute(&args.dir).map_err(|source| Error::file(&args.dir, source))?;
    let binary = build_binary("parity", Profile::Dev)?;
    let step = Step::new("parity", binary);
    let mut step = step.arg(dir).args(["--backend", &args.backend]);
    if let Some(stage) = args.stage {
        step = step.args(["--stage", &stage.to_string()]);
    }
    step.run()
}
