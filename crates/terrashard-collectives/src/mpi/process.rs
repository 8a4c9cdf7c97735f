//! What the groups of one process share: why the run is lost, and the threads to wait for before MPI is finalized.

use std::env;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ::mpi::environment;
use ::mpi::topology::{Communicator as _, SimpleCommunicator};

use super::lock;
use super::worker::{Job, Worker};
use crate::local::{GRACE, LOOK, Patience};
use crate::{Call, Error, Result};

/// How long MPI may take to end the run before this process ends by itself, which the launcher notices.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Set by Open MPI's `mpirun`, which ends a run when one of its processes exits without having finalized MPI. Its
/// `MPI_Abort` sends messages besides, over which `mpirun` 4.1 may hang for ever after all processes have ended.
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK";

/// The time that a rank has to end the run before the next one does, and what ranks wait for all others at most.
const PRECEDENCE: Duration = Duration::from_millis(200);
const PRECEDENCE_WITHIN: Duration = Duration::from_secs(2);

/// Between two looks whether a group's thread has ended.
const CLOSING: Duration = Duration::from_millis(1);

/// One rank of the run.
#[derive(Debug)]
pub(super) struct Process {
    rank: usize,
    ranks: usize,
    patience: Patience,
    /// When a rank was first waited for in vain.
    given_up: OnceLock<Instant>,
    /// Why no further call can complete, once that is so.
    lost: Mutex<Option<Error>>,
    /// Groups that this rank has proposed a tag for. The group of all ranks has the tag 0.
    proposed: AtomicUsize,
    threads: Mutex<Vec<Thread>>,
}

#[derive(Debug)]
struct Thread {
    jobs: Sender<Job>,
    handle: JoinHandle<()>,
}

impl Process {
    pub(super) fn new(rank: usize, ranks: usize, patience: Patience) -> Self {
        Self {
            rank,
            ranks,
            patience,
            given_up: OnceLock::new(),
            lost: Mutex::new(None),
            proposed: AtomicUsize::new(0),
            threads: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// How long a rank is waited for.
    pub(super) fn timeout(&self) -> Duration {
        self.patience.timeout
    }

    /// Notes that a rank was waited for in vain, with the error that tells it. Called over and over by who cannot but go on waiting:
    /// a process that does not end by that is ended. Returns why the run is lost.
    pub(super) fn give_up(&self, error: impl FnOnce() -> Error) -> Error {
        let lost = lock(&self.lost).get_or_insert_with(error).clone();
        let since = self.given_up.get_or_init(Instant::now);
        if since.elapsed() > GRACE {
            (self.patience.abandoned)(&lost, &lost.to_string());
            thread::sleep(LOOK);
        }
        lost
    }

    /// A tag that no rank proposes for another group.
    pub(super) fn propose_tag(&self) -> usize {
        let count = self.proposed.fetch_add(1, Ordering::Relaxed) + 1;
        count * self.ranks + self.rank
    }

    /// How many tags up to `highest` it can propose.
    pub(super) fn most_tags(&self, highest: usize) -> usize {
        (highest / self.ranks).saturating_sub(1)
    }

    /// Starts the thread of a group.
    pub(super) fn join(self: &Arc<Self>, members: Arc<[usize]>, tag: usize) -> Result<Sender<Job>> {
        let (jobs, receiver) = mpsc::channel();
        let process = Arc::clone(self);
        let thread = thread::Builder::new().name(format!("rank {} group {tag}", self.rank));
        let spawned = thread.spawn(move || Worker::new(process, &members, tag).run(&receiver));
        let handle = spawned.map_err(|error| {
            self.note(Error::Transport {
                reason: format!("the system refuses a thread: {error}"),
            })
        })?;
        lock(&self.threads).push(Thread {
            jobs: jobs.clone(),
            handle,
        });
        Ok(jobs)
    }

    /// Notes why no further call can complete, unless there is a reason already. Returns `error`.
    pub(super) fn note(&self, error: Error) -> Error {
        lock(&self.lost).get_or_insert_with(|| error.clone());
        error
    }

    /// Notes why no further call can complete, and lets all groups know.
    pub(super) fn lose(&self, error: Error) {
        self.note(error);
        for thread in lock(&self.threads).iter() {
            // A thread that has ended has nothing to tell its group any more.
            let _ = thread.jobs.send(Job::Leave);
        }
    }

    /// Why the run is lost.
    pub(super) fn lost(&self) -> Option<Error> {
        lock(&self.lost).clone()
    }

    /// What a call is given whose group has no thread any more.
    pub(super) fn gone(&self, call: Call) -> Error {
        let ended = Error::Transport {
            reason: format!("rank {} has left the group before its {call}", self.rank),
        };
        self.lost().unwrap_or(ended)
    }

    /// Leaves all groups, and returns when their other ranks have left, too, or when one was waited for in vain.
    pub(super) fn close(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in &threads {
            let _ = thread.jobs.send(Job::Leave);
        }
        for thread in threads {
            while !thread.handle.is_finished() {
                if self.given_up.get().is_some() {
                    return;
                }
                thread::sleep(CLOSING);
            }
            if thread.handle.join().is_err() {
                self.end("a communication thread panicked");
            }
        }
    }

    /// Ends the processes of all ranks. Where the run is lost already, others may have been given the same error, and the lowest
    /// rank speaks for them: launchers do not take it well when many end the run at the same time.
    pub(super) fn end(&self, reason: &str) -> ! {
        if self.lost().is_some() {
            let before =
                u32::try_from(self.rank).map_or(PRECEDENCE_WITHIN, |rank| PRECEDENCE * rank);
            thread::sleep(before.min(PRECEDENCE_WITHIN));
        }
        let reason = reason.lines().collect::<Vec<_>>().join("; ");
        // In one piece, so that lines of several ranks do not mix. Nobody is left to tell that it cannot be written.
        let line = format!("rank {} gave up: {reason}\n", self.rank);
        let _ = io::stderr().write_all(line.as_bytes());
        // A process that cannot start this thread has only what follows to end it.
        let _ = thread::Builder::new().spawn(|| {
            thread::sleep(END_WITHIN);
            std::process::abort();
        });
        if environment::is_finalized() || env::var_os(OPEN_MPI).is_some() {
            std::process::exit(1);
        }
        SimpleCommunicator::world().abort(1)
    }
}
