//! Batches prepared ahead, on threads of their own.

use std::ops::Range;
use std::sync::Arc;
#[cfg(not(feature = "shuttle"))]
use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{Builder, JoinHandle},
};

#[cfg(feature = "shuttle")]
use shuttle::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{Builder, JoinHandle},
};
use terrashard_layout::{BatchShape, SampleOrder};

use crate::{Batch, Chips, Error, Result};

/// Which share of the samples a loader gives, and how far ahead it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// The rank that the batches are for.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Samples of one micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of one step.
    pub accumulate: usize,
    /// Samples that were taken before, by all ranks together: 0, or what a checkpoint says.
    pub cursor: u64,
    /// The cursor at which the stream ends, for instance after whole epochs; `None` if it never does. The window that
    /// reaches it may be partial.
    pub end: Option<u64>,
    /// Steps to prepare; `None` prepares all up to the stream's end.
    pub steps: Option<u64>,
    /// Batches prepared ahead, each on a thread of its own: what is ready or in the making beside the one that is taken. At
    /// least 1.
    pub prefetch: usize,
}

/// One micro-batch of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct MicroBatch {
    /// The cursor at which its step begins, the same on every rank.
    pub cursor: u64,
    /// The cursors of all samples of its step, over all ranks and micro-batches: what losses divide by.
    pub window: Range<u64>,
    /// Its number in the step, below [`LoaderOptions::accumulate`].
    pub number: usize,
    /// Its samples; none if it [is idle](Self::is_idle).
    pub batch: Batch,
}

impl MicroBatch {
    /// Whether the rank has no samples here while others may have some. It happens in the last window of a stream only,
    /// where less is left than the ranks could take. Every rank has the same number of micro-batches all the same, so that
    /// they meet in the same collectives: an idle one contributes zeros to the step's sums.
    pub fn is_idle(&self) -> bool {
        self.batch.samples == 0
    }
}

/// The micro-batches of one rank, step after step. Dropping it ends its threads.
#[derive(Debug)]
pub struct Loader {
    /// They take turns.
    workers: Vec<Worker>,
    /// Whose turn it is; none once the stream has ended.
    turn: Option<usize>,
}

/// A thread and what it has made.
#[derive(Debug)]
struct Worker {
    batches: Receiver<Result<MicroBatch>>,
    thread: JoinHandle<()>,
}

impl Loader {
    /// Starts preparing the batches of a rank.
    ///
    /// All ranks together take the samples `order.at(cursor)`, `order.at(cursor + 1)` and so on, each exactly once. Where
    /// the stream ends in a partial window, its samples are spread over the ranks as [`terrashard_layout::Window`] says.
    ///
    /// # Errors
    /// [`Error::Setting`] where the rank is not below the ranks, a number is 0, there are more ranks than samples, or
    /// `order` is of another number of samples.
    pub fn new(chips: Arc<Chips>, order: SampleOrder, options: LoaderOptions) -> Result<Self> {
        let LoaderOptions {
            rank,
            ranks,
            micro_batch: n,
            accumulate,
            prefetch,
            ..
        } = options;
        let refuse = |key, what: String| Err(Error::Setting { key, what });
        if rank >= ranks {
            return refuse(
                "ranks",
                format!("{ranks} ranks have no rank {rank}; count ranks from 0"),
            );
        }
        for (key, number) in [
            ("micro_batch", n),
            ("accumulate", accumulate),
            ("prefetch", prefetch),
        ] {
            if number == 0 {
                return refuse(key, "0; choose at least 1".to_owned());
            }
        }
        if order.samples() != chips.len() {
            return refuse(
                "samples",
                format!(
                    "the order has {}, the chips {}",
                    order.samples(),
                    chips.len()
                ),
            );
        }
        if ranks > chips.len() {
            return refuse(
                "ranks",
                format!(
                    "{ranks} ranks for {} samples; use fewer ranks or smaller chips",
                    chips.len()
                ),
            );
        }
        let start = |turn| {
            // One that is ready waits in its thread until it is taken.
            let (sender, batches) = sync_channel(0);
            let chips = chips.clone();
            let work = move || prepare(&chips, &order, options, turn, &sender);
            let thread = Builder::new()
                .name(format!("loader {rank}.{turn}"))
                .spawn(work);
            let thread = thread.map_err(|e| Error::Setting {
                key: "prefetch",
                what: format!("no thread could be started: {e}"),
            })?;
            Ok(Worker { batches, thread })
        };
        Ok(Self {
            workers: (0..prefetch).map(start).collect::<Result<_>>()?,
            turn: Some(0),
        })
    }
}

/// Sends every `prefetch`-th micro-batch from number `turn` on until an error, the last step, or the receiver's end.
fn prepare(
    chips: &Chips,
    order: &SampleOrder,
    options: LoaderOptions,
    turn: usize,
    sender: &SyncSender<Result<MicroBatch>>,
) {
    let LoaderOptions {
        rank,
        ranks,
        micro_batch: n,
        accumulate,
        prefetch,
        ..
    } = options;
    let shape = BatchShape {
        ranks,
        micro_batch: n,
        accumulate,
    };
    for step in 0..options.steps.unwrap_or(u64::MAX) {
        let cursor = options.cursor + step * shape.global_batch();
        let window = shape.window(cursor, options.end);
        if window.is_empty() {
            return;
        }
        let first = step * accumulate as u64;
        let own = |number: &usize| (first + *number as u64) % prefetch as u64 == turn as u64;
        for number in (0..accumulate).filter(own) {
            #[cfg(feature = "faults")]
            let batch = crate::faults::point(rank)
                .and_then(|()| chips.batch_at(order, window.micro_batch(rank, number)));
            #[cfg(not(feature = "faults"))]
            let batch = chips.batch_at(order, window.micro_batch(rank, number));
            let failed = batch.is_err();
            let item = batch.map(|batch| MicroBatch {
                cursor,
                window: window.samples(),
                number,
                batch,
            });
            if sender.send(item).is_err() || failed {
                return;
            }
        }
    }
}

impl Iterator for Loader {
    type Item = Result<MicroBatch>;

    /// The next micro-batch; after an error, or the last step, none.
    fn next(&mut self) -> Option<Self::Item> {
        let turn = self.turn.take()?;
        if let Ok(item) = self.workers[turn].batches.recv() {
            self.turn = item.is_ok().then_some((turn + 1) % self.workers.len());
            return Some(item);
        }
        // The first thread that has no more is that of the micro-batch behind the last one.
        let thread = self.workers.swap_remove(turn).thread;
        thread.join().is_err().then_some(Err(Error::LoaderPanicked))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Without a receiver a thread's next send fails, so it ends after at most one more batch.
        let threads: Vec<_> = self.workers.drain(..).map(|worker| worker.thread).collect();
        for thread in threads {
            // A panic of a thread was told by its message; a destructor has nobody to return it to.
            let _ = thread.join();
        }
    }
}
