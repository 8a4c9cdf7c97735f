//! `cargo xtask bench`: benchmarks in the release profile.

use crate::error::Result;
use crate::step::Step;
use crate::workspace::{Profile, build_binary, root};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(clap::Subcommand)]
enum Suite {
    /// One model, forward and backward, without an optimizer.
    Model {
        /// Passed to the benchmark; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// AdamW in host memory, beside the bandwidth of the memory and beside PyTorch's.
    HostAdam {
        /// Passed to the benchmark; `-- --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (suite, args) = match &args.suite {
        Suite::Model { args } => ("model", args),
        Suite::HostAdam { args } => ("host-adam", args),
    };
    let binary = build_binary("bench", Profile::Release)?;
    let step = Step::new("bench", binary).arg(suite).dir(root());
    step.args(args).run()
}
