//! What becomes of a step: applied, skipped or the end, the same on every rank.

use std::fmt;

use crate::config::{NonFinite, Precision, ZeroConfig};

/// Dynamic loss scaling of f16: the scale halves whenever a gradient overflows and doubles after a number of steps
/// without. A step is unscaled by the scale that its loss was multiplied with; the scale changes after that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// First scale. Default: 65536.
    pub initial: f64,
    /// Applied steps without overflow after which the scale doubles. Default: 2000.
    pub window: u32,
    /// The scale does not fall below. Default: 1.
    pub min: f64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self {
            initial: 65536.0,
            window: 2000,
            min: 1.0,
        }
    }
}

/// What became of a step. Every rank has the same outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutcome {
    /// The parameters were updated.
    Applied {
        /// Global gradient norm before clipping.
        norm: f64,
        /// What the gradients were multiplied with to clip them; 1 where they were not clipped.
        clip: f64,
        /// The scalars given to `step`, summed over ranks.
        scalars: Vec<f64>,
    },
    /// A gradient was not finite and nothing changed but the loss scale of f16.
    Skipped {
        /// Where the gradient came from.
        origin: Origin,
        /// Steps skipped in a row, with this one.
        in_a_row: u32,
        /// The loss scale of the next step, in f16.
        loss_scale: Option<f64>,
        /// The scalars given to `step`, summed over ranks.
        scalars: Vec<f64>,
    },
}

/// Where a non-finite gradient came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The rank whose own gradient, or what it gave to others before, was first not finite, in the order of micro-batches and passes; `None` where each
    /// was finite and only their sum overflowed.
    pub rank: Option<usize>,
    /// That micro-batch, from 0.
    pub micro_batch: usize,
    /// The first such parameter in the order of backward.
    pub parameter: String,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            micro_batch,
            parameter,
        } = self;
        match rank {
            Some(rank) => write!(
                f,
                "rank {rank}, micro-batch {micro_batch}, first in {parameter}"
            ),
            None if parameter.is_empty() => {
                f.write_str("no single gradient, but their sum of squares")
            }
            None => write!(f, "overflow of the sum over ranks, first in {parameter}"),
        }
    }
}

/// The loss scale does not rise above this.
const LARGEST_SCALE: f64 = (1u64 << 40) as f64;

/// How far training is: what a checkpoint keeps beside the tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Optimizer steps applied.
    pub steps: u64,
    /// Steps skipped in a row.
    pub skipped: u32,
    /// Scale of the loss, in f16 only.
    pub loss_scale: Option<f64>,
    /// Steps applied since the loss scale last changed.
    pub steady: u32,
}

impl Progress {
    /// The start of training.
    pub fn new(config: &ZeroConfig) -> Self {
        Self {
            steps: 0,
            skipped: 0,
            loss_scale: (config.precision == Precision::F16).then_some(config.loss_scale.initial),
            steady: 0,
        }
    }

    /// This as a training of another precision goes on from it: only f16 has a scale.
    pub(crate) fn fitting(self, config: &ZeroConfig) -> Self {
        let fresh = Self::new(config);
        match (self.loss_scale, fresh.loss_scale) {
            (Some(_), Some(_)) | (None, None) => self,
            (_, loss_scale) => Self {
                loss_scale,
                steady: 0,
                ..self
            },
        }
    }

    /// The factor on the loss, and its inverse the one on gradients.
    pub(crate) fn scale(&self) -> f64 {
        self.loss_scale.unwrap_or(1.0)
    }

    /// After a step was applied, and unscaled by the scale that its loss had.
    pub(crate) fn applied(&mut self, config: &ZeroConfig) {
        self.steps += 1;
        self.skipped = 0;
        let Some(scale) = &mut self.loss_scale else {
            return;
        };
        self.steady += 1;
        if self.steady >= config.loss_scale.window {
            self.steady = 0;
            // Beyond this, no loss is left to be scaled up.
            *scale = (*scale * 2.0).min(LARGEST_SCALE);
        }
    }

    /// After a gradient was not finite: whether the step is skipped. If not, the run ends.
    ///
    /// In f16, an overflow at a scale that can still fall is no fault of the data: the scale halves and the step is
    /// skipped under every policy.
    pub(crate) fn skips(&mut self, config: &ZeroConfig) -> bool {
        let LossScale { min, .. } = config.loss_scale;
        let scaled = self.loss_scale.is_some_and(|scale| scale > min);
        let skips = match config.nonfinite {
            NonFinite::Skip => true,
            NonFinite::SkipThenAbort(limit) => scaled || self.skipped < limit,
            NonFinite::Abort => scaled,
        };
        if skips {
            self.skipped += 1;
        }
        if let Some(scale) = self.loss_scale.as_mut().filter(|_| scaled) {
            *scale = (*scale / 2.0).max(min);
            self.steady = 0;
        }
        skips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(precision: Precision, nonfinite: NonFinite) -> ZeroConfig {
        let loss_scale = LossScale {
            initial: 4.0,
            window: 2,
            min: 1.0,
        };
        ZeroConfig {
            precision,
            nonfinite,
            loss_scale,
            ..ZeroConfig::default()
        }
    }

    #[test]
    fn the_scale_doubles_after_a_window_and_halves_at_an_overflow() {
        let config = config(Precision::F16, NonFinite::Abort);
        let mut progress = Progress::new(&config);
        let mut scales = Vec::new();
        for good in [true, true, true, false, false, false, true] {
            if good {
                progress.applied(&config);
            } else {
                assert!(progress.skips(&config));
            }
            scales.push(progress.scale());
        }
        assert_eq!(scales, [4.0, 8.0, 8.0, 4.0, 2.0, 1.0, 1.0]);
        assert!(!progress.skips(&config), "the scale cannot fall any more");
        assert_eq!(progress.steps, 4);
    }

    #[test]
    fn the_policy_counts_steps_in_a_row() {
        let check = |nonfinite, events: &[bool], expected: &[bool]| {
            let config = config(Precision::F32, nonfinite);
            let mut progress = Progress::new(&config);
            let mut skips = Vec::new();
            for &good in events {
                if good {
                    progress.applied(&config);
                } else {
                    skips.push(progress.skips(&config));
                }
            }
            assert_eq!(skips, expected, "{nonfinite:?}");
        };
        check(NonFinite::Abort, &[false], &[false]);
        check(NonFinite::Skip, &[false, false, false], &[true; 3]);
        check(
            NonFinite::SkipThenAbort(2),
            &[false, false, true, false, false, false],
            &[true, true, true, true, false],
        );
    }
}
