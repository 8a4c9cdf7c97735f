//! A record: cases, each with its figures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::quantity::{Figure, IDENTITY, QUANTITIES};
use crate::error::{Error, Result};

/// The final loss is that of the last twentieth of the steps, or of this many.
const LAST_STEPS: usize = 10;

/// How records are read.
pub(super) struct Reading<'a> {
    /// Steps at the start of a run that are left out.
    pub(super) warm_up: usize,
    /// Fields that do not tell cases apart.
    pub(super) across: &'a [String],
}

/// What was measured at one time.
#[derive(Debug)]
pub(super) struct Record {
    /// The path it was read from.
    pub(super) name: String,
    /// What else is known of it: the commit, or the settings of a run.
    pub(super) notes: BTreeMap<String, String>,
    /// Name of the case to its figures by key, in the order of [`QUANTITIES`].
    pub(super) cases: Vec<(String, BTreeMap<&'static str, Figure>)>,
}

impl Record {
    /// Reads a record folder, its rows, a run directory or its steps.
    pub(super) fn read(path: &Path, reading: &Reading<'_>) -> Result<Self> {
        let name = path.display().to_string();
        let results = path.join("results.json");
        let metrics = path.join("metrics.jsonl");
        let is_steps = path
            .extension()
            .is_some_and(|extension| extension == "jsonl");
        if metrics.is_file() {
            Self::of_run(name, &metrics, &path.join("sessions.jsonl"), reading)
        } else if results.is_file() {
            Self::of_rows(name, &rows(&results)?, reading)
        } else if is_steps {
            let sessions = path.with_file_name("sessions.jsonl");
            Self::of_run(name, path, &sessions, reading)
        } else if path.is_file() {
            Self::of_rows(name, &rows(path)?, reading)
        } else {
            let message = format!(
                "{name} is no record: expected a folder with results.json, a run directory with metrics.jsonl, or one of these files"
            );
            Err(Error::Usage { message })
        }
    }

    fn of_rows(name: String, rows: &[Map<String, Value>], reading: &Reading<'_>) -> Result<Self> {
        let mut cases: Vec<(String, Vec<&Map<String, Value>>)> = Vec::new();
        for row in rows {
            let case = identity(row, reading.across);
            match cases.iter_mut().find(|(known, _)| *known == case) {
                Some((_, rows)) => rows.push(row),
                None => cases.push((case, vec![row])),
            }
        }
        let figures = |rows: &[&Map<String, Value>]| {
            let figure = |key: &'static str| {
                let all: Vec<_> = rows.iter().filter_map(|row| figure_of(row, key)).collect();
                Some((key, Figure::of_repetitions(&all)?))
            };
            let keys = QUANTITIES.iter().map(|quantity| quantity.key);
            keys.filter_map(figure).collect()
        };
        let cases = cases
            .iter()
            .map(|(case, rows)| (case.clone(), figures(rows)))
            .collect();
        let mut commits: Vec<&str> = rows
            .iter()
            .filter_map(|row| row.get("commit")?.as_str())
            .collect();
        commits.dedup();
        let notes = match commits.is_empty() {
            true => BTreeMap::new(),
            false => BTreeMap::from([("commit".to_owned(), commits.join(", "))]),
        };
        Ok(Self { name, notes, cases })
    }

