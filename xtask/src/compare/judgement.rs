//! What two records say of the same case, and whether the difference is larger than either varies by itself.

use std::fmt::Write;

use serde_json::{Value, json};

use super::quantity::{Better, Figure, Noise, QUANTITIES, Quantity};
use super::record::Record;

/// Two records side by side.
pub(super) struct Comparison {
    pub(super) rows: Vec<Row>,
    /// Cases of A that B lacks.
    pub(super) only_a: Vec<String>,
    /// Cases of B that A lacks.
    pub(super) only_b: Vec<String>,
}

/// One quantity of one case.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) case: String,
    pub(super) quantity: &'static Quantity,
    pub(super) a: Figure,
    pub(super) b: Figure,
    pub(super) verdict: Verdict,
    pub(super) ground: Ground,
}

/// What a difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// B is better by more than noise.
    Better,
    /// B is worse by more than noise.
    Worse,
    /// B is another by more than noise, of which neither is better.
    Different,
    /// No more than either varies by itself.
    Noise,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Different => "different",
            Self::Noise => "noise",
        }
    }
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// Both vary by what is recorded: they differ where their ranges have nothing in common.
    Ranges,
    /// A counted figure, which does not vary.
    Count,
    /// How much it varies was not recorded for one of them: they differ by more than the tolerance or not.
    Tolerance,
}

impl Ground {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ranges => "ranges",
            Self::Count => "count",
            Self::Tolerance => "tolerance",
        }
    }
}

/// Judges a pair of figures; `tolerance` is a share.
fn judge(quantity: &Quantity, a: Figure, b: Figure, tolerance: f64) -> (Verdict, Ground) {
    let (differs, ground) = match (quantity.noise, a.spread, b.spread) {
        (Noise::Counted, _, _) => (a.value != b.value, Ground::Count),
        (Noise::Measured, Some(a), Some(b)) => (a.1 < b.0 || b.1 < a.0, Ground::Ranges),
        (Noise::Measured, _, _) => {
            let scale = a.value.abs().max(f64::MIN_POSITIVE);
            (
                (b.value - a.value).abs() / scale > tolerance,
                Ground::Tolerance,
            )
        }
    };
    let verdict = match (differs, quantity.better, b.value < a.value) {
        (false, _, _) => Verdict::Noise,
        (true, Better::Neither, _) => Verdict::Different,
        (true, Better::Lower, true) | (true, Better::Higher, false) => Verdict::Better,
        (true, Better::Lower, false) | (true, Better::Higher, true) => Verdict::Worse,
    };
    (verdict, ground)
}

impl Row {
    /// B in relation to A; none where A is nothing.
    pub(super) fn change(&self) -> Option<f64> {
        (self.a.value != 0.0).then(|| self.b.value / self.a.value - 1.0)
    }

    /// The verdict as a word: figures that are the same are told apart from noise.
    pub(super) fn word(&self) -> &'static str {
        match self.a.value == self.b.value {
            true => "equal",
            false => self.verdict.name(),
        }
    }

    pub(super) fn document(&self) -> Value {
        let figure = |figure: Figure| {
            json!({"value": figure.value, "low": figure.spread.map(|spread| spread.0),
                   "high": figure.spread.map(|spread| spread.1)})
        };
        json!({"case": self.case, "quantity": self.quantity.key, "a": figure(self.a), "b": figure(self.b),
               "change": self.change(), "verdict": self.word(), "ground": self.ground.name()})
    }
}

impl Comparison {
    pub(super) fn of(a: &Record, b: &Record, tolerance: f64) -> Self {
        let mut rows = Vec::new();
        for (case, of_a) in &a.cases {
            let Some((_, of_b)) = b.cases.iter().find(|(other, _)| other == case) else {
                continue;
            };
            for quantity in QUANTITIES {
                let (Some(&a), Some(&b)) = (of_a.get(quantity.key), of_b.get(quantity.key)) else {
                    continue;
                };
                let (verdict, ground) = judge(quantity, a, b, tolerance);
                rows.push(Row {
                    case: case.clone(),
                    quantity,
                    a,
                    b,
                    verdict,
                    ground,
                });
            }
        }
        let lacking = |of: &Record, other: &Record| {
            let names = of.cases.iter().map(|(case, _)| case.clone());
            names
                .filter(|case| other.cases.iter().all(|(known, _)| known != case))
                .collect()
        };
        Self {
            rows,
            only_a: lacking(a, b),
            only_b: lacking(b, a),
        }
    }

    pub(super) fn count(&self, verdict: Verdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    }

    /// The table for people; differences within noise with `all` only.
    pub(super) fn table(&self, a: &Record, b: &Record, all: bool) -> String {
        let mut text = format!("A: {}\nB: {}\n", head(a), head(b));
        let mut case = None;
        for row in self
            .rows
            .iter()
            .filter(|row| all || row.verdict != Verdict::Noise)
        {
            if case != Some(&row.case) {
                let _ = writeln!(text, "\n{}", row.case);
                case = Some(&row.case);
            }
            let change = row
                .change()
                .map_or("n/a".into(), |change| format!("{:+.1} %", 100.0 * change));
            let _ = writeln!(
                text,
                "  {:<18}{:>26}{:>26}{change:>11}  {}{}",
                row.quantity.key,
                told(row.a),
                told(row.b),
                row.word(),
                match row.ground {
                    Ground::Tolerance => " (no spread recorded)",
                    Ground::Ranges | Ground::Count => "",
                }
            );
        }
        let _ = writeln!(text, "\n{}", self.sum());
        for (which, cases) in [("A", &self.only_a), ("B", &self.only_b)] {
            if !cases.is_empty() {
                let _ = writeln!(text, "only in {which}: {}", cases.join("; "));
            }
        }
        text
    }

