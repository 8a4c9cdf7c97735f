//! What surrounds a forward pass and is no parameter of the model.

use crate::{Alone, Slots, SumOverRanks};
use std::sync::Arc;

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Normalise by the statistics of the batch and move the running ones.
    Training,
    /// A second run of a part of a training pass, in backward: as [`Training`](Self::Training), but the running statistics have
    /// moved already and stay.
    Recomputing,
    /// Normalise by the running statistics, drop nothing and change nothing.
    Inference,
}

/// From what the masks of dropout follow, beside the layer that drops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masks {
    /// The seed of the training.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
    /// Which sample each row of the batch is. Its masks are the same wherever in a batch it stands, and on whichever rank.
    pub samples: Arc<[u64]>,
}

/// What a block needs to know besides its parameters and inputs.
///
/// A block that is run again with the same inputs and masks, [`Mode::Recomputing`], and sums that
/// [`Replay`](crate::Replay) gives back, has bitwise the same output.
#[derive(Debug, Clone)]
pub struct Pass {
    /// What the pass is for.
    pub mode: Mode,
    /// How batch statistics are added over ranks.
    pub ranks: Arc<dyn SumOverRanks>,
    /// What dropout draws by; without it nothing is dropped.
    pub masks: Option<Masks>,
    /// Where operations that are a whole branch find their parameters; without it, in their layers.
    pub slots: Option<Slots>,
}

impl Pass {
    /// A pass of this mode on one rank by itself that drops nothing.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            ranks: Arc::new(Alone),
            masks: None,
            slots: None,
        }
    }
}
