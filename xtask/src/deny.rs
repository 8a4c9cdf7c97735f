//! `cargo xtask deny`: licences, versions, known weaknesses and sources of what the workspace is built from, by `deny.toml`.

use crate::error::{Error, Result};
use crate::step::Step;
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do not fetch the database of known weaknesses, and do not check against it.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    deny(&["--version"]).capture().map_err(|_| Error::Usage {
        message: "cargo-deny is missing: install it with `cargo install cargo-deny --locked`, outside of this folder".into(),
    })?;
    // What features add is linked by those who turn them on; that it comes in two versions is not theirs to mend.
    deny(&["--all-features", "check", "licenses", "sources"]).run()?;
    deny(&["check", "bans"]).run()?;
    if args.offline || deny(&["fetch", "db"]).capture().is_err() {
        eprintln!("xtask: known weaknesses were not looked up: the database was not fetched");
        return Ok(());
    }
    deny(&["check", "--disable-fetch", "advisories"]).run()
}

fn deny(args: &[&str]) -> Step {
    workspace::cargo(&[&["deny"], args].concat())
}
