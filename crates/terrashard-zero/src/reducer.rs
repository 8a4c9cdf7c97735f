//! Gradients on their way from burn's backward to the ranks that own them.
//!
//! A gradient that arrives waits until its bucket is complete. Complete buckets are launched in table order, so every
//! rank issues the same collectives in the same order however its backward happened to run. At most
//! [`IN_FLIGHT`] buckets and a quarter of the model travel at once: that bounds the memory of buffers while backward goes
//! on.

use std::collections::VecDeque;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::Pending;
use terrashard_layout::{Bucket, ShardTable};

use crate::config::{Unused, ZeroConfig};
use crate::error::{Error, Result};
use crate::groups::RankGroups;
use crate::packing::{pack_whole, zeros};
use crate::parameters::dtype;
use crate::policy::{Extent, Policy, Reduce};
use crate::reading::read_f64;
use crate::signs::Signs;

/// Buckets that may travel at once.
const IN_FLIGHT: usize = 2;

/// What travels at once is at most this part of all gradients, or a single bucket: of a small model, two buckets would
/// be half of it.
const MODEL_SHARE: usize = 4;

/// Collects, packs and reduces the gradients of one rank.
#[derive(Debug)]
pub(crate) struct Reducer {
    table: Arc<ShardTable>,
    groups: RankGroups,
    policy: Policy,
    device: Device,
    /// Element type in which gradients travel.
    dtype: DType,
    /// Element type in which micro-batches add up.
    held: DType,
    accumulate: usize,
    unused: Unused,
    /// Buckets that may travel at once, and their bytes where it is more than one.
    in_flight_limit: usize,
    travelling_limit: usize,
    /// For each row: the bucket that it is in.
    bucket_of: Vec<Option<usize>>,
    /// For each row: how often its value entered a graph in this window and has not come back as a gradient. What an
    /// abandoned graph owes is forgotten with the window; until then its buckets go at the end of backward.
    outstanding: Vec<usize>,
    /// For each row: whether its bucket waits for it in this backward.
    awaited: Vec<bool>,
    /// For each row: the gradient that arrived in this micro-batch, flat.
    arrived: Vec<Option<Tensor<1>>>,
    /// For each bucket: pieces whose gradient is not complete.
    missing: Vec<usize>,
    /// The next bucket to launch.
    next: usize,
    in_flight: VecDeque<Travelling>,
    /// For each bucket: the gradient so far. Local sums `[ranks * chunk]` before the reduction, then what the
    /// stage's extent says.
    gradients: Vec<Option<Tensor<1>>>,
    /// For each row: whether a gradient came in this window.
    used: Vec<bool>,
    /// Whether all that is this rank's own is finite.
    pub(crate) signs: Signs,
    /// Bytes of buffers on their way, now and at most.
    travelling: usize,
    travelling_peak: usize,
    reduced: bool,
    micro_batches: usize,
    failure: Option<Error>,
}

/// A bucket on its way.
#[derive(Debug)]
struct Travelling {
    bucket: usize,
    bytes: usize,
    pending: Pending,
}

impl Reducer {
    pub(crate) fn new(
        table: Arc<ShardTable>,
        groups: RankGroups,
        device: Device,
        config: &ZeroConfig,
    ) -> Self {
        let mut bucket_of = vec![None; table.rows().len()];
        for (index, bucket) in table.buckets().iter().enumerate() {
            for piece in &bucket.pieces {
                bucket_of[piece.row] = Some(index);
            }
        }
        Self {
            policy: Policy::of(config.stage),
            device,
            dtype: dtype(config.reduce_element()),
            held: dtype(config.gradient_element()),
            accumulate: config.accumulate,
            unused: config.unused,
            in_flight_limit: if config.overlap { IN_FLIGHT } else { 0 },
            travelling_limit: {
                let elements = |bucket: &Bucket| bucket.flat_len(table.ranks());
                let all = table.buckets().iter().map(elements).sum::<usize>();
                all * config.reduce_element().bytes() / MODEL_SHARE
            },
            bucket_of,
            outstanding: vec![0; table.rows().len()],
            awaited: vec![false; table.rows().len()],
            arrived: vec![None; table.rows().len()],
            missing: Vec::new(),
            next: 0,
            in_flight: VecDeque::new(),
            gradients: vec![None; table.buckets().len()],
            used: vec![false; table.rows().len()],
            signs: Signs::default(),
            travelling: 0,
            travelling_peak: 0,
            reduced: false,
            micro_batches: 0,
            failure: None,
            table,
            groups,
        }
    }

