//! The report of a run: `report.json` for programs, a self-contained `report.html` for people.

mod charts;
mod configuration;
mod memory;
mod page;
mod panels;
mod scores;
mod shore;
mod times;

use std::path::Path;

use serde::Serialize;
use terrashard_layout::Stage;

use crate::config::{Batch, Config, Device};
use crate::error::{Error, Result};
use crate::record::{Scores, StepRecord, TestRecord, ValidationRecord, joules_of_epoch};
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
    /// Steps that changed nothing: a gradient was not finite, or no pixel had a label.
    pub skipped: u64,
    /// Samples that could not be read, each time that one was drawn: they were of weight 0.
    pub left_out: u64,
    /// Whether the last call of `fit` was ended from outside before it could write its record.
    pub killed: bool,
    /// Wall time of all calls of `fit` and of the test; of a call that was killed, that of its steps.
    pub seconds: f64,
    /// Mean loss of the last twentieth of the steps.
    pub loss: Option<f64>,
    /// Steps that it is the mean of.
    pub loss_steps: usize,
    /// What the GPUs of all ranks took over all steps, in joules; none where they do not tell.
    pub joules: Option<f64>,
    /// The same for an epoch: as many samples as are trained on.
    pub epoch_joules: Option<f64>,
    /// Median over steps.
    pub images_s: f64,
    /// What the last validation on the way found, if there was one.
    pub validation: Option<ValidationRecord>,
    /// What `test` measured, if it was run.
    pub test: Option<TestRecord>,
    /// The baseline's scores on the same pixels.
    pub baseline: Option<Scores>,
}

/// Writes `report.json` and `report.html` of a run into the folder `out`. Pictures show `prediction` if given; where a scene's
/// file is no longer at its place, the page has no pictures and says so.
///
/// # Errors
/// [`Error::Read`] and [`Error::Syntax`] for what the run left; [`Error::NoCheckpoint`] where no step was made;
/// [`Error::InvalidValue`] for a prediction that is no map of the first scene; [`Error::Write`].
pub fn write(run: &RunDirectory, out: &Path, prediction: Option<&Path>) -> Result<()> {
    let config = Config::load(&run.config(), &[])?;
    let (steps, sessions) = (run.steps()?, run.session_records()?);
    let validations = run.validations()?;
    let test = match run.test().exists() {
        true => Some(TestRecord::read(&run.test())?),
        false => None,
    };
    let session = sessions.last();
    let (recorded, made) = (
        session.map_or(0, |session| session.last_step),
        steps.last().map_or(0, |step| step.step),
    );
    if recorded.max(made) == 0 {
        return Err(Error::NoCheckpoint {
            path: run.root().into(),
            remedy: "no step was made in this run; go on with `terrashard fit`".into(),
        });
    }
    // A call that was killed left no record of itself, but its steps.
    let killed = made > recorded;
    let unrecorded = steps.iter().filter(|step| step.step > recorded);
    let fit_seconds = sessions.iter().map(|session| session.seconds).sum::<f64>()
        + unrecorded.map(|step| step.seconds).sum::<f64>();
    let ranks = match session {
        Some(session) => session.ranks,
        None => config.zero.ranks.count(Device::Cpu),
    };
    let losses = applied_losses(&steps);
    let last = &losses[losses.len() - losses.len().div_ceil(20)..];
    let joules = steps.iter().map(|step| step.joules).sum::<f64>();
    let samples = Batch::resolve(&config.train, ranks)?.global;
    let (taken, epoch) = (
        (steps.len() * samples) as u64,
        session.map_or(0, |session| session.samples),
    );
    let report = Report {
        steps: if killed { made } else { recorded },
        resumed_from_step: session.and_then(|session| session.resumed_from_step),
        ranks,
        stage: session.map_or(config.zero.stage, |session| session.stage),
        skipped: steps.iter().filter(|step| step.skipped).count() as u64,
        left_out: steps.iter().map(|step| step.left_out).sum(),
        killed,
        seconds: fit_seconds + test.as_ref().map_or(0.0, |test| test.seconds),
        loss: mean(last),
        loss_steps: last.len(),
        joules: (joules > 0.0).then_some(joules),
        epoch_joules: joules_of_epoch(joules, taken, epoch),
        images_s: median(steps.iter().map(|step| step.images_s).collect()),
        validation: validations.last().cloned(),
        baseline: test.as_ref().and_then(|test| test.baseline.clone()),
        test,
    };
    let folder = std::path::absolute(run.root()).map_err(Error::read(run.root()))?;
    let panels = Panels::draw(&config, prediction)?;
    let name = match session {
        Some(session) => session.name.clone(),
        None => folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    };
    let drawn = panels::drawn(&run.drawn()?)?;
    let page = page::render(&Content {
        name: &name,
        samples,
        report: &report,
        steps: &steps,
        validations: &validations,
        sessions: &sessions,
        baseline_note: config.data.baseline_note.as_deref(),
        panels: &panels,
        drawn: &drawn,
        config: &configuration::shown(&config, &folder),
    });
    std::fs::create_dir_all(out).map_err(Error::write(out))?;
    let json = serde_json::to_string_pretty(&report).expect("a report is plain data");
    replace(&out.join("report.json"), (json + "\n").as_bytes())?;
    replace(&out.join("report.html"), page.as_bytes())
}

/// Losses of the steps that were applied.
fn applied_losses(steps: &[StepRecord]) -> Vec<f64> {
    let applied = steps.iter().filter(|step| !step.skipped);
    applied.map(|step| step.loss).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
