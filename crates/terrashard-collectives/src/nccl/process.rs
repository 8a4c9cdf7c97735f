//! What the groups of one rank share: its store, its GPU, and how the run ends.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Options;
use super::library::exit_at_once;
use super::ring::{Report, Ring, contradiction};
use crate::bootstrap::Store;
use crate::header::{Header, Words};
use crate::{Call, Error, Result};

/// Under this key stands why the run ends.
const END: &str = "end";

/// How long a process that ends gives NCCL to end what is under way.
const END_WITHIN: Duration = Duration::from_secs(10);

/// How long rank 0, which holds the store, gives the others to learn why the run ends.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Lines of a group's last calls that are printed.
const LINES: usize = 16;

/// Under this key a rank says that it knows why the run ends.
fn told(rank: usize) -> String {
    format!("{END}/{rank}")
}

/// What marks the end of a call.
pub(super) trait Completion: Debug + Send + Sync {
    /// Whether it is there.
    fn is_done(&self) -> Result<bool>;
}

/// What carries the calls of a group.
pub(super) trait Carrier: Debug + Send + Sync {
    /// What it has failed with, if it has.
    fn failure(&self) -> Option<String>;

    /// Ends what is under way, so that the process can end. Nothing else is asked of it afterwards.
    fn abort(&self);
}

/// One rank of the run.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) store: Store,
    pub(super) options: Options,
    /// All groups that this rank has been in, until the run ends: ranks leave them together.
    groups: Mutex<Vec<Arc<Group>>>,
    /// What the ranks do together outside of calls, and since when.
    meeting: Mutex<Option<(&'static str, Instant)>>,
    is_ending: AtomicBool,
    has_left: AtomicBool,
}

/// One rank in one group of two or more.
#[derive(Debug)]
pub(super) struct Group {
    /// `world`, or how it came from there: the number of the split and the first member.
    pub(super) name: String,
    /// This rank in the group.
    pub(super) rank: usize,
    /// The ranks of the run that belong to the group, ascending.
    pub(super) members: Arc<[usize]>,
    pub(super) carrier: Arc<dyn Carrier>,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    ring: Ring,
    /// The calls that the GPU has not come to the end of, as far as is known, in order.
    under_way: VecDeque<(u64, Arc<dyn Completion>)>,
}

impl Group {
    pub(super) fn new(
        name: String,
        rank: usize,
        members: Arc<[usize]>,
        carrier: Arc<dyn Carrier>,
    ) -> Self {
        Self {
            name,
            rank,
            members,
            carrier,
            calls: Mutex::default(),
        }
    }

    /// Remembers that a call is made. Returns its number.
    pub(super) fn begin(&self, call: Call) -> u64 {
        lock(&self.calls).ring.begin(call)
    }

    /// Remembers what marks the end of a call.
    pub(super) fn watch(&self, sequence: u64, done: Arc<dyn Completion>) {
        let mut calls = lock(&self.calls);
        calls.under_way.push_back((sequence, done));
        // Else they would pile up between two looks of the watchdog.
        calls.forget_done(2);
    }

    /// Remembers that a call without an event is complete.
    pub(super) fn complete(&self, sequence: u64) {
        lock(&self.calls).ring.complete(sequence);
    }

    /// The oldest call that is under way, and since when.
    pub(super) fn oldest(&self) -> Option<(u64, Call, Instant)> {
        let mut calls = lock(&self.calls);
        calls.forget_done(usize::MAX);
        calls.ring.oldest()
    }

    /// Whether the GPU has come to the end of all calls.
    fn is_idle(&self) -> bool {
        let mut calls = lock(&self.calls);
        calls.forget_done(usize::MAX);
        calls.under_way.is_empty()
    }

    pub(super) fn report(&self, has_left: bool) -> Report {
        lock(&self.calls).ring.report(has_left)
    }

    /// Where a rank of the run tells the others of its calls.
    pub(super) fn report_key(&self, rank: usize) -> String {
        format!("calls/{}/{rank}", self.name)
    }

    /// What all members have told of their calls.
    pub(super) fn reports(&self, store: &Store) -> Result<Vec<Option<Report>>> {
        let read = |rank: &usize| {
            let bytes = store.look(&self.report_key(*rank))?;
            Ok(bytes.and_then(|bytes| Report::decode(&bytes)))
        };
        self.members.iter().map(read).collect()
    }

    /// An error unless all members make `call` as their call `sequence`. Waits for all of them.
    pub(super) fn agree(&self, process: &Process, sequence: u64, call: Call) -> Result<()> {
        let store = &process.store;
        let key = |rank: usize, sequence: u64| format!("call/{}/{rank}/{sequence}", self.name);
        let me = self.members[self.rank];
        let words = Header::Call(call).encode();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        store.set(&key(me, sequence), &bytes)?;
        let mut first: Option<(usize, Call)> = None;
        for &rank in self.members.iter() {
            let bytes = store.get(&key(rank, sequence), process.options.timeout)?;
            let theirs = read_call(&bytes).ok_or_else(|| Error::Transport {
                reason: format!(
                    "rank {rank} tells what is no call: run the same program everywhere"
                ),
            })?;
            let &mut (first, first_call) = first.get_or_insert((rank, theirs));
            if theirs != first_call {
                return Err(Error::Mismatch {
                    sequence,
                    first,
                    first_call,
                    second: rank,
                    second_call: theirs,
                });
            }
        }
        // Everybody has read the one before, since everybody has written this one.
        match sequence.checked_sub(1) {
            Some(before) => store.remove(&key(me, before)),
            None => Ok(()),
        }
    }
}

