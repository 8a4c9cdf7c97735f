//! How much a rank has sent.

use std::sync::{Mutex, PoisonError};

use burn::tensor::DType;

use crate::{Call, Verb};

/// Calls of one verb by one rank and the bytes it sent for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerbTraffic {
    /// Number of calls.
    pub calls: u64,
    /// Bytes sent to other ranks.
    pub bytes: u64,
}

/// What one rank has asked for and sent, for each verb.
///
/// Bytes are those of the bandwidth-optimal algorithms, whatever the transport does, so that figures can be
/// compared between transports and with the formulas of the ZeRO paper. With `N` ranks and `b` bytes an element:
///
/// | verb | input | bytes sent by a rank |
/// |---|---|---|
/// | all-reduce | `[L]` | `2 (N - 1) ceil(L / N) b` |
/// | reduce-scatter | `[N n]` | `(N - 1) n b` |
/// | all-gather | `[n]` | `(N - 1) n b` |
/// | broadcast | `[L]` | `(N - 1) L b` by the root, 0 by the others |
/// | barrier | | 0 |
///
/// Splits are not counted. Groups that come from a split count for themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// All-reduces.
    pub all_reduce: VerbTraffic,
    /// Reduce-scatters.
    pub reduce_scatter: VerbTraffic,
    /// All-gathers.
    pub all_gather: VerbTraffic,
    /// Broadcasts.
    pub broadcast: VerbTraffic,
    /// Barriers.
    pub barrier: VerbTraffic,
}

impl Traffic {
    /// Bytes sent by all verbs.
    pub fn bytes(&self) -> u64 {
        self.verbs().iter().map(|verb| verb.bytes).sum()
    }

    /// Calls of all verbs.
    pub fn calls(&self) -> u64 {
        self.verbs().iter().map(|verb| verb.calls).sum()
    }

    /// What was sent since `earlier`, a value that the same rank's `traffic()` gave before.
    pub fn since(&self, earlier: &Self) -> Self {
        let minus = |now: VerbTraffic, then: VerbTraffic| VerbTraffic {
            calls: now.calls - then.calls,
            bytes: now.bytes - then.bytes,
        };
        Self {
            all_reduce: minus(self.all_reduce, earlier.all_reduce),
            reduce_scatter: minus(self.reduce_scatter, earlier.reduce_scatter),
            all_gather: minus(self.all_gather, earlier.all_gather),
            broadcast: minus(self.broadcast, earlier.broadcast),
            barrier: minus(self.barrier, earlier.barrier),
        }
    }

    fn verbs(&self) -> [VerbTraffic; 5] {
        [
            self.all_reduce,
            self.reduce_scatter,
            self.all_gather,
            self.broadcast,
            self.barrier,
        ]
    }
}

/// Counts the calls of one rank.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Traffic>);

impl Meter {
    /// Counts a call that `rank` of `ranks` has made. Splits are not counted.
    pub(crate) fn count(&self, call: &Call, rank: usize, ranks: usize) {
        let others = ranks as u64 - 1;
        let element = DType::from(call.dtype).size() as u64;
        let bytes = |elements: usize| others * elements as u64 * element;
        let mut traffic = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (entry, sent) = match call.verb {
            Verb::AllReduce => (&mut traffic.all_reduce, 2 * bytes(call.len.div_ceil(ranks))),
            Verb::ReduceScatter => (&mut traffic.reduce_scatter, bytes(call.len / ranks)),
            Verb::AllGather => (&mut traffic.all_gather, bytes(call.len)),
            Verb::Broadcast { root } if root == rank => (&mut traffic.broadcast, bytes(call.len)),
            Verb::Broadcast { .. } => (&mut traffic.broadcast, 0),
            Verb::Barrier => (&mut traffic.barrier, 0),
            Verb::Split => return,
        };
        entry.calls += 1;
        entry.bytes += sent;
    }

    pub(crate) fn read(&self) -> Traffic {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
