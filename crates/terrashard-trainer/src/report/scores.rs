//! The section on the test: scores beside the baseline's, and where that leaves the model, in words.

use std::fmt::Write;

use super::charts::escape;
use super::page::{Content, grouped, score};
use super::shore;
use crate::record::{Scores, TestRecord};

/// The section, empty where nothing was tested.
pub(super) fn section(content: &Content<'_>) -> String {
    let Some(test) = &content.report.test else {
        return String::new();
    };
    let baseline = test.baseline.as_ref();
    let near = shore::near(content.panels.shore_metres);
    let stale = stale(content).map(|sentence| format!("<p class=\"stale\">{sentence}</p>"));
    // Records of earlier versions do not name it.
    let region =
        (!test.region.is_empty()).then(|| format!("<p>test region: {}</p>", escape(&test.region)));
    let notes: String = [stale, region].into_iter().flatten().collect();
    let mut rows = String::new();
    let mut row = |label: &str, value: fn(&Scores) -> Option<f64>| {
        let cell = |scores| format!("<td>{}</td>", value(scores).map_or("–".into(), score));
        let cells = cell(&test.scores) + &baseline.map_or(String::new(), cell);
        let _ = write!(rows, "<tr><th scope=\"row\">{label}</th>{cells}</tr>");
    };
    row("Intersection over union", |scores| scores.iou);
    row(&format!("… {near}"), |scores| scores.shore_iou);
    row("F1", |scores| scores.f1);
    row("Precision", |scores| scores.precision);
    row("Recall", |scores| scores.recall);
    let column = baseline.map_or("", |_| "<th scope=\"col\">NDWI baseline</th>");
    format!(
        "<section><h2>Test</h2><div class=\"beside\"><div class=\"scroll\"><table><thead><tr><th></th>\
         <th scope=\"col\">Model</th>{column}</tr></thead><tbody>{rows}</tbody></table></div>\
         <div class=\"prose\">{}</div></div></section>\n",
        notes + &standing(test, &near, content.baseline_note)
    )
}

/// That the scores are not of the run's last step, where so.
pub(super) fn stale(content: &Content<'_>) -> Option<String> {
    let tested = content.report.test.as_ref()?.step?;
    behind(tested, content.report.steps)
}

fn behind(tested: u64, last: u64) -> Option<String> {
    (tested != last).then(|| format!("scores are of step {tested}, the run is at step {last}"))
}

/// Where the model stands beside the baseline.
fn standing(test: &TestRecord, near: &str, note: Option<&str>) -> String {
    let rule = match test.threshold {
        Some(threshold) => {
            format!("a pixel is called foreground above a probability of {threshold}")
        }
        None => {
            "a pixel is given its most probable class, and ratios are means over classes".into()
        }
    };
    let mut text = format!(
        "<p>Counted over the {} valid pixels of the test region, {:.1}\u{a0}% of them foreground; {rule}.</p>",
        grouped(test.valid_pixels),
        100.0 * test.scores.prevalence.unwrap_or(0.0),
    );
    if let Some(image) = &test.image {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("n/a".into(), |value| format!("{value:.digits$}"))
        };
        let _ = write!(
            text,
            "<p>The super-resolved image comes within a PSNR of {}\u{a0}dB and an SSIM of {} of the image at high resolution; \
             bicubic enlargement reaches {}\u{a0}dB and {}.</p>",
            number(image.psnr, 1),
            number(image.ssim, 3),
            number(image.bicubic_psnr, 1),
            number(image.bicubic_ssim, 3)
        );
    }
    let Some(baseline) = &test.baseline else {
        return text;
    };
    if let (Some(ours), Some(theirs)) = (test.scores.iou, baseline.iou) {
        let _ = write!(
            text,
            "<p>Over all valid pixels the model is <b>{}</b>",
            difference(ours, theirs)
        );
        if let (Some(ours), Some(theirs)) = (test.scores.shore_iou, baseline.shore_iou) {
            let _ = write!(text, "; {near} it is <b>{}</b>", difference(ours, theirs));
        }
        text.push_str(".</p>");
    }
    text.push_str(
        "<p>The baseline needs no training: a threshold on (green − nir) / (green + nir) of the input image, \
         each pixel repeated on the fine grid.</p>",
    );
    if let Some(note) = note {
        let _ = write!(text, "<p>{}</p>", escape(note));
    }
    text
}

/// Two scores compared in points, as hundredths.
fn difference(ours: f64, theirs: f64) -> String {
    let points = 100.0 * (ours - theirs);
    let size = points.abs();
    match points {
        _ if size < 0.05 => "level with the baseline".into(),
        0.0.. => format!("{size:.1} points above the baseline"),
        _ => format!("{size:.1} points below the baseline"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_another_step_say_so() {
        assert_eq!(behind(800, 800), None);
        assert_eq!(
            behind(600, 800).as_deref(),
            Some("scores are of step 600, the run is at step 800")
        );
    }

    #[test]
    fn differences_are_told_as_they_are() {
        assert_eq!(difference(0.934, 0.954), "2.0 points below the baseline");
        assert_eq!(difference(0.851, 0.830), "2.1 points above the baseline");
        assert_eq!(difference(0.8304, 0.83), "level with the baseline");
    }
}
