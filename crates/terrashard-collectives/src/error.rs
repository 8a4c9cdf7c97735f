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
    /// What carries messages between processes cannot.
    #[error("failed to communicate between processes: {reason}")]
    Transport {
        /// What it lacks, and what to do about it.
        reason: String,
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
