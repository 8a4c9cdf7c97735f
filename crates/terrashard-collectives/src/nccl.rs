//! Ranks that are GPUs, each with a process of its own, through NCCL. Tensors are LibTorch's.
//!
//! Every rank runs the same program, started by `terrashard launch`, `torchrun` or `srun`:
//!
//! ```no_run
//! use burn::tensor::Tensor;
//! use terrashard_collectives::Communicator;
//! use terrashard_collectives::bootstrap::Launched;
//! use terrashard_collectives::nccl::{NcclWorld, Options};
//!
//! let launched = Launched::from_environment()?.unwrap_or_else(Launched::alone);
//! let world = NcclWorld::join(&launched, Options::default())?;
//! let rank = world.communicator();
//! let value = Tensor::<1>::from_floats([rank.rank() as f32], &world.device());
//! println!("{}", rank.all_reduce(value)?.wait()?);
//! # Ok::<(), terrashard_collectives::Error>(())
//! ```
//!
//! # How a call runs
//!
//! Each group has a communicator of NCCL and a stream of its own, on which its verbs run beside what LibTorch computes;
//! `channel` says who waits for whom. A call returns when the GPU has been told, and waiting for a result means that what
//! LibTorch is asked for *next* waits on the GPU: the host goes on. Only [`barrier`](Communicator::barrier) and
//! [`split`](Communicator::split) block it.
//!
//! Nothing is copied: a reduce-scatter and an all-gather read and write the tensors of both sides, and an all-reduce of a
//! tensor that nobody else holds works in place. Only tensors of the host, such as scalars, go by way of the GPU, and waiting
//! for their results blocks. A pending result owns input and output until it is waited for or dropped.
//!
//! # The order of sums
//!
//! NCCL sums in an order of its own, the same each time for the same lengths, algorithm and number of ranks, and rounds
//! half types at each step. Two ranks have one order only, so their sums are those of [`crate::local`] bit for bit; with
//! more, `NCCL_ALGO=Ring` and `NCCL_PROTO=Simple` make them repeatable.
//!
//! # Failure
//!
//! Calls of ranks are not compared before they run, which would cost a round trip each. Instead each rank remembers its
//! last calls, and a thread looks at them ten times a second: it tells the others through the store of
//! [`crate::bootstrap`], compares, asks NCCL for errors, and notices ranks that have ended and calls that take longer than
//! [`Options::timeout`]. Then the run ends as a whole, as with MPI: each rank prints its last calls and one line, the same
//! on all, that names the culprit, and exits with code 1. So does [`Communicator::abort`], and dropping an [`NcclWorld`] in a
//! panic. With [`Check::EveryCall`] calls are compared before they run, and those that differ give
//! [`Error::Mismatch`].

mod buffer;
mod channel;
mod driver;
mod library;
mod options;
mod process;
#[cfg(test)]
mod rehearsal;
mod ring;
mod watchdog;

use std::fmt::{self, Debug};
use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Tensor};

use crate::bootstrap::{Launched, Store};
use crate::traffic::Meter;
use crate::{Call, Communicator, Error, Pending, Result, Traffic, Verb};
use buffer::{InFlight, Source};
use channel::Channel;
use driver::Gpu;
use library::Library;
pub use options::{Check, Options};
use process::{Carrier, Group, Process};
use watchdog::Part;

/// GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` leaves them.
///
/// # Errors
///
/// [`Error::Transport`] if there is no driver.
pub fn gpus() -> Result<usize> {
    driver::count()
}

/// The version of NCCL, as `2.28.7`.
///
/// # Errors
///
/// [`Error::Transport`] if NCCL is not found, too old, or loaded twice.
pub fn version() -> Result<String> {
    Ok(Library::get()?.version())
}

/// The GPU of a process that may use `visible` GPUs: that of its local rank, or its only one.
///
/// # Errors
///
/// [`Error::Transport`] with both counts if there are fewer.
pub fn gpu_of(launched: &Launched, visible: usize) -> Result<usize> {
    match visible {
        // Launchers may leave each process one GPU of its own.
        1 => Ok(0),
        _ if launched.local_rank < visible => Ok(launched.local_rank),
        _ => Err(Error::Transport {
            reason: format!(
                "rank {} is number {} on its host, which needs {} GPUs, but {visible} can be used: start fewer ranks, or change CUDA_VISIBLE_DEVICES",
                launched.rank,
                launched.local_rank,
                launched.local_rank + 1
            ),
        }),
    }
}

/// This process's part in a run. Dropping it waits until all ranks have dropped theirs.
///
/// Communicators that outlive it give errors.
pub struct NcclWorld {
    communicator: NcclCommunicator,
    /// In a run of several.
    _part: Option<Part>,
}

impl NcclWorld {
    /// Joins the run on the GPU of this process's local rank. Returns when all ranks have.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if there is no such GPU, no NCCL or two, or if ranks share a GPU; [`Error::Store`] if ranks do not
    /// find each other.
    pub fn join(launched: &Launched, options: Options) -> Result<Self> {
        load_cuda()?;
        let gpu = gpu_of(launched, gpus()?)?;
        Self::join_on(launched, gpu, options)
    }

