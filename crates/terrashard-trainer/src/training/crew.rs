//! Where the ranks of a training are: threads of this process, or processes, of which this is one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use terrashard_collectives::Communicator;
use terrashard_collectives::bootstrap::Launched;
use terrashard_collectives::local::{self, Patience};
#[cfg(feature = "mpi")]
use terrashard_collectives::mpi::{self, MpiWorld};
#[cfg(feature = "nccl")]
use terrashard_collectives::nccl::{NcclWorld, Options};
use terrashard_collectives::sockets::World;

use super::readers::Readers;
use super::run_ranks_within;
use crate::config::{Device, Ranks};
use crate::console::tell;
use crate::error::{Error, Result};
use crate::explanation::named;

/// The ranks of a training.
#[derive(Debug)]
pub(crate) enum Crew {
    /// Threads of this process.
    Threads,
    /// The same, but a launcher has started this process as the only rank: more there are only where their number is asked for.
    Alone,
    /// This process is one of them, as its launcher has said, on the processor.
    Sockets(Box<World>),
    /// This process is one of them, as `mpirun` has said, on the processor.
    #[cfg(feature = "mpi")]
    Mpi(Box<MpiWorld>),
    /// This process is one of them, as its launcher has said, on a GPU.
    #[cfg(feature = "nccl")]
    Process(NcclWorld),
}

impl Crew {
    /// As the environment says. Returns when all ranks that are processes have come.
    ///
    /// # Errors
    /// [`Error::Collective`] for an environment that is half set, and for ranks that do not find each other;
    /// [`Error::NotInBuild`] for processes on GPUs in a build for the processor.
    pub(crate) fn gather(device: Device) -> Result<Self> {
        Self::gather_within(device, None)
    }

    /// The same, where ranks wait for each other no longer than `limit` unless the environment says how long.
    ///
    /// # Errors
    /// As [`Self::gather`].
    pub(crate) fn gather_within(device: Device, limit: Option<Duration>) -> Result<Self> {
        match Launched::from_environment()? {
            Some(launched) if launched.ranks > 1 => Self::of_processes(&launched, device, limit),
            Some(_) => Ok(Self::Alone),
            None => Self::under_mpirun(device, limit),
        }
    }

    /// As a launcher of MPI says, where no other has started this process. GPUs do not communicate through MPI.
    #[cfg(feature = "mpi")]
    fn under_mpirun(device: Device, limit: Option<Duration>) -> Result<Self> {
        Ok(match mpi::started() {
            Some(2..) if !matches!(device, Device::Cuda) => {
                Self::Mpi(Box::new(MpiWorld::init(patience(limit)?)?))
            }
            Some(1) => Self::Alone,
            _ => Self::Threads,
        })
    }

    #[cfg(not(feature = "mpi"))]
    fn under_mpirun(_: Device, _: Option<Duration>) -> Result<Self> {
        Ok(Self::Threads)
    }

    fn of_processes(launched: &Launched, device: Device, limit: Option<Duration>) -> Result<Self> {
        match device {
            Device::Cuda => Self::on_gpus(launched, limit),
            Device::Cpu | Device::CpuLibTorch => {
                let world = World::join(launched, patience(limit)?)?;
                Ok(Self::Sockets(Box::new(world)))
            }
        }
    }

    #[cfg(feature = "nccl")]
    fn on_gpus(launched: &Launched, limit: Option<Duration>) -> Result<Self> {
        let mut options = Options::from_environment()?;
        options.timeout = within(limit, options.timeout);
        Ok(Self::Process(NcclWorld::join(launched, options)?))
    }

    #[cfg(not(feature = "nccl"))]
    fn on_gpus(launched: &Launched, _limit: Option<Duration>) -> Result<Self> {
        Err(Error::NotInBuild {
            flag: format!("rank {} of {} on a gpu", launched.rank, launched.ranks),
        })
    }

