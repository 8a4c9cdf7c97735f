//! What differs between the ZeRO stages, on one screen (Rajbhandari et al., <https://arxiv.org/abs/1910.02054>).
//!
//! | stage | gradients after reduction | reduced | optimizer states | parameters |
//! |---|---|---|---|---|
//! | 0 | whole on every rank (all-reduce) | once a step | whole | whole |
//! | 1 | own shard (reduce-scatter) | once a step | own shard | whole, gathered after the update |
//! | 2 | own shard (reduce-scatter) | after every micro-batch | own shard | whole, gathered after the update |
//! | 3 | own shard (reduce-scatter) | after every micro-batch | own shard | own shard, gathered for each use of a block |
//!
//! Everything else, buckets, update, clipping, checkpoints, is one code path over the shard table.

use terrashard_layout::{Bucket, Stage};

/// How much of a bucket a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The chunks of all ranks.
    Whole,
    /// The rank's own chunk.
    Shard,
}

impl Extent {
    /// Elements of `bucket` that a rank of `ranks` holds.
    pub(crate) fn elements(self, bucket: &Bucket, ranks: usize) -> usize {
        match self {
            Extent::Whole => bucket.flat_len(ranks),
            Extent::Shard => bucket.chunk,
        }
    }
}

/// When gradients travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduce {
    /// Micro-batches add up locally; the last one's backward reduces.
    OncePerStep,
    /// Every micro-batch's backward reduces, and the shard adds up.
    EveryMicroBatch,
}

/// The differences between stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// What a rank holds of reduced gradients and optimizer states, and so what it updates.
    pub(crate) extent: Extent,
    /// When gradients are reduced.
    pub(crate) reduce: Reduce,
}

impl Policy {
    pub(crate) fn of(stage: Stage) -> Self {
        Self {
            extent: if stage.shards_optimizer() {
                Extent::Shard
            } else {
                Extent::Whole
            },
            reduce: if stage.shards_gradients() {
                Reduce::EveryMicroBatch
            } else {
                Reduce::OncePerStep
            },
        }
    }
}
