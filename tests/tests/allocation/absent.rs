//! A rank by itself that takes itself for one of several.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use terrashard_collectives::{Communicator, Pending, Result, Traffic};

/// One rank whose others are not there: they would say the same as it does.
#[derive(Debug)]
pub(crate) struct Alone {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

impl Communicator for Alone {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        assert_eq!(
            input.dtype(),
            DType::F64,
            "tables are compared, nothing else"
        );
        let all = Tensor::cat(vec![input; self.ranks], 0);
        Ok(Pending::ready(all))
    }

    fn all_reduce(&self, _input: Tensor<1>) -> Result<Pending> {
        unreachable!("nothing is added up at the start")
    }

    fn reduce_scatter(&self, _input: Tensor<1>) -> Result<Pending> {
        unreachable!("nothing is added up at the start")
    }

    fn broadcast(&self, _input: Tensor<1>, _root: usize) -> Result<Pending> {
        unreachable!("values follow from names")
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn split(&self, _color: usize) -> Result<Arc<dyn Communicator>> {
        unreachable!("there is one group")
    }

    fn abort(&self, _reason: &str) {}

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}
