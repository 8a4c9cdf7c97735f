//! `cargo xtask ci`: every check, the cheapest first, each announced with its command and its time.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::workspace::cargo;
use crate::{doc, test, tidy};

/// The feature sets that type-check on a machine without a GPU. Clippy runs once for each.
const FEATURE_SETS: &[&[&str]] = &[&[]];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave the tests out, where they have just been run.
    #[arg(long)]
    no_test: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    named("fmt", cargo(&["fmt", "--all", "--check"]).run())?;
    named("tidy", {
        eprintln!("$ cargo xtask tidy");
        tidy::run()
    })?;
    for features in FEATURE_SETS {
        let mut clippy = cargo(&["clippy", "--workspace", "--all-targets"]);
        if !features.is_empty() {
            clippy = clippy.arg("--features").arg(features.join(","));
        }
        named("clippy", clippy.args(["--", "-D", "warnings"]).run())?;
    }
    named("doc", doc::step().run())?;
    if !args.no_test {
        named("test", test::run(&test::Args::default()))?;
    }
    println!(
        "xtask ci: every step passed, {:.1} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn named(step: &'static str, result: Result<()>) -> Result<()> {
    result.map_err(|source| Error::Step {
        step,
        source: Box::new(source),
    })
}
