//! `cargo xtask mpi`: programs whose ranks are processes, under `mpirun`.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::step::Step;
use crate::workspace::{cargo, target_dir};

/// Turns on all that needs MPI, in the whole workspace, so that nothing else is compiled once more.
const SELECTION: [&str; 3] = ["--workspace", "--features", "terrashard-tests/mpi"];

/// What building and running needs: an MPI library with its launcher, and clang to read its headers.
const TOOLS: [&str; 4] = ["timeout", "mpirun", "mpicc", "clang"];

/// Seconds after which a run that hangs is ended.
const HANGS_AFTER: &str = "300";

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
            let step = Step::new("timeout", "timeout")
                .args(["--kill-after=5", HANGS_AFTER, "mpirun"])
                // Both are needed by root, whom CI is in a container.
                .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                .args(["--oversubscribe", "--bind-to", "none"])
                .args(["-n", &ranks.to_string()])
                .arg(folder.join(case.bin))
                .args(case.args.split_whitespace());
            match case.ends {
                Ends::Well => step.run()?,
                Ends::Saying(text) => step.run_failing(text)?,
            }
            runs += 1;
        }
    }
    println!(
        "xtask mpi: {runs} runs ended as they should, {:.1} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn require_tools() -> Result<()> {
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
