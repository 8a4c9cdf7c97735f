//! The global sample cursor: which sample comes when, whatever the number of ranks.

use crate::counter::Stream;
use crate::{Error, Result};

/// The order of an endless stream of samples: a seeded permutation per epoch, each sample once per epoch.
///
/// The permutation is the swap-or-not shuffle (Hoang, Morris, Rogaway 2012, <https://eprint.iacr.org/2012/254>):
/// any position can be asked for at once, without memory, so a run resumes from a cursor alone.
///
/// ```
/// use terrashard_layout::SampleOrder;
///
/// let order = SampleOrder::new(3, 42)?;
/// let mut epoch: Vec<usize> = (3..6).map(|cursor| order.at(cursor)).collect();
/// epoch.sort();
/// assert_eq!(epoch, [0, 1, 2]);
/// # Ok::<(), terrashard_layout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleOrder {
    samples: u64,
    stream: Stream,
}

impl SampleOrder {
    /// The order of `samples` samples under `seed`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSamples`] if `samples` is 0.
    pub fn new(samples: usize, seed: u64) -> Result<Self> {
        if samples == 0 {
            return Err(Error::NoSamples);
        }
        Ok(Self {
            samples: samples as u64,
            stream: Stream::new(seed, "sample order"),
        })
    }

    /// Samples in an epoch.
    pub fn samples(&self) -> usize {
        self.samples as usize
    }

    /// The epoch that `cursor` lies in, from 0.
    pub fn epoch(&self, cursor: u64) -> u64 {
        cursor / self.samples
    }

    /// The `cursor`-th sample of the stream, in `0..samples`.
    pub fn at(&self, cursor: u64) -> usize {
        let n = self.samples;
        let epoch = self.stream.child(cursor / n);
        let mut position = cursor % n;
        // Each round pairs every position with its mirror image about a random point and swaps each pair or not,
        // by a bit that both members compute alike. Six rounds per bit of `n` mix well; small sets get more.
        let rounds = 32 + 6 * u64::from(u64::BITS - n.leading_zeros());
        for round in 0..rounds {
            let keys = epoch.child(round);
            let mirror = (keys.below(u64::MAX, n) + n - position) % n;
            if keys.bits(position.max(mirror)) >> 63 == 1 {
                position = mirror;
            }
        }
        position as usize
    }
}
