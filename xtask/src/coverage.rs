//! `cargo xtask coverage`: which lines of the crates that hold other people's work are run by their own tests.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::workspace;

/// Those whose faults lose work.
const CRATES: [&str; 4] = ["layout", "zero", "collectives", "checkpoint"];

/// What needs GPUs, or an MPI library beside: tested by programs of its own.
const ELSEWHERE: [&str; 2] = ["src/nccl", "src/mpi"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Crates, without `terrashard-`.
    #[arg(long, value_delimiter = ',', default_values = CRATES)]
    crates: Vec<String>,
    /// The least share of each crate's lines, in percent.
    #[arg(long, default_value_t = 90.0)]
    fail_under: f64,
}

/// Lines of a crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Lines {
    run: u64,
    all: u64,
}

impl Lines {
    fn percent(self) -> f64 {
        match self.all {
            0 => 0.0,
            all => 100.0 * self.run as f64 / all as f64,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    workspace::cargo(&["tarpaulin", "--version"])
        .capture()
        .map_err(|_| Error::Usage {
            message: "cargo-tarpaulin is missing: install it with `cargo install cargo-tarpaulin --locked`, outside of this folder".into(),
        })?;
    let folder = workspace::target_dir()?.join("coverage");
    fs::create_dir_all(&folder).map_err(|source| Error::file(&folder, source))?;
    let mut short = Vec::new();
    println!("crate\tlines run\tof\t%");
    for name in &args.crates {
        let lines = of_crate(name, &folder)?;
        println!(
            "{name}\t{}\t{}\t{:.1}",
            lines.run,
            lines.all,
            lines.percent()
        );
        if lines.percent() < args.fail_under {
            short.push(name.as_str());
        }
    }
    match short.is_empty() {
        true => Ok(()),
        false => Err(Error::Usage {
            message: format!(
                "tests run less than {} % of the lines of {}",
                args.fail_under,
                short.join(", ")
            ),
        }),
    }
}

fn of_crate(name: &str, folder: &Path) -> Result<Lines> {
    let package = format!("terrashard-{name}");
    let shown = folder.display().to_string();
    // Builds of its own, since its options rebuild everything, and beside the others they stay for the next time.
    workspace::cargo(&["tarpaulin", "--engine", "llvm", "--skip-clean", "-p"])
        .args([package.as_str(), "--include-files"])
        .arg(format!("crates/{package}/src/*"))
        .args(["--out", "Json", "--output-dir", &shown])
        .args(["--target-dir", &format!("{shown}/target")])
        .run()?;
    let path = folder.join("tarpaulin-report.json");
    let text = fs::read_to_string(&path).map_err(|source| Error::file(&path, source))?;
    lines(&text).ok_or_else(|| Error::content(path.display(), "no report of tarpaulin"))
}

/// The lines of a report, without those that are tested elsewhere.
fn lines(report: &str) -> Option<Lines> {
    let report: Value = serde_json::from_str(report).ok()?;
    let mut sum = Lines::default();
    for file in report["files"].as_array()? {
        let parts: Option<Vec<&str>> = file["path"].as_array()?.iter().map(Value::as_str).collect();
        let path = parts?.join("/");
        if ELSEWHERE.iter().any(|part| path.contains(part)) {
            continue;
        }
        sum.run += file["covered"].as_u64()?;
        sum.all += file["coverable"].as_u64()?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_report_add_up_without_those_of_gpus() {
        let report = r#"{"files": [
            {"path": ["/", "w", "crates", "c", "src", "lib.rs"], "covered": 3, "coverable": 4},
            {"path": ["/", "w", "crates", "c", "src", "nccl", "channel.rs"], "covered": 0, "coverable": 100},
            {"path": ["/", "w", "crates", "c", "src", "local.rs"], "covered": 5, "coverable": 6}
        ]}"#;
        let lines = lines(report).unwrap();
        assert_eq!(lines, Lines { run: 8, all: 10 });
        assert_eq!(lines.percent(), 80.0);
        assert_eq!(Lines::default().percent(), 0.0);
        assert_eq!(super::lines("{}"), None);
        assert_eq!(super::lines("no report"), None);
    }
}
