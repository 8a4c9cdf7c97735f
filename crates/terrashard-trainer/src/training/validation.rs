//! Validation between steps: how well the model maps the parts of the scenes that are for it. No step notices that it was done.
//!
//! Windows are spread over the ranks, each is mapped by itself, and of windows that overlap each pixel counts in that whose border is
//! farther. Pixels are counted as whole numbers, so the figures do not depend on the number of ranks.

use std::time::Instant;

use burn::tensor::{DType, Device};
use terrashard_data::{ConfusionMatrix, Mosaic};
use terrashard_models::S2s2Net;
use terrashard_raster::Window;
use terrashard_zero::ZeroOptimizer;

use super::mapped_window::{Mapped, MappedWindow, accompany};
use crate::config::{Config, Length};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::record::{Scores, ValidationRecord};
use crate::sharding::Sharded;

/// What a validation can rank checkpoints by: the most is the best.
pub(crate) const METRICS: [&str; 4] = ["iou", "f1", "precision", "recall"];

/// What is measured, and when.
#[derive(Debug)]
pub(super) struct Validation {
    windows: Vec<MappedWindow>,
    classes: usize,
    every: Every,
    /// Whether each checkpoint is ranked by what is measured.
    ranks_checkpoints: bool,
}

/// Steps after which there is a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Every {
    Steps(u64),
    /// Each time that all samples were taken: this many.
    Samples(u64),
    /// None but the last.
    End,
}

/// A step that was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub(super) step: u64,
    /// Samples taken before it and after it.
    pub(super) cursors: [u64; 2],
    /// Whether it is the last of this call.
    pub(super) is_last: bool,
    /// Whether a checkpoint follows.
    pub(super) is_saved: bool,
}

impl Validation {
    /// That of a configuration, where there is something to measure on.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] if checkpoints are to be ranked by what is not there to be measured; [`Error::Data`].
    pub(super) fn of(config: &Config, dataset: &Dataset, samples: usize) -> Result<Option<Self>> {
        let data = &config.data;
        let mut windows = Vec::new();
        for (scene, region) in dataset.validation_regions() {
            let Window { width, height, .. } = region;
            let mosaic = Mosaic::new(width, height, data.tile(), data.overlap, scene.scale())?;
            let columns = mosaic.columns();
            let all = mosaic.windows();
            let across = middles(all[..columns].iter().map(|at| (at.col, at.col_end())));
            let down = middles(all.iter().step_by(columns).map(|at| (at.row, at.row_end())));
            for (index, window) in all.into_iter().enumerate() {
                let (row, column) = (index / columns, index % columns);
                let [left, right] = [across[column], across[column + 1]];
                let [top, bottom] = [down[row], down[row + 1]];
                let counted = Window::new(left, top, right - left, bottom - top);
                windows.push(MappedWindow {
                    scene: scene.clone(),
                    window: within(region, window),
                    counted: within(region, counted),
                });
            }
        }
        let best_by = config.checkpoint.best_by.as_str();
        let ranks_checkpoints = METRICS.contains(&best_by);
        if windows.is_empty() {
            return match (
                &data.chips,
                ranks_checkpoints || config.train.validate_every.is_some(),
            ) {
                (Some(chips), true) => Err(Error::invalid(
                    "data.chips",
                    chips.display(),
                    "an index with chips for validation, since `checkpoint.best_by` or `train.validate_every` asks for them; cut it \
                     with a part for validation",
                )),
                _ => Ok(None),
            };
        }
        Ok(Some(Self {
            windows,
            classes: config.model.classes,
            every: match (config.train.validate_every, config.train.length()) {
                (Some(steps), _) => Every::Steps(steps),
                (None, Length::Epochs(_)) => Every::Samples(samples as u64),
                (None, Length::Steps(_)) => Every::End,
            },
            ranks_checkpoints,
        }))
    }

    /// Whether there is one after a step.
    pub(super) fn is_due(&self, made: Made) -> bool {
        let Made {
            step,
            cursors: [before, after],
            is_last,
            is_saved,
        } = made;
        let is_turn = match self.every {
            Every::Steps(steps) => step.is_multiple_of(steps),
            Every::Samples(samples) => before / samples != after / samples,
            Every::End => false,
        };
        is_turn || is_last || (is_saved && self.ranks_checkpoints)
    }