    /// Keeps the first failure: a step of burn's backward cannot return one.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Notes that the value of `row` entered the graph: one gradient is expected.
    pub(crate) fn entered(&mut self, row: usize) {
        self.outstanding[row] += 1;
    }

    /// Before burn's backward of a micro-batch.
    pub(crate) fn begin(&mut self) -> Result<()> {
        if self.micro_batches == self.accumulate {
            return Err(Error::MicroBatches {
                expected: self.accumulate,
                got: self.micro_batches + 1,
            });
        }
        // What did not enter the graph has no gradient to wait for: a branch that is switched off holds up nothing.
        self.awaited = self.outstanding.iter().map(|&count| count > 0).collect();
        let awaited = |bucket: &Bucket| {
            let rows = bucket.pieces.iter().map(|piece| piece.row);
            rows.filter(|&row| self.awaited[row]).count()
        };
        self.missing = self.table.buckets().iter().map(awaited).collect();
        self.next = 0;
        self.launch_complete();
        Ok(())
    }

    /// How many gradients of each of `rows` are expected.
    pub(crate) fn outstanding(&self, rows: &[usize]) -> Vec<usize> {
        rows.iter().map(|&row| self.outstanding[row]).collect()
    }

    /// A recomputed block is through: of its `rows`, of which so many gradients were `expected` before, each has had
    /// its one, which did not come if backward did not use the parameter.
    pub(crate) fn settle(&mut self, rows: &[usize], expected: &[usize]) {
        for (&row, &expected) in rows.iter().zip(expected) {
            if self.outstanding[row] == expected && expected > 0 {
                self.gone(row);
            }
        }
    }

    /// Takes one gradient of `row`, flat. A parameter that entered several times has several; they add up.
    pub(crate) fn deliver(&mut self, row: usize, gradient: Tensor<1>) {
        let sum = match self.arrived[row].take() {
            Some(earlier) => earlier + gradient,
            None => gradient,
        };
        self.arrived[row] = Some(sum);
        self.used[row] = true;
        self.gone(row);
    }

    /// One gradient less is expected for `row`; with the last, its bucket may go.
    fn gone(&mut self, row: usize) {
        self.outstanding[row] = self.outstanding[row].saturating_sub(1);
        if self.outstanding[row] == 0
            && let Some(bucket) = self.bucket_of[row]
            && std::mem::take(&mut self.awaited[row])
        {
            self.missing[bucket] -= 1;
            self.launch_complete();
        }
    }

