//! Automation of the workspace, after matklad's `cargo-xtask`: `main` is one match, one file per command.
//!
//! `cargo xtask ci` is what CI runs. The compiled binary also works by itself, away from cargo, for the commands that
//! only drive the `terrashard` binary (`xtask demo --bin PATH --no-build`).
//!
//! Invariant: depends on none of the workspace's crates. It runs their binaries instead, as a user would.

mod bench;
mod book;
mod ci;
mod compare;
mod coverage;
mod demo;
mod deny;
mod doc;
mod error;
mod libtorch;
mod mpi;
mod package;
mod parity;
mod reference;
mod sanitize;
mod scene;
mod schedules;
mod soak;
mod step;
mod test;
mod tidy;
mod torture;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Build, check, test, bench and demonstrate the workspace.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The main job on the shipped scene: train, stop, resume, test, export, predict, report.
    Demo(demo::Args),
    /// All tests of the workspace, doc tests included.
    Test(test::Args),
    /// What CI runs: format, tidy, clippy, docs, tests; the cheapest first, stops at the first failure.
    Ci(ci::Args),
    /// Rules on structure that the compiler does not know: arrows between crates, unsafe code, docs, file names.
    Tidy,
    /// The parts of the documentation that are made of the sources: the codes of errors, the keys of a configuration.
    Reference,
    /// The share of lines that tests run of the crates whose faults lose work. Needs `cargo-tarpaulin`.
    Coverage(coverage::Args),
    /// Licences, versions, known weaknesses and sources of all dependencies. Needs `cargo-deny`, and the network unless `--offline`.
    Deny(deny::Args),
    /// The kernels of the host optimizer, and whatever reads files, under the address sanitizer. Needs a nightly compiler, on Linux.
    Sanitize(sanitize::Args),
    /// The book in `docs/` as a site, in `target/book`. Needs mdBook.
    Book(book::Args),
    /// API documentation of all crates, warnings are errors.
    Doc(doc::Args),
    /// The archives that would be published, and whether all that they need is in them.
    Package(package::Args),
    /// Compares losses, gradients and updates with a folder of reference values.
    Parity(parity::Args),
    /// Programs whose ranks are processes, under `mpirun`. Needs an MPI library and libclang.
    Mpi(mpi::Args),
    /// Sets LibTorch up in `target/libtorch` and prints the environment to use, for `eval`. Needs Python with pip.
    Libtorch(libtorch::Args),
    /// Makes a scene of any size of the shipped one, by mirroring it.
    Scene(scene::Args),
    /// Seeded faults in tiny trainings: no hang, no other bits, no checkpoint lost.
    Torture(torture::Args),
    /// Ranks as threads whose every step a scheduler chooses: no order of events deadlocks or changes a bit.
    Schedules(schedules::Args),
    /// Training, testing, saving and predicting in a loop: memory, descriptors, threads and files stay flat.
    Soak(soak::Args),
    /// Benchmarks.
    Bench(bench::Args),
    /// Tells which differences between two records or runs are larger than noise; exit code 1 if B is worse in any.
    Compare(compare::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Tidy => tidy::run(),
        Command::Reference => reference::run(),
        Command::Coverage(args) => coverage::run(&args),
        Command::Deny(args) => deny::run(&args),
        Command::Sanitize(args) => sanitize::run(&args),
        Command::Book(args) => book::run(&args),
        Command::Doc(args) => doc::run(&args),
        Command::Package(args) => package::run(&args),
        Command::Parity(args) => parity::run(&args),
        Command::Mpi(args) => mpi::run(&args),
        Command::Libtorch(args) => libtorch::run(&args),
        Command::Scene(args) => scene::run(&args),
        Command::Torture(args) => torture::run(&args),
        Command::Schedules(args) => schedules::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compare(args) => compare::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            error.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `cargo xtask` line that a document shows is one that is taken.
    #[test]
    fn documented_commands_are_parsed() {
        let root = workspace::root();
        let folders = ["docs/src", "docs/src/recipes"].map(|folder| root.join(folder));
        let pages = folders
            .iter()
            .flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let mut paths: Vec<_> = pages.map(|page| page.unwrap().path()).collect();
        paths.extend(["README.md", "CONTRIBUTING.md"].map(|path| root.join(path)));
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
        let mut count = 0;
        for path in paths {
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().filter(|line| line.starts_with("cargo xtask ")) {
                let line = line.split(" #").next().unwrap_or(line);
                let words = line.split_whitespace().skip(1);
                if let Err(error) = Cli::try_parse_from(words) {
                    assert!(!error.use_stderr(), "{}: {line}: {error}", path.display());
                }
                count += 1;
            }
        }
        assert!(count > 15, "only {count} commands were found");
    }
}
