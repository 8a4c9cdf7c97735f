//! Stage 3: the parameters of a block, gathered for a use and let go after it.
//!
//! A block's shards travel in one all-gather. A declared schedule of blocks lets the next ones start on their way while
//! the one before is in use; nothing is traced, so every rank issues the same gathers in the same order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;
use terrashard_collectives::{Communicator, Pending};
use terrashard_layout::ShardTable;

use crate::error::Result;

/// Bytes of parameters that are gathered at the moment, and the most there were.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Gathered {
    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// The most since the last call.
    pub(crate) fn take_peak(&self) -> usize {
        self.peak.swap(self.now(), Ordering::Relaxed)
    }

    /// Counts `bytes` until the guard is dropped.
    fn hold(self: &Arc<Self>, bytes: usize) -> Hold {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
        Hold {
            counter: self.clone(),
            bytes,
        }
    }
}

/// Gathered bytes of one use of a block.
#[derive(Debug)]
pub(crate) struct Hold {
    counter: Arc<Gathered>,
    bytes: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.counter.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The gathered values of one use of a block, each until it was taken as often as the block uses it.
///
/// It lives in the graph's operations, so whatever ends them, backward or an error, ends the lease.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Rows that the block gathers, sorted; empty where nothing is sharded.
    rows: Vec<usize>,
    /// How often the block uses each of `rows`.
    uses: Vec<usize>,
    state: Mutex<LeaseState>,
}

#[derive(Debug, Default)]
struct LeaseState {
    /// Values with the number of uses that are left.
    values: HashMap<usize, (Tensor<1>, usize)>,
    hold: Option<Hold>,
    /// Gradients that backward still owes for this use of the block.
    owed: usize,
}

impl Lease {
    /// For a block that uses `rows`, sorted, where a row that it uses twice stands twice.
    pub(crate) fn new(sorted: &[usize]) -> Self {
        let runs = sorted.chunk_by(|a, b| a == b);
        let (rows, uses) = runs.map(|run| (run[0], run.len())).unzip();
        Self {
            rows,
            uses,
            state: Mutex::default(),
        }
    }

    pub(crate) fn rows(&self) -> &[usize] {
        &self.rows
    }

    pub(crate) fn contains(&self, row: usize) -> bool {
        self.rows.binary_search(&row).is_ok()
    }

    /// Whether the value of `row` is here.
    pub(crate) fn holds(&self, row: usize) -> bool {
        self.lock().values.contains_key(&row)
    }

    /// The value of `row`, if it is here.
    pub(crate) fn take(&self, row: usize) -> Option<Tensor<1>> {
        let mut state = self.lock();
        let (value, left) = state.values.get_mut(&row)?;
        *left -= 1;
        if *left > 0 {
            return Some(value.clone());
        }
        state.values.remove(&row).map(|(value, _)| value)
    }

    /// The value of `row`, if it is here; it stays.
    pub(crate) fn look(&self, row: usize) -> Option<Tensor<1>> {
        self.lock().values.get(&row).map(|(value, _)| value.clone())
    }

    /// Puts in what was gathered.
    pub(crate) fn fill(&self, mut values: HashMap<usize, Tensor<1>>, hold: Hold) {
        let mut state = self.lock();
        let uses = self.rows.iter().zip(&self.uses);
        let counted = uses.filter_map(|(&row, &uses)| Some((row, (values.remove(&row)?, uses))));
        state.values = counted.collect();
        state.hold = Some(hold);
    }

    /// Notes that one gradient is to come in backward.
    pub(crate) fn owe(&self) {
        self.lock().owed += 1;
    }

    /// Notes that a gradient came. With the last one, backward is done with the block.
    pub(crate) fn pay(&self) {
        let mut state = self.lock();
        state.owed = state.owed.saturating_sub(1);
        if state.owed == 0 {
            drop(std::mem::take(&mut *state));
        }
    }

    /// Forward is done with the block: what is still here goes, and its bytes are no longer counted.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        state.values.clear();
        state.hold = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which way through the schedule a use of a block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A gather on its way, with what counts its bytes.
#[derive(Debug)]
struct Travelling {
    pending: Pending,
    hold: Hold,
}

/// Issues the gathers of one rank.
#[derive(Debug)]
pub(crate) struct Gathers {
    table: Arc<ShardTable>,
    communicator: Arc<dyn Communicator>,
    ahead: usize,
    /// Rows of each block in forward order.
    schedule: Vec<Vec<usize>>,
    /// The blocks that gather the same rows: one, or more where blocks share all their parameters.
    blocks_of: HashMap<Vec<usize>, Vec<usize>>,
    /// Gathers on their way, by block.
    pending: HashMap<usize, Travelling>,
    counter: Arc<Gathered>,
}

impl Gathers {
    pub(crate) fn new(
        table: Arc<ShardTable>,
        communicator: Arc<dyn Communicator>,
        ahead: usize,
    ) -> Self {
        Self {
            table,
            communicator,
            ahead,
            schedule: Vec::new(),
            blocks_of: HashMap::new(),
            pending: HashMap::new(),
            counter: Arc::default(),
        }
    }

