//! `launch`: the same command once for each rank, again where one fails.

use std::env;
use std::process::Command;
use std::time::Duration;

use terrashard_collectives::Error as Failure;
use terrashard_collectives::bootstrap::{Launcher, Output, RESTARTS};

use crate::console::tell;
use crate::error::{Error, Result};
use crate::record::counted;

/// Processes on one processor at most: more would only wait for it.
const MOST: usize = 64;

/// What is started, and how.
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    /// Number of ranks; one for each GPU where `None`.
    pub ranks: Option<usize>,
    /// Whose output is shown.
    pub output: Output,
    /// How long the other ranks may take to end by themselves after one has failed.
    pub end_within: Duration,
    /// How many times all are started again after one has failed.
    pub restarts: u32,
    /// With how many.
    pub again: Again,
    /// A command of this program, with its arguments.
    pub command: Vec<String>,
}

/// How many ranks are started after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Again {
    /// As many as before.
    #[default]
    AsMany,
    /// One fewer, and one at least: what is left where a GPU has failed for good.
    OneFewer,
}

/// How a rank ends that was given what it cannot do, which it can as little the next time.
const WRONG_USE: &str = "ended with exit code 2";

/// Starts the command once for each rank, and returns when all have ended. Where a rank fails, all are started again as often as the
/// options say: `fit` goes on from the newest checkpoint then. Not where the command is refused, nor after a signal.
///
/// # Errors
/// [`Error::NotSupported`] for ranks that cannot be processes, [`Error::InvalidValue`] if there are more ranks than GPUs,
/// [`Error::Collective`] for the rank that failed first.
pub fn launch(options: &LaunchOptions) -> Result<()> {
    let (command, on) = placed(&options.command);
    let ranks = match on {
        On::Gpus => count(options.ranks, gpus()?)?,
        On::Processor => count_on_processor(options.ranks)?,
    };
    let program = env::current_exe().map_err(|source| Error::Read {
        path: "the program itself".into(),
        source,
    })?;
    let run = |ranks, restart: u32| {
        let launcher = Launcher {
            ranks,
            output: options.output,
            end_within: options.end_within,
        };
        launcher.run(|_| {
            let mut child = Command::new(&program);
            child.args(&command).env(RESTARTS, restart.to_string());
            child
        })
    };
    again(ranks, options, run)
}

/// Runs until it ends well, or as often as the options say.
fn again(
    mut ranks: usize,
    options: &LaunchOptions,
    mut run: impl FnMut(usize, u32) -> Result<(), Failure>,
) -> Result<()> {
    for restart in 1..=options.restarts {
        match run(ranks, restart - 1) {
            Err(error @ Failure::Launch { .. }) if is_worth_it(&error) => {
                if options.again == Again::OneFewer {
                    ranks = (ranks - 1).max(1);
                }
                let of = options.restarts;
                tell(&format!(
                    "warning: {error}; starting again with {}, {restart} of {of}",
                    counted(ranks, "rank")
                ));
            }
            ended => return Ok(ended?),
        }
    }
    Ok(run(ranks, options.restarts)?)
}

fn is_worth_it(error: &Failure) -> bool {
    matches!(error, Failure::Launch { reason, .. } if reason != WRONG_USE && !reason.starts_with("does not start"))
}

/// What ranks compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// One of their own.
    Gpus,
    /// All on the same.
    Processor,
}