    /// Measures the model, with the moving averages of its parameters where they are kept. Collective.
    ///
    /// # Errors
    /// [`Error::Data`], [`Error::Zero`].
    pub(super) fn run(
        &self,
        step: u64,
        optimizer: &ZeroOptimizer,
        model: &S2s2Net,
        on: (&Device, DType),
    ) -> Result<ValidationRecord> {
        let began = Instant::now();
        let own = optimizer.with_averages(|| self.count(optimizer, model, on))??;
        let counts = pairs(self.classes).map(|(truth, predicted)| own.count(truth, predicted));
        let counts = sum_over_ranks(optimizer, &counts.collect::<Vec<u64>>())?;
        let mut matrix = ConfusionMatrix::new(self.classes.max(2));
        for ((truth, predicted), count) in pairs(self.classes).zip(counts) {
            matrix.add_pixels(truth, predicted, count);
        }
        Ok(ValidationRecord {
            step,
            averages: optimizer.has_averages(),
            scores: match self.classes {
                1 => Scores::of_foreground(&matrix.of_class(1)),
                _ => Scores::of_classes(&matrix),
            },
            valid_pixels: matrix.pixels(),
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    /// What this rank's windows count.
    fn count(
        &self,
        optimizer: &ZeroOptimizer,
        model: &S2s2Net,
        on: (&Device, DType),
    ) -> Result<ConfusionMatrix> {
        let communicator = optimizer.communicator();
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let parameters = optimizer.parameters();
        let scope = Sharded(parameters);
        let mut matrix = ConfusionMatrix::new(self.classes.max(2));
        let mut failed = None;
        for round in 0..self.windows.len().div_ceil(ranks) {
            let share = self.windows.get(round * ranks + rank);
            let mapped = share.map_or(Ok(None), |share| share.map(model, &scope, on));
            if !matches!(mapped, Ok(Some(_))) {
                accompany(model, &scope, self.windows[0].scene.bands(), on);
            }
            match mapped {
                Ok(Some(Mapped { predicted, labels })) => matrix.add_masks(&predicted, &labels),
                Ok(None) => {}
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
            parameters.check()?;
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(matrix),
        }
    }
}

/// A window that counts from the corner of a region, in the scene.
fn within(region: Window, window: Window) -> Window {
    let (col, row) = (region.col + window.col, region.row + window.row);
    Window::new(col, row, window.width, window.height)
}

/// Borders between neighbours along an axis: in the middle of what two share, and both ends.
fn middles(windows: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let windows: Vec<(usize, usize)> = windows.collect();
    let between = windows.windows(2).map(|pair| (pair[1].0 + pair[0].1) / 2);
    let first = windows.first().map_or(0, |(start, _)| *start);
    let last = windows.last().map_or(0, |(_, end)| *end);
    [first].into_iter().chain(between).chain([last]).collect()
}

/// Each true class with each that was predicted.
fn pairs(classes: usize) -> impl Iterator<Item = (usize, usize)> {
    let classes = classes.max(2);
    (0..classes).flat_map(move |truth| (0..classes).map(move |predicted| (truth, predicted)))
}

/// Whole numbers summed over the ranks, exactly: each goes in halves that a double holds.
fn sum_over_ranks(optimizer: &ZeroOptimizer, counts: &[u64]) -> Result<Vec<u64>> {
    const HALF: u32 = 32;
    let halves = counts
        .iter()
        .flat_map(|count| [count >> HALF, count & u64::from(u32::MAX)]);
    let halves = halves.map(|half| half as f64).collect();
    let sums = optimizer.parameters().sum_over_ranks(halves)?;
    let (sums, _) = sums.as_chunks::<2>();
    let whole = |[high, low]: &[f64; 2]| ((*high as u64) << HALF) + *low as u64;
    Ok(sums.iter().map(whole).collect())
}

/// By what a checkpoint is ranked, the least first: how far a metric is from 1.
pub(super) fn distance(record: &ValidationRecord, metric: &str) -> Option<f64> {
    let mut values = metrics(record);
    let (_, value) = values.find(|(name, _)| *name == metric)?;
    value.map(|value| 1.0 - value)
}

/// Each of [`METRICS`] with its value, none where it is not defined.
pub(crate) fn metrics(
    record: &ValidationRecord,
) -> impl Iterator<Item = (&'static str, Option<f64>)> {
    let Scores {
        iou,
        f1,
        precision,
        recall,
        ..
    } = record.scores;
    METRICS.into_iter().zip([iou, f1, precision, recall])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pixel_belongs_to_the_window_whose_border_is_farther() {
        assert_eq!(middles([(0, 32)].into_iter()), [0, 32]);
        assert_eq!(
            middles([(0, 32), (24, 56), (32, 64)].into_iter()),
            [0, 28, 44, 64]
        );
    }

    #[test]
    fn a_validation_is_due_when_it_is_its_turn() {
        let check = |every, ranks_checkpoints, expected: [bool; 6]| {
            let validation = Validation {
                windows: Vec::new(),
                classes: 1,
                every,
                ranks_checkpoints,
            };
            // Steps of 4 samples, saved at 2 and 4.
            let made = |step: u64| Made {
                step,
                cursors: [4 * (step - 1), 4 * step],
                is_last: step == 6,
                is_saved: [2, 4, 6].contains(&step),
            };
            let due: Vec<bool> = (1..=6).map(|step| validation.is_due(made(step))).collect();
            assert_eq!(due, expected, "{every:?}");
        };
        check(Every::End, false, [false, false, false, false, false, true]);
        check(Every::End, true, [false, true, false, true, false, true]);
        check(
            Every::Steps(3),
            false,
            [false, false, true, false, false, true],
        );
        // Epochs of 10 samples end within steps 3 and 5.
        check(
            Every::Samples(10),
            false,
            [false, false, true, false, true, true],
        );
    }

    #[test]
    fn the_least_distance_is_the_best() {
        let record = |iou| ValidationRecord {
            scores: Scores {
                iou,
                ..Scores::default()
            },
            ..ValidationRecord::default()
        };
        assert_eq!(distance(&record(Some(0.75)), "iou"), Some(0.25));
        assert_eq!(distance(&record(None), "iou"), None);
        assert_eq!(distance(&record(Some(0.75)), "loss"), None);
    }
}
