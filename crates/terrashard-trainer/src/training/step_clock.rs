//! Where a step's time goes.

use std::sync::Arc;
use std::time::Instant;

use super::metered_communicator::Waited;
use crate::record::StepTimes;

/// What a rank is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waiting for a batch.
    Data,
    /// Forward and backward.
    Compute,
    /// The update.
    Optimizer,
    /// Saving.
    Checkpoint,
    /// Measuring the model.
    Validation,
}

/// Measures the phases of a rank; the time in which the rank waits for others counts as communication
/// in any of them but saving.
#[derive(Debug)]
pub(super) struct StepClock {
    waited: Arc<Waited>,
    times: StepTimes,
}

impl StepClock {
    pub(super) fn new(waited: Arc<Waited>) -> Self {
        Self {
            waited,
            times: StepTimes::default(),
        }
    }

    /// The clock by itself, for work that borrows its owner; it goes back after that.
    pub(super) fn lend(&mut self) -> Self {
        Self {
            waited: self.waited.clone(),
            times: self.take(),
        }
    }

    /// Does some work of a phase.
    pub(super) fn measure<T>(&mut self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let (began, before) = (Instant::now(), self.waited.total());
        let result = work();
        // Saving is told as a whole: its barriers wait for disks.
        let waited = match phase {
            Phase::Checkpoint => 0.0,
            _ => (self.waited.total() - before).as_secs_f64(),
        };
        let own = (began.elapsed().as_secs_f64() - waited).max(0.0);
        let times = &mut self.times;
        let phase = match phase {
            Phase::Data => &mut times.data,
            Phase::Compute => &mut times.compute,
            Phase::Optimizer => &mut times.optimizer,
            Phase::Checkpoint => &mut times.checkpoint,
            Phase::Validation => &mut times.validation,
        };
        *phase += own;
        times.communication += waited;
        result
    }

    /// The times since the last call.
    pub(super) fn take(&mut self) -> StepTimes {
        std::mem::take(&mut self.times)
    }
}