/// The command with its device, which is that of GPUs unless it says otherwise.
fn placed(command: &[String]) -> (Vec<String>, On) {
    let mut words = command.iter();
    while let Some(word) = words.next() {
        let device = match word.strip_prefix("--device") {
            Some("") => words.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        match device {
            Some("cuda") => return (command.to_vec(), On::Gpus),
            Some(_) => return (command.to_vec(), On::Processor),
            None => {}
        }
    }
    let mut command = command.to_vec();
    command.extend(["--device".to_owned(), "cuda".to_owned()]);
    (command, On::Gpus)
}

/// As many as are asked for: the processor does not say how many it is good for.
fn count_on_processor(ranks: Option<usize>) -> Result<usize> {
    match ranks {
        Some(ranks @ 1..=MOST) => Ok(ranks),
        Some(ranks) => Err(Error::invalid(
            "--ranks",
            ranks,
            format!("1 to {MOST} on the processor"),
        )),
        None => Err(Error::invalid(
            "--ranks",
            "none",
            "a number, where ranks are processes on the processor; without `launch` they are threads of one process",
        )),
    }
}

/// As many as are asked for, or as there are GPUs.
fn count(ranks: Option<usize>, gpus: usize) -> Result<usize> {
    match ranks {
        Some(0) => Err(Error::invalid("--ranks", 0, "at least 1")),
        Some(ranks) if ranks > gpus => Err(Error::invalid(
            "--ranks",
            ranks,
            format!("at most {gpus}, the GPUs that can be used: each rank needs one of its own"),
        )),
        None if gpus == 0 => Err(no_gpu("there is none, or CUDA_VISIBLE_DEVICES hides it")),
        ranks => Ok(ranks.unwrap_or(gpus)),
    }
}

fn no_gpu(why: &str) -> Error {
    Error::invalid("launch", "no GPU", format!("one at least: {why}"))
}

/// GPUs that this process may use.
#[cfg(feature = "nccl")]
fn gpus() -> Result<usize> {
    terrashard_collectives::nccl::gpus().map_err(|error| no_gpu(&error.to_string()))
}

/// None in a build for the processor.
#[cfg(not(feature = "nccl"))]
fn gpus() -> Result<usize> {
    Err(no_gpu("this program was built without the feature `nccl`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn commands_run_on_gpus() {
        let check = |line: &str, expected: &str| {
            assert_eq!(placed(&words(line)), (words(expected), On::Gpus));
        };
        check("fit c.toml", "fit c.toml --device cuda");
        check("fit --device cuda c.toml", "fit --device cuda c.toml");
        check("fit --device=cuda c.toml", "fit --device=cuda c.toml");
        for line in ["fit c.toml --device cpu", "fit --device=cpu c.toml"] {
            assert_eq!(placed(&words(line)), (words(line), On::Processor));
        }
        assert_eq!(count_on_processor(Some(3)).expect("it can be"), 3);
        for ranks in [None, Some(0), Some(MOST + 1)] {
            let text = count_on_processor(ranks)
                .expect_err("no number")
                .to_string();
            assert!(text.contains("--ranks"), "{text}");
        }
    }

    fn options(restarts: u32, again: Again) -> LaunchOptions {
        LaunchOptions {
            ranks: None,
            output: Output::First,
            end_within: Duration::ZERO,
            restarts,
            again,
            command: Vec::new(),
        }
    }

    #[test]
    fn all_are_started_again_as_often_as_is_asked_for() {
        let check = |restarts, of, reasons: &[&str], expected: &[usize], ends_well: bool| {
            let mut left = reasons.iter();
            let mut started = Vec::new();
            let ended = again(3, &options(restarts, of), |ranks, restart| {
                assert_eq!(restart as usize, started.len());
                started.push(ranks);
                left.next().map_or(Ok(()), |reason| {
                    Err(Failure::Launch {
                        rank: 1,
                        reason: (*reason).to_owned(),
                    })
                })
            });
            assert_eq!(started, expected, "{reasons:?}");
            assert_eq!(ended.is_ok(), ends_well, "{reasons:?}: {ended:?}");
        };
        let killed = "was killed by signal 9";
        check(0, Again::AsMany, &[], &[3], true);
        check(0, Again::AsMany, &[killed], &[3], false);
        check(2, Again::AsMany, &[killed], &[3, 3], true);
        check(2, Again::AsMany, &[killed; 3], &[3, 3, 3], false);
        check(5, Again::OneFewer, &[killed; 4], &[3, 2, 1, 1, 1], true);
        check(2, Again::AsMany, &[WRONG_USE], &[3], false);
        check(2, Again::AsMany, &["does not start: no"], &[3], false);
        let interrupted = again(3, &options(2, Again::AsMany), |_, _| {
            Err(Failure::Interrupted { signal: 15 })
        });
        interrupted.expect_err("who asked for an end means it");
    }

    #[test]
    fn e1_each_rank_has_a_gpu() {
        assert_eq!(count(None, 4).expect("it can be"), 4);
        assert_eq!(count(Some(2), 4).expect("it can be"), 2);
        let text = count(Some(3), 2).expect_err("too many").to_string();
        assert!(
            text.contains("got 3") && text.contains("at most 2"),
            "{text}"
        );
        for (ranks, gpus) in [(Some(0), 2), (None, 0)] {
            count(ranks, gpus).expect_err("nothing to start");
        }
    }
}
