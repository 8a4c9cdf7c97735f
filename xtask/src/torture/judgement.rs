//! What a run with a fault is held to.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use serde_json::Value;

use super::case::{Case, Kind, Points, Ranks, Setting};
use super::program::{Ended, Program, STEPS};
use crate::error::{Error, Result};

/// A fault that never strikes: all points are told.
const TRACE: &str = "rank=0,point=none,number=0,kind=trace";

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// The fault struck and the run came to its end all the same, with the bits of the run without it.
    Unharmed,
    /// The run ended by the fault, told it, and the next start came to the end with the bits of the run without it.
    Recovered,
    /// The fault did not strike.
    Missed,
    /// A process hung.
    Hang,
    /// Success was claimed, and something differs from the run without a fault.
    Silent,
    /// A checkpoint that was in force is not, or cannot be read, or the next start fails.
    Lost,
    /// The run failed without a line that names who and why.
    Untold,
}

impl Verdict {
    pub(super) const ALL: [Self; 7] = [
        Self::Unharmed,
        Self::Recovered,
        Self::Missed,
        Self::Hang,
        Self::Silent,
        Self::Lost,
        Self::Untold,
    ];

    /// Whether it must not be.
    pub(super) fn is_fault(self) -> bool {
        matches!(self, Self::Hang | Self::Silent | Self::Lost | Self::Untold)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unharmed => "came to their end with the right bits in spite of the fault",
            Self::Recovered => {
                "ended by the fault, said so, and came to the right bits from the newest checkpoint"
            }
            Self::Missed => "were not struck, and came to the right bits",
            Self::Hang => "hung",
            Self::Silent => "claimed success with other bits",
            Self::Lost => "lost a checkpoint or did not start again",
            Self::Untold => "failed without saying who and why",
        })
    }
}

/// A run that was judged.
pub(super) struct Judged {
    pub(super) case: Case,
    pub(super) verdict: Verdict,
    pub(super) struck: bool,
    /// What it said, and what is wrong.
    pub(super) told: String,
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.case, self.verdict)
    }
}

/// What a training leaves that has to be the same, by the name of the file or the step.
type Left = BTreeMap<String, Vec<u8>>;

/// A run without a fault.
#[derive(Debug)]
pub(super) struct Baseline {
    pub(super) points: Points,
    left: Left,
}

impl Baseline {
    /// Trains without a fault.
    pub(super) fn make(program: &Program, setting: &Setting, number: u64) -> Result<Self> {
        let folder = program.folder(&format!("baseline-{number}"));
        let ended = program.fit(&folder, setting, Some(TRACE))?;
        if !ended.status.is_some_and(|status| status.success()) {
            return Err(Error::content(
                format!("{setting} without a fault"),
                ended.stderr,
            ));
        }
        let mut points = Points::new();
        for line in ended.stderr.lines() {
            if let Some((point, rank)) = passed(line) {
                *points.entry((point, rank)).or_default() += 1;
            }
        }
        if points.is_empty() {
            let message = "no point was passed: build the program with the feature `terrashard-trainer/faults`";
            return Err(Error::content(setting.to_string(), message));
        }
        let left = left(&folder)?;
        remove(&folder)?;
        Ok(Self { points, left })
    }
}

/// The point and the rank of a line of a trace.
fn passed(line: &str) -> Option<(String, u64)> {
    let mut words = line.strip_prefix("fault point: ")?.split(',');
    let rank = words.next()?.strip_prefix("rank=")?.parse().ok()?;
    Some((words.next()?.strip_prefix("point=")?.to_owned(), rank))
}

/// Makes a run and judges it. Its folder is left where it did what none may do.
pub(super) fn judge(program: &Program, case: &Case, baseline: &Baseline) -> Result<Judged> {
    let folder = program.folder(&format!("run-{}", case.number));
    let ended = program.fit_case(&folder, case)?;
    let struck = ended.stderr.contains("fault struck:");
    let mut told = ended.stderr.clone();
    let verdict = match verdict(program, case, baseline, &folder, &ended, struck) {
        Ok(verdict) => verdict,
        Err(Finding(verdict, what)) => {
            told.push_str(&what);
            verdict
        }
    };
    if !verdict.is_fault() {
        remove(&folder)?;
    }
    Ok(Judged {
        case: case.clone(),
        verdict,
        struck,
        told,
    })
}

