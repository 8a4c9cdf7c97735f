//! `cargo xtask test`: all tests with one closing line over all test binaries, with those of features that the default build lacks, and
//! some runs of `cargo xtask torture`.

use std::fmt;
use std::time::Instant;

use crate::error::Result;
use crate::libtorch::LibTorch;
use crate::torture;
use crate::workspace::{self, with_libtorch};

/// Packages with features that the default build lacks. Their dependencies are small; with the whole workspace they would build much of
/// it a second time.
pub(crate) const BY_THEMSELVES: [[&str; 2]; 2] = [
    ["terrashard-raster", "cloud"],
    ["terrashard-data", "geoparquet"],
];

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// With LibTorch in it, and the tests that run on it; `cargo xtask libtorch` sets it up.
    #[arg(long)]
    tch: bool,
    /// Passed to the test binaries, for example a part of a test's name.
    #[arg(last = true)]
    args: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut step = workspace::cargo(&["test", "--workspace", "--no-fail-fast"]);
    if args.tch {
        step = with_libtorch(step, &LibTorch::found()?);
    }
    if !args.args.is_empty() {
        step = step.arg("--").args(&args.args);
    }
    let started = Instant::now();
    let mut tally = Tally::default();
    let mut result = step.run_lines(|line| tally.add(line));
    if !args.tch && args.args.is_empty() {
        let target = workspace::target_dir()?;
        for [package, feature] in BY_THEMSELVES {
            let step = workspace::cargo(&["test", "-p", package, "--features", feature]);
            // In a folder of its own: what one feature asks of a crate below is not what another does.
            let folder = target.join(feature);
            let step = step.args(["--lib", "--tests", "--target-dir"]).arg(&folder);
            result = result.and(step.run_lines(|line| tally.add(line)));
        }
    }
    println!(
        "xtask test: {tally}, {:.1} s",
        started.elapsed().as_secs_f64()
    );
    result?;
    match args.tch || !args.args.is_empty() {
        true => Ok(()),
        false => torture::run(&torture::Args::few()),
    }
}

/// Sums over the `test result:` lines that close each test binary and each crate's doc tests.
#[derive(Default, PartialEq, Debug)]
struct Tally {
    binaries: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Tally {
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        self.binaries += 1;
        // "ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s"
        for part in result.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(count), Some(what)) = (
                words.next().and_then(|word| word.parse::<usize>().ok()),
                words.next(),
            ) else {
                continue;
            };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            binaries,
            passed,
            failed,
            ignored,
        } = self;
        write!(
            f,
            "{passed} passed, {failed} failed, {ignored} ignored in {binaries} test binaries and doc-test sets"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[&str], expected: Tally) {
        let mut tally = Tally::default();
        lines.iter().for_each(|line| tally.add(line));
        assert_eq!(tally, expected);
    }

    #[test]
    fn closing_lines_are_summed() {
        let ok = "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 5 filtered out; finished in 0.01s";
        let bad = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.01s";
        check(
            &[ok, "test some::name ... ok", bad],
            Tally {
                binaries: 2,
                passed: 13,
                failed: 2,
                ignored: 3,
            },
        );
    }

    #[test]
    fn other_lines_count_nothing() {
        check(
            &["running 3 tests", "", "4 passed; 0 failed"],
            Tally::default(),
        );
    }
}
