//! What ranks tell each other beside a step's sums, at no collective of its own.

use super::saving::Standing;

/// Sums over all ranks that travel with a step's.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Told {
    /// Ranks that were asked to stop.
    pub(super) stop: f64,
    /// How far they are with the save that is under way.
    pub(super) saving: Standing,
    /// What their GPUs have taken since they told the last time.
    pub(super) joules: f64,
}

impl Told {
    pub(super) const COUNT: usize = 4;

    pub(super) fn own(self) -> [f64; Self::COUNT] {
        [self.stop, self.saving.done, self.saving.failed, self.joules]
    }

    pub(super) fn of(sums: &[f64]) -> Self {
        let (done, failed) = (sums[1], sums[2]);
        Self {
            stop: sums[0],
            saving: Standing { done, failed },
            joules: sums[3],
        }
    }
}
