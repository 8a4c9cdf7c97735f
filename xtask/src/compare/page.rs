//! The comparison as a self-contained page, in the style of a run's report.

use std::fmt::Write;

use super::judgement::{Comparison, Row, head, told};
use super::quantity::Figure;
use super::record::Record;

/// The style of `report.html`.
const STYLE: &str = include_str!("../../../crates/terrashard-trainer/src/report/page.css");

/// What it adds: ranges and verdicts.
const RANGES: &str = "
h2 { white-space: normal; }
td.range { padding-left: 1.5rem; width: 15rem; } td.range svg { min-width: 0; width: 14rem; height: 1.5rem; }
.a { stroke: var(--muted); fill: var(--muted); } .b { stroke: var(--accent); fill: var(--accent); }
.better td.verdict { color: var(--accent); font-weight: 600; } .worse td.verdict { color: var(--mark); font-weight: 600; }
.noise th, .noise td, .equal th, .equal td { color: var(--muted); }
";

/// The page.
pub(super) fn render(a: &Record, b: &Record, comparison: &Comparison) -> String {
    let mut sections = String::new();
    let mut cases: Vec<&str> = comparison
        .rows
        .iter()
        .map(|row| row.case.as_str())
        .collect();
    cases.dedup();
    for case in cases {
        let rows: String = comparison
            .rows
            .iter()
            .filter(|row| row.case == case)
            .map(line)
            .collect();
        let _ = writeln!(
            sections,
            "<section><h2>{}</h2><div class=\"scroll\"><table><thead><tr><th></th><th>A</th><th>B</th><th>change</th><th></th><th></th></tr></thead>\
             <tbody>{rows}</tbody></table></div></section>",
            escape(case)
        );
    }
    for (which, cases) in [("A", &comparison.only_a), ("B", &comparison.only_b)] {
        if !cases.is_empty() {
            let items: String = cases
                .iter()
                .map(|case| format!("<p>{}</p>", escape(case)))
                .collect();
            let _ = writeln!(
                sections,
                "<section class=\"prose\"><h2>Only in {which}</h2>{items}</section>"
            );
        }
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{a} and {b} · Terrashard</title>\n<style>\n{STYLE}{RANGES}</style>\n<main>\n\
         <header><p class=\"brand\">Terrashard · comparison</p><h1>{sum}</h1><p class=\"lead\">A is {a_head}.<br>B is {b_head}.</p></header>\n\
         {sections}<p class=\"key\">In brackets and as lines: quartiles of a run's steps, the fastest and the slowest step of a benchmark, or the lowest and the highest of \
         repeated measurements. Ranges that have something in common are noise.</p>\n</main>\n</html>\n",
        a = escape(&a.name),
        b = escape(&b.name),
        sum = comparison.sum(),
        a_head = escape(&head(a)),
        b_head = escape(&head(b)),
    )
}

fn line(row: &Row) -> String {
    let change = row.change().map_or("n/a".into(), |change| {
        format!("{:+.1}\u{a0}%", 100.0 * change)
    });
    format!(
        "<tr class=\"{verdict}\"><th>{}</th><td>{}</td><td>{}</td><td>{change}</td><td class=\"verdict\">{verdict}</td><td class=\"range\">{}</td></tr>",
        row.quantity.key,
        told(row.a),
        told(row.b),
        ranges(row.a, row.b),
        verdict = row.word()
    )
}

/// Both figures over one axis.
fn ranges(a: Figure, b: Figure) -> String {
    const WIDTH: f64 = 220.0;
    let ends = |figure: Figure| figure.spread.unwrap_or((figure.value, figure.value));
    let all = [a.value, b.value, ends(a).0, ends(a).1, ends(b).0, ends(b).1];
    let (low, high) = all
        .iter()
        .fold((f64::MAX, f64::MIN), |(low, high), &value| {
            (low.min(value), high.max(value))
        });
    // Small differences are to look small: the axis spans a tenth of the figures at least.
    let lacking = (0.1 * low.abs().max(high.abs()) - (high - low)).max(0.0) / 2.0;
    let (low, high) = (low - lacking, high + lacking);
    let place = |value: f64| match high > low {
        true => 5.0 + (WIDTH - 10.0) * (value - low) / (high - low),
        false => WIDTH / 2.0,
    };
    let draw = |figure: Figure, class: &str, y: f64| {
        let (from, to) = ends(figure);
        format!(
            "<line class=\"{class}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\" stroke-width=\"2\"/><circle class=\"{class}\" cx=\"{:.1}\" cy=\"{y}\" r=\"3\"/>",
            place(from),
            place(to),
            place(figure.value)
        )
    };
    format!(
        "<svg viewBox=\"0 0 {WIDTH} 24\" role=\"img\" aria-label=\"A {}, B {}\">{}{}</svg>",
        told(a),
        told(b),
        draw(a, "a", 7.0),
        draw(b, "b", 17.0)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_page_stands_by_itself() {
        let figure = |value: f64| Figure {
            value,
            spread: Some((value - 1.0, value + 1.0)),
            count: 3,
        };
        let record = |name: &str, value| Record {
            name: name.into(),
            notes: BTreeMap::new(),
            cases: vec![(
                "who=<us>".into(),
                BTreeMap::from([("step_ms", figure(value))]),
            )],
        };
        let (a, b) = (record("old", 10.0), record("new", 14.0));
        let page = render(&a, &b, &Comparison::of(&a, &b, 0.05));
        assert!(page.contains("<h1>0 better, 1 worse, 0 different, 0 within noise</h1>"));
        assert!(page.contains("who=&lt;us&gt;") && !page.contains("<us>"));
        assert!(page.contains("<tr class=\"worse\"><th>step_ms</th><td>10 [9, 11]</td><td>14 [13, 15]</td><td>+40.0\u{a0}%</td>"));
        // From 9 to 15 over 210 of 220 units: the medians are at 1/6 and 5/6.
        assert!(
            page.contains("cx=\"40.0\"") && page.contains("cx=\"180.0\""),
            "{page}"
        );
        assert!(!page.contains("http"), "it fetches nothing");
    }
}
