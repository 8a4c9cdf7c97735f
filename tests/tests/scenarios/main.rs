//! What users of sharded training ran into, as tests: each is named by its id in the catalogue of such reports.

mod accumulation;
mod files;
mod precision;
mod same_bits;
mod states;
mod uneven;

use std::sync::Arc;

use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_tests::nasty::{Case, Named, Trained, difference, train};
use terrashard_zero::{Offload, Result};

pub(crate) const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];
pub(crate) const SHARDING: [Stage; 3] = [Stage::One, Stage::Two, Stage::Three];

/// The results of all ranks.
pub(crate) fn ranks<T: Send>(
    ranks: usize,
    body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync,
) -> Vec<T> {
    let results = local::run(ranks, |communicator| body(Arc::new(communicator)));
    results.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn run(case: &Case) -> Trained {
    ranks(case.ranks, |communicator| train(case, communicator)).swap_remove(0)
}

pub(crate) fn case(ranks: usize, stage: Stage, change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new(ranks);
    case.config.stage = stage;
    case.steps = 5;
    change(&mut case);
    case
}

pub(crate) fn offloaded(stage: Stage) -> Offload {
    match stage {
        Stage::Zero => Offload::None,
        Stage::One | Stage::Two => Offload::Optimizer,
        Stage::Three => Offload::Parameters,
    }
}

pub(crate) fn close(got: &Named, expected: &Named, bound: f64, what: &str) {
    let (apart, name) = difference(got, expected);
    assert!(apart <= bound, "{what}: {name} is off by {apart:e}");
}
