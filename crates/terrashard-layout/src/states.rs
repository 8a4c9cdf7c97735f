//! How a model is trained, as far as that decides what its states take and what travels.

use serde::{Deserialize, Serialize};

use crate::{ElementType, ShardTable};

/// Buckets that travel at once, at most.
pub const BUCKETS_IN_FLIGHT: usize = 2;

/// The element type in which gradients are added up over micro-batches and ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceType {
    /// That of the parameter's values: half the traffic where these have 16 bits.
    #[default]
    Compute,
    /// That of the optimizer's states, at least single precision.
    Full,
}

impl ReduceType {
    /// The type in which gradients of parameters of type `compute` are reduced.
    pub fn of(self, compute: ElementType) -> ElementType {
        match self {
            Self::Compute => compute,
            Self::Full => compute.state(),
        }
    }
}

/// What is kept in host memory instead of the device's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// Nothing.
    #[default]
    None,
    /// Optimizer states: master copies, moments, averages.
    Optimizer,
    /// Optimizer states, and at stage 3 the shards of parameters.
    Parameters,
}

/// How a model is trained. Element types of values are those of the rows; see [`ElementType::state`] for the
/// optimizer's.
#[derive(Debug, Clone, PartialEq)]
pub struct StateConfig {
    /// In which type gradients are reduced. Default: that of the values.
    pub reduce: ReduceType,
    /// Moments that the optimizer keeps for each element: 2 for AdamW, 1 for SGD with momentum, 0 for SGD without.
    pub moments: usize,
    /// Whether an exponential moving average of the values is kept.
    pub ema: bool,
    /// What is kept in host memory.
    pub offload: Offload,
    /// The share of the optimizer's elements that `offload` moves, 0 to 1.
    pub offload_fraction: f64,
    /// Micro-batches of one step, at least 1.
    pub accumulate: usize,
    /// Whether communication overlaps with computation: else one bucket travels at a time and nothing is gathered ahead.
    pub overlap: bool,
    /// At stage 3, blocks that are gathered ahead of the one in use.
    pub prefetch: usize,
    /// At stage 3, the rows that are gathered together, block by block in the order of forward, as positions in
    /// [`crate::ShardTable::rows`]. Where it is empty, each parameter is a block of its own in declared order.
    pub blocks: Vec<Vec<usize>>,
}

impl Default for StateConfig {
    /// AdamW without an average, everything on the device, one micro-batch, nothing ahead: as in the ZeRO paper.
    fn default() -> Self {
        Self {
            reduce: ReduceType::Compute,
            moments: 2,
            ema: false,
            offload: Offload::None,
            offload_fraction: 1.0,
            accumulate: 1,
            overlap: true,
            prefetch: 0,
            blocks: Vec::new(),
        }
    }
}

impl StateConfig {
    /// The rows that are gathered together, in the order of forward.
    pub(crate) fn blocks_of(&self, table: &ShardTable) -> Vec<Vec<usize>> {
        if !self.blocks.is_empty() {
            return self.blocks.clone();
        }
        let mut rows: Vec<usize> = (0..table.rows().len()).collect();
        rows.sort_by_key(|&row| table.rows()[row].order);
        rows.into_iter().map(|row| vec![row]).collect()
    }

    /// Buckets that travel at once, at most.
    pub(crate) fn in_flight(&self) -> usize {
        if self.overlap { BUCKETS_IN_FLIGHT } else { 1 }
    }

    /// Blocks that are gathered ahead.
    pub(crate) fn ahead(&self) -> usize {
        if self.overlap { self.prefetch } else { 0 }
    }

    /// The type in which a rank holds gradients of parameters of type `compute`: that in which they are reduced, or
    /// the optimizer's where micro-batches add up, since sums of many lose too much in 16 bits.
    pub fn gradient(&self, compute: ElementType) -> ElementType {
        match self.accumulate > 1 {
            true => compute.state(),
            false => self.reduce.of(compute),
        }
    }
}
