//! `cargo xtask doc`: API documentation of the workspace, a warning is an error.

use crate::error::Result;
use crate::step::Step;
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Open it in a browser.
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let step = step();
    if args.open {
        step.arg("--open").run()
    } else {
        step.run()
    }
}

/// The step, for `ci` as well.
pub(crate) fn step() -> Step {
    workspace::cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings")
}
