//! What a validation between steps found.

use serde::{Deserialize, Serialize};

use super::{Scores, counted};

/// One validation during a training, a line of `validation.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ValidationRecord {
    /// The step after which it was.
    pub step: u64,
    /// Whether the moving averages of the parameters were measured, in their place.
    pub averages: bool,
    /// The model's scores on the pixels for validation, each window by itself.
    #[serde(flatten)]
    pub scores: Scores,
    /// Those that are labelled and have data.
    pub valid_pixels: u64,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl ValidationRecord {
    /// As a run tells it.
    pub(crate) fn told(&self) -> String {
        let Scores {
            iou,
            f1,
            precision,
            recall,
            ..
        } = self.scores;
        let shown = |(name, value): (&str, Option<f64>)| match value {
            Some(value) => format!("{name} {value:.4}"),
            None => format!("{name} -"),
        };
        let scores = [
            ("iou", iou),
            ("f1", f1),
            ("precision", precision),
            ("recall", recall),
        ];
        format!(
            "step {}: validation{} {} on {} in {:.1} s",
            self.step,
            if self.averages { " of averages" } else { "" },
            scores.map(shown).join(", "),
            counted(self.valid_pixels as usize, "pixel"),
            self.seconds
        )
    }
}