    /// That of this process's rank; none where ranks are threads.
    fn communicator(&self) -> Option<Arc<dyn Communicator>> {
        match self {
            Self::Threads | Self::Alone => None,
            Self::Sockets(world) => Some(world.communicator()),
            #[cfg(feature = "mpi")]
            Self::Mpi(world) => Some(Arc::new(world.communicator())),
            #[cfg(feature = "nccl")]
            Self::Process(world) => Some(Arc::new(world.communicator())),
        }
    }

    /// How many there are, where a configuration asks for `ranks`.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] if the launcher has started another number.
    pub(super) fn count(&self, ranks: Ranks, device: Device) -> Result<usize> {
        match (self, self.processes()) {
            (_, Some(processes)) => agreed(ranks, processes),
            (Self::Alone, None) => Ok(match ranks {
                Ranks::Auto => 1,
                Ranks::Count(count) => count,
            }),
            (_, None) => Ok(ranks.count(device)),
        }
    }

    /// Whether rank 0 is in this process, which tells what is to be told once.
    pub(super) fn leads(&self) -> bool {
        self.communicator().is_none_or(|own| own.rank() == 0)
    }

    /// The number among the GPUs of this process that its rank has; none where ranks are threads and count for
    /// themselves, or compute on the processor.
    pub(crate) fn gpu(&self) -> Option<usize> {
        match self {
            Self::Threads | Self::Alone | Self::Sockets(_) => None,
            #[cfg(feature = "mpi")]
            Self::Mpi(_) => None,
            #[cfg(feature = "nccl")]
            Self::Process(world) => Some(world.gpu()),
        }
    }

    /// How many processes a launcher has started as ranks; none where ranks are threads.
    pub(crate) fn processes(&self) -> Option<usize> {
        self.communicator().map(|own| own.ranks())
    }

    /// Those that a start from a checkpoint is checked by.
    pub(super) fn readers(&self) -> Readers {
        match self {
            Self::Threads | Self::Alone => Readers::Alone,
            Self::Sockets(world) => {
                Readers::Together(world.communicator(), burn::tensor::Device::flex())
            }
            #[cfg(feature = "mpi")]
            Self::Mpi(world) => {
                Readers::Together(Arc::new(world.communicator()), burn::tensor::Device::flex())
            }
            #[cfg(feature = "nccl")]
            Self::Process(world) => {
                Readers::Together(Arc::new(world.communicator()), world.device())
            }
        }
    }

    /// Has the process of rank 0 do what only one may do, after all have come and before any goes on. Returns what it did
    /// there.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Collective`].
    pub(super) fn first<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let Some(communicator) = self.communicator() else {
            return work().map(Some);
        };
        communicator.barrier()?;
        let done = match communicator.rank() {
            0 => Some(work()?),
            _ => None,
        };
        communicator.barrier()?;
        Ok(done)
    }

    /// Runs a body on each rank that is here. The results of this process's ranks, the first of them that of the lowest.
    ///
    /// # Errors
    /// [`Error::Rank`] and [`Error::Panicked`]: that of the rank that failed first; where ranks are processes, this one's, which ends
    /// all of them.
    pub(crate) fn run<T: Send>(
        &self,
        ranks: usize,
        body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        self.run_within(ranks, None, body)
    }

    /// The same, where threads wait for each other no longer than `limit` unless the environment says how long.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) fn run_within<T: Send>(
        &self,
        ranks: usize,
        limit: Option<Duration>,
        body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let Some(communicator) = self.communicator() else {
            let patience = Some(patience(limit)?);
            return run_ranks_within(ranks, patience, |communicator| body(Arc::new(communicator)));
        };
        let rank = communicator.rank();
        // What a device cannot do is a panic, and memory that is used up is to be told in one line.
        let done = catch_unwind(AssertUnwindSafe(|| body(communicator.clone())));
        let done = done.unwrap_or_else(|payload| {
            Err(Error::panicked(
                format!("rank {rank}"),
                panic_text(payload.as_ref()),
            ))
        });
        done.map(|done| vec![done]).map_err(|error| {
            // The others may wait for this rank.
            communicator.abort(&error.to_string());
            match error {
                panicked @ (Error::Panicked { .. } | Error::DeviceMemory { .. }) => panicked,
                other => Error::Rank {
                    rank,
                    source: Box::new(other),
                },
            }
        })
    }
}

