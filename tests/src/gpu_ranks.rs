//! Programs whose ranks are GPUs: started once, they start themselves for each GPU, and tell one line for each check.

use std::any::Any;
use std::env;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use terrashard_collectives::bootstrap::{Launched, Launcher, Output};
use terrashard_collectives::nccl::{NcclWorld, Options, gpus, version};
use terrashard_collectives::{Communicator, Error, Result};

/// How long the other ranks may take to end after one has failed.
const END_WITHIN: Duration = Duration::from_secs(30);

/// Variables of the ranks that are not set: multicast between GPUs is not what is tested here, and not for every machine;
/// cuBLAS is deterministic only with workspaces of these sizes; and what hangs should say so soon.
const DEFAULTS: [(&str, &str); 3] = [
    ("NCCL_NVLS_ENABLE", "0"),
    ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ("TERRASHARD_TIMEOUT", "90"),
];

/// Runs `rank` in each of `ranks` processes of this program with the same arguments, one for each GPU where `None`. In a
/// process that a launcher has started already, runs it at once.
pub fn run(ranks: Option<usize>, rank: impl FnOnce(&NcclWorld) -> Result<()>) -> Result<()> {
    match Launched::from_environment()? {
        Some(launched) => {
            let world = NcclWorld::join(&launched, Options::from_environment()?)?;
            rank(&world)
        }
        None => launch(count(ranks)?),
    }
}

/// The number of ranks that is asked for, or one for each GPU.
///
/// # Errors
///
/// [`Error::Transport`] with both counts if there are fewer GPUs.
pub fn count(ranks: Option<usize>) -> Result<usize> {
    let gpus = gpus()?;
    match ranks.unwrap_or(gpus) {
        0 => Err(Error::Transport {
            reason: "there is no GPU".to_owned(),
        }),
        ranks if ranks > gpus => Err(Error::Transport {
            reason: format!("{ranks} ranks need {ranks} GPUs, but {gpus} can be used"),
        }),
        ranks => Ok(ranks),
    }
}

fn launch(ranks: usize) -> Result<()> {
    let program = env::current_exe().map_err(|error| Error::Transport {
        reason: format!("this program does not find itself: {error}"),
    })?;
    let launcher = Launcher {
        ranks,
        output: Output::First,
        end_within: END_WITHIN,
    };
    launcher.run(|_| {
        let mut command = Command::new(&program);
        command.args(env::args_os().skip(1));
        for (variable, value) in DEFAULTS {
            if env::var_os(variable).is_none() {
                command.env(variable, value);
            }
        }
        command
    })
}

/// Checks that are told one line each, by rank 0, and counted.
#[derive(Debug)]
pub struct Checks {
    name: &'static str,
    tells: bool,
    passed: usize,
    failed: usize,
}

impl Checks {
    /// None yet. All ranks make the same checks; one of them tells.
    pub fn new(name: &'static str, tells: bool) -> Self {
        Self {
            name,
            tells,
            passed: 0,
            failed: 0,
        }
    }

    /// A line.
    pub fn say(&self, line: &str) {
        if self.tells {
            // At once: the machine may go away. Nobody is left to tell that it cannot be written.
            let _ = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
        }
    }

    /// Makes a check; what it returns is told beside its name. A panic is a failure like an error.
    pub fn check<E: std::fmt::Display>(
        &mut self,
        name: &str,
        check: impl FnOnce() -> Result<String, E>,
    ) {
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(check));
        let seconds = started.elapsed().as_secs_f64();
        match outcome {
            Ok(Ok(words)) => {
                self.passed += 1;
                self.say(&format!("ok    {seconds:7.2} s  {name}  {words}"));
            }
            Ok(Err(error)) => self.fail(name, seconds, &error.to_string()),
            Err(payload) => self.fail(
                name,
                seconds,
                &format!("panicked: {}", message(payload.as_ref())),
            ),
        }
    }

    fn fail(&mut self, name: &str, seconds: f64, words: &str) {
        self.failed += 1;
        self.say(&format!("FAIL  {seconds:7.2} s  {name}  {words}"));
    }

    /// The last line.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if a check has failed.
    pub fn summary(self) -> Result<()> {
        let Self {
            name,
            passed,
            failed,
            ..
        } = self;
        self.say(&format!(
            "{name}: {} checks, {failed} failed",
            passed + failed
        ));
        match failed {
            0 => Ok(()),
            _ => Err(Error::Transport {
                reason: format!("{name}: {failed} checks failed"),
            }),
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

/// What the ranks run on, in one line.
pub fn machine(world: &NcclWorld) -> Result<String> {
    let comm = world.communicator();
    Ok(format!(
        "{} ranks, NCCL {}, LibTorch {}",
        comm.ranks(),
        version()?,
        terrashard_torch::version()
    ))
}

/// The exit code of a program that has ended so.
pub fn exit(name: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_counted() {
        let mut checks = Checks::new("x", false);
        checks.check("one", || Ok::<_, String>(String::new()));
        checks.check("two", || Err::<String, _>("no"));
        checks.check::<String>("three", || panic!("index 7"));
        assert_eq!((checks.passed, checks.failed), (1, 2));
        let text = checks.summary().unwrap_err().to_string();
        assert!(text.contains("2 checks failed"), "{text}");
        let mut checks = Checks::new("x", false);
        checks.check("one", || Ok::<_, String>(String::new()));
        checks.summary().unwrap();
    }
}
