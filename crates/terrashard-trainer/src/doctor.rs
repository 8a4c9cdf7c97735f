//! `doctor`: what this machine has for training, and what is wrong with it.
//!
//! Everything is looked up where the system tells it; a question that nobody answers is no problem. What is measured is the disk, and
//! how fast ranks exchange bytes.

mod gpus;
mod host;
mod links;
mod pairs;

pub(crate) use host::space as free_space;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::arguments::DeviceFlags;
use crate::config::{Device, bytes};
use crate::console::print;
use crate::error::{Error, Result};
use links::Links;

pub use links::Bandwidth;
pub use pairs::PairBandwidth;

/// `terrashard doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub device: DeviceFlags,
    /// Where runs will be written
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
    /// Ranks of the table of bandwidths, threads of this program; `terrashard launch -- doctor --device cuda` measures GPUs
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub ranks: usize,
    /// The largest buffer of that table
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = bytes)]
    pub largest: u64,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Looks at everything and prints what was found.
///
/// # Errors
/// Those of [`examine`]; [`Error::Problems`] where something will not work.
pub fn run(arguments: &DoctorArguments) -> Result<()> {
    let options = DoctorOptions {
        // That it is not there is a finding.
        device: arguments.device.named(),
        folder: arguments.folder.clone(),
        ranks: arguments.ranks,
        largest: arguments.largest,
    };
    if options.ranks == 0 {
        return Err(Error::invalid("--ranks", 0, "at least 1"));
    }
    let Some(checkup) = examine(&options)? else {
        return Ok(());
    };
    print(&match arguments.json {
        true => serde_json::to_string_pretty(&checkup).expect("findings are plain data") + "\n",
        false => page(&checkup),
    })?;
    match checkup.problems {
        0 => Ok(()),
        count => Err(Error::Problems { count }),
    }
}

/// What is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorOptions {
    /// What is to compute.
    pub device: Device,
    /// Where runs will be written.
    pub folder: PathBuf,
    /// Ranks that are threads of this process, for the table of bandwidths on the processor.
    pub ranks: usize,
    /// The largest buffer of that table, in bytes.
    pub largest: u64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checkup {
    /// One thing each.
    pub checks: Vec<Check>,
    /// What ranks send each other in a second, all together; nothing with one rank.
    pub bandwidth: Vec<Bandwidth>,
    /// The same between each two of them, by themselves.
    pub pairs: Vec<PairBandwidth>,
    /// How many checks found a problem.
    pub problems: usize,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is.
    pub subject: &'static str,
    /// What was found.
    pub found: String,
    /// What that means.
    pub verdict: Verdict,
    /// What to do, where there is something to do.
    pub remedy: Option<String>,
}

/// What a finding means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Slower or tighter than it could be.
    Warning,
    /// Something will not work.
    Problem,
}

impl Check {
    pub(crate) fn good(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            subject,
            found: found.into(),
            verdict: Verdict::Good,
            remedy: None,
        }
    }

    pub(crate) fn warning(
        subject: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warning,
            remedy: Some(remedy.into()),
            ..Self::good(subject, found)
        }
    }

    pub(crate) fn problem(
        subject: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Problem,
            ..Self::warning(subject, found, remedy)
        }
    }
}

/// Looks at everything. Where ranks are processes, each of them calls it, and the first gets the answer.
///
/// # Errors
/// [`Error::Link`] if two ranks cannot talk, within [`Error::Rank`]; [`Error::Collective`] if they do not find each other.
pub fn examine(options: &DoctorOptions) -> Result<Option<Checkup>> {
    let Some(Links { pairs, all }) = links::measure(options)? else {
        return Ok(None);
    };
    let mut checks = host::checks(&options.folder);
    checks.extend(gpus::checks(options.device));
    checks.extend(pairs::check(&pairs));
    let problems = checks
        .iter()
        .filter(|check| check.verdict == Verdict::Problem)
        .count();
    Ok(Some(Checkup {
        checks,
        bandwidth: all,
        pairs,
        problems,
    }))
}

/// The findings as they are printed, lines of text.
pub fn page(checkup: &Checkup) -> String {
    let width = checkup.checks.iter().map(|check| check.subject.len()).max();
    let width = width.unwrap_or(0);
    let mut lines = Vec::new();
    for check in &checkup.checks {
        let mark = match check.verdict {
            Verdict::Good => "ok",
            Verdict::Warning => "!",
            Verdict::Problem => "PROBLEM",
        };
        lines.push(format!(
            "{mark:<7}  {:<width$}  {}",
            check.subject, check.found
        ));
        if let Some(remedy) = &check.remedy {
            lines.push(format!("{:7}  {:width$}  -> {remedy}", "", ""));
        }
    }
    lines.extend(links::table(&checkup.bandwidth));
    lines.push(match checkup.problems {
        0 => "no problem was found".into(),
        1 => "1 problem was found".into(),
        problems => format!("{problems} problems were found"),
    });
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_stands_with_its_remedy() {
        let checkup = Checkup {
            checks: vec![
                Check::good("processor", "4 threads"),
                Check::problem("port 1", "is taken", "set MASTER_PORT"),
            ],
            bandwidth: Vec::new(),
            pairs: Vec::new(),
            problems: 1,
        };
        let expected = "\
ok       processor  4 threads
PROBLEM  port 1     is taken
                    -> set MASTER_PORT
1 problem was found
";
        assert_eq!(page(&checkup), expected);
    }
}
