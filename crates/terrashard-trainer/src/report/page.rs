//! The page: one HTML file with its style, charts and pictures inside.

use std::fmt::Write;

use terrashard_layout::RankBytes;

use super::Report;
use super::charts::{self, Bar, Line, escape};
use crate::record::{Scores, SessionRecord, StepRecord, TestRecord, clock};

const STYLE: &str = include_str!("page.css");

/// A picture with its caption.
#[derive(Debug)]
pub(super) struct Panel {
    /// What it shows.
    pub caption: String,
    /// Its `data:` address.
    pub address: String,
}

/// Everything that the page shows.
#[derive(Debug)]
pub(super) struct Content<'a> {
    /// The run's name.
    pub name: &'a str,
    /// The figures of `report.json`.
    pub report: &'a Report,
    /// The recorded steps.
    pub steps: &'a [StepRecord],
    /// The calls of `fit`.
    pub sessions: &'a [SessionRecord],
    /// What the configuration says about the baseline.
    pub baseline_note: Option<&'a str>,
    /// Metres of the shore band, if there is one.
    pub shore: String,
    /// Pictures of the whole scene.
    pub scene: Vec<Panel>,
    /// Pictures of a part of the test region, at full resolution.
    pub detail: Vec<Panel>,
    /// The effective configuration.
    pub config: &'a str,
}

/// The whole page.
pub(super) fn render(content: &Content<'_>) -> String {
    let name = escape(content.name);
    let sections = [
        figures(content),
        loss(content),
        test(content),
        pictures("Scene", "scene", &content.scene),
        pictures("Detail of the test region", "detail", &content.detail),
        memory(content),
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
    let samples = content
        .sessions
        .last()
        .map_or(0, |session| session.global_batch);
    format!(
        "<p class=\"lead\">Trained for {} steps of {samples} samples on {ranks} at ZeRO stage {}; {resumed}finished in {} min.</p>",
        report.steps,
        report.stage,
        clock(report.seconds)
    )
}

fn figures(content: &Content<'_>) -> String {
    let mut cells: Vec<(&str, String, String)> = Vec::new();
    if let Some(test) = &content.report.test {
        cells.push((
            "test IoU",
            score(test.scores.iou),
            format!("{} valid pixels", grouped(test.valid_pixels)),
        ));
        if let Some(shore) = test.scores.shore_iou {
            cells.push(("IoU near the edge", score(shore), content.shore.clone()));
        }
    }
    if let Some(loss) = content.report.loss {
        cells.push((
            "loss",
            format!("{loss:.4}"),
            "mean of the last steps".into(),
        ));
    }
    cells.push((
        "images per second",
        format!("{:.1}", content.report.images_s),
        "median over steps".into(),
    ));
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
    format!(
        "<dl class=\"figures\">{}</dl>\n",
        cells.into_iter().map(cell).collect::<String>()
    )
}

fn loss(content: &Content<'_>) -> String {
    let points: Vec<(f64, f64)> = content
        .steps
        .iter()
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
            points: charts::thin(&charts::smooth(&points, 0.95), 600),
            class: "loss",
        },
    ];
    let mark = content
        .report
        .resumed_from_step
        .map(|step| (step as f64, format!("resumed after step {step}")));
    format!(
        "<section><h2>Loss</h2><figure class=\"wide\">{}<figcaption>Each step (thin) and averaged over about twenty steps (bold).</figcaption></figure></section>\n",
        charts::lines(&lines, mark)
    )
}

fn test(content: &Content<'_>) -> String {
    let Some(test) = &content.report.test else {
        return String::new();
    };
    let baseline = test.baseline.as_ref();
    let mut rows = String::new();
    let mut row = |label: &str, value: &dyn Fn(&Scores) -> Option<f64>| {
        let Some(ours) = value(&test.scores) else {
            return;
        };
        let theirs = baseline.map(|scores| value(scores).map_or("–".into(), score));
        let theirs = theirs.map_or(String::new(), |text| format!("<td>{text}</td>"));
        let _ = write!(
            rows,
            "<tr><th scope=\"row\">{label}</th><td>{}</td>{theirs}</tr>",
            score(ours)
        );
    };
    row("Intersection over union", &|scores| Some(scores.iou));
    row(&format!("… {}", content.shore), &|scores| {
        scores.shore_iou
    });
    row("F1", &|scores| Some(scores.f1));
    row("Precision", &|scores| Some(scores.precision));
    row("Recall", &|scores| Some(scores.recall));
    let column = baseline.map_or("", |_| "<th scope=\"col\">NDWI baseline</th>");
    format!(
        "<section><h2>Test</h2><div class=\"beside\"><table><thead><tr><th></th><th scope=\"col\">Model</th>{column}</tr></thead><tbody>{rows}</tbody></table><div class=\"prose\">{}</div></div></section>\n",
        standing(content, test)
    )
}

