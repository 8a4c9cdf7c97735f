//! Ranks that are processes, started by `mpirun` or another launcher of the system's MPI.
//!
//! Every rank runs the same program, which begins with [`MpiWorld::init`]:
//!
//! ```no_run
//! use burn::tensor::{Device, Tensor};
//! use terrashard_collectives::Communicator;
//! use terrashard_collectives::local::Patience;
//! use terrashard_collectives::mpi::MpiWorld;
//!
//! let patience = Patience::from_environment(|_, words| {
//!     eprintln!("{words}");
//!     std::process::exit(1);
//! })?;
//! let world = MpiWorld::init(patience)?;
//! let rank = world.communicator();
//! let value = Tensor::<1>::from_floats([rank.rank() as f32], &Device::flex());
//! println!("{}", rank.all_reduce(value)?.wait()?);
//! # Ok::<(), terrashard_collectives::Error>(())
//! ```
//!
//! # How a call runs
//!
//! Each group has one thread on each rank, which executes the group's calls in the order in which they are made,
//! while the rank computes. A call begins with an exchange of 32-byte headers, so that ranks find out that they
//! disagree before a buffer moves, and all of them say the same about it. Then elements travel between pairs of ranks,
//! as they are, without another copy on the way: a sum is an exchange of everybody's pieces, which each rank adds in
//! rank order with the code that [`crate::local`] uses, so results are the same bit for bit; an all-reduce gathers
//! these sums. MPI's own reductions, whose order is not defined, are not used.
//!
//! A thread that waits for ranks looks after them at growing intervals, 0.2 ms at most; it looks all the time only
//! while elements travel. A call needs memory for its input and result, and a sum for as many elements as the input
//! has besides, while it runs.
//!
//! # Failure
//!
//! Errors are those of [`crate::local`], with one difference: ranks are processes, and MPI cannot replace one that is
//! gone. So a run ends as a whole. [`Communicator::abort`] ends the processes of all ranks, and so does dropping an
//! [`MpiWorld`] after an error of its communicators or in a panic; the first rank prints one line that names itself
//! and the reason. The launcher ends the others, as it does when a process is killed. A rank that drops its world
//! while others wait for it gives them [`Error::Left`].
//!
//! A rank that does not come, or whose elements do not, within the timeout is given up by each that waits for it, with
//! [`Error::Stalled`]; so is one that goes on for so long after another has left. A process in which nobody hears of that is ended
//! by [`Patience::abandoned`].

mod exchange;
mod process;
mod wire;
mod worker;

use std::env;
use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ::mpi::Threading;
use ::mpi::environment::{self, Universe};
use ::mpi::topology::{Communicator as _, SimpleCommunicator};
use burn::tensor::{Tensor, TensorData};

use crate::local::Patience;
use crate::traffic::Meter;
use crate::{Call, Communicator, Error, Pending, Result, Traffic, Verb};
use process::Process;
use worker::Job;

/// The number of the group of all ranks.
const WORLD: usize = 0;

/// The variables by which launchers of Open MPI, MPICH and their kin tell how many processes they have started.
const STARTED: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// How many processes a launcher of MPI has started this one with, itself included; none if no such launcher has.
pub fn started() -> Option<usize> {
    let value = |name: &&str| env::var(name).ok()?.parse().ok();
    STARTED.iter().find_map(value)
}

/// This process's part in a run. Dropping it waits until all ranks have dropped theirs, and finalizes MPI.
///
/// Communicators that outlive it give [`Error::Left`].
pub struct MpiWorld {
    communicator: MpiCommunicator,
    process: Arc<Process>,
    /// Finalizes when it is dropped, which only the thread that initialized may do.
    _universe: Universe,
    _this_thread: PhantomData<*const ()>,
}

impl MpiWorld {
    /// Initializes MPI. A program that no launcher has started is a run of one rank. `patience` is how long ranks wait for each other.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if MPI is initialized already, if it does not support threads that call it at the same
    /// time, or if the system refuses a thread.
    pub fn init(patience: Patience) -> Result<Self> {
        let refused = |reason: &str| Error::Transport {
            reason: reason.to_owned(),
        };
        let (universe, threading) = environment::initialize_with_threading(Threading::Multiple)
            .ok_or_else(|| refused("MPI can be initialized only once in a process"))?;
        if threading < Threading::Multiple {
            return Err(refused(&format!(
                "MPI offers the thread level {threading:?}: use an MPI library with `MPI_THREAD_MULTIPLE`"
            )));
        }
        let world = SimpleCommunicator::world();
        let index = |rank: i32| usize::try_from(rank).expect("MPI counts ranks from 0");
        let (rank, ranks) = (index(world.rank()), index(world.size()));
        let process = Arc::new(Process::new(rank, ranks, patience));
        let communicator = MpiCommunicator::start(&process, (0..ranks).collect(), WORLD)?;
        Ok(Self {
            communicator,
            process,
            _universe: universe,
            _this_thread: PhantomData,
        })
    }

    /// The group of all ranks.
    pub fn communicator(&self) -> MpiCommunicator {
        self.communicator.clone()
    }
}

impl Drop for MpiWorld {
    fn drop(&mut self) {
        if thread::panicking() {
            self.process.end("panicked");
        }
        // A rank may learn only now that others wait for it, and must not finalize then.
        if self.process.lost().is_none() {
            self.process.close();
        }
        if let Some(error) = self.process.lost() {
            self.process.end(&error.to_string());
        }
    }
}

