//! The page: one HTML file with its style, charts and pictures inside.

use super::charts::{self, Line, escape};
use super::panels::{Panel, Panels};
use super::{Report, memory, scores, shore, times};
use crate::record::{SessionRecord, StepRecord, ValidationRecord, clock, counted, energy};

const STYLE: &str = include_str!("page.css");

/// Everything that the page shows.
#[derive(Debug)]
pub(super) struct Content<'a> {
    /// The run's name.
    pub name: &'a str,
    /// The figures of `report.json`.
    pub report: &'a Report,
    /// The recorded steps.
    pub steps: &'a [StepRecord],
    /// The validations on the way.
    pub validations: &'a [ValidationRecord],
    /// The calls of `fit`.
    pub sessions: &'a [SessionRecord],
    /// Samples of a step over all ranks.
    pub samples: usize,
    /// What the configuration says about the baseline.
    pub baseline_note: Option<&'a str>,
    /// Pictures.
    pub panels: &'a Panels,
    /// Pictures that were drawn while the model was trained.
    pub drawn: &'a [Panel],
    /// The effective configuration.
    pub config: &'a str,
}

/// The whole page.
pub(super) fn render(content: &Content<'_>) -> String {
    let name = escape(content.name);
    let sections = [
        figures(content),
        loss(content),
        validation(content),
        scores::section(content),
        pictures(
            "Scene",
            "scene",
            &content.panels.scene,
            &content.panels.border,
        ),
        pictures(
            "Detail of the test region",
            "detail",
            &content.panels.detail,
            "",
        ),
        picture_note(content.panels),
        pictures(
            "As it learned: image, label and map of one window",
            "drawn",
            content.drawn,
            "",
        ),
        content.sessions.last().map_or(String::new(), |session| {
            memory::section(session) + &times::section(session)
        }),
        configuration(content),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{name} · Terrashard</title>\n\
         <style>\n{STYLE}</style>\n<main>\n<header><p class=\"brand\">Terrashard · report of a run</p><h1>{name}</h1>{}</header>\n{}</main>\n</html>\n",
        lead(content),
        sections.concat(),
    )
}

/// One sentence on how the run was made.
fn lead(content: &Content<'_>) -> String {
    let report = content.report;
    let ranks = if report.ranks == 1 {
        "one rank".into()
    } else {
        format!("{} ranks", report.ranks)
    };
    let resumed = match report.resumed_from_step {
        Some(step) => format!("ended after step {step}, started again from its checkpoint, and "),
        None => String::new(),
    };
    let ended = match report.killed {
        true => "was killed before it recorded its end; its steps and what was recorded took",
        false => "finished in",
    };
    let skipped = match report.skipped {
        0 => String::new(),
        1 => " 1 step was skipped and changed nothing.".into(),
        more => format!(" {more} steps were skipped and changed nothing."),
    };
    let left_out = match report.left_out {
        0 => String::new(),
        count => format!(
            " {} could not be read and counted for nothing.",
            counted(count as usize, "drawn sample")
        ),
    };
    format!(
        "<p class=\"lead\">Trained for {} steps of {} samples on {ranks} at ZeRO stage {}; {resumed}{ended} {}.{skipped}{left_out}</p>",
        report.steps,
        content.samples,
        report.stage,
        duration(report.seconds)
    )
}

fn figures(content: &Content<'_>) -> String {
    let mut cells: Vec<(&str, String, String)> = Vec::new();
    let beside = |baseline: Option<f64>, note: String| match baseline {
        Some(baseline) => format!("baseline {}<br>{note}", score(baseline)),
        None => note,
    };
    if let Some(test) = &content.report.test {
        let baseline = test.baseline.as_ref();
        if let Some(iou) = test.scores.iou {
            let note = format!("{} valid pixels", grouped(test.valid_pixels));
            let note = beside(baseline.and_then(|scores| scores.iou), note);
            cells.push(("test IoU", score(iou), note));
        }
        if let Some(shore) = test.scores.shore_iou {
            let note = shore::near(content.panels.shore_metres);
            let note = beside(baseline.and_then(|scores| scores.shore_iou), note);
            cells.push(("IoU near the shore", score(shore), note));
        }
    }
    if let Some(last) = content.validations.last()
        && let Some(iou) = last.scores.iou
    {
        let note = format!(
            "{} valid pixels, step {}",
            grouped(last.valid_pixels),
            last.step
        );
        cells.push(("validation IoU", score(iou), note));
    }
    if let Some(loss) = content.report.loss {
        cells.push((
            "loss",
            format!("{loss:.4}"),
            match content.report.loss_steps {
                1 => "of the last step".into(),
                steps => format!("mean of the last {steps} steps"),
            },
        ));
    }
    cells.push((
        "images per second",
        format!("{:.1}", content.report.images_s),
        "median over steps".into(),
    ));
    if let Some(joules) = content.report.joules {
        let epoch = content.report.epoch_joules.map(energy);
        let note = epoch.map_or_else(String::new, |epoch| {
            format!("{epoch} an epoch, of the GPUs")
        });
        cells.push(("energy", energy(joules), note));
    }
    if let Some(session) = content.sessions.last() {
        let millions = session.parameters as f64 / 1e6;
        cells.push((
            "parameters",
            format!("{millions:.2} M"),
            format!("{} training samples", grouped(session.samples as u64)),
        ));
    }
    let cell = |(label, value, note): (&str, String, String)| {
        format!("<div><dt>{label}</dt><dd>{value}</dd><dd class=\"note\">{note}</dd></div>")
    };
    let stale = scores::stale(content).map_or(String::new(), |sentence| {
        format!("<p class=\"stale\">{sentence}</p>\n")
    });
    format!(
        "<dl class=\"figures\">{}</dl>\n{stale}",
        cells.into_iter().map(cell).collect::<String>()
    )
}