/// What a run did that none may do, and how that was seen.
struct Finding(Verdict, String);

fn verdict(
    program: &Program,
    case: &Case,
    baseline: &Baseline,
    folder: &Path,
    ended: &Ended,
    struck: bool,
) -> Result<Verdict, Finding> {
    let same = |folder: &Path| match left(folder) {
        Ok(left) => difference(&left, &baseline.left),
        Err(error) => Some(error.to_string()),
    };
    let Some(status) = ended.status else {
        return Err(Finding(Verdict::Hang, "it did not end".to_owned()));
    };
    if status.success() {
        return match (same(folder), struck) {
            (Some(what), _) => Err(Finding(Verdict::Silent, what)),
            (None, true) => Ok(Verdict::Unharmed),
            (None, false) => Ok(Verdict::Missed),
        };
    }
    let is_told = match case.kind {
        // Nobody is left to tell.
        Kind::Kill if case.ranks == Ranks::Threads => status.signal() == Some(9),
        // Batch statistics and their gradients are sums over ranks, which carry it to all of them before anybody looks.
        Kind::Nan => {
            (ended.stderr.contains("error: rank ") || ended.stderr.contains(" gave up: "))
                && ended.stderr.contains("a gradient is not finite at step")
        }
        // Whose file it is and who is at it may be two: rank 0 merges what all have written.
        _ if ["write", "publish"].contains(&case.point.as_str()) => {
            (0..case.setting.ranks).any(|rank| tells(&ended.stderr, rank))
        }
        _ => tells(&ended.stderr, case.rank),
    };
    if !is_told {
        let what = format!("{status}, and no line that names rank {}", case.rank);
        return Err(Finding(Verdict::Untold, what));
    }
    let lost = |what: String| Finding(Verdict::Lost, what);
    let in_force = in_force(folder);
    let again = program
        .fit(folder, &case.setting, None)
        .map_err(|error| lost(error.to_string()))?;
    match again.status {
        None => {
            return Err(Finding(
                Verdict::Hang,
                "the next start did not end".to_owned(),
            ));
        }
        Some(status) if !status.success() || again.stderr.contains("warning") => {
            return Err(lost(format!("the next start: {status}\n{}", again.stderr)));
        }
        Some(_) => {}
    }
    let resumed = resumed_from(folder).map_err(|error| lost(error.to_string()))?;
    // A newer one may be whole that was not in force yet; where nothing is left to do, no session is added.
    if resumed < in_force && in_force != Some(STEPS) {
        return Err(lost(format!(
            "step {in_force:?} was in force, and the next start went on from {resumed:?}"
        )));
    }
    match same(folder) {
        Some(what) => Err(Finding(
            Verdict::Silent,
            format!("after the next start: {what}"),
        )),
        None => Ok(Verdict::Recovered),
    }
}

/// Whether a last line says that the run failed, and which rank is to blame.
fn tells(stderr: &str, rank: u64) -> bool {
    let name = format!("rank {rank}");
    let is_whole = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_digit());
    stderr
        .lines()
        // A process that is not rank 0's has its rank before each line where `launch` has started it.
        .map(|line| {
            line.split_once("] ")
                .filter(|(rank, _)| rank.starts_with('['))
                .map_or(line, |(_, line)| line)
        })
        .filter(|line| line.starts_with("error: ") || is_of_mpi(line))
        .any(|line| line.split(&name).skip(1).any(is_whole))
}

/// Whether it is the line of a process of MPI that ends all, or the launcher's that one was killed.
fn is_of_mpi(line: &str) -> bool {
    let gave_up = line
        .strip_prefix("rank ")
        .and_then(|rest| rest.split_once(" gave up: "))
        .is_some_and(|(rank, _)| rank.parse::<u64>().is_ok());
    gave_up || (line.contains(" process rank ") && line.contains("exited on signal"))
}

