//! The running statistics of batch normalisation, which are no parameters: what makes them equal on all ranks.

use terrashard_models::S2s2Net;
use terrashard_zero::ShardedParameters;

use crate::config::BatchNormStatistics;
use crate::error::Result;

/// Makes the running statistics the same on every rank, before they are saved or tested. Collective.
///
/// With statistics over all ranks they are the same already. Averaged ones are the mean over ranks; local ones those of
/// rank 0, on all.
///
/// # Errors
/// [`crate::Error::Zero`].
pub(super) fn settle(
    model: &S2s2Net,
    parameters: &ShardedParameters,
    batch_norm: BatchNormStatistics,
) -> Result<()> {
    let mut buffers = model.buffers();
    let communicator = parameters.communicator();
    let share = match batch_norm {
        BatchNormStatistics::Sync => return Ok(()),
        BatchNormStatistics::AverageAtSave => 1.0 / communicator.ranks() as f64,
        BatchNormStatistics::Local if communicator.rank() == 0 => 1.0,
        BatchNormStatistics::Local => 0.0,
    };
    let own = buffers.iter().flat_map(|(_, values)| values);
    let summed = parameters.sum_over_ranks(own.map(|value| value * share).collect())?;
    let mut summed = summed.into_iter();
    for value in buffers.iter_mut().flat_map(|(_, values)| values) {
        *value = summed.next().expect("as many sums as values");
    }
    Ok(model.load_buffers(&buffers)?)
}
