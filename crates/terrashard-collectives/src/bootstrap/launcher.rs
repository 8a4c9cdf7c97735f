//! Starts the processes of a run on this host, and ends all of them when one fails.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::environment::Launched;
use crate::{Error, Result};

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(20);

/// Tells a process how many times the ranks of its run were started before, as `torchrun` names it.
pub const RESTARTS: &str = "TORCHELASTIC_RESTART_COUNT";

/// How long the last output of processes that have ended may take.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Whose output is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// That of rank 0 as it is, and what the others write to standard error, with the rank before each line.
    #[default]
    First,
    /// That of all, with the rank before each line.
    All,
}

/// Starts the processes of a run.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// How many.
    pub ranks: usize,
    /// Whose output is shown.
    pub output: Output,
    /// How long the other ranks may take to end by themselves after one has failed, or after a signal.
    pub end_within: Duration,
}

impl Launcher {
    /// Starts what `command` yields for each rank, with the variables of [`Launched::variables`], and waits for all. SIGINT,
    /// SIGTERM, SIGHUP and SIGUSR1 are passed on to them from now on, and no longer end this process by themselves. After
    /// SIGUSR1 the ranks have all the time that they want.
    ///
    /// # Errors
    ///
    /// [`Error::Launch`] for the rank that failed first, after all have ended; [`Error::Interrupted`] after a signal by which a
    /// rank did not end well.
    pub fn run(&self, command: impl FnMut(&Launched) -> Command) -> Result<()> {
        let signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1]).map_err(|error| Error::Launch {
                rank: 0,
                reason: format!("does not start: signals cannot be passed on: {error}"),
            });
        let mut signals = signals?;
        self.run_with(command, || signals.pending().next())
    }

    /// As [`run`](Self::run), with the signals that `signal` yields.
    fn run_with(
        &self,
        mut command: impl FnMut(&Launched) -> Command,
        mut signal: impl FnMut() -> Option<i32>,
    ) -> Result<()> {
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr());
        let port = port
            .map(|address| address.port())
            .map_err(|error| Error::Launch {
                rank: 0,
                reason: format!("does not start: there is no free port: {error}"),
            })?;
        let (told, output) = mpsc::channel();
        let mut family = Family {
            children: Vec::with_capacity(self.ranks),
        };
        for rank in 0..self.ranks {
            let launched = Launched {
                rank,
                ranks: self.ranks,
                local_rank: rank,
                port,
                ..Launched::alone()
            };
            let child = self.start(&launched, command(&launched), &told)?;
            family.children.push((rank, child));
        }
        drop(told);
        let result = self.watch(&mut family, &mut signal);
        drained(&output);
        result
    }

    fn start(&self, launched: &Launched, mut command: Command, told: &Sender<()>) -> Result<Child> {
        let rank = launched.rank;
        let shows_as_is = self.output == Output::First && rank == 0;
        command.envs(launched.variables());
        if !shows_as_is {
            command.stdin(Stdio::null()).stderr(Stdio::piped());
            command.stdout(match self.output {
                Output::First => Stdio::null(),
                Output::All => Stdio::piped(),
            });
        }
        let mut child = command.spawn().map_err(|error| Error::Launch {
            rank,
            reason: format!(
                "does not start: {}: {error}",
                command.get_program().display()
            ),
        })?;
        if let Some(stdout) = child.stdout.take() {
            pass_on(rank, stdout, io::stdout(), told.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            pass_on(rank, stderr, io::stderr(), told.clone());
        }
        Ok(child)
    }

    fn watch(&self, family: &mut Family, signal: &mut impl FnMut() -> Option<i32>) -> Result<()> {
        let mut why: Option<(Error, Instant)> = None;
        let mut all_end_well = true;
        loop {
            let failed = family.bury();
            all_end_well &= failed.is_none();
            if let (None, Some((rank, status))) = (&why, failed) {
                let reason = ending(status);
                why = Some((Error::Launch { rank, reason }, Instant::now()));
            }
            if let Some(number) = signal() {
                family.tell(number);
                if number != SIGUSR1 {
                    why.get_or_insert((Error::Interrupted { signal: number }, Instant::now()));
                }
            }
            match why {
                // What ranks make of a signal may be a good end, with all that they have done saved.
                Some(_) if family.children.is_empty() && all_end_well => return Ok(()),
                Some((error, _)) if family.children.is_empty() => return Err(error),
                None if family.children.is_empty() => return Ok(()),
                Some((error, since)) if since.elapsed() > self.end_within => {
                    family.kill();
                    return Err(error);
                }
                _ => thread::sleep(LOOK),
            }
        }
    }
}

/// How a process has ended that should not have, as the end of a sentence that begins with its rank.
fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(9)) => {
            "was killed by signal 9, as the system does where memory runs out".to_owned()
        }
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

/// The processes that have not ended, with their ranks. Those that are left when it is dropped are killed.
struct Family {
    children: Vec<(usize, Child)>,
}

