//! Ranks that are threads of one process and share memory.
//!
//! # How a call runs
//!
//! A call *publishes* its input under its number without waiting for anybody. What comes out is computed when it
//! is waited for, once all ranks have published, by the threads that wait: each reads shared inputs and writes
//! memory of its own, so no order of waits can deadlock, and a rank that never waits holds up nobody. Each verb
//! adds each element once in the whole group: a reduce-scatter's rank adds its own part, and an all-reduce is
//! added in segments which the waiting ranks claim from a counter.

mod group;
#[cfg(all(test, not(feature = "shuttle")))]
mod orders;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod work;

use std::any::Any;
use std::env;
use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use burn::tensor::{Tensor, TensorData};

use crate::traffic::Meter;
use crate::{Call, Communicator, Error, Pending, Result, Traffic, Verb};
use group::{Group, Input};

/// Stack of a rank's thread: what the main thread has on Linux, since models recurse as deep there.
const STACK_BYTES: usize = 8 << 20;

/// Between two looks whether ranks of a lost run have ended.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// How long a rank that was given up may take to end by itself.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// The variable of [`Patience::from_environment`].
pub const TIMEOUT: &str = "TERRASHARD_TIMEOUT";

/// How long ranks wait for each other.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A rank that waits for longer gives all up, with [`Error::Stalled`].
    pub timeout: Duration,
    /// Called over and over where ranks do not end after the run is lost: threads cannot be ended from outside, but the
    /// process can. It is given what was lost, and what the first rank that ended by it has said.
    pub abandoned: fn(&Error, &str),
}

impl Patience {
    /// As many seconds as `TERRASHARD_TIMEOUT` says, or 600.
    ///
    /// # Errors
    ///
    /// [`Error::Variable`] for a value that makes no sense.
    pub fn from_environment(abandoned: fn(&Error, &str)) -> Result<Self> {
        Self::of(env::var(TIMEOUT).ok(), abandoned)
    }

    fn of(value: Option<String>, abandoned: fn(&Error, &str)) -> Result<Self> {
        let seconds = match value {
            None => 600,
            Some(text) => match text.parse::<u32>() {
                Ok(seconds) if seconds > 0 => seconds,
                _ => {
                    return Err(Error::Variable {
                        variable: TIMEOUT.to_owned(),
                        value: text,
                        expected: "a whole number of seconds from 1".to_owned(),
                    });
                }
            },
        };
        Ok(Self {
            timeout: Duration::from_secs(seconds.into()),
            abandoned,
        })
    }
}

/// Runs `body` once on each of `ranks` threads and returns their results in rank order.
///
/// If a rank returns an error, panics, or calls [`Communicator::abort`], calls that not all ranks have made yet fail
/// on the others, which names that rank; so do calls that wait for a rank that has returned already.
///
/// # Errors
///
/// The error of the rank that failed first, and not those that it caused on others: [`RunError::Failed`],
/// [`RunError::Panicked`]; [`RunError::Spawn`] if the system refuses a thread; [`RunError::NoRanks`].
pub fn run<T, E, F>(ranks: usize, body: F) -> Result<Vec<T>, RunError<E>>
where
    T: Send,
    E: Display + Send,
    F: Fn(LocalCommunicator) -> Result<T, E> + Sync,
{
    run_within(ranks, None, body)
}

/// As [`run`], with an end to all waiting.
///
/// # Errors
///
/// As [`run`]. A rank that was given up and still ends is [`RunError::Failed`] by what its next call returns.
pub fn run_within<T, E, F>(
    ranks: usize,
    patience: Option<Patience>,
    body: F,
) -> Result<Vec<T>, RunError<E>>
where
    T: Send,
    E: Display + Send,
    F: Fn(LocalCommunicator) -> Result<T, E> + Sync,
{
    if ranks == 0 {
        return Err(RunError::NoRanks);
    }
    let timeout = patience.map(|patience| patience.timeout);
    let group = Arc::new(Group::new(ranks, timeout));
    let (told, ended) = mpsc::channel();
    let outcomes: Vec<Result<T, RunError<E>>> = thread::scope(|scope| {
        let (group, body) = (&group, &body);
        let spawn = |rank| {
            let thread = thread::Builder::new()
                .name(format!("rank {rank}"))
                .stack_size(STACK_BYTES);
            let told: Sender<()> = told.clone();
            let live = move || {
                let outcome = enter(rank, group, body);
                drop(told);
                outcome
            };
            let spawned = thread.spawn_scoped(scope, live);
            spawned.map_err(|source| {
                group.fail(rank, &format!("failed to start its thread: {source}"));
                RunError::Spawn { rank, source }
            })
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        drop(told);
        if let Some(Patience { abandoned, .. }) = patience {
            // Nobody sends: it ends when all threads have dropped their sender.
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK) {
                if let Some((error, words)) = group.overdue(GRACE) {
                    abandoned(&error, &words);
                }
            }
        }
        let join = |thread: Result<thread::ScopedJoinHandle<'_, _>, _>| {
            thread.and_then(|thread| {
                thread
                    .join()
                    .expect("a rank's panic is caught within its thread")
            })
        };
        threads.into_iter().map(join).collect()
    });

    let mut values = Vec::with_capacity(ranks);
    let mut errors = Vec::new();
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(value) => values.push(value),
            Err(error) => errors.push((rank, error)),
        }
    }
    if errors.is_empty() {
        return Ok(values);
    }
    let culprit = group.culprit();
    let at = errors
        .iter()
        .position(|&(rank, _)| Some(rank) == culprit)
        .unwrap_or(0);
    Err(errors.swap_remove(at).1)
}

