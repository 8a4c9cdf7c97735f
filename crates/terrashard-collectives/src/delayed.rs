//! A communicator for tests that is late at random, to prove that timing changes no result.
//!
//! Overlap of communication and computation has to be invisible: the same calls in the same order, whatever arrives
//! when. A run whose ranks communicate through [`Delayed`] must therefore equal one whose ranks do not, bit for bit.
//!
//! ```
//! use std::time::Duration;
//!
//! use burn::tensor::{Device, Tensor};
//! use terrashard_collectives::delayed::Delayed;
//! use terrashard_collectives::{Communicator, Error, local};
//!
//! let sums = local::run(2, |rank| {
//!     let rank = Delayed::new(rank, 7, Duration::from_millis(1));
//!     let sum = rank.all_reduce(Tensor::<1>::from_floats([0.5], &Device::flex()))?.wait()?;
//!     Ok::<_, Error>(sum.into_scalar::<f32>())
//! })?;
//! assert_eq!(sums, [1.0, 1.0]);
//! # Ok::<(), local::RunError<Error>>(())
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use burn::tensor::Tensor;

use crate::scramble::scramble;
use crate::{Communicator, Pending, Result, Traffic};

/// Passes every call on to another communicator, but waits before each call, before a call that has begun returns, and
/// before and after each wait for a result. Half of the times it does not wait at all; the other half takes up to the
/// longest delay.
///
/// The delays follow from the seed, the rank and the number of delays before, so that ranks are late in turns.
#[derive(Debug, Clone)]
pub struct Delayed<C> {
    inner: C,
    delays: Arc<Delays>,
}

/// A sequence of delays.
#[derive(Debug)]
struct Delays {
    seed: u64,
    taken: AtomicU64,
    longest: Duration,
}

impl Delays {
    fn new(seed: u64, longest: Duration) -> Self {
        Self {
            seed,
            taken: AtomicU64::new(0),
            longest,
        }
    }

    /// The next delay.
    fn next(&self) -> Duration {
        let count = self.taken.fetch_add(1, Ordering::Relaxed);
        let bits = scramble(self.seed.wrapping_add(scramble(count)));
        if bits & 1 == 0 {
            return Duration::ZERO;
        }
        let share = (bits >> 11) as f64 / (1u64 << 53) as f64;
        self.longest.mul_f64(share)
    }

    fn take(&self) {
        let delay = self.next();
        if delay.is_zero() {
            // Let others pass nevertheless.
            thread::yield_now();
        } else {
            thread::sleep(delay);
        }
    }
}

impl<C: Communicator> Delayed<C> {
    /// `inner` with delays of `longest` at most.
    pub fn new(inner: C, seed: u64, longest: Duration) -> Self {
        let seed = scramble(seed ^ scramble(inner.rank() as u64));
        Self {
            inner,
            delays: Arc::new(Delays::new(seed, longest)),
        }
    }

    fn delay(&self, begin: impl FnOnce() -> Result<Pending>) -> Result<Pending> {
        self.delays.take();
        let pending = begin()?;
        self.delays.take();
        let delays = Arc::clone(&self.delays);
        Ok(Pending::new(move || {
            delays.take();
            let result = pending.wait();
            delays.take();
            result
        }))
    }
}

impl<C: Communicator> Communicator for Delayed<C> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending> {
        self.delay(|| self.inner.all_reduce(input))
    }

    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending> {
        self.delay(|| self.inner.reduce_scatter(input))
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        self.delay(|| self.inner.all_gather(input))
    }

    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending> {
        self.delay(|| self.inner.broadcast(input, root))
    }

    fn barrier(&self) -> Result<()> {
        self.delays.take();
        self.inner.barrier()?;
        self.delays.take();
        Ok(())
    }

    /// A group whose calls are delayed as well, by delays of its own.
    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        self.delays.take();
        let group = self.inner.split(color)?;
        let seed = scramble(self.delays.seed ^ self.delays.taken.load(Ordering::Relaxed));
        Ok(Arc::new(Delayed::new(group, seed, self.delays.longest)))
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_follow_from_the_seed() {
        let longest = Duration::from_secs(1);
        let sequence = |seed| {
            let delays = Delays::new(seed, longest);
            (0..1000).map(|_| delays.next()).collect::<Vec<_>>()
        };
        let delays = sequence(3);
        assert_eq!(delays, sequence(3));
        assert_ne!(delays, sequence(4));
        assert!(delays.iter().all(|delay| *delay <= longest));
        let none = delays.iter().filter(|delay| delay.is_zero()).count();
        assert!((400..600).contains(&none), "{none} of 1000 are zero");
        let mean = delays.iter().sum::<Duration>() / 1000;
        let quarter = Duration::from_millis(220)..Duration::from_millis(280);
        assert!(quarter.contains(&mean), "{mean:?} on average");
    }
}