fn loss(content: &Content<'_>) -> String {
    let points: Vec<(f64, f64)> = content
        .steps
        .iter()
        .filter(|step| step.loss.is_finite())
        .map(|step| (step.step as f64, step.loss))
        .collect();
    if points.is_empty() {
        return String::new();
    }
    let lines = [
        Line {
            points: charts::thin(&points, 600),
            class: "loss-raw",
        },
        Line {
            points: charts::thin(&charts::smooth(&points, 10), 600),
            class: "loss",
        },
    ];
    let mark = content
        .report
        .resumed_from_step
        .map(|step| (step as f64, format!("resumed after step {step}")));
    format!(
        "<section><h2>Loss</h2><figure><div class=\"scroll\">{}</div><figcaption>Each step (thin) and the mean of the 21 steps around it (bold; fewer at both ends).</figcaption></figure></section>\n",
        charts::lines("loss", &lines, mark)
    )
}

/// The curves of what was measured on the way, from two points on.
fn validation(content: &Content<'_>) -> String {
    let curve = |metric: fn(&ValidationRecord) -> Option<f64>| -> Vec<(f64, f64)> {
        let records = content.validations.iter();
        let points = records.map(|record| Some((record.step as f64, metric(record)?)));
        points.flatten().collect()
    };
    let lines = [
        Line {
            points: curve(|record| record.scores.f1),
            class: "loss-raw",
        },
        Line {
            points: curve(|record| record.scores.iou),
            class: "loss",
        },
    ];
    if lines[1].points.len() < 2 {
        return String::new();
    }
    let averages = match content.validations.iter().any(|record| record.averages) {
        true => " Of the moving averages of the parameters.",
        false => "",
    };
    format!(
        "<section><h2>Validation</h2><figure><div class=\"scroll\">{}</div><figcaption>IoU (bold) and F1 (thin) on the part for validation, each window by itself.{averages}</figcaption></figure></section>\n",
        charts::lines("IoU", &lines, None)
    )
}

/// Panels with their legend; `border` tells what is drawn as a line, if anything is.
fn pictures(title: &str, class: &str, panels: &[Panel], border: &str) -> String {
    if panels.is_empty() {
        return String::new();
    }
    let figure = |panel: &Panel| {
        let caption = escape(&panel.caption);
        format!(
            "<figure><img src=\"{}\" alt=\"{caption}\"><figcaption>{caption}</figcaption></figure>",
            panel.address
        )
    };
    let border = match border {
        "" => String::new(),
        text => format!(" <i class=\"border\"></i> {}", escape(text)),
    };
    let figures: String = panels.iter().map(figure).collect();
    format!(
        "<section><h2>{title}</h2><div class=\"panels {class}\">{figures}</div><p class=\"key\"><i class=\"foreground\"></i> foreground <i class=\"background\"></i> background <i class=\"ignored\"></i> not labelled{border}</p></section>\n"
    )
}

/// Whose the pictures are, or why there are none.
fn picture_note(panels: &Panels) -> String {
    match &panels.note {
        note if note.is_empty() => String::new(),
        note if panels.scene.is_empty() => {
            format!(
                "<section><h2>Scene</h2><p class=\"prose\">{}</p></section>\n",
                escape(note)
            )
        }
        note => format!("<p class=\"credit\">{}</p>\n", escape(note)),
    }
}

fn configuration(content: &Content<'_>) -> String {
    format!(
        "<section><h2>Configuration</h2><pre>{}</pre></section>\n",
        escape(content.config.trim_end())
    )
}

/// "46 s", "2 min 10 s", "1:05:30 h".
fn duration(seconds: f64) -> String {
    match seconds.round() as u64 {
        whole if whole < 60 => format!("{whole}\u{a0}s"),
        whole if whole < 3600 => format!("{}\u{a0}min {}\u{a0}s", whole / 60, whole % 60),
        _ => format!("{}\u{a0}h", clock(seconds)),
    }
}

/// A score in three digits.
pub(super) fn score(value: f64) -> String {
    format!("{value:.3}")
}

/// Digits in groups of three.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_name_their_units() {
        assert_eq!(duration(45.6), "46\u{a0}s");
        assert_eq!(duration(59.7), "1\u{a0}min 0\u{a0}s");
        assert_eq!(duration(130.2), "2\u{a0}min 10\u{a0}s");
        assert_eq!(duration(3930.0), "1:05:30\u{a0}h");
    }

    #[test]
    fn missing_pictures_are_told() {
        let panels = Panels {
            note: "No pictures: a&b.tif has moved.".into(),
            ..Panels::default()
        };
        assert!(
            picture_note(&panels)
                .contains("<p class=\"prose\">No pictures: a&amp;b.tif has moved.</p>")
        );
        assert_eq!(picture_note(&Panels::default()), "");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(13_412_345), "13\u{202f}412\u{202f}345");
        assert_eq!(grouped(345), "345");
    }
}