    fn of_run(
        name: String,
        metrics: &Path,
        sessions: &Path,
        reading: &Reading<'_>,
    ) -> Result<Self> {
        let mut steps = lines(metrics)?;
        steps.retain(|step| step.get("skipped").and_then(Value::as_bool) != Some(true));
        let warm_up = reading.warm_up.min(steps.len() / 4);
        let steps = &steps[warm_up..];
        let number = |step: &Map<String, Value>, pointer: &[&str]| -> Option<f64> {
            let (first, rest) = pointer.split_first()?;
            let value = rest
                .iter()
                .try_fold(step.get(*first)?, |value, key| value.get(key))?;
            value.as_f64()
        };
        let over = |pointer: &[&str], factor: f64| {
            let values = steps.iter().filter_map(|step| number(step, pointer));
            Figure::of_steps(values.map(|value| value * factor).collect())
        };
        let sent = steps.last().map(|step| {
            ["all_reduce", "reduce_scatter", "all_gather"]
                .iter()
                .filter_map(|verb| number(step, &["sent", verb]))
                .sum()
        });
        // Counters are read less often than steps are made, so a step alone tells nothing.
        let taken: f64 = steps
            .iter()
            .filter_map(|step| number(step, &["joules"]))
            .sum();
        let joules = (taken > 0.0).then(|| taken / steps.len() as f64);
        // Few steps have no spread by which a difference could be told from noise.
        let last = steps.len().div_ceil(20).max(LAST_STEPS).min(steps.len());
        let losses = steps[steps.len() - last..]
            .iter()
            .filter_map(|step| number(step, &["loss"]));
        let sessions = match sessions.is_file() {
            true => lines(sessions)?,
            false => Vec::new(),
        };
        let session = sessions.last();
        let of_session = |pointer: &[&str]| session.and_then(|session| number(session, pointer));
        let states = ["parameters", "gradients", "optimizer", "host"];
        let states = states.map(|part| of_session(&["counted", part]));
        let states = states.into_iter().sum::<Option<f64>>();
        let found = [
            ("step_ms", over(&["seconds"], 1e3)),
            ("images_s", over(&["images_s"], 1.0)),
            ("data_ms", over(&["times", "data"], 1e3)),
            ("compute_ms", over(&["times", "compute"], 1e3)),
            ("communication_ms", over(&["times", "communication"], 1e3)),
            ("optimizer_ms", over(&["times", "optimizer"], 1e3)),
            ("joules", joules.map(Figure::single)),
            ("wire_bytes", sent.map(Figure::single)),
            ("final_loss", Figure::of_steps(losses.collect())),
            ("state_bytes", states.map(Figure::single)),
            (
                "peak_rss_bytes",
                of_session(&["peak_rss_bytes"]).map(Figure::single),
            ),
            (
                "device_peak_bytes",
                of_session(&["measured_peak", "device", "bytes"]).map(Figure::single),
            ),
            (
                "parameters",
                of_session(&["parameters"]).map(Figure::single),
            ),
        ];
        let figures: BTreeMap<_, _> = found
            .into_iter()
            .filter_map(|(key, figure)| Some((key, figure?)))
            .collect();
        if figures.is_empty() {
            let message = format!("{name} has no finished step");
            return Err(Error::Usage { message });
        }
        let mut notes = BTreeMap::from([("steps".to_owned(), steps.len().to_string())]);
        for key in ["name", "ranks", "stage", "global_batch"] {
            if let Some(value) = session.and_then(|session| session.get(key)) {
                notes.insert(key.to_owned(), plain(value));
            }
        }
        Ok(Self {
            name,
            notes,
            cases: vec![("run".to_owned(), figures)],
        })
    }

    /// Its head in the JSON document.
    pub(super) fn document(&self) -> Value {
        json!({"record": self.name, "notes": self.notes, "cases": self.cases.len()})
    }
}

/// `bench=stages, who=terrashard, ...`.
fn identity(row: &Map<String, Value>, across: &[String]) -> String {
    let told = IDENTITY
        .iter()
        .filter(|key| across.iter().all(|field| field != **key));
    let parts = told.filter_map(|key| match row.get(*key)? {
        Value::Null => None,
        value => Some(format!("{key}={}", plain(value))),
    });
    parts.collect::<Vec<_>>().join(" ")
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A figure of one row with the spread that stands beside it.
fn figure_of(row: &Map<String, Value>, key: &str) -> Option<Figure> {
    let number = |key: &str| row.get(key)?.as_f64();
    let value = number(key)?;
    let pair = |key: &str| {
        let pair = row.get(key)?.as_array()?;
        Some((pair.first()?.as_f64()?, pair.get(1)?.as_f64()?))
    };
    let steps = || Some((number("min_ms")?, number("max_ms")?));
    let spread = match key {
        "step_ms" => steps(),
        "ms" => pair("spread_ms"),
        // It is that of the step, upside down.
        "images_s" => steps().and_then(|(fastest, slowest)| {
            let samples = value * number("step_ms")?;
            Some((samples / slowest, samples / fastest))
        }),
        _ => None,
    };
    let count = if spread.is_some() { 2 } else { 1 };
    Some(Figure {
        value,
        spread,
        count,
    })
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::Usage {
        message: format!("{}: {source}", path.display()),
    })
}

fn bad(path: &Path, message: impl std::fmt::Display) -> Error {
    Error::Usage {
        message: format!("{}: {message}", path.display()),
    }
}

fn rows(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let rows: Vec<Map<String, Value>> =
        serde_json::from_str(&text(path)?).map_err(|error| bad(path, error))?;
    match rows.is_empty() {
        true => Err(bad(path, "has no row")),
        false => Ok(rows),
    }
}