/// The step of the checkpoint in force.
fn in_force(folder: &Path) -> Option<u64> {
    let name = fs::read_to_string(folder.join("checkpoints/latest")).ok()?;
    name.trim()
        .trim_matches('"')
        .strip_prefix("step-")?
        .parse()
        .ok()
}

/// The step that the last start of a run went on from.
fn resumed_from(folder: &Path) -> Result<Option<u64>> {
    let path = folder.join("sessions.jsonl");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let Some(line) = text.lines().last() else {
        return Ok(None);
    };
    let session: Value = serde_json::from_str(line)
        .map_err(|error| Error::content(path.display(), error.to_string()))?;
    Ok(session["resumed_from_step"].as_u64())
}

/// The data of the last checkpoint, and loss and norm of each step.
fn left(folder: &Path) -> Result<Left> {
    let mut left = Left::new();
    let last = folder.join(format!("checkpoints/step-{STEPS:06}"));
    let entries = fs::read_dir(&last).map_err(|error| Error::file(&last, error))?;
    for entry in entries {
        let path = entry.map_err(|error| Error::file(&last, error))?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".safetensors") {
            let bytes = fs::read(&path).map_err(|error| Error::file(&path, error))?;
            left.insert(name, bytes);
        }
    }
    let path = folder.join("metrics.jsonl");
    let text = fs::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
    for (number, line) in text.lines().enumerate() {
        let step: Value = serde_json::from_str(line)
            .map_err(|error| Error::content(path.display(), error.to_string()))?;
        let words = format!("{} {} {}", step["step"], step["loss"], step["grad_norm"]);
        left.insert(format!("record {number}"), words.into_bytes());
    }
    Ok(left)
}

/// The first difference of what two trainings have left.
fn difference(got: &Left, expected: &Left) -> Option<String> {
    if !got.keys().eq(expected.keys()) {
        return Some(format!(
            "left {:?} instead of {:?}",
            got.keys(),
            expected.keys()
        ));
    }
    let name = got.keys().find(|name| got[*name] != expected[*name])?;
    Some(format!(
        "{name} differs from that of the run without a fault"
    ))
}

fn remove(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).map_err(|error| Error::file(folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_rank_that_is_to_blame() {
        assert!(tells(
            "error: rank 1 panicked: lost [trainer::Panicked]\n",
            1
        ));
        assert!(tells(
            "x\nerror: rank 0: step 2: rank 12 gave up: why [x]",
            12
        ));
        assert!(tells("[2] error: rank 2: step 4: rank 1 gave up", 1));
        assert!(tells(
            "rank 0 gave up: step 2: rank 1 has not made call 3",
            1
        ));
        let killed =
            "mpirun noticed that process rank 1 with PID 7 on node a exited on signal 9 (Killed).";
        assert!(tells(killed, 1) && !tells(killed, 9));
        assert!(!tells("rank 1 waits", 1));
        assert!(!tells("[1] fault struck: rank=1", 1));
        assert!(!tells("error: rank 12 panicked", 1));
        assert!(!tells("rank 1 is lost", 1));
        assert!(!tells("error: rank 0 failed", 1));
    }

    #[test]
    fn points_are_read_from_a_trace() {
        let line = "fault point: rank=3,point=all-gather,number=12";
        assert_eq!(passed(line), Some(("all-gather".to_owned(), 3)));
        assert_eq!(
            passed("fault struck: rank=3,point=step,number=1,kind=kill"),
            None
        );
    }

    #[test]
    fn what_is_left_is_compared_whole() {
        let left = |bytes: &[(&str, &[u8])]| -> Left {
            bytes
                .iter()
                .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()))
                .collect()
        };
        let one = left(&[("a", b"1"), ("b", b"2")]);
        assert_eq!(difference(&one, &one), None);
        let other = difference(&left(&[("a", b"1"), ("b", b"3")]), &one);
        assert!(other.is_some_and(|what| what.starts_with("b differs")));
        assert!(difference(&left(&[("a", b"1")]), &one).is_some());
    }
}