    /// How many of each.
    pub(super) fn sum(&self) -> String {
        format!(
            "{} better, {} worse, {} different, {} within noise",
            self.count(Verdict::Better),
            self.count(Verdict::Worse),
            self.count(Verdict::Different),
            self.count(Verdict::Noise)
        )
    }
}

/// Name and notes of a record.
pub(super) fn head(record: &Record) -> String {
    let notes = record
        .notes
        .iter()
        .map(|(key, value)| format!("{key} {value}"));
    let notes = notes.collect::<Vec<_>>().join(", ");
    match notes.is_empty() {
        true => record.name.clone(),
        false => format!("{} ({notes})", record.name),
    }
}

/// `12.3 [11.9, 13.0]`.
pub(super) fn told(figure: Figure) -> String {
    let value = number(figure.value);
    match figure.spread {
        Some((low, high)) => format!("{value} [{}, {}]", number(low), number(high)),
        None => value,
    }
}

/// Four digits, and all of them of whole numbers.
fn number(value: f64) -> String {
    match value {
        value if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value}"),
        value if value.abs() >= 1000.0 => format!("{value:.0}"),
        value if value.abs() >= 100.0 => format!("{value:.1}"),
        value if value.abs() >= 10.0 => format!("{value:.2}"),
        value if value.abs() >= 1e-3 => format!("{value:.4}"),
        value => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn ranging(value: f64, low: f64, high: f64) -> Figure {
        Figure {
            value,
            spread: Some((low, high)),
            count: 9,
        }
    }

    #[test]
    fn ranges_that_overlap_are_noise() {
        let check = |key: &str, a: Figure, b: Figure, expected: (Verdict, Ground)| {
            let quantity = QUANTITIES
                .iter()
                .find(|quantity| quantity.key == key)
                .unwrap();
            assert_eq!(judge(quantity, a, b, 0.05), expected, "{key} {a:?} {b:?}");
        };
        let base = ranging(10.0, 9.0, 11.0);
        check(
            "step_ms",
            base,
            ranging(12.0, 11.0, 13.0),
            (Verdict::Noise, Ground::Ranges),
        );
        check(
            "step_ms",
            base,
            ranging(12.0, 11.1, 13.0),
            (Verdict::Worse, Ground::Ranges),
        );
        check(
            "step_ms",
            base,
            ranging(8.0, 7.0, 8.9),
            (Verdict::Better, Ground::Ranges),
        );
        check(
            "images_s",
            base,
            ranging(8.0, 7.0, 8.9),
            (Verdict::Worse, Ground::Ranges),
        );
        check(
            "images_s",
            base,
            ranging(12.0, 11.1, 13.0),
            (Verdict::Better, Ground::Ranges),
        );
        check(
            "wire_bytes",
            Figure::single(1e9),
            Figure::single(1e9 + 1.0),
            (Verdict::Worse, Ground::Count),
        );
        check(
            "wire_bytes",
            Figure::single(7.0),
            Figure::single(7.0),
            (Verdict::Noise, Ground::Count),
        );
        check(
            "parameters",
            Figure::single(7.0),
            Figure::single(6.0),
            (Verdict::Different, Ground::Count),
        );
        check(
            "alloc_GiB",
            Figure::single(1.0),
            Figure::single(1.04),
            (Verdict::Noise, Ground::Tolerance),
        );
        check(
            "alloc_GiB",
            Figure::single(1.0),
            Figure::single(0.94),
            (Verdict::Better, Ground::Tolerance),
        );
        // One spread alone does not tell what the other varies by.
        check(
            "step_ms",
            base,
            Figure::single(10.4),
            (Verdict::Noise, Ground::Tolerance),
        );
    }

    #[test]
    fn cases_are_matched_and_the_others_told() {
        let record = |name: &str, cases: [(&str, f64); 2]| Record {
            name: name.into(),
            notes: BTreeMap::from([("commit".into(), "abc".into())]),
            cases: cases
                .map(|(case, ms)| {
                    (
                        case.into(),
                        BTreeMap::from([("step_ms", ranging(ms, ms - 1.0, ms + 1.0))]),
                    )
                })
                .into(),
        };
        let (a, b) = (
            record("old", [("x", 10.0), ("y", 5.0)]),
            record("new", [("z", 9.0), ("x", 20.0)]),
        );
        let comparison = Comparison::of(&a, &b, 0.05);
        assert_eq!(comparison.rows.len(), 1);
        assert_eq!(
            (comparison.only_a.as_slice(), comparison.only_b.as_slice()),
            (["y".to_owned()].as_slice(), ["z".to_owned()].as_slice())
        );
        let table = comparison.table(&a, &b, false);
        assert!(
            table.starts_with("A: old (commit abc)\nB: new (commit abc)\n\nx\n  step_ms"),
            "{table}"
        );
        assert!(
            table.contains("10 [9, 11]") && table.contains("20 [19, 21]"),
            "{table}"
        );
        assert!(table.contains("+100.0 %  worse\n\n0 better, 1 worse, 0 different, 0 within noise\nonly in A: y\nonly in B: z\n"), "{table}");
        let document = comparison.rows[0].document();
        assert_eq!(document["change"], 1.0);
        assert_eq!(document["b"]["low"], 19.0);
        assert_eq!(document["verdict"], "worse");
    }

    #[test]
    fn numbers_have_four_digits() {
        for (value, expected) in [
            (12.0, "12"),
            (1234.56, "1235"),
            (123.45, "123.5"),
            (12.345, "12.35"),
            (0.12345, "0.1235"),
            (1.5e-7, "1.50e-7"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
