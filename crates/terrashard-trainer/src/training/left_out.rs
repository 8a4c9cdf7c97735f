//! Samples of a step that could not be read: what losses divide by without them, and who is told.

use std::collections::HashSet;
use std::path::PathBuf;

use terrashard_data::{LeftOut, OnUnreadable};
use terrashard_layout::Window as Samples;
use terrashard_models::Normalizers;
use terrashard_raster::Window;
use terrashard_zero::ShardedParameters;

use super::feed::Fed;
use super::logger::warn;
use super::rank::Rank;
use super::step_clock::Phase;
use crate::error::{Error, Result};

/// Whether an error is that of a file which is to be gone on without: what is read of it to look at, no training needs.
pub(crate) fn goes_on(wanted: OnUnreadable, error: &Error) -> bool {
    match error {
        Error::Data(error) => wanted.skips(error),
        Error::Raster(_) => wanted == OnUnreadable::SkipTile,
        _ => false,
    }
}

/// What a step lacks over all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Lacking {
    pub(super) samples: u64,
    valid_pixels: f64,
    superres_values: f64,
}

impl Lacking {
    /// What all ranks lack of their micro-batches of a step together. Collective.
    ///
    /// # Errors
    /// [`crate::Error::Zero`].
    pub(super) fn of(batches: &[Fed], parameters: &ShardedParameters) -> Result<Self> {
        let left_out = || batches.iter().flat_map(|batch| &batch.left_out);
        let own = [
            left_out().count() as u64,
            left_out().map(|it| it.valid_pixels).sum(),
            left_out().map(|it| it.target_values).sum(),
        ];
        let all = parameters.sum_over_ranks(own.map(|count| count as f64).to_vec())?;
        Ok(Self {
            samples: all[0] as u64,
            valid_pixels: all[1],
            superres_values: all[2],
        })
    }

    /// What a step's losses divide by without it: a sample of weight 0 is a sample all the same.
    pub(super) fn without(self, counted: Normalizers) -> Normalizers {
        Normalizers {
            samples: counted.samples,
            valid_pixels: counted.valid_pixels - self.valid_pixels,
            superres_values: counted.superres_values - self.superres_values,
        }
    }
}

/// The chips that a rank has told of.
#[derive(Debug, Default)]
pub(super) struct Told(HashSet<(PathBuf, Window)>);

impl Told {
    /// What there is to tell of a batch of `step`: of each chip once.
    pub(super) fn news(&mut self, step: u64, left_out: &[LeftOut]) -> Vec<String> {
        let new = left_out
            .iter()
            .filter(|it| self.0.insert((it.path.clone(), it.window)));
        new.map(|it| {
            format!(
                "step {step}: left out {it}; the run goes on, as `data.on_unreadable` says, and this chip counts for nothing"
            )
        })
        .collect()
    }
}

impl Rank<'_> {
    /// The next micro-batch.
    pub(super) fn take(&mut self) -> Result<Fed> {
        let feed = &mut self.feed;
        let next = self.clock.measure(Phase::Data, || feed.next());
        next.expect("the loader has every step of the plan")
    }

    /// Where samples that cannot be read are left out, all micro-batches of a step, and what all ranks lack of them: losses are
    /// divided by what is left. None else. Collective.
    pub(super) fn ready(&mut self, step: u64) -> Result<(Vec<Fed>, Lacking)> {
        if self.plan.config.data.on_unreadable == OnUnreadable::Abort {
            return Ok(Default::default());
        }
        let batches = (0..self.plan.batch.accumulate).map(|_| self.take());
        let batches = batches.collect::<Result<Vec<Fed>>>()?;
        for batch in &batches {
            for warning in self.told.news(step, &batch.left_out) {
                warn(self.logger.as_ref(), &warning);
            }
        }
        let lacking = Lacking::of(&batches, &self.optimizer)?;
        Ok((batches, lacking))
    }

    /// The counts of a whole step over all ranks. Labels and high-resolution pixels are counted when chips are cut, so every
    /// rank knows them.
    pub(super) fn normalizers(&self, window: &Samples) -> Result<Normalizers> {
        let cursors = window.samples();
        let samples = (cursors.end - cursors.start) as f64;
        let (chips, order) = (&self.plan.chips, &self.plan.order);
        let counts = chips.class_counts(order, cursors.clone())?;
        Ok(Normalizers {
            samples,
            valid_pixels: counts.iter().sum::<u64>() as f64,
            superres_values: chips.target_values(order, cursors)? as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(path: &str, col: usize) -> LeftOut {
        LeftOut {
            path: path.into(),
            window: Window::new(col, 0, 8, 8),
            valid_pixels: 5,
            target_values: 8,
            reason: "damaged".into(),
        }
    }

    #[test]
    fn each_chip_is_told_once() {
        let mut told = Told::default();
        let news = told.news(3, &[left_out("a.tif", 0), left_out("a.tif", 8)]);
        assert_eq!(news.len(), 2);
        assert!(
            news[1].starts_with("step 3: left out ") && news[1].contains("a.tif: damaged"),
            "{news:?}"
        );
        let news = told.news(4, &[left_out("a.tif", 8), left_out("b.tif", 8)]);
        assert!(news.len() == 1 && news[0].contains("b.tif"), "{news:?}");
    }

    #[test]
    fn losses_divide_by_what_is_left() {
        let counted = Normalizers {
            samples: 4.0,
            valid_pixels: 100.0,
            superres_values: 64.0,
        };
        let lacking = Lacking {
            samples: 2,
            valid_pixels: 10.0,
            superres_values: 16.0,
        };
        let left = lacking.without(counted);
        assert_eq!(
            (left.samples, left.valid_pixels, left.superres_values),
            (4.0, 90.0, 48.0)
        );
    }
}
