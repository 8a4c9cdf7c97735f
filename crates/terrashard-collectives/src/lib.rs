//! Collective operations over flat tensors between ranks that are threads, processes or GPUs.
//!
//! [`Communicator`] is what a rank holds: all-reduce, reduce-scatter, all-gather, broadcast and barrier. Calls
//! are asynchronous: each returns a [`Pending`] that owns the buffers until it is waited for, so a buffer on its
//! way cannot be changed or freed. [`local`] runs ranks as threads of one process, [`sockets`] as processes that need
//! nothing but TCP; `mpi`, a feature, as processes of an MPI library; `nccl`, another, as GPUs. [`bootstrap`] is how processes find each other.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use terrashard_collectives::{Communicator, Error, local};
//!
//! let sums = local::run(3, |rank| {
//!     let value = Tensor::<1>::from_floats([rank.rank() as f32, 1.0], &Device::flex());
//!     let sum = rank.all_reduce(value)?.wait()?;
//!     Ok::<_, Error>(sum.into_data().try_to_vec::<f32>().expect("f32 is the device's default"))
//! })?;
//! assert_eq!(sums, vec![vec![3.0, 3.0]; 3]);
//! # Ok::<(), local::RunError<Error>>(())
//! ```
//!
//! # The order of sums
//!
//! A sum over ranks is taken as `rank 0 + rank 1 + ...`, element by element, whatever the timing, the length
//! of the tensor and the verb. So an all-reduce equals the all-gather of a reduce-scatter bit for bit, and
//! training that shards gradients equals training that does not. `f32` and `f64` are added in their own
//! precision; `bf16` and `f16` are added in `f32` and rounded once, at the end. Only NCCL has an order of its own, of which
//! its module tells.
//!
//! # Failure
//!
//! Nothing here waits for a rank that cannot come. All ranks make the same calls in the same order; a rank
//! whose call differs from another's, that fails, panics or leaves early gives every rank that waits for it
//! an error that says who and why ([`Error`]). A call that all ranks have made completes, whatever follows.
//!
//! Invariants: this crate adds and moves elements and knows nothing of parameters, gradients or models.
//! Element types are kept: `f64` stays `f64`. Results are on the device of the input. Nothing spins.

pub mod bootstrap;
mod communicator;
pub mod conformance;
pub mod delayed;
mod element;
mod error;
#[cfg(feature = "faults")]
pub mod faults;
mod header;
pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
mod scramble;
pub mod sockets;
mod sum;
mod sync;
mod traffic;
mod verb;

pub use communicator::{Communicator, Pending};
pub use error::{Error, Result};
pub use traffic::{Traffic, VerbTraffic};
pub use verb::{Call, Verb};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