    /// After burn's backward of a micro-batch: parameters without a gradient count as zero, everything is launched
    /// and has arrived.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.missing.fill(0);
        self.launch_complete();
        if let Err(error) = self.drain(0) {
            self.fail(error);
        }
        self.micro_batches += 1;
        self.take_failure().inspect_err(|_| self.reset())
    }

    /// Forgets the window: after an error, what was added up so far is no part of anything.
    pub(crate) fn reset(&mut self) {
        self.in_flight.clear();
        self.travelling = 0;
        self.outstanding.fill(0);
        self.arrived.fill(None);
        self.gradients.fill(None);
        self.used.fill(false);
        self.signs.forget();
        self.reduced = false;
        self.micro_batches = 0;
    }

    /// The reduced gradient of every bucket, in the stage's extent, and the number of micro-batches in it; the window
    /// starts anew. A window cut short is reduced here.
    pub(crate) fn take(&mut self) -> Result<(Vec<Tensor<1>>, usize)> {
        self.take_window().inspect_err(|_| self.reset())
    }

    fn take_window(&mut self) -> Result<(Vec<Tensor<1>>, usize)> {
        self.take_failure()?;
        if self.micro_batches == 0 {
            return Err(Error::MicroBatches {
                expected: self.accumulate,
                got: 0,
            });
        }
        if !self.reduced && self.policy.reduce == Reduce::OncePerStep {
            for bucket in 0..self.gradients.len() {
                let local = self.gradients[bucket].take();
                if let Some(local) = local {
                    self.send(bucket, local)?;
                }
            }
            self.drain(0)?;
        }
        let micro_batches = std::mem::take(&mut self.micro_batches);
        self.outstanding.fill(0);
        self.reduced = false;
        self.check_used()?;
        self.add_over_replicas()?;
        let ranks = self.table.ranks();
        let taken =
            self.gradients
                .iter_mut()
                .zip(self.table.buckets())
                .map(|(gradient, bucket)| {
                    let len = self.policy.extent.elements(bucket, ranks);
                    gradient
                        .take()
                        .unwrap_or_else(|| zeros(len, &self.device, self.held))
                });
        Ok((taken.collect(), micro_batches))
    }

    /// Every trainable parameter had a gradient in the window on some rank, if that is asked for: then collective.
    fn check_used(&mut self) -> Result<()> {
        let used = std::mem::replace(&mut self.used, vec![false; self.table.rows().len()]);
        if self.unused == Unused::Zero {
            return Ok(());
        }
        let flags: Vec<f64> = used.iter().map(|&used| f64::from(u8::from(used))).collect();
        let flags = Tensor::from_data(
            TensorData::from(flags.as_slice()),
            (&self.device, DType::F64),
        );
        let used = read_f64(self.groups.world.all_reduce(flags)?.wait()?)?;
        let used: Vec<bool> = used.into_iter().map(|ranks| ranks > 0.0).collect();
        let names: Vec<_> = (0..used.len())
            .filter(|&row| self.bucket_of[row].is_some() && !used[row])
            .map(|row| self.table.rows()[row].parameter.name.clone())
            .collect();
        match names.as_slice() {
            [] => Ok(()),
            [first, ..] => Err(Error::Unused {
                count: names.len(),
                name: first.clone(),
            }),
        }
    }

    /// Adds the shards of the window over the groups that hold the same ones.
    fn add_over_replicas(&mut self) -> Result<()> {
        let Some(replicas) = self.groups.replicas.clone() else {
            return Ok(());
        };
        for index in 0..self.gradients.len() {
            let shard = match self.gradients[index].take() {
                Some(shard) => shard,
                None => {
                    let bucket = &self.table.buckets()[index];
                    let len = self.policy.extent.elements(bucket, self.table.ranks());
                    zeros(len, &self.device, self.dtype)
                }
            };
            let shard = shard.cast(self.dtype);
            let bytes = bytes(&shard);
            self.make_room(bytes)?;
            let pending = replicas.all_reduce(shard)?;
            self.travels(index, bytes, pending)?;
        }
        self.drain(0)
    }

    /// Notes that this rank gave numbers to others inside a pass.
    pub(crate) fn gave(&mut self, finite: bool) {
        self.signs.gave(self.micro_batches, finite);
    }

    /// The most bytes of buffers that travelled at once since the last call.
    pub(crate) fn take_travelling_peak(&mut self) -> usize {
        std::mem::replace(&mut self.travelling_peak, self.travelling)
    }

    /// Bytes of gradients that this rank holds now.
    pub(crate) fn held_bytes(&self) -> usize {
        let held = self.gradients.iter().chain(&self.arrived).flatten();
        held.map(bytes).sum()
    }

    pub(crate) fn take_failure(&mut self) -> Result<()> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn launch_complete(&mut self) {
        while self.failure.is_none()
            && self.next < self.missing.len()
            && self.missing[self.next] == 0
        {
            let bucket = self.next;
            self.next += 1;
            if let Err(error) = self.launch(bucket) {
                self.fail(error);
            }
        }
    }

    /// Packs a bucket's gradients and sends or keeps them, as the stage says.
    fn launch(&mut self, bucket: usize) -> Result<()> {
        let table = self.table.clone();
        let pieces = &table.buckets()[bucket].pieces;
        let flats = pieces.iter().map(|piece| self.arrived[piece.row].take());
        let flats: Vec<_> = flats.collect();
        let buffer = self.packed(&table.buckets()[bucket], flats)?;
        self.signs.sum(self.micro_batches, bucket, &buffer);
        match self.policy.reduce {
            Reduce::EveryMicroBatch => self.send(bucket, buffer),
            Reduce::OncePerStep => {
                let sum = match self.gradients[bucket].take() {
                    Some(earlier) => earlier + buffer.cast(self.held),
                    None => buffer.cast(self.held),
                };
                if self.micro_batches + 1 == self.accumulate {
                    self.reduced = true;
                    self.send(bucket, sum)
                } else {
                    self.gradients[bucket] = Some(sum);
                    Ok(())
                }
            }
        }
    }

    /// The buffer of a bucket from the gradients of its pieces, zeros where there is none.
    fn packed(&self, bucket: &Bucket, flats: Vec<Option<Tensor<1>>>) -> Result<Tensor<1>> {
        #[cfg(feature = "tch")]
        if let Some(buffer) = crate::libtorch::pack(&self.table, bucket, &flats, self.dtype)? {
            return Ok(buffer);
        }
        let flats = bucket.pieces.iter().zip(flats).map(|(piece, flat)| {
            let numel = self.table.rows()[piece.row].numel();
            let flat = flat.unwrap_or_else(|| zeros(numel, &self.device, self.dtype));
            flat.cast(self.dtype)
        });
        Ok(pack_whole(&self.table, bucket, flats.collect()))
    }

    fn send(&mut self, bucket: usize, buffer: Tensor<1>) -> Result<()> {
        let buffer = buffer.cast(self.dtype);
        let bytes = bytes(&buffer);
        self.make_room(bytes)?;
        let pending = match self.policy.extent {
            Extent::Whole => self.groups.shards.all_reduce(buffer)?,
            Extent::Shard => self.groups.shards.reduce_scatter(buffer)?,
        };
        self.travels(bucket, bytes, pending)
    }

    fn travels(&mut self, bucket: usize, bytes: usize, pending: Pending) -> Result<()> {
        self.travelling += bytes;
        self.travelling_peak = self.travelling_peak.max(self.travelling);
        self.in_flight.push_back(Travelling {
            bucket,
            bytes,
            pending,
        });
        self.drain(self.in_flight_limit)
    }

    /// Waits until another buffer of `bytes` may travel.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        while !self.in_flight.is_empty()
            && (self.in_flight.len() >= self.in_flight_limit
                || self.travelling + bytes > self.travelling_limit)
        {
            self.drain(self.in_flight.len() - 1)?;
        }
        Ok(())
    }

    /// Waits until at most `limit` buckets are in flight.
    fn drain(&mut self, limit: usize) -> Result<()> {
        while self.in_flight.len() > limit
            && let Some(front) = self.in_flight.pop_front()
        {
            self.travelling -= front.bytes;
            let bucket = front.bucket;
            let reduced = front.pending.wait()?.cast(self.held);
            let sum = match self.gradients[bucket].take() {
                Some(earlier) => earlier + reduced,
                None => reduced,
            };
            self.gradients[bucket] = Some(sum);
        }
        Ok(())
    }
}

fn bytes(tensor: &Tensor<1>) -> usize {
    tensor.dims()[0] * tensor.dtype().size()
}