    /// Joins the run on the GPU `gpu` of those that this process may use.
    ///
    /// # Errors
    ///
    /// As of [`join`](Self::join).
    pub fn join_on(launched: &Launched, gpu: usize, options: Options) -> Result<Self> {
        load_cuda()?;
        let gpu = Gpu::open(gpu)?;
        if launched.ranks > 1 {
            Library::get()?;
        }
        let store = Store::join(launched, options.join)?;
        let process = Arc::new(Process::new(store, options));
        let ranks = launched.ranks;
        if ranks == 1 {
            return Ok(Self {
                communicator: NcclCommunicator::alone(&process, &gpu),
                _part: None,
            });
        }
        let part = Part::begin(&process)?;
        own_gpus(&process, &gpu)?;
        let communicator = NcclCommunicator::join(&process, &gpu, "world", (0..ranks).collect())?;
        Ok(Self {
            communicator,
            _part: Some(part),
        })
    }

    /// The group of all ranks.
    pub fn communicator(&self) -> NcclCommunicator {
        self.communicator.clone()
    }

    /// The GPU, as tensors name it.
    pub fn device(&self) -> Device {
        terrashard_torch::gpu(self.gpu())
    }

    /// The number of the GPU among those that this process may use.
    pub fn gpu(&self) -> usize {
        self.communicator.gpu.index()
    }
}

impl Debug for NcclWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclWorld")
            .field("communicator", &self.communicator)
            .finish_non_exhaustive()
    }
}

/// LibTorch with its part for GPUs, which brings its NCCL.
fn load_cuda() -> Result<()> {
    terrashard_torch::load_cuda().map_err(|error| Error::Transport {
        reason: format!(
            "{error}; put the folder of LibTorch's libraries for CUDA on LD_LIBRARY_PATH"
        ),
    })
}

/// An error if two ranks have the same GPU.
fn own_gpus(process: &Process, gpu: &Gpu) -> Result<()> {
    let (rank, ranks) = (process.rank(), process.store.launched().ranks);
    let (name, mine) = gpu.identity()?;
    process.store.set(&format!("gpu/{rank}"), &mine)?;
    for other in (0..ranks).filter(|other| *other != rank) {
        let theirs = process.meet("say which GPU they use", || {
            process
                .store
                .get(&format!("gpu/{other}"), process.options.join)
        })?;
        if theirs == mine {
            let (first, second) = (rank.min(other), rank.max(other));
            return Err(Error::Transport {
                reason: format!(
                    "ranks {first} and {second} share one GPU, {name}: start one rank for each GPU, or change CUDA_VISIBLE_DEVICES"
                ),
            });
        }
    }
    Ok(())
}

/// A rank's connection to the other GPUs of its [`NcclWorld`], or to those of its color.
///
/// Clones are the same connection.
#[derive(Debug, Clone)]
pub struct NcclCommunicator {
    process: Arc<Process>,
    gpu: Arc<Gpu>,
    member: Member,
    meter: Arc<Meter>,
}

#[derive(Debug, Clone)]
enum Member {
    /// In a group of one, which has nothing to do.
    Alone,
    Of(Arc<Group>, Arc<Channel>),
}

impl NcclCommunicator {
    fn alone(process: &Arc<Process>, gpu: &Arc<Gpu>) -> Self {
        Self {
            process: Arc::clone(process),
            gpu: Arc::clone(gpu),
            member: Member::Alone,
            meter: Arc::default(),
        }
    }

    /// Joins the group of the ranks `members` of the run, which all of them do.
    fn join(
        process: &Arc<Process>,
        gpu: &Arc<Gpu>,
        name: &str,
        members: Arc<[usize]>,
    ) -> Result<Self> {
        let me = process.rank();
        if members.len() == 1 {
            return Ok(Self::alone(process, gpu));
        }
        let rank = members.iter().position(|&member| member == me);
        let rank = rank.expect("a rank joins only groups that it belongs to");
        let channel = process.meet("join a group", || {
            let key = format!("id/{name}");
            let id = if rank == 0 {
                let id = Library::get()?.unique_id()?;
                process.store.set(&key, &id)?;
                id
            } else {
                let id = process.store.get(&key, process.options.join)?;
                id.try_into().map_err(|_| Error::Transport {
                    reason: format!("rank {} tells what is no name of a group", members[0]),
                })?
            };
            Channel::join(gpu, id, rank, members.len())
        })?;
        let channel = Arc::new(channel);
        let carrier = Arc::clone(&channel) as Arc<dyn Carrier>;
        let group = Arc::new(Group::new(name.to_owned(), rank, members, carrier));
        process.add(&group);
        Ok(Self {
            process: Arc::clone(process),
            gpu: Arc::clone(gpu),
            member: Member::Of(group, channel),
            meter: Arc::default(),
        })
    }

