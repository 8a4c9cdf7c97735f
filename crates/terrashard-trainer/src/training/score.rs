//! By what checkpoints are ranked: a term of the loss, the mean over the steps since the last save.

use std::collections::BTreeMap;

/// The mean of a metric.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Score {
    sum: f64,
    steps: u64,
}

impl Score {
    /// Takes in a step that changed the parameters.
    pub(super) fn add(&mut self, metric: &str, loss: f64, terms: &BTreeMap<String, f64>) {
        let value = match metric {
            LOSS => Some(loss),
            term => terms.get(term).copied(),
        };
        if let Some(value) = value {
            self.sum += value;
            self.steps += 1;
        }
    }

    /// The mean since the last call; none without a step, or where it is no number that a checkpoint can hold.
    pub(super) fn take(&mut self) -> Option<f64> {
        let Self { sum, steps } = std::mem::take(self);
        let mean = sum / steps as f64;
        mean.is_finite().then_some(mean)
    }
}

/// The metric that is the loss as a whole.
pub(crate) const LOSS: &str = "loss";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_mean_since_the_last_one() {
        let terms = |focal: f64| BTreeMap::from([("focal".to_owned(), focal)]);
        let mut score = Score::default();
        assert_eq!(score.take(), None);
        score.add("focal", 9.0, &terms(1.0));
        score.add("focal", 9.0, &terms(2.0));
        assert_eq!(score.take(), Some(1.5));
        assert_eq!(score.take(), None);
        score.add(LOSS, 9.0, &terms(1.0));
        assert_eq!(score.take(), Some(9.0));
        score.add(LOSS, f64::INFINITY, &terms(1.0));
        assert_eq!(score.take(), None);
    }
}
