//! `cargo xtask mpi`: programs whose ranks are processes, under `mpirun`, and trainings with a fault in one of them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::step::Step;
use crate::torture;
use crate::workspace::{cargo, target_dir};

/// Turns on all that needs MPI, and faults on demand, in the whole workspace, so that nothing else is compiled once more.
const SELECTION: [&str; 3] = [
    "--workspace",
    "--features",
    "terrashard-tests/mpi,terrashard-trainer/mpi,terrashard-trainer/faults",
];

/// What building and running needs: an MPI library with its launcher, and clang to read its headers.
const TOOLS: [&str; 4] = ["timeout", "mpirun", "mpicc", "clang"];

/// Of `mpirun`: more ranks than cores, each on any of them.
pub(crate) const OPTIONS: [&str; 3] = ["--oversubscribe", "--bind-to", "none"];

/// Both are needed by root, whom CI is in a container.
pub(crate) const ENVIRONMENT: [(&str, &str); 2] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Seconds after which a run that hangs is ended.
const HANGS_AFTER: u64 = 300;

/// Seconds that ranks wait for one that does not come, and that all processes then have to end.
const TIMEOUT: u64 = 2;
const END_WITHIN: u64 = 10;

/// Stands for the number of the last rank.
const LAST: &str = "LAST";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this program.
    #[arg(long)]
    bin: Option<String>,
    /// Leave clippy out.
    #[arg(long)]
    no_clippy: bool,
}

/// One program, run once for each number of ranks.
struct Case {
    bin: &'static str,
    /// Separated by blanks.
    args: &'static str,
    ranks: &'static [usize],
    ends: Ends,
}

/// How a run has to end.
#[derive(Clone, Copy)]
enum Ends {
    Well,
    /// With an error, all processes gone, and this said by one of them or by the launcher.
    Saying(&'static str),
    /// The same within [`TIMEOUT`] and [`END_WITHIN`], after the rank [`LAST`] was waited for in vain.
    Waiting(&'static str),
}

impl Case {
    /// The program with its ranks, ended after `limit` seconds.
    fn step(&self, folder: &Path, ranks: usize, limit: u64) -> Step {
        Step::new("timeout", "timeout")
            .args(["--kill-after=5", &limit.to_string(), "mpirun"])
            .args(OPTIONS)
            .env(ENVIRONMENT[0].0, ENVIRONMENT[0].1)
            .env(ENVIRONMENT[1].0, ENVIRONMENT[1].1)
            .args(["-n", &ranks.to_string()])
            .arg(folder.join(self.bin))
            .args(self.args.split_whitespace())
    }
}

const CASES: &[Case] = &[
    well("mpi_conformance", &[1, 2, 3, 4]),
    fails("killed", &[2, 4], "exited on signal 9"),
    fails("exits", &[2, 4], "exiting improperly"),
    fails("leaves", &[2, 4], "has ended without making call 0, for"),
    fails("aborts", &[2, 4], "gave up: scene.tif is truncated"),
    fails("panics", &[2, 4], "gave up: panicked"),
    fails("differs", &[2, 4], "gave up: ranks disagree on call 0"),
    fails("differs-in-group", &[4], "ranks disagree on call 0: rank 1"),
    fails("panics-in-group", &[2, 4], "gave up: panicked"),
    stalls("stalls", "gave up: rank LAST has not made call 0, for"),
    stalls("stopped", "gave up: rank LAST has not made call 0, for"),
    stalls(
        "stays-behind",
        "gave up: failed to communicate between processes: rank LAST has neither ended",
    ),
    stalls("stalls-unseen", "rank LAST has not made call 0, for"),
    well("mpi_stages", &[2, 4]),
];

const fn well(bin: &'static str, ranks: &'static [usize]) -> Case {
    Case {
        bin,
        args: "",
        ranks,
        ends: Ends::Well,
    }
}

/// A scenario of the conformance program in which one rank fails, and what is said then.
const fn fails(scenario: &'static str, ranks: &'static [usize], says: &'static str) -> Case {
    Case {
        bin: "mpi_conformance",
        args: scenario,
        ranks,
        ends: Ends::Saying(says),
    }
}

/// A scenario in which the last rank does not come.
const fn stalls(scenario: &'static str, says: &'static str) -> Case {
    Case {
        bin: "mpi_conformance",
        args: scenario,
        ranks: &[2, 4],
        ends: Ends::Waiting(says),
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    require_tools()?;
    if !args.no_clippy {
        let clippy = cargo(&["clippy"]).args(SELECTION).arg("--all-targets");
        clippy.args(["--", "-D", "warnings"]).run()?;
    }
    let is_meant = |case: &&Case| args.bin.as_deref().is_none_or(|bin| bin == case.bin);
    let cases: Vec<&Case> = CASES.iter().filter(is_meant).collect();
    if cases.is_empty() {
        return Err(Error::Usage {
            message: "no program of this name is run under mpirun".to_owned(),
        });
    }
    let mut bins: Vec<&str> = cases.iter().map(|case| case.bin).collect();
    bins.dedup();
    let mut build = cargo(&["build"]).args(SELECTION);
    for bin in bins {
        build = build.args(["--bin", bin]);
    }
    build.run()?;

    let folder = target_dir()?.join("debug");
    let mut runs = 0;
    for case in cases {
        for ranks in case.ranks {
            match case.ends {
                Ends::Well => case.step(&folder, *ranks, HANGS_AFTER).run()?,
                Ends::Saying(text) => {
                    let step = case.step(&folder, *ranks, HANGS_AFTER);
                    step.run_failing(text)?;
                }
                Ends::Waiting(text) => {
                    let step = case.step(&folder, *ranks, TIMEOUT + END_WITHIN);
                    let step = step.env("TERRASHARD_TIMEOUT", TIMEOUT.to_string());
                    step.run_failing(&text.replace(LAST, &(ranks - 1).to_string()))?;
                }
            }
            runs += 1;
        }
    }
    if args.bin.is_none() {
        torture::run(&torture::Args::few_under_mpirun())?;
    }
    println!(
        "xtask mpi: {runs} runs ended as they should, {:.1} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

pub(crate) fn require_tools() -> Result<()> {
    let is_missing = |tool: &&str| {
        let mut command = Command::new(tool);
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_err()
    };
    let missing: Vec<&str> = TOOLS.iter().copied().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Usage {
        message: format!(
            "{} not found: install an MPI library and libclang (Debian: `apt-get install libopenmpi-dev openmpi-bin \
             clang libclang-dev`)",
            missing.join(" and ")
        ),
    })
}
