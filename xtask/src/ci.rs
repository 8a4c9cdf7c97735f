//! `cargo xtask ci`: every check, the cheapest first, each announced with its command and its time.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::libtorch::LibTorch;
use crate::workspace::{cargo, with_libtorch};
use crate::{doc, package, test, tidy};

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
    named("package", package::run(&package::Args::default()))?;
    let clippy = || cargo(&["clippy", "--workspace", "--all-targets"]);
    let strict = ["--", "-D", "warnings"];
    named("clippy", clippy().args(strict).run())?;
    for [package, feature] in test::BY_THEMSELVES {
        let clippy = cargo(&["clippy", "--all-targets", "-p", package]);
        let clippy = clippy.args(["--features", feature]).args(strict);
        named("clippy of a feature", clippy.run())?;
    }
    match LibTorch::found() {
        Ok(libtorch) => {
            let clippy = with_libtorch(clippy(), &libtorch).args(strict);
            named("clippy with LibTorch", clippy.run())?;
        }
        // Not everybody has it, and it is a large download.
        Err(missing) => eprintln!("clippy with LibTorch left out: {missing}"),
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
