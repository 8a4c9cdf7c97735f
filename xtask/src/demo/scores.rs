//! What `terrashard test` has measured, and whether it is enough.

use serde_json::Value;

use crate::error::{Error, Result};

/// What the trained model has to reach on the test half, on every run with the steps of the configuration.
const IOU_BAR: f64 = 0.88;

/// Overlap of prediction and label, over all valid pixels and over those near the shore.
#[derive(Debug, PartialEq, Clone, Copy)]
pub(super) struct Scores {
    pub(super) iou: f64,
    pub(super) shore_iou: f64,
}

/// What `terrashard test --json` says.
pub(super) struct Test {
    pub(super) model: Scores,
    pub(super) baseline: Scores,
    /// What it said of the model, as it came.
    pub(super) document: Value,
    /// What it said of the baseline.
    pub(super) baseline_document: Value,
}

impl Test {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let keys = document
            .as_object_mut()
            .ok_or("its output is no JSON object")?;
        let baseline_document = keys.remove("baseline").unwrap_or_default();
        let scores = |of: &Value, prefix: &str| {
            let number = |key| {
                let missing = || format!("no number `{prefix}{key}` in its output");
                of[key].as_f64().ok_or_else(missing)
            };
            Ok::<_, String>(Scores {
                iou: number("iou")?,
                shore_iou: number("shore_iou")?,
            })
        };
        Ok(Self {
            model: scores(&document, "")?,
            baseline: scores(&baseline_document, "baseline.")?,
            document,
            baseline_document,
        })
    }

    /// Whether the bars are reached.
    pub(super) fn verdict(&self) -> Result<()> {
        let Self {
            model, baseline, ..
        } = self;
        let bars = [
            ("test IoU", model.iou, IOU_BAR),
            (
                "test IoU near the shore",
                model.shore_iou,
                baseline.shore_iou,
            ),
        ];
        // JSON has no NaN, so one of `<` and `>=` holds.
        match bars.into_iter().find(|(_, value, bar)| value < bar) {
            None => Ok(()),
            Some((what, value, bar)) => {
                let message = format!("{what} is {value:.4}, below the bar of {bar:.4}");
                Err(Error::content("demo", message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn test_json(iou: &str, shore: &str) -> String {
        format!(
            r#"{{"iou": {iou}, "shore_iou": {shore}, "f1": 0.9, "baseline": {{"iou": 0.954, "shore_iou": 0.83}}}}"#
        )
    }

    #[test]
    fn scores_are_read() {
        let test = Test::parse(&test_json("0.9", "0.85")).unwrap();
        assert_eq!(
            test.model,
            Scores {
                iou: 0.9,
                shore_iou: 0.85
            }
        );
        assert_eq!(
            test.baseline,
            Scores {
                iou: 0.954,
                shore_iou: 0.83
            }
        );
        assert_eq!(
            test.document,
            json!({ "iou": 0.9, "shore_iou": 0.85, "f1": 0.9 })
        );
        let Err(message) = Test::parse(r#"{"iou": 1, "shore_iou": 1}"#) else {
            panic!("the baseline is missing")
        };
        assert_eq!(message, "no number `baseline.iou` in its output");
    }

    #[test]
    fn verdict_is_by_the_bars() {
        let verdict = |iou, shore| Test::parse(&test_json(iou, shore)).unwrap().verdict();
        assert!(verdict("0.88", "0.83").is_ok());
        let message = verdict("0.8799", "0.9").unwrap_err().to_string();
        assert_eq!(message, "demo: test IoU is 0.8799, below the bar of 0.8800");
        let message = verdict("0.99", "0.8299").unwrap_err().to_string();
        assert_eq!(
            message,
            "demo: test IoU near the shore is 0.8299, below the bar of 0.8300"
        );
    }
}
