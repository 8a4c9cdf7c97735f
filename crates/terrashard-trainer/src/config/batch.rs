//! How many samples a step takes, and how they are shared among ranks and micro-batches.

use terrashard_layout::BatchShape;

use super::TrainSection;
use crate::error::{Error, Result};

/// The three batch sizes of a run; `global = micro * accumulate * ranks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Samples of one step over all ranks.
    pub global: usize,
    /// Samples of one forward pass on one rank.
    pub micro: usize,
    /// Micro-batches of one rank in one step.
    pub accumulate: usize,
}

/// More samples than any step has: room for a batch is made before it is read.
const MOST_SAMPLES: usize = 1 << 20;

impl Batch {
    /// How a step's samples are shared out; the ranks follow from the sizes.
    pub fn shape(&self) -> BatchShape {
        BatchShape {
            ranks: self.global / (self.micro * self.accumulate),
            micro_batch: self.micro,
            accumulate: self.accumulate,
        }
    }

    /// Derives the sizes that are not given. Without any of the three a step is one sample on each rank.
    ///
    /// # Errors
    /// [`Error::Batch`] if the sizes given do not fit each other or the ranks, [`Error::NotSupported`] for accumulation with
    /// a loss that is no sum over samples.
    pub fn resolve(train: &TrainSection, ranks: usize) -> Result<Self> {
        let unfit = |reason: String| Error::Batch { ranks, reason };
        if [train.global_batch, train.micro_batch, train.accumulate].contains(&Some(0)) {
            return Err(unfit("a size is 0".into()));
        }
        let divide = |global: usize, (name, by): (&str, usize)| {
            let fits = by
                .checked_mul(ranks)
                .filter(|divisor| global.is_multiple_of(*divisor));
            fits.map(|divisor| global / divisor).ok_or_else(|| {
                unfit(format!(
                    "global_batch = {global} is not a multiple of {name} x ranks = {by} x {ranks}"
                ))
            })
        };
        let (micro, accumulate) = match (train.global_batch, train.micro_batch, train.accumulate) {
            (None, micro, accumulate) => (micro.unwrap_or(1), accumulate.unwrap_or(1)),
            (Some(global), None, accumulate) => {
                let accumulate = accumulate.unwrap_or(1);
                (divide(global, ("accumulate", accumulate))?, accumulate)
            }
            (Some(global), Some(micro), None) => (micro, divide(global, ("micro_batch", micro))?),
            (Some(_), Some(micro), Some(accumulate)) => (micro, accumulate),
        };
        if accumulate > 1 && train.loss.has_ratio() {
            // Dice is a ratio of sums over the whole step; micro-batches one after another cannot share its sums.
            let loss = train.loss.name();
            let other = match train.loss.is_of_classes() {
                true => "",
                false => "`train.loss = \"focal\"`, or ",
            };
            return Err(Error::NotSupported {
                key: format!("train.accumulate = {accumulate} with train.loss = {loss}"),
                remedy: format!("use {other}fewer samples a step without accumulation"),
            });
        }
        let global = micro
            .checked_mul(accumulate)
            .and_then(|samples| samples.checked_mul(ranks))
            .ok_or_else(|| unfit(format!("{micro} x {accumulate} x {ranks} is too large")))?;
        if global > MOST_SAMPLES {
            return Err(unfit(format!(
                "{global} samples a step are more than {MOST_SAMPLES}"
            )));
        }
        match train.global_batch {
            Some(given) if given != global => Err(unfit(format!(
                "global_batch = {given}, but {micro} x {accumulate} x {ranks} = {global}"
            ))),
            _ => Ok(Batch {
                global,
                micro,
                accumulate,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use terrashard_models::Loss;

    use super::*;

    fn resolve(sizes: [Option<usize>; 3], ranks: usize) -> Result<Batch> {
        let [global_batch, micro_batch, accumulate] = sizes;
        Batch::resolve(
            &TrainSection {
                global_batch,
                micro_batch,
                accumulate,
                ..TrainSection::default()
            },
            ranks,
        )
    }

    #[track_caller]
    fn check(sizes: [Option<usize>; 3], ranks: usize, expected: (usize, usize, usize)) {
        let batch = resolve(sizes, ranks).unwrap();
        assert_eq!((batch.global, batch.micro, batch.accumulate), expected);
    }

    #[test]
    fn any_two_give_the_third() {
        check([Some(12), Some(2), None], 3, (12, 2, 2));
        check([Some(12), None, Some(2)], 3, (12, 2, 2));
        check([None, Some(2), Some(2)], 3, (12, 2, 2));
        check([Some(12), Some(2), Some(2)], 3, (12, 2, 2));
    }

    #[test]
    fn one_or_none_leaves_accumulation_at_one() {
        check([Some(12), None, None], 4, (12, 3, 1));
        check([None, Some(5), None], 2, (10, 5, 1));
        check([None, None, None], 2, (2, 1, 1));
    }

    #[test]
    fn dice_is_never_taken_over_a_part_of_the_step() {
        let resolve = |loss, accumulate| {
            let train = TrainSection {
                loss,
                global_batch: Some(12),
                accumulate: Some(accumulate),
                ..TrainSection::default()
            };
            Batch::resolve(&train, 2)
        };
        assert!(resolve(Loss::Focal, 3).is_ok());
        assert!(resolve(Loss::BceDice, 1).is_ok());
        for loss in [Loss::BceDice, Loss::CrossEntropyDice] {
            let message = resolve(loss, 3).unwrap_err().to_string();
            let key = format!("train.accumulate = 3 with train.loss = {}", loss.name());
            assert!(message.contains(&key), "{message}");
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        for sizes in [
            [Some(12), Some(5), None],
            [Some(7), None, None],
            [Some(8), Some(2), Some(2)],
            [None, Some(0), None],
            [None, None, Some(0)],
            [Some(0), None, None],
            [Some(0), Some(2), None],
            [Some(12), None, Some(5)],
            [Some(12), Some(usize::MAX), None],
            [None, Some(usize::MAX), Some(2)],
            [Some(3 << 20), None, None],
        ] {
            let error = resolve(sizes, 3).unwrap_err();
            assert!(error.to_string().contains("train.global_batch"), "{error}");
        }
    }
}