impl Debug for MpiWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiWorld")
            .field("communicator", &self.communicator)
            .finish_non_exhaustive()
    }
}

/// A rank's connection to the other processes of its [`MpiWorld`], or to those of its color.
///
/// Clones are the same connection. A rank leaves a group when it drops the last one.
#[derive(Debug, Clone)]
pub struct MpiCommunicator(Arc<Member>);

/// One rank in one group.
#[derive(Debug)]
struct Member {
    rank: usize,
    /// The ranks of the run that belong to the group, ascending.
    members: Arc<[usize]>,
    process: Arc<Process>,
    jobs: Jobs,
    meter: Meter,
}

/// Who executes the calls.
#[derive(Debug)]
enum Jobs {
    /// A group of one has nothing to do.
    Alone,
    /// The thread of the group. Calls get their numbers in the order in which they are handed over.
    Thread(Mutex<Sender<Job>>),
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Jobs::Thread(jobs) = &self.jobs {
            // A thread that is gone has left already.
            let _ = lock(jobs).send(Job::Leave);
        }
    }
}

impl MpiCommunicator {
    /// Joins the group of the ranks `members`, which all of them do. `tag` tells it from other groups.
    fn start(process: &Arc<Process>, members: Arc<[usize]>, tag: usize) -> Result<Self> {
        let rank = members
            .iter()
            .position(|&member| member == process.rank())
            .expect("a rank joins only groups that it belongs to");
        let jobs = match members.len() {
            1 => Jobs::Alone,
            _ => Jobs::Thread(Mutex::new(process.join(Arc::clone(&members), tag)?)),
        };
        Ok(Self(Arc::new(Member {
            rank,
            members,
            process: Arc::clone(process),
            jobs,
            meter: Meter::default(),
        })))
    }

    /// Hands a job to the group's thread.
    fn hand<T>(
        &self,
        jobs: &Mutex<Sender<Job>>,
        call: Call,
        job: impl FnOnce(Sender<Result<T>>) -> Job,
    ) -> Result<Outcome<T>> {
        let process = Arc::clone(&self.0.process);
        if let Some(error) = process.lost() {
            return Err(error);
        }
        let (reply, receiver) = mpsc::channel();
        let sent = lock(jobs).send(job(reply));
        if sent.is_err() {
            return Err(process.gone(call));
        }
        Ok(Outcome {
            receiver,
            call,
            process,
        })
    }

    fn begin(&self, verb: Verb, input: Tensor<1>) -> Result<Pending> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let call = Call::new(verb, &input, ranks)?;
        let Jobs::Thread(jobs) = &self.0.jobs else {
            self.0.meter.count(&call, rank, ranks);
            return Ok(Pending::ready(input));
        };
        let device = input.device();
        let input = call.read(input, rank)?;
        let outcome = self.hand(jobs, call, |reply| Job::Call { call, input, reply })?;
        self.0.meter.count(&call, rank, ranks);
        Ok(Pending::new(move || {
            let result = outcome.wait()?;
            let dtype = result.dtype();
            Ok(Tensor::from_data(result, (&device, dtype)))
        }))
    }
}

/// What a job will yield.
struct Outcome<T> {
    receiver: Receiver<Result<T>>,
    call: Call,
    process: Arc<Process>,
}

impl<T> Outcome<T> {
    fn wait(self) -> Result<T> {
        match self.receiver.recv() {
            Ok(outcome) => outcome,
            // The thread ended before it came to this call.
            Err(_) => Err(self.process.gone(self.call)),
        }
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn ranks(&self) -> usize {
        self.0.members.len()
    }

    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending> {
        self.begin(Verb::AllReduce, input)
    }

    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending> {
        self.begin(Verb::ReduceScatter, input)
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        self.begin(Verb::AllGather, input)
    }

    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending> {
        self.begin(Verb::Broadcast { root }, input)
    }

    fn barrier(&self) -> Result<()> {
        let call = Call::without_elements(Verb::Barrier);
        if let Jobs::Thread(jobs) = &self.0.jobs {
            let input = TensorData::new(Vec::<f32>::new(), [0]);
            let job = |reply| Job::Call { call, input, reply };
            self.hand(jobs, call, job)?.wait()?;
        }
        self.0.meter.count(&call, self.rank(), self.ranks());
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        let process = &self.0.process;
        let Jobs::Thread(jobs) = &self.0.jobs else {
            let alone = Self::start(process, Arc::clone(&self.0.members), WORLD)?;
            return Ok(Arc::new(alone));
        };
        let call = Call::without_elements(Verb::Split);
        let job = |reply| Job::Split { color, reply };
        let (members, tag) = self.hand(jobs, call, job)?.wait()?;
        Ok(Arc::new(Self::start(process, members, tag)?))
    }

    /// Ends the processes of all ranks, after a line on standard error that names this rank and `reason`. Returns only where that is no
    /// more than what the run is lost by already: whoever is given that error may know what it was met in.
    fn abort(&self, reason: &str) {
        let process = &self.0.process;
        if process.lost().is_none_or(|lost| lost.to_string() != reason) {
            process.end(reason)
        }
    }

    fn traffic(&self) -> Traffic {
        self.0.meter.read()
    }
}

/// No code panics while it holds one of these locks, so a poisoned lock still guards a valid state.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
