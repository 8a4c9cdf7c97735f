//! Predicted bytes that each rank sends in one step.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::states::StateConfig;
use crate::{ElementType, Residence, ShardTable, Stage};

/// Bytes that a rank sends in one step, by verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VerbBytes {
    /// All-reduces.
    pub all_reduce: u64,
    /// Reduce-scatters.
    pub reduce_scatter: u64,
    /// All-gathers.
    pub all_gather: u64,
}

impl VerbBytes {
    /// Bytes of all verbs.
    pub fn total(&self) -> u64 {
        self.all_reduce + self.reduce_scatter + self.all_gather
    }
}

/// Bytes that each rank sends in one step for gradients and parameters, padding included, the same for every rank.
///
/// They are those of the bandwidth-optimal algorithms: with `N` ranks and a flat buffer of `N c` elements, a reduce-scatter
/// and an all-gather send `(N - 1) c` each, an all-reduce twice that. With `P` parameters and `A` micro-batches a step,
/// where nothing is padded, in elements:
///
/// | stage | reduced | gathered | together with `A = 1` |
/// |---|---|---|---|
/// | 0 | `2P(N-1)/N` by all-reduce, once | | `2P(N-1)/N` |
/// | 1 | `P(N-1)/N`, once | `P(N-1)/N`, after the update | `2P(N-1)/N` |
/// | 2 | `P(N-1)/N` in each micro-batch | `P(N-1)/N`, after the update | `2P(N-1)/N` |
/// | 3 | `P(N-1)/N` in each micro-batch | `2P(N-1)/N` in each micro-batch | `3P(N-1)/N` |
///
/// What is replicated at stage 3 travels as at stage 2. Gradients travel in the type in which they are reduced, values in
/// their own. A sharded value is gathered for forward and for backward wherever it is used: a frozen one too, except in blocks
/// before the first that has anything to train, which backward never reaches; one that is tied to another in each of the two
/// places.
///
/// Where `M` groups of `N` ranks replicate each other, what a rank reduced in its group is summed over the groups once a step
/// by an all-reduce of the shard: `2 (M - 1) ceil(c / M)` elements for each bucket.
///
/// Scalars of a step and batch statistics are not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepTraffic {
    /// Among the ranks that share one set of shards.
    pub inside: VerbBytes,
    /// Among the groups that replicate each other; nothing unless sharding is hybrid.
    pub across: VerbBytes,
}

impl StepTraffic {
    pub(crate) fn of(table: &ShardTable, config: &StateConfig, groups: usize) -> Self {
        assert!(groups > 0, "a run has at least one group of ranks");
        let (ranks, stage) = (table.ranks(), table.stage());
        let others = ranks as u64 - 1;
        let accumulate = config.accumulate as u64;
        let bytes = |elements: usize, dtype: ElementType| (elements * dtype.bytes()) as u64;
        let mut traffic = Self::default();
        for bucket in table.buckets() {
            let reduce = config.reduce.of(bucket.dtype);
            let sent = others * bytes(bucket.chunk, reduce);
            let inside = &mut traffic.inside;
            match stage {
                Stage::Zero => inside.all_reduce += 2 * sent,
                Stage::One => inside.reduce_scatter += sent,
                Stage::Two | Stage::Three => inside.reduce_scatter += accumulate * sent,
            }
            if stage.shards_optimizer() && bucket.residence == Residence::Whole {
                inside.all_gather += others * bytes(bucket.chunk, bucket.dtype);
            }
            let reduced = match stage.shards_optimizer() {
                true => bucket.chunk,
                false => bucket.flat_len(ranks),
            };
            let other_groups = groups as u64 - 1;
            traffic.across.all_reduce += 2 * other_groups * bytes(reduced.div_ceil(groups), reduce);
        }
        let forward_only = forward_only(table, config);
        for (at, row) in table.rows().iter().enumerate() {
            if table.residence(row) == Residence::Shard {
                let times = if forward_only.contains(&at) { 1 } else { 2 };
                traffic.inside.all_gather +=
                    times * accumulate * others * bytes(row.shard_len(ranks), row.parameter.dtype);
            }
        }
        traffic
    }

    /// Bytes inside and across groups.
    pub fn total(&self) -> u64 {
        self.inside.total() + self.across.total()
    }
}

/// The rows of the first blocks that have nothing to train: their input is data, so no gradient passes them. Those that are
/// gathered ahead in backward, for nothing, are not among them.
fn forward_only(table: &ShardTable, config: &StateConfig) -> BTreeSet<usize> {
    let frozen = |block: &Vec<usize>| {
        let mut rows = block.iter().map(|&row| &table.rows()[row]);
        rows.all(|row| !row.parameter.trainable)
    };
    let blocks = config.blocks_of(table);
    let first = blocks.iter().take_while(|block| frozen(block)).count();
    let reached = first.saturating_sub(config.ahead());
    blocks.into_iter().take(reached).flatten().collect()
}