/// How long ranks wait for each other: as the environment says, or else `limit`, or else as always.
fn patience(limit: Option<Duration>) -> Result<Patience> {
    let patience = Patience::from_environment(abandoned)?;
    Ok(Patience {
        timeout: within(limit, patience.timeout),
        ..patience
    })
}

/// `limit`, if there is one and the environment says nothing of how long ranks wait; else what they wait as it is.
fn within(limit: Option<Duration>, timeout: Duration) -> Duration {
    let is_set = std::env::var_os(local::TIMEOUT).is_some();
    limit.filter(|_| !is_set).unwrap_or(timeout)
}

/// Ends this process, in which a rank's thread will not end: nothing else can end it.
fn abandoned(error: &terrashard_collectives::Error, words: &str) {
    let code = named("collectives", error);
    tell(&format!(
        "error: {words}; it does not end, so the process does [{code}]"
    ));
    std::process::exit(1);
}

/// What a panic said.
fn panic_text(payload: &(dyn Any + Send)) -> String {
    let literal = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = literal.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "the panic carries no message".into())
}

/// The number of processes, where a configuration asks for `ranks`.
fn agreed(ranks: Ranks, processes: usize) -> Result<usize> {
    match ranks {
        Ranks::Count(count) if count != processes => Err(Error::invalid(
            "zero.ranks",
            count,
            format!("{processes}, the processes that the launcher has started, or \"auto\""),
        )),
        _ => Ok(processes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_nobody_launched_are_threads() {
        let crew = Crew::Threads;
        assert_eq!(
            crew.count(Ranks::Count(3), Device::Cpu).expect("threads"),
            3
        );
        let alone = |ranks| Crew::Alone.count(ranks, Device::Cpu).expect("threads");
        assert_eq!([alone(Ranks::Auto), alone(Ranks::Count(3))], [1, 3]);
        assert!(crew.leads());
        assert_eq!(crew.gpu(), None);
        let sums = crew.run(2, |communicator| Ok(communicator.rank()));
        assert_eq!(sums.expect("no rank fails"), [0, 1]);
        assert_eq!(crew.first(|| Ok(7)).expect("it can"), Some(7));
    }

    #[test]
    fn a_process_on_the_processor_is_a_rank() {
        let patience = Patience::from_environment(abandoned).expect("the default, or a number");
        let world = World::join(&Launched::alone(), patience).expect("it waits for nobody");
        let crew = Crew::Sockets(Box::new(world));
        assert_eq!(
            (crew.processes(), crew.leads(), crew.gpu()),
            (Some(1), true, None)
        );
        assert_eq!(crew.first(|| Ok(7)).expect("it can"), Some(7));
        let failed = crew
            .run(1, |_| Err::<(), _>(Error::NoGpu))
            .expect_err("it fails");
        assert!(failed.to_string().starts_with("rank 0: "), "{failed}");
        let panicked = crew.run(1, |_| -> Result<()> { panic!("lost") });
        let text = panicked.expect_err("it panics").to_string();
        assert_eq!(text, "rank 0 panicked: lost");
    }

    #[test]
    fn the_launcher_has_the_last_word() {
        assert_eq!(agreed(Ranks::Auto, 4).expect("as many"), 4);
        assert_eq!(agreed(Ranks::Count(4), 4).expect("as many"), 4);
        let text = agreed(Ranks::Count(2), 4)
            .expect_err("they differ")
            .to_string();
        assert!(
            text.contains("zero.ranks") && text.contains('4') && text.contains('2'),
            "{text}"
        );
    }
}