    pub(crate) fn counter(&self) -> &Arc<Gathered> {
        &self.counter
    }

    /// Declares the blocks in forward order.
    pub(crate) fn declare(&mut self, schedule: Vec<Vec<usize>>) {
        self.blocks_of.clear();
        for (block, rows) in schedule.iter().enumerate() {
            self.blocks_of.entry(rows.clone()).or_default().push(block);
        }
        self.schedule = schedule;
    }

    /// The place in the schedule of a block with these rows: where several have them, the one that was gathered ahead.
    fn place(&self, rows: &[usize], direction: Direction) -> Option<usize> {
        let places = self.blocks_of.get(rows)?;
        let ahead = places
            .iter()
            .find(|&place| self.pending.contains_key(place));
        let next = match direction {
            Direction::Forward => places.first(),
            Direction::Backward => places.last(),
        };
        ahead.or(next).copied()
    }

    /// The whole values of `rows`, the parameters of one block, and what counts their bytes.
    ///
    /// `shard` gives this rank's padded shard of a row.
    pub(crate) fn gather(
        &mut self,
        rows: &[usize],
        direction: Direction,
        shard: &dyn Fn(usize) -> Tensor<1>,
    ) -> Result<(HashMap<usize, Tensor<1>>, Hold)> {
        let block = self.place(rows, direction);
        let own = match block.and_then(|block| self.pending.remove(&block)) {
            Some(pending) => pending,
            None => self.launch(rows, shard)?,
        };
        if let Some(block) = block {
            for distance in 1..=self.ahead {
                let next = match direction {
                    Direction::Forward => block + distance,
                    Direction::Backward => block.wrapping_sub(distance),
                };
                if next < self.schedule.len() && !self.pending.contains_key(&next) {
                    let rows = self.schedule[next].clone();
                    if !rows.is_empty() {
                        let pending = self.launch(&rows, shard)?;
                        self.pending.insert(next, pending);
                    }
                }
            }
        }
        let buffer = own.pending.wait()?;
        Ok((self.unpack(rows, buffer)?, own.hold))
    }

    /// Gives up gathers that nobody came for: the end of a pass.
    pub(crate) fn settle(&mut self) -> Result<()> {
        for (_, travelling) in self.pending.drain() {
            drop(travelling.pending.wait()?);
        }
        Ok(())
    }

    fn launch(&self, rows: &[usize], shard: &dyn Fn(usize) -> Tensor<1>) -> Result<Travelling> {
        let shards: Vec<_> = rows.iter().map(|&row| shard(row)).collect();
        let buffer = match <[_; 1]>::try_from(shards) {
            Ok([only]) => only,
            Err(shards) => Tensor::cat(shards, 0),
        };
        let bytes = self.table.ranks() * buffer.dims()[0] * buffer.dtype().size();
        Ok(Travelling {
            hold: self.counter.hold(bytes),
            pending: self.communicator.all_gather(buffer)?,
        })
    }

    /// One flat tensor for each row from the gathered, rank-major buffer.
    fn unpack(&self, rows: &[usize], buffer: Tensor<1>) -> Result<HashMap<usize, Tensor<1>>> {
        let ranks = self.table.ranks();
        let all = self.table.rows();
        #[cfg(feature = "tch")]
        {
            let lengths = rows.iter().map(|&row| all[row].shard_len(ranks)).collect();
            let elements: Vec<_> = rows.iter().map(|&row| all[row].numel()).collect();
            let whole = crate::libtorch::gathered(&buffer, ranks, lengths, &elements)?;
            if let Some(whole) = whole {
                return Ok(rows.iter().copied().zip(whole).collect());
            }
        }
        let total: usize = rows.iter().map(|&row| all[row].shard_len(ranks)).sum();
        let buffer = buffer.reshape([ranks, total]);
        let mut offset = 0;
        let mut values = HashMap::with_capacity(rows.len());
        for &row in rows {
            let len = all[row].shard_len(ranks);
            let flat = buffer
                .clone()
                .slice([0..ranks, offset..offset + len])
                .reshape([ranks * len])
                .slice(0..all[row].numel());
            values.insert(row, flat);
            offset += len;
        }
        Ok(values)
    }
}