impl Family {
    /// Forgets those that have ended. Returns one that failed, rather one that was killed: the others may have followed it.
    fn bury(&mut self) -> Option<(usize, ExitStatus)> {
        let mut failed: Option<(usize, ExitStatus)> = None;
        self.children
            .retain_mut(|(rank, child)| match child.try_wait() {
                Ok(Some(status)) => {
                    let is_better = failed
                        .is_none_or(|(_, known)| known.code().is_some() && status.code().is_none());
                    if !status.success() && is_better {
                        failed = Some((*rank, status));
                    }
                    false
                }
                // A process that cannot be asked is waited for when it is killed.
                Ok(None) | Err(_) => true,
            });
        failed
    }

    fn tell(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        for (_, child) in &self.children {
            // One that has ended meanwhile needs no signal.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn kill(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Passes a process's lines on, each in one piece and with its rank.
fn pass_on(
    rank: usize,
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    told: Sender<()>,
) {
    let pass = move || {
        let mut lines = BufReader::new(from).split(b'\n');
        while let Some(Ok(line)) = lines.next() {
            let mut text = format!("[{rank}] ").into_bytes();
            text.extend(line);
            text.push(b'\n');
            // Nobody may read any more; the process goes on nevertheless.
            let _ = to.write_all(&text).and_then(|()| to.flush());
        }
        drop(told);
    };
    // Without a thread the output is lost, but not the process's work.
    let _ = thread::Builder::new()
        .name(format!("output of rank {rank}"))
        .spawn(pass);
}

/// Waits until all output is passed on, unless something that a rank has started keeps it open.
fn drained(output: &Receiver<()>) {
    let _ = output.recv_timeout(LAST_OUTPUT);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn launcher(ranks: usize) -> Launcher {
        Launcher {
            ranks,
            output: Output::All,
            end_within: LONG,
        }
    }

    fn run(launcher: &Launcher, script: &str) -> Result<(), String> {
        let result = launcher.run_with(|_| shell(script), || None);
        result.map_err(|error| error.to_string())
    }

    #[test]
    fn each_process_knows_its_place() {
        let script = r#"test "$WORLD_SIZE $MASTER_ADDR" = "3 127.0.0.1" && test "$LOCAL_RANK" = "$RANK" && test "$MASTER_PORT" -gt 0 && test "$RANK" -lt 3"#;
        run(&launcher(3), script).unwrap();
        let mut ranks = Vec::new();
        let note = |launched: &Launched| {
            ranks.push(launched.rank);
            shell("exit 0")
        };
        launcher(3).run_with(note, || None).unwrap();
        assert_eq!(ranks, [0, 1, 2]);
    }

    #[test]
    fn who_fails_is_named() {
        let text = run(&launcher(3), "test $RANK != 1 || exit 7").unwrap_err();
        assert_eq!(text, "rank 1 ended with exit code 7");
        let text = run(&launcher(2), "test $RANK != 1 || kill -9 $$").unwrap_err();
        assert!(text.starts_with("rank 1 was killed by signal 9"), "{text}");
        let text = launcher(1).run_with(|_| Command::new("/no/such/program"), || None);
        let text = text.unwrap_err().to_string();
        assert!(
            text.contains("rank 0 does not start: /no/such/program"),
            "{text}"
        );
    }

    #[test]
    fn one_that_fails_ends_all() {
        let launcher = Launcher {
            end_within: Duration::from_millis(50),
            ..launcher(3)
        };
        // The others would take a day.
        let text = run(&launcher, "test $RANK != 2 && exec sleep 86400; exit 3").unwrap_err();
        assert_eq!(text, "rank 2 ended with exit code 3");
    }

    #[test]
    fn the_others_may_end_by_themselves() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        // Rank 0 ends once rank 1 has failed, and says so.
        let (failed, ended) = (path("failed"), path("ended"));
        let script = format!(
            "if test $RANK = 1; then touch {failed}; exit 1; fi; until test -e {failed}; do sleep 0.01; done; sleep 0.1; touch {ended}"
        );
        let text = run(&launcher(2), &script).unwrap_err();
        assert_eq!(text, "rank 1 ended with exit code 1");
        assert!(std::path::Path::new(&ended).exists());
    }

    #[test]
    fn signals_reach_all_and_a_good_end_is_one() {
        // Not that of the keyboard: a shell in the background is born deaf to it, and so is what it starts.
        for (signal, name, code) in [
            (SIGTERM, "TERM", 0),
            (SIGUSR1, "USR1", 0),
            (SIGTERM, "TERM", 3),
            (SIGUSR1, "USR1", 3),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().display().to_string();
            let script = format!(
                "trap 'touch {path}/told$RANK; exit {code}' {name}; touch {path}/ready$RANK; while true; do sleep 0.01; done"
            );
            let exists = |name: &str| folder.path().join(name).exists();
            let mut sent = false;
            let once = || {
                let is_time = !sent && exists("ready0") && exists("ready1");
                sent |= is_time;
                is_time.then_some(signal)
            };
            let result = launcher(2).run_with(|_| shell(&script), once);
            match (code, name) {
                (0, _) => result.unwrap(),
                (_, "USR1") => {
                    let text = result.unwrap_err().to_string();
                    assert!(text.ends_with("ended with exit code 3"), "{text}");
                }
                _ => {
                    let text = result.unwrap_err().to_string();
                    assert!(text.contains(&format!("signal {signal}")), "{text}");
                }
            }
            assert!(exists("told0") && exists("told1"), "{name}");
        }
    }
}
