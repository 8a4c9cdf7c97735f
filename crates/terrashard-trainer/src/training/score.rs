//! By what checkpoints are ranked: a term of the loss, its mean over the steps since a checkpoint was due last.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The mean of a metric since a checkpoint was due, which follows from the step alone: one that is saved because a training was
/// interrupted, or that could not be written, changes no other's score. A checkpoint carries it for the next.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Score {
    metric: String,
    sum: f64,
    steps: u64,
}

/// The value of a checkpoint that carries it.
const WINDOW: &str = "score_window";

impl Score {
    /// That of no step.
    pub(super) fn new(metric: &str) -> Self {
        Self {
            metric: metric.to_owned(),
            sum: 0.0,
            steps: 0,
        }
    }

    /// As a checkpoint's values carry it; of no step where they do not, or carry one of another metric.
    pub(super) fn carried(metric: &str, values: &Map<String, Value>) -> Self {
        let fresh = Self::new(metric);
        let Some(window) = values.get(WINDOW) else {
            return fresh;
        };
        let number = |name: &str| window.get(name).and_then(Value::as_u64);
        match (number("sum_bits"), number("steps")) {
            (Some(bits), Some(steps)) if window["metric"] == metric => Self {
                sum: f64::from_bits(bits),
                steps,
                ..fresh
            },
            _ => fresh,
        }
    }

    /// Puts it into a checkpoint's values: the sum bit by bit, which a decimal number need not be.
    pub(super) fn carry(&self, values: &mut Map<String, Value>) {
        let Self { metric, sum, steps } = self;
        let window = json!({ "metric": metric, "sum_bits": sum.to_bits(), "steps": steps });
        values.insert(WINDOW.into(), window);
    }

    /// Takes in a step that changed the parameters.
    pub(super) fn add(&mut self, loss: f64, terms: &BTreeMap<String, f64>) {
        let value = match self.metric.as_str() {
            LOSS => Some(loss),
            term => terms.get(term).copied(),
        };
        if let Some(value) = value {
            self.sum += value;
            self.steps += 1;
        }
    }

    /// The mean; none without a step, or where it is no number that a checkpoint can hold.
    pub(super) fn mean(&self) -> Option<f64> {
        let mean = self.sum / self.steps as f64;
        mean.is_finite().then_some(mean)
    }

    /// A checkpoint is due here.
    pub(super) fn begin_anew(&mut self) {
        (self.sum, self.steps) = (0.0, 0);
    }
}

/// The metric that is the loss as a whole.
pub(crate) const LOSS: &str = "loss";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_mean_since_a_checkpoint_was_due() {
        let terms = |focal: f64| BTreeMap::from([("focal".to_owned(), focal)]);
        let mut score = Score::new("focal");
        assert_eq!(score.mean(), None);
        score.add(9.0, &terms(1.0));
        score.add(9.0, &terms(2.0));
        assert_eq!(score.mean(), Some(1.5));
        assert_eq!(score.mean(), Some(1.5), "asking changes nothing");
        score.begin_anew();
        assert_eq!(score.mean(), None);
        let mut score = Score::new(LOSS);
        score.add(9.0, &terms(1.0));
        assert_eq!(score.mean(), Some(9.0));
        score.add(f64::INFINITY, &terms(1.0));
        assert_eq!(score.mean(), None);
    }

    #[test]
    fn a_checkpoint_carries_it_bit_by_bit() {
        let mut score = Score::new(LOSS);
        for loss in [0.1, 0.2, 1.0 / 3.0] {
            score.add(loss, &BTreeMap::new());
        }
        let mut values = Map::new();
        score.carry(&mut values);
        let text = serde_json::to_string(&values).unwrap();
        let values: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let carried = Score::carried(LOSS, &values);
        assert_eq!(carried.sum.to_bits(), score.sum.to_bits());
        assert_eq!(carried, score);
        assert_eq!(Score::carried("focal", &values), Score::new("focal"));
        assert_eq!(Score::carried(LOSS, &Map::new()), Score::new(LOSS));
    }
}
