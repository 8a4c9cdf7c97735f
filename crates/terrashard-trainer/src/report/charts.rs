//! Charts as SVG, drawn by hand: a loss curve and bars of memory. Colours are the page's CSS variables, so that both
//! follow its light and dark theme.

use std::fmt::Write;

/// A line over steps.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// `(step, value)`, by step.
    pub points: Vec<(f64, f64)>,
    /// CSS class of its stroke.
    pub class: &'static str,
}

/// One bar of several parts.
#[derive(Debug, Clone)]
pub(super) struct Bar {
    /// Stands in front of it.
    pub label: String,
    /// `(CSS class of the fill, value)`, from left to right.
    pub parts: Vec<(&'static str, f64)>,
    /// Stands behind it.
    pub text: String,
    /// CSS class of the whole row.
    pub class: &'static str,
}

/// A rectangle in the SVG's units.
struct Frame {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

/// The values of an axis.
enum Axis {
    Linear { low: f64, high: f64 },
    Log { low: f64, high: f64 },
}

impl Axis {
    /// For values of at least 0: logarithmic where they span more than a factor of 30.
    fn over(values: impl Iterator<Item = f64> + Clone) -> Self {
        let high = values.clone().fold(f64::MIN, f64::max);
        let low = values.fold(f64::MAX, f64::min);
        match low > 0.0 && high / low > 30.0 {
            true => Axis::Log { low, high },
            false => Axis::Linear {
                low: 0.0,
                high: if high > 0.0 { high * 1.05 } else { 1.0 },
            },
        }
    }

    /// From 0 at the lowest value to 1 at the highest.
    fn place(&self, value: f64) -> f64 {
        match self {
            Axis::Linear { low, high } => (value - low) / (high - low),
            Axis::Log { low, high } => (value.max(*low) / low).ln() / (high / low).ln(),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match self {
            Axis::Linear { low, high } => linear_ticks(*low, *high, 5),
            Axis::Log { low, high } => {
                let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
                let factors: &[f64] = if high / low > 1000.0 {
                    &[1.0]
                } else {
                    &[1.0, 3.0]
                };
                let all = decades.flat_map(|decade| {
                    factors
                        .iter()
                        .map(move |factor| factor * 10f64.powi(decade))
                });
                all.filter(|value| (low..=high).contains(&value)).collect()
            }
        }
    }
}

/// Lines over steps with axes, of `what`; `mark` is a step with a note, drawn as a dashed upright.
pub(super) fn lines(what: &str, lines: &[Line], mark: Option<(f64, String)>) -> String {
    let (width, height) = (920.0, 312.0);
    let frame = Frame {
        left: 66.0,
        top: 14.0,
        right: width - 16.0,
        bottom: height - 46.0,
    };
    let all = lines.iter().flat_map(|line| line.points.iter().copied());
    let last = all.clone().map(|(step, _)| step).fold(1.0, f64::max);
    let first = all
        .clone()
        .map(|(step, _)| step)
        .fold(last, f64::min)
        .min(last - 1.0);
    let axis = Axis::over(all.map(|(_, value)| value));
    let x = |step: f64| frame.left + (frame.right - frame.left) * (step - first) / (last - first);
    let y = |value: f64| frame.bottom - (frame.bottom - frame.top) * axis.place(value);

    let mut svg = open(width, height, &format!("{what} over steps"));
    for tick in axis.ticks() {
        let at = y(tick);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{:.1}" x2="{:.1}" y1="{at:.1}" y2="{at:.1}"/><text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            frame.left,
            frame.right,
            frame.left - 8.0,
            at + 4.0,
            number(tick)
        );
    }
    for tick in linear_ticks(first, last, 8) {
        let _ = write!(
            svg,
            r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            x(tick),
            frame.bottom + 20.0,
            number(tick)
        );
    }
    let middle = (
        (frame.left + frame.right) / 2.0,
        (frame.top + frame.bottom) / 2.0,
    );
    let _ = write!(
        svg,
        r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="middle">step</text><text class="tick" transform="translate(12 {:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
        middle.0,
        height - 6.0,
        middle.1,
        escape(what)
    );
    if let Some((step, note)) = mark {
        let (at, flip) = (x(step), step > 0.8 * last);
        let (anchor, shift) = if flip { ("end", -6.0) } else { ("start", 6.0) };
        let _ = write!(
            svg,
            r#"<line class="mark" x1="{at:.1}" x2="{at:.1}" y1="{:.1}" y2="{:.1}"/><text class="tick" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
            frame.top,
            frame.bottom,
            at + shift,
            frame.top + 10.0,
            escape(&note)
        );
    }
    for line in lines {
        let mut path = String::new();
        for (index, (step, value)) in line.points.iter().enumerate() {
            let _ = write!(
                path,
                "{}{:.1} {:.1}",
                if index == 0 { "M" } else { "L" },
                x(*step),
                y(*value)
            );
        }
        let _ = write!(svg, r#"<path class="{}" d="{path}"/>"#, line.class);
    }
    svg + "</svg>"
}

/// Bars below each other on one scale.
pub(super) fn bars(bars: &[Bar]) -> String {
    let (width, row) = (920.0, 34.0);
    let (left, right) = (150.0, width - 110.0);
    let total = |bar: &Bar| bar.parts.iter().map(|(_, value)| value).sum::<f64>();
    let longest = bars.iter().map(total).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = open(width, row * bars.len() as f64, "Memory per rank");
    for (index, bar) in bars.iter().enumerate() {
        let top = row * index as f64;
        let _ = write!(
            svg,
            r#"<g class="{}"><rect class="band" x="0" y="{top:.1}" width="{width:.1}" height="{:.1}" rx="4"/><text class="label" x="8" y="{:.1}">{}</text>"#,
            bar.class,
            row - 2.0,
            top + 21.0,
            escape(&bar.label)
        );
        let mut at = left;
        for (class, value) in &bar.parts {
            let length = (right - left) * value / longest;
            let _ = write!(
                svg,
                r#"<rect class="{class}" x="{at:.1}" y="{:.1}" width="{:.1}" height="18"/>"#,
                top + 7.0,
                (length - 1.0).max(0.0)
            );
            at += length;
        }
        let _ = write!(
            svg,
            r#"<text class="label" x="{:.1}" y="{:.1}">{}</text></g>"#,
            at + 8.0,
            top + 21.0,
            escape(&bar.text)
        );
    }
    svg + "</svg>"
}

/// Each point's mean with as many neighbours on either side: `reach`, or what is left towards the nearer end. Always centred,
/// so that the curve never lags behind a fall.
pub(super) fn smooth(points: &[(f64, f64)], reach: usize) -> Vec<(f64, f64)> {
    let average = |(at, (step, _)): (usize, &(f64, f64))| {
        let reach = reach.min(at).min(points.len() - 1 - at);
        let around = &points[at - reach..=at + reach];
        let sum = around.iter().map(|(_, value)| value).sum::<f64>();
        (*step, sum / around.len() as f64)
    };
    points.iter().enumerate().map(average).collect()
}

/// At most about `count` points, each the mean of neighbours and in their middle, so that a long run makes no long file.
pub(super) fn thin(points: &[(f64, f64)], count: usize) -> Vec<(f64, f64)> {
    let size = points.len().div_ceil(count).max(1);
    let mean = |chunk: &[(f64, f64)]| {
        let sum = chunk.iter().map(|(_, value)| value).sum::<f64>();
        let middle = (chunk[0].0 + chunk[chunk.len() - 1].0) / 2.0;
        (middle, sum / chunk.len() as f64)
    };
    points.chunks(size).map(mean).collect()
}

/// Text for HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn open(width: f64, height: f64, title: &str) -> String {
    format!(r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}">"#)
}

/// Round values between `low` and `high`, about `count` of them.
fn linear_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let rough = (high - low) / count as f64;
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * decade)
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    (first..)
        .map(|index| index as f64 * step)
        .take_while(|value| *value <= high * (1.0 + 1e-9))
        .collect()
}

