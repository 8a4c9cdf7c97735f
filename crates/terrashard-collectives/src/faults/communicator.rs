//! A communicator whose calls and waits are points.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::{Strike, pass};
use crate::{Communicator, Error, Pending, Result, Traffic, Verb};

/// Passes every call on to another communicator, and the points of its rank on the way: the verb's name before each call, `wait`
/// before each wait. Ranks are counted as the run does, also in groups.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Communicator>,
    /// The rank in the run.
    rank: usize,
}

impl Faulty {
    /// `inner`, the communicator of all ranks, with points.
    pub fn new(inner: Arc<dyn Communicator>) -> Self {
        let rank = inner.rank();
        Self { inner, rank }
    }

    fn start(
        &self,
        verb: Verb,
        input: Tensor<1>,
        call: impl FnOnce(Tensor<1>) -> Result<Pending>,
    ) -> Result<Pending> {
        let rank = self.rank;
        let name = match verb {
            Verb::Broadcast { .. } => "broadcast".to_owned(),
            verb => verb.to_string(),
        };
        let input = match pass(&name, rank) {
            None | Some(Strike::Nan) => input,
            Some(Strike::Length) => longer(input, self.inner.ranks()),
            Some(Strike::Branch) => {
                self.inner.barrier()?;
                input
            }
            Some(strike) => return Err(failed(strike)),
        };
        let pending = call(input)?;
        Ok(Pending::new(move || match pass("wait", rank) {
            Some(strike @ Strike::Io(_)) => Err(failed(strike)),
            _ => pending.wait(),
        }))
    }

    /// A call without elements.
    fn meet<T>(&self, name: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        match pass(name, self.rank) {
            Some(strike @ Strike::Io(_)) => return Err(failed(strike)),
            Some(Strike::Branch | Strike::Length) => {
                let one = Tensor::from_floats([1.0], &burn::tensor::Device::flex());
                self.inner.all_reduce(one)?.wait()?;
            }
            _ => {}
        }
        call()
    }
}

/// As many elements more as keep it divisible by the ranks.
fn longer(input: Tensor<1>, ranks: usize) -> Tensor<1> {
    let more = Tensor::zeros([ranks], (&input.device(), input.dtype()));
    Tensor::cat(vec![input, more], 0)
}

fn failed(strike: Strike) -> Error {
    Error::Transport {
        reason: strike.error().to_string(),
    }
}

impl Communicator for Faulty {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::AllReduce, input, |input| self.inner.all_reduce(input))
    }

    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::ReduceScatter, input, |input| {
            self.inner.reduce_scatter(input)
        })
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::AllGather, input, |input| self.inner.all_gather(input))
    }

    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending> {
        self.start(Verb::Broadcast { root }, input, |input| {
            self.inner.broadcast(input, root)
        })
    }

    fn barrier(&self) -> Result<()> {
        self.meet("barrier", || self.inner.barrier())
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        let inner = self.meet("split", || self.inner.split(color))?;
        Ok(Arc::new(Self {
            inner,
            rank: self.rank,
        }))
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}
