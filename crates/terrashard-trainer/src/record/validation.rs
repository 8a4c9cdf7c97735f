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
        // A part that the model cannot be seen to be right on says so each time that it is told.
        let caution = match (self.valid_pixels, self.scores.prevalence) {
            (0, _) => {
                "; nothing was measured: choose another `data.validation`, or see which pixels the label leaves out"
            }
            (_, Some(0.0)) => {
                "; none of them is foreground, so this tells little: choose another `data.validation`"
            }
            _ => "",
        };
        format!(
            "step {}: validation{} {} on {} in {:.1} s{caution}",
            self.step,
            if self.averages { " of averages" } else { "" },
            scores.map(shown).join(", "),
            counted(self.valid_pixels as usize, "pixel"),
            self.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_without_foreground_is_told() {
        let told = |pixels: u64, prevalence: Option<f64>| {
            let record = ValidationRecord {
                step: 4,
                scores: Scores {
                    iou: Some(0.0),
                    prevalence,
                    ..Scores::default()
                },
                valid_pixels: pixels,
                ..ValidationRecord::default()
            };
            record.told()
        };
        assert_eq!(
            told(100, Some(0.25)),
            "step 4: validation iou 0.0000, f1 -, precision -, recall - on 100 pixels in 0.0 s"
        );
        assert!(told(100, Some(0.0)).contains("none of them is foreground"));
        assert!(told(0, None).contains("nothing was measured"));
    }
}