/// A tick's value without rounding noise.
fn number(value: f64) -> String {
    match value == 0.0 || (1e-3..1e6).contains(&value.abs()) {
        true => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        }
        false => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            linear_ticks(0.0, 1.0, 5),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
        );
        assert_eq!(
            linear_ticks(1.0, 600.0, 8),
            [100.0, 200.0, 300.0, 400.0, 500.0, 600.0]
        );
        assert_eq!(number(0.6000000000000001), "0.6");
        assert_eq!(number(100.0), "100");
        assert_eq!(number(2e-5), "2e-5");
    }

    #[test]
    fn a_wide_span_is_logarithmic() {
        let axis = Axis::over([0.001, 1.0].into_iter());
        assert!((axis.place(0.001)).abs() < 1e-12 && (axis.place(1.0) - 1.0).abs() < 1e-12);
        assert!((axis.place(0.0316227766) - 0.5).abs() < 1e-6);
        assert!((Axis::over([0.5, 1.0].into_iter()).place(0.525) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn points_lie_where_their_values_say() {
        let line = Line {
            points: vec![(0.0, 0.0), (10.0, 1.0)],
            class: "loss",
        };
        let svg = lines("loss", &[line], None);
        // Bottom left to 5 % below the top right of the frame.
        assert!(svg.contains(r#"d="M66.0 266.0L904.0 26.0""#), "{svg}");
    }

    #[test]
    fn smoothing_is_centred_and_thinning_averages() {
        let points = [(1.0, 4.0), (2.0, 2.0), (3.0, 0.0), (4.0, 1.0), (5.0, 8.0)];
        let expected = [(1.0, 4.0), (2.0, 2.0), (3.0, 3.0), (4.0, 3.0), (5.0, 8.0)];
        assert_eq!(smooth(&points, 2), expected);
        assert_eq!(smooth(&[], 2), []);
        assert_eq!(thin(&points[..3], 2), [(1.5, 3.0), (3.0, 0.0)]);
    }
}
