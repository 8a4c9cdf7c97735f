//! The thread that looks after a rank's calls while the rank computes, and ends the run when they cannot complete.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::process::{Group, Process};
use super::ring::{Report, contradiction, culprit};
use crate::bootstrap::Store;
use crate::{Error, Result};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Looks after which calls are told to the other ranks, and compared.
const TELL: u32 = 5;

/// How long another rank may take to say why NCCL fails here: it may know better.
const SECOND_OPINION: Duration = Duration::from_secs(3);

/// Looks after one rank until it is stopped.
#[derive(Debug)]
struct Watchdog {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Watchdog {
    fn start(process: &Arc<Process>) -> Result<Self> {
        let store = process.store.connect()?;
        let (stop, stopped) = mpsc::channel();
        let process = Arc::clone(process);
        let watch = move || {
            let mut sight = Sight::default();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                if let Some(reason) = sight.look(&process, &store) {
                    process.end(&store, &reason);
                }
            }
            // Its connection would break without a word, were the rank not to say farewell on another one.
            drop(store);
        };
        let thread = thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(watch);
        let thread = thread.map_err(|error| Error::Transport {
            reason: format!("the system refuses a thread: {error}"),
        })?;
        Ok(Self { stop, thread })
    }

    /// Returns when it looks no more.
    fn stop(self) {
        let _ = self.stop.send(());
        // It ends the process where it fails.
        let _ = self.thread.join();
    }
}

/// A rank's part in a run of several, from the start of its watchdog. Dropping it waits until all ranks have dropped theirs;
/// in a panic it ends the run.
#[derive(Debug)]
pub(super) struct Part {
    process: Arc<Process>,
    watchdog: Option<Watchdog>,
}

impl Part {
    pub(super) fn begin(process: &Arc<Process>) -> Result<Self> {
        Ok(Self {
            process: Arc::clone(process),
            watchdog: Some(Watchdog::start(process)?),
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let process = &self.process;
        if thread::panicking() {
            let reason = format!("rank {} gave up: panicked", process.rank());
            process.end(&process.store, &reason);
        }
        if let Err(error) = process.leave() {
            process.end(&process.store, &process.reason(&error));
        }
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop();
        }
        process.close();
    }
}

/// What was seen until now.
#[derive(Debug, Default)]
struct Sight {
    looks: u32,
    /// What was told of each group last.
    told: Vec<Option<Report>>,
    /// What NCCL has failed with, and since when.
    failing: Option<(String, Instant)>,
}

impl Sight {
    /// Why the run has to end, if it has to.
    fn look(&mut self, process: &Process, store: &Store) -> Option<String> {
        self.looks = self.looks.wrapping_add(1);
        match self.try_look(process, store) {
            Ok(reason) => reason,
            // The store ends with rank 0, whose farewell this rank may miss while it leaves.
            Err(_) if process.has_left() => None,
            Err(error) => Some(process.reason(&error)),
        }
    }

    fn try_look(&mut self, process: &Process, store: &Store) -> Result<Option<String>> {
        if let Some(verdict) = Process::verdict(store)? {
            return Ok(Some(verdict));
        }
        let groups = process.groups();
        if let Some(rank) = store.gone()? {
            return Ok(Some(gone(rank, groups.first(), store)?));
        }
        let timeout = process.options.timeout;
        if let Some((what, since)) = process.meeting()
            && since.elapsed() > timeout
        {
            let (rank, seconds) = (process.rank(), timeout.as_secs());
            return Ok(Some(format!(
                "rank {rank} waits for others to {what} for more than {seconds} s"
            )));
        }
        self.told.resize(groups.len(), None);
        let compares = self.looks.is_multiple_of(TELL);
        for (group, told) in groups.iter().zip(&mut self.told) {
            let oldest = group.oldest();
            let is_late = oldest.is_some_and(|(.., since)| since.elapsed() > timeout);
            if compares || is_late {
                let report = group.report(process.has_left());
                if told.as_ref() != Some(&report) {
                    store.set(&group.report_key(process.rank()), &report.encode())?;
                    *told = Some(report);
                }
            }
            if is_late {
                // The others may be about to tell how far they have come.
                thread::sleep(LOOK * 2 * TELL);
                let line = culprit(&group.name, &group.members, &group.reports(store)?);
                let (rank, seconds) = (process.rank(), timeout.as_secs());
                return Ok(Some(format!(
                    "{line} (rank {rank} has waited for {seconds} s)"
                )));
            }
            // One rank compares for all of the group.
            if compares
                && group.rank == 0
                && (oldest.is_some() || process.has_left())
                && let Some(error) = contradiction(&group.members, &group.reports(store)?)
            {
                return Ok(Some(error.to_string()));
            }
        }
        if self.failing.is_none() {
            let failing = groups
                .iter()
                .find_map(|group| Some((group, group.carrier.failure()?)));
            self.failing = failing.map(|(group, words)| {
                let (rank, group) = (process.rank(), &group.name);
                (
                    format!("rank {rank}: NCCL fails in group {group}: {words}"),
                    Instant::now(),
                )
            });
        }
        Ok(match &self.failing {
            Some((line, since)) if since.elapsed() > SECOND_OPINION => Some(line.clone()),
            _ => None,
        })
    }
}

/// Of a rank that has ended without a word.
fn gone(rank: usize, world: Option<&Arc<Group>>, store: &Store) -> Result<String> {
    let line = format!("rank {rank} has ended without a word; its own output may say why");
    let Some(world) = world else { return Ok(line) };
    let report = store.look(&world.report_key(rank))?;
    Ok(match report.and_then(|bytes| Report::decode(&bytes)) {
        Some(report) => format!(
            "{line}; it had made {} calls in group {}",
            report.made, world.name
        ),
        None => line,
    })
}