    fn begin(&self, verb: Verb, input: Tensor<1>) -> Result<Pending> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let call = Call::new(verb, &input, ranks)?;
        let Member::Of(group, channel) = &self.member else {
            self.meter.count(&call, rank, ranks);
            return Ok(Pending::ready(input));
        };
        let device = input.device();
        if is_host(&device) {
            return self.begin_on_host(verb, input, device);
        }
        let in_flight = self.issue(group, channel, call, Source::of(input)?)?;
        self.meter.count(&call, rank, ranks);
        Ok(Pending::new(move || in_flight.result()))
    }

    /// A call with a tensor of the host, by way of the GPU.
    fn begin_on_host(&self, verb: Verb, input: Tensor<1>, device: Device) -> Result<Pending> {
        let gpu = terrashard_torch::gpu(self.gpu.index());
        let pending = self.begin(verb, moved(input, &gpu)?)?;
        Ok(Pending::new(move || moved(pending.wait()?, &device)))
    }

    /// Has the GPU make a call.
    fn issue(
        &self,
        group: &Group,
        channel: &Channel,
        call: Call,
        input: Source,
    ) -> Result<InFlight> {
        self.process.is_here()?;
        let buffers = input.buffers(&call, group.rank, group.members.len())?;
        let sequence = group.begin(call);
        if self.process.options.check == Check::EveryCall {
            group.agree(&self.process, sequence, call)?;
        }
        let (input, output) = buffers.tensors();
        let done = channel.issue(&call, input, output, |done| group.watch(sequence, done))?;
        Ok(InFlight::new(done, buffers))
    }
}

/// Whether tensors of this device are in the host's memory.
fn is_host(device: &Device) -> bool {
    *device == Device::flex() || *device == terrashard_torch::cpu()
}

/// The same elements on another device.
fn moved(tensor: Tensor<1>, device: &Device) -> Result<Tensor<1>> {
    let data = tensor.try_into_data().map_err(|source| Error::Read {
        source: Arc::new(source),
    })?;
    let dtype = data.dtype();
    Ok(Tensor::from_data(data, (device, dtype)))
}

impl Communicator for NcclCommunicator {
    fn rank(&self) -> usize {
        match &self.member {
            Member::Alone => 0,
            Member::Of(group, _) => group.rank,
        }
    }

    fn ranks(&self) -> usize {
        match &self.member {
            Member::Alone => 1,
            Member::Of(group, _) => group.members.len(),
        }
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

    /// Blocks the host until all ranks have come, and the GPU has done all that it was asked for before.
    fn barrier(&self) -> Result<()> {
        let call = Call::without_elements(Verb::Barrier);
        if let Member::Of(group, channel) = &self.member {
            // An all-reduce of one element that is remembered as what it is for.
            self.process.is_here()?;
            let sequence = group.begin(call);
            if self.process.options.check == Check::EveryCall {
                group.agree(&self.process, sequence, call)?;
            }
            let buffers = Source::one(&self.gpu)?;
            let sum = Call {
                verb: Verb::AllReduce,
                len: 1,
                dtype: FloatDType::F32,
            };
            let (input, output) = buffers.tensors();
            let done = channel.issue(&sum, input, output, |done| group.watch(sequence, done))?;
            done.block()?;
            InFlight::new(done, buffers).result()?;
        }
        self.meter.count(&call, self.rank(), self.ranks());
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        let process = &self.process;
        process.is_here()?;
        let Member::Of(group, _) = &self.member else {
            return Ok(Arc::new(Self::alone(process, &self.gpu)));
        };
        let sequence = group.begin(Call::without_elements(Verb::Split));
        let key = |rank: usize| format!("color/{}/{sequence}/{rank}", group.name);
        let members = process.meet("split a group", || {
            let mine = (color as u64).to_le_bytes();
            process.store.set(&key(process.rank()), &mine)?;
            let mut members = Vec::new();
            for &rank in group.members.iter() {
                let theirs = process.store.get(&key(rank), process.options.timeout)?;
                if theirs == mine {
                    members.push(rank);
                }
            }
            Ok(members)
        })?;
        group.complete(sequence);
        let name = format!("{}.{sequence}.{}", group.name, members[0]);
        Ok(Arc::new(Self::join(
            process,
            &self.gpu,
            &name,
            members.into(),
        )?))
    }

    /// Ends the processes of all ranks, after a line on standard error that names this rank and `reason`. Does not
    /// return.
    fn abort(&self, reason: &str) {
        let process = &self.process;
        process.end(
            &process.store,
            &format!("rank {} gave up: {reason}", process.rank()),
        )
    }

    fn traffic(&self) -> Traffic {
        self.meter.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_each_local_rank_has_its_gpu() {
        let launched = |local_rank| Launched {
            rank: 5,
            ranks: 8,
            local_rank,
            ..Launched::alone()
        };
        assert_eq!(gpu_of(&launched(3), 4).unwrap(), 3);
        assert_eq!(gpu_of(&launched(3), 1).unwrap(), 0);
        let text = gpu_of(&launched(3), 2).unwrap_err().to_string();
        assert!(text.contains("needs 4 GPUs, but 2 can be used"), "{text}");
    }
}
