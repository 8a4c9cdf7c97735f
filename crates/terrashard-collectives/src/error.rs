//! Why a collective operation did not happen.

use std::sync::Arc;

use burn::tensor::{DType, ExecutionError};

use crate::Call;

/// What can go wrong between ranks. Each rank that is concerned gets the same error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two ranks made different calls where they had to make the same.
    #[error(
        "ranks disagree on call {sequence}: rank {first} makes {first_call}, rank {second} makes {second_call}"
    )]
    Mismatch {
        /// The number of the call on each rank, from 0.
        sequence: u64,
        /// The rank that called first.
        first: usize,
        /// Its call.
        first_call: Call,
        /// The rank whose call differs.
        second: usize,
        /// Its call.
        second_call: Call,
    },
    /// A rank returned an error, panicked or gave up.
    #[error("rank {rank} gave up: {reason}")]
    Poisoned {
        /// The culprit.
        rank: usize,
        /// What it said.
        reason: String,
    },
    /// A rank ended without making a call that another rank waits for.
    #[error(
        "rank {rank} has ended without making call {sequence}, for which rank {waiting} waits: {call}"
    )]
    Left {
        /// The rank that ended.
        rank: usize,
        /// The rank that noticed.
        waiting: usize,
        /// The number of the call on each rank, from 0.
        sequence: u64,
        /// What the waiting rank called.
        call: Call,
    },
    /// A rank did not make a call in time.
    #[error(
        "rank {rank} has not made call {sequence}, for which rank {waiting} has waited {seconds} s: {call}; TERRASHARD_TIMEOUT sets how long"
    )]
    Stalled {
        /// The rank that does not come.
        rank: usize,
        /// The rank that noticed.
        waiting: usize,
        /// The number of the call on each rank, from 0.
        sequence: u64,
        /// What the waiting rank called.
        call: Call,
        /// How long it has waited.
        seconds: u64,
    },
    /// An input that cannot be cut into one part for each rank.
    #[error(
        "failed to scatter {len} elements over {ranks} ranks: pad the tensor to a multiple of {ranks}"
    )]
    Indivisible {
        /// Elements of the input.
        len: usize,
        /// Ranks of the group.
        ranks: usize,
    },
    /// A broadcast from a rank that does not exist.
    #[error("failed to broadcast from rank {root}: the group has ranks 0 to {}", ranks - 1)]
    RootOutOfRange {
        /// The rank that was named.
        root: usize,
        /// Ranks of the group.
        ranks: usize,
    },
    /// An element type that is not summed.
    #[error("failed to communicate elements of type {dtype:?}: use f32, f64, bf16 or f16")]
    UnsupportedType {
        /// The type of the input.
        dtype: DType,
    },
    /// A tensor that is not where, or not what, the ranks communicate.
    #[error("failed to communicate a tensor: got {got}, expected {expected}")]
    Buffer {
        /// What it is: its device, type, length or layout.
        got: String,
        /// What it has to be.
        expected: String,
    },
    /// What carries messages between processes cannot.
    #[error("failed to communicate between processes: {reason}")]
    Transport {
        /// What it lacks, and what to do about it.
        reason: String,
    },
    /// A launcher's environment of which a part is missing.
    #[error(
        "the environment has {set} but not {variable}: set both, as torchrun, srun and `terrashard launch` do, or neither"
    )]
    Unset {
        /// The variable that is missing.
        variable: String,
        /// One that is set.
        set: String,
    },
    /// A launcher's variable that makes no sense.
    #[error("{variable}={value} is not {expected}")]
    Variable {
        /// Its name.
        variable: String,
        /// Its value.
        value: String,
        /// What it has to be.
        expected: String,
    },
    /// The store of the run, which rank 0 holds, does not do what it was asked for.
    #[error("failed to reach the other ranks through the store at {address}: {reason}")]
    Store {
        /// Host and port of the store.
        address: String,
        /// Why, and what to do about it.
        reason: String,
    },
    /// A process of a run did not start, or failed.
    #[error("rank {rank} {reason}")]
    Launch {
        /// The rank that failed first.
        rank: usize,
        /// How it ended.
        reason: String,
    },
    /// A signal has ended the processes of a run.
    #[error("all ranks were ended by signal {signal}")]
    Interrupted {
        /// Its number.
        signal: i32,
    },
    /// A tensor that could not be read from its device.
    #[error("failed to read a tensor from its device")]
    Read {
        /// What the device said.
        #[source]
        source: Arc<ExecutionError>,
    },
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
