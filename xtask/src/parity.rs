//! `cargo xtask parity`: losses, gradients and updates against a folder of reference values.

use std::path::{PathBuf, absolute};

use crate::error::{Error, Result};
use crate::libtorch::LibTorch;
use crate::step::Step;
use crate::workspace::{Profile, build_binary, build_binary_with};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with `parity.json` and the files that it names.
    dir: PathBuf,
    /// Which backend computes.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    backend: Backend,
    /// Only this ZeRO stage.
    #[arg(long)]
    stage: Option<u8>,
    /// Element type: f32 within the set's tolerances, f64 within 1e-7.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
}

/// In which element type.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Precision {
    /// 32 bits.
    F32,
    /// 64 bits.
    F64,
}

/// What computes.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Backend {
    /// burn's own, for the CPU.
    Flex,
    /// LibTorch; `cargo xtask libtorch` sets it up.
    Tch,
}

/// Prints one JSON line per quantity. The comparison lives in `tests/`, since it needs the crates; it is built as the
/// tests are, so that nothing is compiled twice.
pub(crate) fn run(args: &Args) -> Result<()> {
    // Cargo runs in the root folder: a path given from elsewhere has to be made whole first.
    let dir = absolute(&args.dir).map_err(|source| Error::file(&args.dir, source))?;
    let mut step = match args.backend {
        Backend::Flex => Step::new("parity", build_binary("parity", Profile::Dev)?)
            .arg(dir)
            .args(["--backend", "flex"]),
        Backend::Tch => {
            let libtorch = LibTorch::found()?;
            let binary = build_binary_with(&libtorch, "parity", Profile::Dev)?;
            let step = Step::new("parity", binary).arg(dir);
            libtorch.surround(step.args(["--backend", "tch"]))
        }
    };
    if let Some(stage) = args.stage {
        step = step.args(["--stage", &stage.to_string()]);
    }
    let precision = match args.precision {
        Precision::F32 => "f32",
        Precision::F64 => "f64",
    };
    step.args(["--precision", precision]).run()
}