/// Where the model stands beside the baseline, in words.
fn standing(content: &Content<'_>, test: &TestRecord) -> String {
    let mut text = format!(
        "<p>Foreground of the test region, {} valid pixels of which {:.1} % are foreground, at probability {}.</p>",
        grouped(test.valid_pixels),
        100.0 * test.scores.prevalence,
        test.threshold
    );
    if let Some(baseline) = &test.baseline {
        let compare = |ours: f64, theirs: f64| {
            let points = 100.0 * (ours - theirs);
            match points.abs() < 0.05 {
                true => "level with the baseline".to_string(),
                false => format!(
                    "{:.1} points {} the baseline",
                    points.abs(),
                    if points > 0.0 { "above" } else { "below" }
                ),
            }
        };
        let _ = write!(
            text,
            "<p>Over all valid pixels the model is <b>{}</b>",
            compare(test.scores.iou, baseline.iou)
        );
        if let (Some(ours), Some(theirs)) = (test.scores.shore_iou, baseline.shore_iou) {
            let _ = write!(
                text,
                "; {} it is <b>{}</b>",
                escape(&content.shore),
                compare(ours, theirs)
            );
        }
        text.push_str(".</p><p>The baseline needs no training: a threshold on (green − nir) / (green + nir) of the input image, each pixel repeated on the fine grid.</p>");
        if let Some(note) = content.baseline_note {
            let _ = write!(text, "<p>{}</p>", escape(note));
        }
    }
    text
}

fn pictures(title: &str, class: &str, panels: &[Panel]) -> String {
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
    let figures: String = panels.iter().map(figure).collect();
    format!(
        "<section><h2>{title}</h2><div class=\"panels {class}\">{figures}</div><p class=\"key\"><i class=\"foreground\"></i> foreground <i class=\"background\"></i> background <i class=\"ignored\"></i> not labelled</p></section>\n"
    )
}

fn memory(content: &Content<'_>) -> String {
    let Some(session) = content
        .sessions
        .last()
        .filter(|session| !session.predicted.is_empty())
    else {
        return String::new();
    };
    let used = u8::from(session.stage) as usize;
    let predicted = session.predicted.iter().enumerate();
    let mut entries: Vec<(String, &RankBytes, bool)> = predicted
        .map(|(stage, bytes)| (format!("Stage {stage}"), bytes, stage == used))
        .collect();
    if let Some(counted) = &session.counted {
        entries.insert(used + 1, ("Counted".into(), counted, true));
    }
    let whole = session.predicted[0].total() as f64;
    let bars: Vec<Bar> = entries
        .iter()
        .map(|(label, bytes, chosen)| Bar {
            label: label.clone(),
            parts: vec![
                ("parameters", bytes.parameters as f64),
                ("gradients", bytes.gradients as f64),
                ("optimizer", bytes.optimizer() as f64),
                ("buckets", (bytes.buckets + bytes.gathered) as f64),
            ],
            text: mebibytes(bytes.total()),
            chosen: *chosen,
        })
        .collect();
    let row = |(label, bytes, chosen): &(String, &RankBytes, bool)| {
        let class = if *chosen { " class=\"chosen\"" } else { "" };
        let parts = [
            bytes.parameters,
            bytes.gradients,
            bytes.optimizer(),
            bytes.buckets + bytes.gathered,
            bytes.total(),
        ];
        let cells: String = parts
            .iter()
            .map(|bytes| format!("<td>{}</td>", mebibytes(*bytes)))
            .collect();
        format!(
            "<tr{class}><th scope=\"row\">{label}</th>{cells}<td>{:.0} %</td></tr>",
            100.0 * bytes.total() as f64 / whole
        )
    };
    let rows: String = entries.iter().map(row).collect();
    let counted = match session.counted {
        Some(_) => " “Counted” is what the ranks of this run really held.",
        None => "",
    };
    format!(
        "<section><h2>Memory per rank</h2><figure class=\"wide\">{}<figcaption class=\"key\"><i class=\"parameters\"></i> parameters <i class=\"gradients\"></i> gradients <i class=\"optimizer\"></i> optimizer states <i class=\"buckets\"></i> buckets on their way</figcaption></figure>\
         <table class=\"numbers\"><thead><tr><th></th><th scope=\"col\">Parameters</th><th scope=\"col\">Gradients</th><th scope=\"col\">Optimizer</th><th scope=\"col\">Buckets</th><th scope=\"col\">Total</th><th scope=\"col\">of stage 0</th></tr></thead><tbody>{rows}</tbody></table>\
         <p class=\"prose\">Model states on each of {} ranks; this run is stage {used}. The stages are predicted from the shard table.{counted} Activations come on top and are the same at every stage.</p></section>\n",
        charts::bars(&bars),
        session.ranks
    )
}

fn configuration(content: &Content<'_>) -> String {
    format!(
        "<section><h2>Configuration</h2><pre>{}</pre></section>\n",
        escape(content.config.trim_end())
    )
}

fn score(value: f64) -> String {
    format!("{value:.3}")
}

fn mebibytes(bytes: u64) -> String {
    let value = bytes as f64 / f64::from(1 << 20);
    if value >= 1024.0 {
        format!("{:.2} GiB", value / 1024.0)
    } else {
        format!("{value:.1} MiB")
    }
}

/// Digits in groups of three.
fn grouped(value: u64) -> String {
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
    fn numbers_read_well() {
        assert_eq!(grouped(13_412_345), "13\u{202f}412\u{202f}345");
        assert_eq!(grouped(345), "345");
        assert_eq!(mebibytes(3 << 19), "1.5 MiB");
    }
}