fn lines(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let text = text(path)?;
    let lines = text.lines().enumerate();
    lines
        .map(|(index, line)| {
            serde_json::from_str(line)
                .map_err(|error| bad(path, format!("line {}: {error}", index + 1)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: Reading<'_> = Reading {
        warm_up: 1,
        across: &[],
    };

    fn record(file: &str, text: &str) -> Result<Record> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(file), text).unwrap();
        Record::read(dir.path(), &READING)
    }

    #[test]
    fn rows_are_cases_with_their_spread() {
        let rows = r#"[
            {"bench": "stages", "who": "terrashard", "stage": 2, "offload": null, "commit": "abc",
             "step_ms": 20.0, "min_ms": 16.0, "max_ms": 40.0, "images_s": 100.0, "wire_bytes": 512, "loss": {"1": 0.5}},
            {"bench": "stages", "who": "ddp", "step_ms": 30.0}
        ]"#;
        let record = record("results.json", rows).unwrap();
        assert_eq!(record.notes["commit"], "abc");
        let (case, figures) = &record.cases[0];
        assert_eq!(case, "bench=stages who=terrashard stage=2");
        assert_eq!(figures["step_ms"].spread, Some((16.0, 40.0)));
        // Two samples a step: 2 in 40 ms are 50 a second, 2 in 16 ms are 125.
        assert_eq!(figures["images_s"].spread, Some((50.0, 125.0)));
        assert_eq!(figures["wire_bytes"], Figure::single(512.0));
        assert_eq!(figures.len(), 3);
        assert_eq!(record.cases[1].0, "bench=stages who=ddp");
        assert_eq!(record.cases[1].1["step_ms"].spread, None);
    }

    #[test]
    fn rows_of_one_case_are_repetitions() {
        let row = |ms: f64, stage: u8| json!({"model": "b0", "stage": stage, "step_ms": ms, "min_ms": 1.0, "max_ms": 99.0});
        let rows = json!([row(10.0, 1), row(14.0, 1), row(11.0, 2)]).to_string();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.json");
        fs::write(&path, rows).unwrap();
        let cases = Record::read(&path, &READING).unwrap().cases;
        assert_eq!(cases.len(), 2);
        let figure = cases[0].1["step_ms"];
        assert_eq!(
            (figure.value, figure.spread, figure.count),
            (12.0, Some((10.0, 14.0)), 2)
        );
        let across = ["stage".to_owned()];
        let reading = Reading {
            warm_up: 0,
            across: &across,
        };
        let cases = Record::read(&path, &reading).unwrap().cases;
        assert_eq!(cases.len(), 1);
        assert_eq!(cases[0].0, "model=b0");
        assert_eq!(cases[0].1["step_ms"].count, 3);
    }

    #[test]
    fn a_run_is_its_steps_after_the_warm_up() {
        let step = |seconds: f64, skipped: bool| {
            json!({"step": 1, "loss": seconds, "images_s": 4.0 / seconds, "skipped": skipped, "seconds": seconds,
                   "times": {"data": 0.0, "compute": seconds / 2.0, "communication": 0.25, "optimizer": 0.125, "checkpoint": 0.0},
                   "sent": {"all_reduce": 8, "reduce_scatter": 100, "all_gather": 200}})
            .to_string()
        };
        let steps = [
            step(9.0, false),
            step(2.0, false),
            step(7.0, true),
            step(1.0, false),
            step(3.0, false),
            step(2.0, false),
        ];
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("metrics.jsonl"), steps.join("\n")).unwrap();
        let session = json!({"name": "water", "ranks": 2, "stage": 2, "global_batch": 4, "parameters": 77, "peak_rss_bytes": 1000,
            "counted": {"parameters": 40, "gradients": 20, "optimizer": 30, "host": 0, "gathered": 5, "buckets": 7}});
        fs::write(dir.path().join("sessions.jsonl"), session.to_string()).unwrap();
        let record = Record::read(dir.path(), &READING).unwrap();
        let (case, figures) = &record.cases[0];
        assert_eq!(case, "run");
        let step = figures["step_ms"];
        assert_eq!(
            (step.value, step.spread, step.count),
            (2000.0, Some((1750.0, 2250.0)), 4)
        );
        assert_eq!(figures["compute_ms"].value, 1000.0);
        assert_eq!(figures["wire_bytes"].value, 308.0);
        assert_eq!(figures["state_bytes"].value, 90.0);
        // Of so few steps all are the last.
        assert!(!figures.contains_key("joules"), "nobody told");
        let loss = figures["final_loss"];
        assert_eq!((loss.value, loss.count), (2.0, 4));
        assert_eq!(record.notes["stage"], "2");
        assert_eq!(record.notes["steps"], "4");
        // The file alone finds the sessions beside it.
        let alone = Record::read(&dir.path().join("metrics.jsonl"), &READING).unwrap();
        assert_eq!(alone.cases, record.cases);
    }

    #[test]
    fn what_is_no_record_is_told() {
        let check = |file: &str, text: &str, expected: &str| {
            let message = record(file, text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        check("other.txt", "", "is no record");
        check("results.json", "[]", "results.json: has no row");
        check("results.json", "{", "results.json: ");
        check("metrics.jsonl", "{}\nx", "metrics.jsonl: line 2: ");
        check("metrics.jsonl", "", "no finished step");
    }
}
