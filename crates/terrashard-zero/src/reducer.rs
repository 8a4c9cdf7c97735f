//! Gradients on their way from burn's backward to the ranks that own them.
//!
//! A gradient that arrives waits until its bucket is complete. Complete buckets are launched in table order, so every
//! rank issues the same collectives in the same order however its backward happened to run. At most
//! [`IN_FLIGHT`] buckets travel at once: that bounds the memory of buffers to a few buckets while backward goes on.

use std::collections::VecDeque;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use terrashard_collectives::{Communicator, Pending};
use terrashard_layout::ShardTable;

use crate::error::{Error, Result};
use crate::packing::{pack_whole, zeros};
use crate::policy::{Extent, Policy, Reduce};

/// Buckets that may travel at once.
const IN_FLIGHT: usize = 2;

/// Collects, packs and reduces the gradients of one rank.
#[derive(Debug)]
pub(crate) struct Reducer {
    table: Arc<ShardTable>,
    communicator: Arc<dyn Communicator>,
    policy: Policy,
    device: Device,
    dtype: DType,
    accumulate: usize,
    /// For each row: the bucket that it is in.
    bucket_of: Vec<Option<usize>>,
    /// For each row: how often its value entered the graph in this micro-batch and has not come back as a gradient.
    outstanding: Vec<usize>,
    /// For each row: the gradient that arrived in this micro-batch, flat.
    arrived: Vec<Option<Tensor<1>>>,
    /// For each bucket: pieces whose gradient is not complete.
    missing: Vec<usize>,
    /// The next bucket to launch.
    next: usize,
    in_flight: VecDeque<(usize, Pending)>,
    /// For each bucket: the gradient so far. Local sums `[ranks * chunk]` before the reduction, then what the
    /// stage's extent says.
    gradients: Vec<Option<Tensor<1>>>,
    reduced: bool,
    micro_batches: usize,
    failure: Option<Error>,
}

impl Reducer {
    pub(crate) fn new(
        table: Arc<ShardTable>,
        communicator: Arc<dyn Communicator>,
        policy: Policy,
        device: Device,
        dtype: DType,
        accumulate: usize,
    ) -> Self {
        let mut bucket_of = vec![None; table.rows().len()];
        for (index, bucket) in table.buckets().iter().enumerate() {
            for piece in &bucket.pieces {
                bucket_of[piece.row] = Some(index);
            }
        }
        Self {
            policy,
            device,
            dtype,
            accumulate,
            bucket_of,
            outstanding: vec![0; table.rows().len()],
            arrived: vec![None; table.rows().len()],
            missing: Vec::new(),
            next: 0,
            in_flight: VecDeque::new(),
            gradients: vec![None; table.buckets().len()],
            reduced: false,
            micro_batches: 0,
            failure: None,
            table,
            communicator,
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
        self.missing = self
            .table
            .buckets()
            .iter()
            .map(|bucket| bucket.pieces.len())
            .collect();
        self.next = 0;
        Ok(())
    }

    /// Takes one gradient of `row`, flat. A parameter that entered several times has several; they add up.
    pub(crate) fn deliver(&mut self, row: usize, gradient: Tensor<1>) {
        let sum = match self.arrived[row].take() {
            Some(earlier) => earlier + gradient,
            None => gradient,
        };
        self.arrived[row] = Some(sum);
        self.outstanding[row] = self.outstanding[row].saturating_sub(1);
        if self.outstanding[row] == 0
            && let Some(bucket) = self.bucket_of[row]
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
        self.outstanding.fill(0);
        if let Err(error) = self.drain(0) {
            self.fail(error);
        }
        self.micro_batches += 1;
        self.take_failure()
    }

    /// The reduced gradient of every bucket, in the stage's extent, and the number of micro-batches in it; the window
    /// starts anew. A window cut short is reduced here.
    pub(crate) fn take(&mut self) -> Result<(Vec<Tensor<1>>, usize)> {
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
        self.reduced = false;
        let ranks = self.table.ranks();
        let taken =
            self.gradients
                .iter_mut()
                .zip(self.table.buckets())
                .map(|(gradient, bucket)| {
                    let len = self.policy.extent.elements(bucket, ranks);
                    gradient
                        .take()
                        .unwrap_or_else(|| zeros(len, &self.device, self.dtype))
                });
        Ok((taken.collect(), micro_batches))
    }

    /// Bytes of gradients that this rank holds now.
    pub(crate) fn held_bytes(&self) -> usize {
        let held = self.gradients.iter().chain(&self.arrived).flatten();
        held.map(|gradient| gradient.dims()[0] * gradient.dtype().size())
            .sum()
    }

    fn take_failure(&mut self) -> Result<()> {
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
        let flats = pieces.iter().map(|piece| {
            let numel = table.rows()[piece.row].numel();
            self.arrived[piece.row]
                .take()
                .unwrap_or_else(|| zeros(numel, &self.device, self.dtype))
        });
        let buffer = pack_whole(&table, &table.buckets()[bucket], flats.collect());
        match self.policy.reduce {
            Reduce::EveryMicroBatch => self.send(bucket, buffer),
            Reduce::OncePerStep => {
                let sum = match self.gradients[bucket].take() {
                    Some(earlier) => earlier + buffer,
                    None => buffer,
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

    fn send(&mut self, bucket: usize, buffer: Tensor<1>) -> Result<()> {
        let pending = match self.policy.extent {
            Extent::Whole => self.communicator.all_reduce(buffer)?,
            Extent::Shard => self.communicator.reduce_scatter(buffer)?,
        };
        self.in_flight.push_back((bucket, pending));
        self.drain(IN_FLIGHT)
    }

    /// Waits until at most `limit` buckets are in flight.
    fn drain(&mut self, limit: usize) -> Result<()> {
        while self.in_flight.len() > limit
            && let Some((bucket, pending)) = self.in_flight.pop_front()
        {
            let reduced = pending.wait()?;
            let sum = match self.gradients[bucket].take() {
                Some(earlier) => earlier + reduced,
                None => reduced,
            };
            self.gradients[bucket] = Some(sum);
        }
        Ok(())
    }
}
