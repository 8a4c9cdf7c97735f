//! Predicted bytes of the model states on each rank.

use serde::{Deserialize, Serialize};

use crate::{Row, ShardTable};

/// Bytes that the model states take on one rank, the same on every rank since shards are padded.
///
/// With `P` parameters of `b` bytes, optimizer states of `s` bytes an element (4, or 8 for `f64`), and
/// `S = ceil(P / ranks)` for each parameter on its own:
///
/// | field | stage 0 | 1 | 2 | 3 |
/// |---|---|---|---|---|
/// | `parameters` | `bP` | `bP` | `bP` | `bS`, or `bP` where replicated |
/// | `gradients` | `bP` | `bP` | `bS` | `bS` |
/// | `master` (16-bit parameters only), `momentum`, `variance` | `sP` each | `sS` each | `sS` each | `sS` each |
///
/// For 16-bit parameters that is the `16P`, `4P + 12P/N`, `2P + 14P/N` and `16P/N` of the ZeRO paper
/// (<https://arxiv.org/abs/1910.02054>), padding included; for `f32` there is no master copy and it is `16P`,
/// `8P + 8P/N`, `4P + 12P/N` and `16P/N`. Tied parameters take nothing; frozen ones take parameters only.
/// Activations are not counted.
///
/// At stage 1 gradients count whole, as in the paper: that is what a rank holds while micro-batches add up. With one
/// micro-batch a step, an optimizer that reduces each bucket as it arrives holds `bS` of reduced gradients, as at stage 2,
/// and the prediction is an upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankBytes {
    /// Parameter values, frozen ones included.
    pub parameters: u64,
    /// Gradients, in the parameters' element type.
    pub gradients: u64,
    /// Master copies of the values of 16-bit parameters.
    pub master: u64,
    /// First moments.
    pub momentum: u64,
    /// Second moments.
    pub variance: u64,
    /// The largest bucket on its way: its flat buffer and the chunk that comes out of it.
    pub buckets: u64,
    /// At stage 3, the largest parameter that is gathered for a use, padding included.
    pub gathered: u64,
}

impl RankBytes {
    pub(crate) fn of(table: &ShardTable) -> Self {
        let (ranks, stage) = (table.ranks(), table.stage());
        let elements = |row: &Row, sharded: bool| if sharded { row.shard_len(ranks) } else { row.numel() } as u64;
        let mut bytes = Self::default();
        for row in table
            .rows()
            .iter()
            .filter(|row| row.parameter.tied_to.is_none())
        {
            let dtype = row.parameter.dtype;
            let (element, state) = (dtype.bytes() as u64, dtype.state().bytes() as u64);
            let whole = table.keeps_whole(row);
            bytes.parameters += elements(row, !whole) * element;
            if !whole {
                bytes.gathered = bytes
                    .gathered
                    .max((row.shard_len(ranks) * ranks) as u64 * element);
            }
            if row.parameter.is_reduced() {
                bytes.gradients += elements(row, stage.shards_gradients()) * element;
                let states = elements(row, stage.shards_optimizer()) * state;
                bytes.master += if dtype.needs_master() { states } else { 0 };
                bytes.momentum += states;
                bytes.variance += states;
            }
        }
        let in_flight = |bucket: &crate::Bucket| {
            (bucket.bytes(ranks) + bucket.chunk * bucket.dtype.bytes()) as u64
        };
        bytes.buckets = table.buckets().iter().map(in_flight).max().unwrap_or(0);
        bytes
    }

    /// Master copies and moments.
    pub fn optimizer(&self) -> u64 {
        self.master + self.momentum + self.variance
    }

    /// What ZeRO calls model states: parameters, gradients and optimizer states.
    pub fn states(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer()
    }

    /// Everything: model states, the largest bucket on its way and the largest gathered parameter.
    pub fn total(&self) -> u64 {
        self.states() + self.buckets + self.gathered
    }
}
