//! A communicator that measures how long its rank waits: communication that nothing hides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use terrashard_collectives::{Communicator, Pending, Result, Traffic};

/// Time that a rank spent in calls and waits, over a communicator and the groups split from it.
#[derive(Debug, Default)]
pub(crate) struct Waited(AtomicU64);

impl Waited {
    /// The time so far.
    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
        result
    }
}

/// A communicator with the time that its rank waits for it.
#[derive(Debug)]
pub(crate) struct MeteredCommunicator {
    inner: Arc<dyn Communicator>,
    waited: Arc<Waited>,
}

impl MeteredCommunicator {
    /// `inner`, measured from now on.
    pub(crate) fn new(inner: Arc<dyn Communicator>) -> Self {
        Self {
            inner,
            waited: Arc::default(),
        }
    }

    /// The measure, which goes on.
    pub(crate) fn waited(&self) -> Arc<Waited> {
        self.waited.clone()
    }

    fn start(&self, call: impl FnOnce() -> Result<Pending>) -> Result<Pending> {
        let pending = self.waited.measure(call)?;
        let waited = self.waited.clone();
        Ok(Pending::new(move || waited.measure(|| pending.wait())))
    }
}

impl Communicator for MeteredCommunicator {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(|| self.inner.all_reduce(input))
    }

    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(|| self.inner.reduce_scatter(input))
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(|| self.inner.all_gather(input))
    }

    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending> {
        self.start(|| self.inner.broadcast(input, root))
    }

    fn barrier(&self) -> Result<()> {
        self.waited.measure(|| self.inner.barrier())
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Self {
            inner: self.waited.measure(|| self.inner.split(color))?,
            waited: self.waited.clone(),
        }))
    }
}
