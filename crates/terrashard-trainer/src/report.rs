//! The report of a run: `report.json` for programs, a self-contained `report.html` for people.

mod charts;
mod configuration;
mod memory;
mod page;
mod panels;
mod pictures;
mod scores;
mod shore;
mod times;

use std::path::Path;

use serde::Serialize;
use terrashard_layout::Stage;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::record::{Scores, StepRecord, TestRecord};
use crate::run_directory::{RunDirectory, replace};
use page::Content;
use panels::Panels;

/// The figures of a run, as they stand in `report.json`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Steps made.
    pub steps: u64,
    /// The checkpoint's step that the last call of `fit` started from.
    pub resumed_from_step: Option<u64>,
    /// Ranks of the last call.
    pub ranks: usize,
    /// ZeRO stage of the last call.
    pub stage: Stage,
    /// Wall time of all calls of `fit` and of the test.
    pub seconds: f64,
    /// Mean loss of the last twentieth of the steps.
    pub loss: Option<f64>,
    /// Median over steps.
    pub images_s: f64,
    /// What `test` measured, if it was run.
    pub test: Option<TestRecord>,
    /// The baseline's scores on the same pixels.
    pub baseline: Option<Scores>,
}

/// Writes `report.json` and `report.html` of a run into the folder `out`. Pictures show `prediction` if given; where a scene's
/// file is no longer at its place, the page has no pictures and says so.
///
/// # Errors
/// [`Error::Read`] and [`Error::Syntax`] for what the run left; [`Error::Write`].
pub fn write(run: &RunDirectory, out: &Path, prediction: Option<&Path>) -> Result<()> {
    let config = Config::load(&run.config(), &[])?;
    let (steps, sessions) = (run.steps()?, run.session_records()?);
    let test = match run.test().exists() {
        true => Some(TestRecord::read(&run.test())?),
        false => None,
    };
    let Some(last) = sessions.last() else {
        return Err(Error::NoCheckpoint {
            path: run.sessions(),
            remedy: "run `terrashard fit` to its end first".into(),
        });
    };
    // A call that was killed left no record of itself, but its steps.
    let last_step = steps.last().map_or(last.last_step, |step| step.step);
    let fit_seconds: f64 = sessions.iter().map(|session| session.seconds).sum();
    let report = Report {
        steps: last_step,
        resumed_from_step: last.resumed_from_step,
        ranks: last.ranks,
        stage: last.stage,
        seconds: fit_seconds + test.as_ref().map_or(0.0, |test| test.seconds),
        loss: final_loss(&steps),
        images_s: median(steps.iter().map(|step| step.images_s).collect()),
        baseline: test.as_ref().and_then(|test| test.baseline.clone()),
        test,
    };
    let folder = std::path::absolute(run.root()).map_err(Error::read(run.root()))?;
    let panels = Panels::draw(&config, prediction)?;
    let page = page::render(&Content {
        name: &last.name,
        report: &report,
        steps: &steps,
        sessions: &sessions,
        baseline_note: config.data.baseline_note.as_deref(),
        panels: &panels,
        config: &configuration::shown(&config, &folder),
    });
    std::fs::create_dir_all(out).map_err(Error::write(out))?;
    let json = serde_json::to_string_pretty(&report).expect("a report is plain data");
    replace(&out.join("report.json"), (json + "\n").as_bytes())?;
    replace(&out.join("report.html"), page.as_bytes())
}

/// The mean of the last twentieth of the steps that were applied, at least one.
fn final_loss(steps: &[StepRecord]) -> Option<f64> {
    let applied: Vec<f64> = steps
        .iter()
        .filter(|step| !step.skipped)
        .map(|step| step.loss)
        .collect();
    let last = &applied[applied.len() - applied.len().div_ceil(20)..];
    (!last.is_empty()).then(|| last.iter().sum::<f64>() / last.len() as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
