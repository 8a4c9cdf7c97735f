//! Which rank takes which samples of a step.

use std::ops::Range;

/// How the samples of a step are shared out: `ranks * accumulate` micro-batches of `micro_batch` samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Ranks of the run, at least 1.
    pub ranks: usize,
    /// Samples of one micro-batch of one rank, at least 1.
    pub micro_batch: usize,
    /// Micro-batches of one rank in one step, at least 1.
    pub accumulate: usize,
}

impl BatchShape {
    /// Samples that a whole step takes over all ranks: what the cursor advances by.
    pub fn global_batch(self) -> u64 {
        self.ranks as u64 * self.micro_batch as u64 * self.accumulate as u64
    }

    /// Steps that a stream of `samples` samples gives. The last one is partial where they do not divide.
    pub fn steps(self, samples: u64) -> u64 {
        samples.div_ceil(self.global_batch())
    }

    /// The samples of the step that starts at `cursor`, of a stream that ends at `end` or never.
    pub fn window(self, cursor: u64, end: Option<u64>) -> Window {
        let whole = cursor + self.global_batch();
        let end = end.map_or(whole, |end| end.min(whole)).max(cursor);
        Window {
            shape: self,
            start: cursor,
            end,
        }
    }
}

/// The samples of one step.
///
/// A whole window gives each rank and micro-batch `micro_batch` samples. In the last one of a stream there may be fewer: they
/// are spread evenly, so that ranks differ by at most one sample and nothing is repeated or filled up. Every rank has the
/// same number of micro-batches all the same; some of them are empty then, the last ones of a rank first.
///
/// ```
/// use terrashard_layout::BatchShape;
///
/// let shape = BatchShape { ranks: 2, micro_batch: 2, accumulate: 2 };
/// assert_eq!(shape.window(0, Some(11)).micro_batch(1, 0), 4..6);
/// let last = shape.window(8, Some(11)); // three samples are left
/// assert_eq!([last.micro_batch(0, 0), last.micro_batch(0, 1)], [8..9, 9..9]);
/// assert_eq!([last.micro_batch(1, 0), last.micro_batch(1, 1)], [9..11, 11..11]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    shape: BatchShape,
    start: u64,
    end: u64,
}

impl Window {
    /// The cursors of all its samples: those that the step's losses divide by.
    pub fn samples(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Whether the stream has no more samples here.
    pub fn is_empty(&self) -> bool {
        self.samples().is_empty()
    }

    /// Whether no rank has samples in its micro-batch `m`, so that all may leave it out.
    pub fn is_idle(&self, m: usize) -> bool {
        // The last rank has a largest share.
        self.micro_batch(self.shape.ranks - 1, m).is_empty()
    }

    /// The cursors of `rank`'s samples in all its micro-batches.
    pub fn share(&self, rank: usize) -> Range<u64> {
        let (left, ranks) = (self.end - self.start, self.shape.ranks as u64);
        debug_assert!((rank as u64) < ranks, "rank {rank} of {ranks}");
        let border = |rank: u64| self.start + left * rank / ranks;
        border(rank as u64)..border(rank as u64 + 1)
    }

    /// The cursors of micro-batch `m`, below `accumulate`, of `rank`; maybe none.
    pub fn micro_batch(&self, rank: usize, m: usize) -> Range<u64> {
        debug_assert!(m < self.shape.accumulate, "micro-batch {m}");
        let (share, n) = (self.share(rank), self.shape.micro_batch as u64);
        let at = |m: usize| (share.start + n * m as u64).min(share.end);
        at(m)..at(m + 1)
    }
}

/// Samples that one optimizer step takes over all ranks: [`BatchShape::global_batch`].
pub fn global_batch(ranks: usize, micro_batch: usize, accumulate: usize) -> u64 {
    let shape = BatchShape {
        ranks,
        micro_batch,
        accumulate,
    };
    shape.global_batch()
}

/// The cursors of micro-batch `m` (of `accumulate`) of `rank` in the whole step whose samples start at `cursor`.
///
/// It starts at `cursor + n (rank * accumulate + m)`, where `n = micro_batch` is its number of samples. The
/// windows of all ranks and micro-batches are disjoint and cover `cursor..cursor + global_batch(..)`.
pub fn micro_batch(
    cursor: u64,
    rank: usize,
    ranks: usize,
    micro_batch: usize,
    accumulate: usize,
    m: usize,
) -> Range<u64> {
    let shape = BatchShape {
        ranks,
        micro_batch,
        accumulate,
    };
    shape.window(cursor, None).micro_batch(rank, m)
}
