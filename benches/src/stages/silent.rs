//! A communicator that can stop to move anything between ranks: what a step costs without communication.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;
use terrashard_collectives::{Communicator, Pending, Result, Traffic};

/// A communicator that from some moment on moves nothing.
///
/// What comes back then has the right length and holds values of this rank alone, each parameter's own, so that the work of the
/// ranks goes on with numbers of the usual size. A training goes nowhere from there.
#[derive(Debug)]
pub(super) struct Silent {
    inner: Arc<dyn Communicator>,
    silent: Arc<AtomicBool>,
}

impl Silent {
    pub(super) fn new(inner: Arc<dyn Communicator>) -> Self {
        Self {
            inner,
            silent: Arc::default(),
        }
    }

    /// What makes it silent. Every rank sets it between the same two steps.
    pub(super) fn switch(&self) -> Arc<AtomicBool> {
        self.silent.clone()
    }

    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed) && self.inner.ranks() > 1
    }
}

impl Communicator for Silent {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending> {
        match self.is_silent() {
            true => Ok(Pending::ready(input)),
            false => self.inner.all_reduce(input),
        }
    }

    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending> {
        if !self.is_silent() {
            return self.inner.reduce_scatter(input);
        }
        let part = input.dims()[0] / self.ranks();
        Ok(Pending::ready(input.narrow(0, self.rank() * part, part)))
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        match self.is_silent() {
            true => Ok(Pending::ready(input.repeat(&[self.ranks()]))),
            false => self.inner.all_gather(input),
        }
    }

    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending> {
        match self.is_silent() {
            true => Ok(Pending::ready(input)),
            false => self.inner.broadcast(input, root),
        }
    }

    fn barrier(&self) -> Result<()> {
        self.inner.barrier()
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Self {
            inner: self.inner.split(color)?,
            silent: self.silent.clone(),
        }))
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
    use burn::tensor::{Device, TensorData};
    use terrashard_collectives::local;

    use super::*;

    #[test]
    fn silent_ranks_keep_lengths_and_see_themselves_alone() {
        let seen = local::run(2, |rank| {
            let own = rank.rank() as f32;
            let communicator = Silent::new(Arc::new(rank));
            let tensor = || Tensor::<1>::from_floats([own, own + 10.0], &Device::flex());
            let all = |communicator: &Silent| -> Result<Vec<TensorData>> {
                let results = [
                    communicator.all_reduce(tensor())?,
                    communicator.reduce_scatter(tensor())?,
                    communicator.all_gather(tensor())?,
                ];
                let data = |pending: Pending| Ok(pending.wait()?.into_data());
                results.into_iter().map(data).collect()
            };
            let before = all(&communicator)?;
            let sent = communicator.traffic();
            communicator.switch().store(true, Ordering::Relaxed);
            let after = all(&communicator)?;
            assert_eq!(communicator.traffic(), sent);
            Ok::<_, terrashard_collectives::Error>((before, after))
        })
        .unwrap();
        let (before, after) = &seen[1];
        let floats = |values: &[f32]| TensorData::from(values);
        assert_eq!(before[0], floats(&[1.0, 21.0]));
        assert_eq!(before[2], floats(&[0.0, 10.0, 1.0, 11.0]));
        assert_eq!(after[0], floats(&[1.0, 11.0]));
        assert_eq!(after[1], floats(&[11.0]));
        assert_eq!(after[2], floats(&[1.0, 11.0, 1.0, 11.0]));
    }
}
