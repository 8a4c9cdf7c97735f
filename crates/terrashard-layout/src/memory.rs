//! Predicted bytes of the model states on each rank.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::states::{Offload, StateConfig};
use crate::{ElementType, Residence, Row, ShardTable};

/// Bytes that the model states take on one rank, the same on every rank since shards are padded.
///
/// With `P` parameters of `b` bytes, gradients of `g` bytes ([`StateConfig::gradient`]), optimizer states of `s` bytes
/// an element (4, or 8 for `f64`), and `S = ceil(P / ranks)` for each parameter on its own:
///
/// | field | stage 0 | 1 | 2 | 3 |
/// |---|---|---|---|---|
/// | `parameters` | `bP` | `bP` | `bP` | `bS`, or `bP` where replicated |
/// | `gradients` | `gP` | `gP` | `gS` | `gS` |
/// | `master` (16-bit parameters only), `momentum`, `variance`, `ema` | `sP` each | `sS` each | `sS` each | `sS` each |
///
/// For 16-bit parameters whose gradients are reduced in their own type that is the `16P`, `4P + 12P/N`, `2P + 14P/N` and
/// `16P/N` of the ZeRO paper (<https://arxiv.org/abs/1910.02054>), padding included; for `f32` there is no master copy and
/// it is `16P`, `8P + 8P/N`, `4P + 12P/N` and `16P/N`. Tied parameters take nothing; frozen ones take parameters only.
/// Activations are not counted.
///
/// At stage 1 gradients count whole, as in the paper: that is what a rank holds while micro-batches add up. With one
/// micro-batch a step, an optimizer that reduces each bucket as it arrives holds `gS` of reduced gradients, as at stage 2,
/// and the prediction is an upper bound.
///
/// # Offload
///
/// What moves to host memory is in `host` and in no other field. Where the optimizer alone is offloaded it keeps a master copy
/// of its elements beside the values on the device, whatever their type; where parameters are offloaded too, 32-bit values
/// are their own master copy. Values that are whole on every rank stay on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankBytes {
    /// Parameter values, frozen ones included.
    pub parameters: u64,
    /// Gradients.
    pub gradients: u64,
    /// Master copies of the values of 16-bit parameters.
    pub master: u64,
    /// First moments.
    pub momentum: u64,
    /// Second moments.
    pub variance: u64,
    /// Moving averages of the values.
    pub ema: u64,
    /// The largest buckets on their way, [`BUCKETS_IN_FLIGHT`](crate::BUCKETS_IN_FLIGHT) of them: for each its flat buffer and the chunk that
    /// comes out of it.
    pub buckets: u64,
    /// At stage 3, the most that is gathered at once, padding included: a block and those that are gathered ahead of
    /// it.
    pub gathered: u64,
    /// What is kept in host memory.
    pub host: u64,
}

impl RankBytes {
    pub(crate) fn of(table: &ShardTable, config: &StateConfig) -> Self {
        let (ranks, stage) = (table.ranks(), table.stage());
        let elements = |row: &Row, sharded: bool| if sharded { row.shard_len(ranks) } else { row.numel() } as u64;
        let mut bytes = Self::default();
        // Elements that the optimizer owns, by type.
        let mut owned: BTreeMap<ElementType, u64> = BTreeMap::new();
        for row in table
            .rows()
            .iter()
            .filter(|row| row.parameter.tied_to.is_none())
        {
            let dtype = row.parameter.dtype;
            let sharded = table.residence(row) == Residence::Shard;
            let on_host = sharded && config.offload == Offload::Parameters;
            let place = match on_host {
                true => &mut bytes.host,
                false => &mut bytes.parameters,
            };
            *place += elements(row, sharded) * dtype.bytes() as u64;
            if row.parameter.is_reduced() {
                let gradient = config.gradient(dtype).bytes() as u64;
                bytes.gradients += elements(row, stage.shards_gradients()) * gradient;
                *owned.entry(dtype).or_default() += elements(row, stage.shards_optimizer());
            }
        }
        for (dtype, elements) in owned {
            bytes.add_optimizer(dtype, elements, config);
        }
        bytes.buckets = buckets_in_flight(table, config);
        bytes.gathered = gathered(table, config);
        bytes
    }

    fn add_optimizer(&mut self, dtype: ElementType, elements: u64, config: &StateConfig) {
        let state = dtype.state().bytes() as u64;
        let host = match config.offload {
            Offload::None => 0,
            Offload::Optimizer | Offload::Parameters => {
                ((elements as f64 * config.offload_fraction).ceil() as u64).min(elements)
            }
        };
        let device = (elements - host) * state;
        self.master += if dtype.needs_master() { device } else { 0 };
        self.momentum += if config.moments > 0 { device } else { 0 };
        self.variance += if config.moments > 1 { device } else { 0 };
        self.ema += if config.ema { device } else { 0 };
        let has_master = dtype.needs_master() || config.offload == Offload::Optimizer;
        let kept = config.moments as u64 + u64::from(has_master) + u64::from(config.ema);
        self.host += host * state * kept;
    }

    /// Master copies, moments and averages on the device.
    pub fn optimizer(&self) -> u64 {
        self.master + self.momentum + self.variance + self.ema
    }

    /// What ZeRO calls model states, on the device: parameters, gradients and optimizer states.
    pub fn states(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer()
    }

    /// Everything on the device: model states, the buckets on their way and what is gathered.
    pub fn total(&self) -> u64 {
        self.states() + self.buckets + self.gathered
    }
}

fn buckets_in_flight(table: &ShardTable, config: &StateConfig) -> u64 {
    let mut largest: Vec<u64> = table
        .buckets()
        .iter()
        .map(|bucket| {
            let elements = bucket.flat_len(table.ranks()) + bucket.chunk;
            (elements * config.reduce.of(bucket.dtype).bytes()) as u64
        })
        .collect();
    largest.sort_unstable_by_key(|bytes| Reverse(*bytes));
    largest.iter().take(config.in_flight()).sum()
}

/// The most that a block and those ahead of it take, of all blocks in turn.
fn gathered(table: &ShardTable, config: &StateConfig) -> u64 {
    let ranks = table.ranks();
    let row_bytes = |row: &Row| match table.residence(row) {
        Residence::Whole => 0,
        Residence::Shard => (row.shard_len(ranks) * ranks * row.parameter.dtype.bytes()) as u64,
    };
    let block_bytes =
        |block: &Vec<usize>| block.iter().map(|&row| row_bytes(&table.rows()[row])).sum();
    let blocks: Vec<u64> = config.blocks_of(table).iter().map(block_bytes).collect();
    let at_once = (1 + config.ahead()).min(blocks.len()).max(1);
    blocks
        .windows(at_once)
        .map(|window| window.iter().sum())
        .max()
        .unwrap_or(0)
}