fn read_call(bytes: &[u8]) -> Option<Call> {
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let words: Words = words.try_into().ok()?;
    Header::decode(words)?.call()
}

impl Calls {
    fn forget_done(&mut self, most: usize) {
        for _ in 0..most {
            let Some((sequence, done)) = self.under_way.front() else {
                return;
            };
            // A GPU that cannot answer is noticed by whoever waits for the call.
            if !done.is_done().unwrap_or(false) {
                return;
            }
            self.ring.complete(*sequence);
            self.under_way.pop_front();
        }
    }
}

impl Process {
    pub(super) fn new(store: Store, options: Options) -> Self {
        Self {
            store,
            options,
            groups: Mutex::default(),
            meeting: Mutex::default(),
            is_ending: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.store.launched().rank
    }

    pub(super) fn groups(&self) -> Vec<Arc<Group>> {
        lock(&self.groups).clone()
    }

    pub(super) fn add(&self, group: &Arc<Group>) {
        lock(&self.groups).push(Arc::clone(group));
    }

    /// Does something for which all ranks have to come, under the watchdog's eyes.
    pub(super) fn meet<T>(
        &self,
        what: &'static str,
        body: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        *lock(&self.meeting) = Some((what, Instant::now()));
        let result = body();
        *lock(&self.meeting) = None;
        result
    }

    pub(super) fn meeting(&self) -> Option<(&'static str, Instant)> {
        *lock(&self.meeting)
    }

    /// An error once this rank has left the run.
    pub(super) fn is_here(&self) -> Result<()> {
        match self.has_left.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::Transport {
                reason: format!("rank {} has left the run already", self.rank()),
            }),
        }
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Completes what this rank has asked for, and returns when all ranks have left. The watchdog ends the process where
    /// that cannot be.
    pub(super) fn leave(&self) -> Result<()> {
        self.has_left.store(true, Ordering::Release);
        let groups = self.groups();
        for group in &groups {
            let report = group.report(true).encode();
            self.store.set(&group.report_key(self.rank()), &report)?;
        }
        let end = Instant::now() + self.options.timeout;
        while !groups.iter().all(|group| group.is_idle()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
        // What one rank finds to be wrong is so for all, who wait for its farewell.
        for group in groups.iter().filter(|group| group.rank == 0) {
            let has_left =
                |report: &Option<Report>| report.as_ref().is_some_and(|report| report.has_left);
            let mut reports = group.reports(&self.store)?;
            while !reports.iter().all(has_left) && Instant::now() < end {
                thread::sleep(Duration::from_millis(2));
                reports = group.reports(&self.store)?;
            }
            if let Some(error) = contradiction(&group.members, &reports) {
                return Err(error);
            }
        }
        self.store.leave(self.options.timeout)?;
        Ok(())
    }

    /// What an error says that this rank ends with: a store that does not answer has ended with rank 0.
    pub(super) fn reason(&self, error: &Error) -> String {
        match error {
            Error::Store { .. } if self.rank() != 0 => {
                format!("rank 0 has ended without a word: {error}")
            }
            error => error.to_string(),
        }
    }

    /// Forgets the groups. Those that nobody holds any more are destroyed.
    pub(super) fn close(&self) {
        lock(&self.groups).clear();
    }

    /// Why the run ends, if another rank has said so.
    pub(super) fn verdict(store: &Store) -> Result<Option<String>> {
        let verdict = store.look(END)?;
        Ok(verdict.map(|line| String::from_utf8_lossy(&line).into_owned()))
    }

    /// Ends the processes of all ranks: prints what this one did last and one line that is the same on all of them, that
    /// of the rank that was first to say why. `store` is a connection that nobody holds.
    pub(super) fn end(&self, store: &Store, reason: &str) -> ! {
        if self.is_ending.swap(true, Ordering::AcqRel) {
            // Another thread of this rank is at it.
            loop {
                thread::park();
            }
        }
        let line = reason.lines().collect::<Vec<_>>().join("; ");
        let verdict = store.propose(END, line.as_bytes());
        let verdict = verdict.map_or(line, |line| String::from_utf8_lossy(&line).into_owned());
        let groups = self.groups();
        let rank = self.rank();
        let mut text = String::new();
        for group in &groups {
            let mut calls = lock(&group.calls);
            calls.forget_done(usize::MAX);
            let lines = calls.ring.lines(&group.name, LINES);
            drop(calls);
            for line in lines {
                text += &format!("rank {rank}: {line}\n");
            }
        }
        text += &format!("error: {verdict}\n");
        // In one piece, so that lines of several ranks do not mix. Nobody is left to tell that it cannot be written.
        let _ = io::stderr().write_all(text.as_bytes());
        // A process that cannot start this thread has only what follows to end it.
        let _ = thread::Builder::new().spawn(|| {
            thread::sleep(END_WITHIN);
            exit_at_once(1);
        });
        // Kernels that wait for other ranks would keep the driver from ending.
        for group in &groups {
            group.carrier.abort();
        }
        // A rank that has said farewell and waits for the others still has to learn why the run ends.
        if rank == 0 {
            self.wait_until_told(store);
        } else {
            let _ = store.set(&told(rank), &[]);
        }
        let _ = store.leave(Duration::ZERO);
        exit_at_once(1)
    }

    /// Returns when all others have told the store that they know why the run ends, or it is too late for that.
    fn wait_until_told(&self, store: &Store) {
        let end = Instant::now() + TOLD_WITHIN;
        for rank in 1..store.launched().ranks {
            while let Ok(None) = store.look(&told(rank))
                && Instant::now() < end
            {
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// No code panics while it holds one of these locks, so a poisoned lock still guards a valid state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
