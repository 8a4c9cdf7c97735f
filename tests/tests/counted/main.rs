//! What a rank holds and sends, counted, against the formulas and the layout's predictions.

mod memory;
mod traffic;

use std::sync::Arc;

use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_zero::Result;

pub(crate) const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

/// The results of all ranks.
pub(crate) fn ranks<T: Send>(
    ranks: usize,
    body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync,
) -> Vec<T> {
    let results = local::run(ranks, |communicator| body(Arc::new(communicator)));
    results.unwrap_or_else(|error| panic!("{error}"))
}