/// The life of one rank's thread.
fn enter<T, E, F>(rank: usize, group: &Arc<Group>, body: &F) -> Result<T, RunError<E>>
where
    E: Display,
    F: Fn(LocalCommunicator) -> Result<T, E>,
{
    let communicator = LocalCommunicator {
        rank,
        group: Arc::clone(group),
        meter: Meter::default(),
    };
    match catch_unwind(AssertUnwindSafe(|| body(communicator))) {
        Ok(Ok(value)) => {
            group.leave(rank);
            Ok(value)
        }
        Ok(Err(source)) => {
            group.fail(rank, &source.to_string());
            Err(RunError::Failed { rank, source })
        }
        Err(payload) => {
            let message = panic_message(payload.as_ref());
            group.fail(rank, &format!("panicked: {message}"));
            Err(RunError::Panicked { rank, message })
        }
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "the panic carries no message".to_owned())
}

/// Why [`run`] has no results.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<E> {
    /// A rank returned an error.
    Failed {
        /// The rank that failed first.
        rank: usize,
        /// Its error.
        source: E,
    },
    /// A rank panicked.
    Panicked {
        /// The rank that panicked first.
        rank: usize,
        /// The message of the panic.
        message: String,
    },
    /// The system refused a thread.
    Spawn {
        /// The rank that was to run on it.
        rank: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A run without ranks.
    NoRanks,
}

impl<E: Display> Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { rank, source } => write!(f, "rank {rank} failed: {source}"),
            Self::Panicked { rank, message } => write!(f, "rank {rank} panicked: {message}"),
            Self::Spawn { rank, source } => {
                write!(f, "failed to start the thread of rank {rank}: {source}")
            }
            Self::NoRanks => write!(f, "a run needs at least one rank, got 0"),
        }
    }
}

impl<E: StdError + 'static> StdError for RunError<E> {
    /// The cause of the rank's error, which itself is part of the message already.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Failed { source, .. } => source.source(),
            Self::Spawn { source, .. } => source.source(),
            Self::Panicked { .. } | Self::NoRanks => None,
        }
    }
}

/// A rank's connection to the other threads of its [`run`], or to those of its color.
#[derive(Debug)]
pub struct LocalCommunicator {
    rank: usize,
    group: Arc<Group>,
    meter: Meter,
}

/// What is left to do of a call that was made.
pub(crate) type Finish = Box<dyn FnOnce() -> Result<TensorData> + Send>;

/// The members of a group that has no threads of its own: whoever holds one makes its calls, and says when it leaves.
pub(crate) fn members(ranks: usize, timeout: Duration) -> Vec<LocalCommunicator> {
    let group = Arc::new(Group::new(ranks, Some(timeout)));
    let member = |rank| LocalCommunicator {
        rank,
        group: Arc::clone(&group),
        meter: Meter::default(),
    };
    (0..ranks).map(member).collect()
}

impl LocalCommunicator {
    /// Makes a call with what this rank puts in, and does not wait.
    pub(crate) fn begin(&self, call: Call, data: TensorData) -> Result<Finish> {
        let slot = self.group.publish(self.rank, call, Input::Elements(data))?;
        let (rank, group) = (self.rank, Arc::clone(&self.group));
        Ok(Box::new(move || group.finish(rank, &slot)))
    }

    /// As [`Communicator::split`].
    pub(crate) fn split_off(&self, color: usize) -> Result<Self> {
        let (rank, group) = self.group.split(self.rank, color)?;
        Ok(Self {
            rank,
            group,
            meter: Meter::default(),
        })
    }

    /// Says that the rank makes no further call.
    pub(crate) fn leave(&self) {
        self.group.leave(self.rank);
    }

    /// As [`Group::overdue`].
    pub(crate) fn overdue(&self, grace: Duration) -> Option<(Error, String)> {
        self.group.overdue(grace)
    }

    fn start(&self, verb: Verb, input: Tensor<1>) -> Result<Pending> {
        let (rank, ranks) = (self.rank, self.group.ranks());
        let call = Call::new(verb, &input, ranks)?;
        if ranks == 1 {
            self.meter.count(&call, rank, ranks);
            return Ok(Pending::ready(input));
        }
        let device = input.device();
        let data = call.read(input, rank)?;
        let slot = self.group.publish(rank, call, Input::Elements(data))?;
        self.meter.count(&call, rank, ranks);
        let group = Arc::clone(&self.group);
        Ok(Pending::new(move || {
            let result = group.finish(rank, &slot)?;
            let dtype = result.dtype();
            Ok(Tensor::from_data(result, (&device, dtype)))
        }))
    }
}

impl Communicator for LocalCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.group.ranks()
    }

    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::AllReduce, input)
    }

    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::ReduceScatter, input)
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::AllGather, input)
    }

    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending> {
        self.start(Verb::Broadcast { root }, input)
    }

    fn barrier(&self) -> Result<()> {
        let call = Call::without_elements(Verb::Barrier);
        if self.ranks() > 1 {
            let nothing = TensorData::new(Vec::<f32>::new(), [0]);
            let slot = self
                .group
                .publish(self.rank, call, Input::Elements(nothing))?;
            self.group.finish(self.rank, &slot)?;
        }
        self.meter.count(&call, self.rank, self.ranks());
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(self.split_off(color)?))
    }

    fn abort(&self, reason: &str) {
        self.group.fail(self.rank, reason);
    }

    fn traffic(&self) -> Traffic {
        self.meter.read()
    }
}
