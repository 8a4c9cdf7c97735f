//! Where the ranks of a training are: threads of this process, or processes with a GPU each, of which this is one.

#[cfg(feature = "nccl")]
use std::any::Any;
#[cfg(feature = "nccl")]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use terrashard_collectives::Communicator;
use terrashard_collectives::bootstrap::Launched;
#[cfg(feature = "nccl")]
use terrashard_collectives::nccl::{NcclWorld, Options};

use super::readers::Readers;
use super::run_ranks;
use crate::config::{Device, Ranks};
use crate::error::{Error, Result};

/// The ranks of a training.
#[derive(Debug)]
pub(crate) enum Crew {
    /// Threads of this process.
    Threads,
    /// The same, but a launcher has started this process as the only rank: more there are only where their number is asked for.
    Alone,
    /// This process is one of them, as its launcher has said.
    #[cfg(feature = "nccl")]
    Process(NcclWorld),
}

impl Crew {
    /// As the environment says. Returns when all ranks that are processes have come.
    ///
    /// # Errors
    /// [`Error::Collective`] for an environment that is half set, and for ranks that do not find each other;
    /// [`Error::NotSupported`] and [`Error::NotInBuild`] for processes that compute on the processor.
    pub(crate) fn gather(device: Device) -> Result<Self> {
        match Launched::from_environment()? {
            Some(launched) if launched.ranks > 1 => Self::of_processes(&launched, device),
            Some(_) => Ok(Self::Alone),
            None => Ok(Self::Threads),
        }
    }

    fn of_processes(launched: &Launched, device: Device) -> Result<Self> {
        match device {
            Device::Cuda => Self::on_gpus(launched),
            Device::Cpu | Device::CpuLibTorch => Err(Error::NotSupported {
                key: format!("rank {} of {} on the processor", launched.rank, launched.ranks),
                remedy: "ranks on the processor are threads of one process: start it once, with `--ranks N`, or give it `--device cuda`".into(),
            }),
        }
    }

    #[cfg(feature = "nccl")]
    fn on_gpus(launched: &Launched) -> Result<Self> {
        Ok(Self::Process(NcclWorld::join(
            launched,
            Options::from_environment()?,
        )?))
    }

    #[cfg(not(feature = "nccl"))]
    fn on_gpus(launched: &Launched) -> Result<Self> {
        Err(Error::NotInBuild {
            flag: format!("rank {} of {} on a gpu", launched.rank, launched.ranks),
        })
    }

    /// How many there are, where a configuration asks for `ranks`.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] if the launcher has started another number.
    pub(super) fn count(&self, ranks: Ranks, device: Device) -> Result<usize> {
        match self {
            Self::Threads => Ok(ranks.count(device)),
            Self::Alone => Ok(match ranks {
                Ranks::Auto => 1,
                Ranks::Count(count) => count,
            }),
            #[cfg(feature = "nccl")]
            Self::Process(world) => agreed(ranks, world.communicator().ranks()),
        }
    }

    /// Whether rank 0 is in this process, which tells what is to be told once.
    pub(super) fn leads(&self) -> bool {
        match self {
            Self::Threads | Self::Alone => true,
            #[cfg(feature = "nccl")]
            Self::Process(world) => world.communicator().rank() == 0,
        }
    }

    /// The number among the GPUs of this process that its rank has; none where ranks are threads and count for
    /// themselves.
    pub(crate) fn gpu(&self) -> Option<usize> {
        match self {
            Self::Threads | Self::Alone => None,
            #[cfg(feature = "nccl")]
            Self::Process(world) => Some(world.gpu()),
        }
    }

    /// How many processes a launcher has started as ranks; none where ranks are threads.
    pub(crate) fn processes(&self) -> Option<usize> {
        match self {
            Self::Threads | Self::Alone => None,
            #[cfg(feature = "nccl")]
            Self::Process(world) => Some(world.communicator().ranks()),
        }
    }

    /// Those that a start from a checkpoint is checked by.
    pub(super) fn readers(&self) -> Readers {
        match self {
            Self::Threads | Self::Alone => Readers::Alone,
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
        match self {
            Self::Threads | Self::Alone => work().map(Some),
            #[cfg(feature = "nccl")]
            Self::Process(world) => {
                let communicator = world.communicator();
                communicator.barrier()?;
                let done = match communicator.rank() {
                    0 => Some(work()?),
                    _ => None,
                };
                communicator.barrier()?;
                Ok(done)
            }
        }
    }

    /// Runs a body on each rank that is here. The results of this process's ranks, the first of them that of the lowest.
    ///
    /// # Errors
    /// That of the rank that failed first; where ranks are processes, this one's, which ends all of them.
    pub(crate) fn run<T: Send>(
        &self,
        ranks: usize,
        body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        match self {
            Self::Threads | Self::Alone => {
                run_ranks(ranks, |communicator| body(Arc::new(communicator)))
            }
            #[cfg(feature = "nccl")]
            Self::Process(world) => {
                let communicator = world.communicator();
                // What a device cannot do is a panic, and memory that is used up is to be told in one line.
                let own = AssertUnwindSafe(|| body(Arc::new(communicator.clone())));
                let done = catch_unwind(own).unwrap_or_else(|payload| {
                    let who = format!("rank {}", communicator.rank());
                    Err(Error::panicked(who, panic_text(payload.as_ref())))
                });
                if let Err(error) = &done {
                    // The others may wait for this rank.
                    communicator.abort(&error.to_string());
                }
                done.map(|done| vec![done])
            }
        }
    }
}

/// What a panic said.
#[cfg(feature = "nccl")]
fn panic_text(payload: &(dyn Any + Send)) -> String {
    let literal = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = literal.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "the panic carries no message".into())
}

/// The number of processes, where a configuration asks for `ranks`.
#[cfg(any(feature = "nccl", test))]
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
    fn ranks_on_the_processor_are_threads() {
        let launched = Launched {
            rank: 1,
            ranks: 2,
            ..Launched::alone()
        };
        let error = Crew::of_processes(&launched, Device::Cpu).expect_err("it is a process");
        let text = error.to_string();
        assert!(
            text.contains("rank 1 of 2") && text.contains("--ranks N"),
            "{text}"
        );
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
