//! `cargo xtask schedules`: tests of protocols between threads whose every step a scheduler chooses, from a seed.
//!
//! A schedule that deadlocks, or in which a test fails, is printed; `TERRASHARD_SCHEDULE=... cargo xtask schedules TEST` makes it again.

use crate::error::Result;
use crate::workspace::{cargo, target_dir};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only tests with this in their name.
    test: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // What the scheduler depends on turns on features of what burn depends on: so a folder of its own, and no time for optimisation.
    let target = target_dir()?.join("schedules");
    let test = args.test.as_deref().unwrap_or("schedule");
    for (package, tests) in [
        ("terrashard-data", ["--test", "schedules"].as_slice()),
        ("terrashard-collectives", &["--lib"]),
    ] {
        cargo(&["test", "-p", package, "--features", "shuttle"])
            .args(tests)
            .args(["--config", "profile.dev.package.\"*\".opt-level=0"])
            .arg("--target-dir")
            .arg(&target)
            .args(["--", test])
            .run()?;
    }
    Ok(())
}
