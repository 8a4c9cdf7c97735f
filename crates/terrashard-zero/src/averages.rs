//! The moving averages in place of the parameters, for a while.

use burn::tensor::Tensor;

use crate::error::Result;
use crate::packing::unpack_whole;
use crate::parameters::dtype;
use crate::policy::Extent;
use crate::sharded_parameters::Core;
use crate::state::StateKind;
use crate::values::{Held, Resident};
use crate::zero_optimizer::ZeroOptimizer;

/// A value that another stands in for.
#[derive(Debug)]
enum Aside {
    Chunk(usize, Option<Resident>),
    Row(usize, Held),
}

impl ZeroOptimizer {
    /// Whether the moving average of the parameters is kept.
    pub fn has_averages(&self) -> bool {
        self.states.iter().any(|bucket| bucket.has_average())
    }

    /// Does some work with the moving averages of the parameters in their place, where they are kept; after it the parameters are the
    /// tensors that they were before. Without averages the work is done with the parameters.
    ///
    /// Takes as much memory beside everything else as the rank holds of the parameters: at stage 3 its shards. Collective; to be
    /// called between steps.
    ///
    /// # Errors
    /// [`crate::Error::Collective`].
    pub fn with_averages<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let core = &self.parameters.0;
        // What was gathered ahead is of the parameters themselves.
        core.gathers().settle()?;
        let mut aside = Vec::new();
        let mut buckets = 0..core.table.buckets().len();
        let replaced =
            buckets.try_for_each(|index| match self.bucket_state(index, StateKind::Ema) {
                Some(average) => core.replace(index, average, &mut aside),
                None => Ok(()),
            });
        let done = replaced.and_then(|()| {
            let done = work();
            // And what is gathered ahead by now is of the averages.
            core.gathers().settle()?;
            Ok(done)
        });
        let mut values = core.values_mut();
        for value in aside {
            match value {
                Aside::Chunk(bucket, chunk) => values.chunks[bucket] = chunk,
                Aside::Row(row, held) => values.rows[row] = held,
            }
        }
        done
    }
}

impl Core {
    /// Puts a state of a bucket, in the stage's extent, in the place of its parameters.
    fn replace(&self, index: usize, state: Tensor<1>, aside: &mut Vec<Aside>) -> Result<()> {
        let bucket = &self.table.buckets()[index];
        let state = state.cast(dtype(self.config.precision.compute()));
        if self.sharded_bucket(index) {
            let chunk = Resident::placed(state, self.config.offload);
            let before = self.values_mut().chunks[index].replace(chunk);
            aside.push(Aside::Chunk(index, before));
            return Ok(());
        }
        let whole = match self.policy.extent {
            Extent::Whole => state,
            Extent::Shard => self.groups.shards.all_gather(state)?.wait()?,
        };
        let flats = unpack_whole(&self.table, bucket, whole);
        let mut values = self.values_mut();
        for (piece, flat) in bucket.pieces.iter().zip(flats) {
            let row = &mut values.rows[piece.row];
            let before = std::mem::replace(row, Held::Whole(flat));
            aside.push(Aside::Row(piece.row, before));
        }
        Ok(())
    }
}
