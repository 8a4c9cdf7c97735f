//! What rank 0 tells of a run as it goes: to people on a display, to programs in `metrics.jsonl`, `validation.jsonl` and event files.

use std::time::Duration;

use terrashard_layout::ShardTable;

use super::Plan;
use crate::config::Device;
use crate::console::tell;
use crate::error::Result;
use crate::process_memory::resident_bytes;
use crate::record::{
    Display, EventFile, Figures, Metrics, Progress, StepRecord, ValidationRecord, joules_of_epoch,
};
use crate::run_directory::RunDirectory;

/// The display and the records of a run.
#[derive(Debug)]
pub(super) struct Logger<'a> {
    run: &'a RunDirectory,
    device: Device,
    display: Display,
    /// The number of rank 0's GPU, where it has one.
    gpu: usize,
    metrics: Metrics,
    progress: Progress,
    /// Samples of an epoch.
    epoch: usize,
    /// Taken in this call, and what the GPUs took for them.
    samples: u64,
    joules: f64,
    /// That of the last validation.
    iou: Option<f64>,
}

impl<'a> Logger<'a> {
    /// Opens the records of a run, and says how it begins.
    pub(super) fn open(
        plan: &Plan<'a>,
        run: &'a RunDirectory,
        gpu: usize,
        ranks: usize,
        table: &ShardTable,
    ) -> Result<Self> {
        let log = &plan.config.log;
        let every = Duration::from_secs_f64(log.seconds);
        let progress = Progress::new(plan.display, "step", plan.start.step(), plan.steps, every);
        progress.say(&plan.opening(ranks, table));
        plan.changed.iter().for_each(|line| progress.say(line));
        let metrics = Metrics::open(run, plan.config.checkpoint.on_failure)?;
        let metrics = match log.tensorboard {
            true => metrics.beside(EventFile::create(run.root(), plan.start.step())?),
            false => metrics,
        };
        Ok(Self {
            run,
            device: plan.device,
            display: plan.display,
            gpu,
            metrics,
            progress,
            epoch: plan.chips.len(),
            samples: 0,
            joules: 0.0,
            iou: None,
        })
    }

    /// Says something without breaking the display.
    pub(super) fn say(&self, text: &str) {
        self.progress.say(text);
    }

    /// Takes down a step of so many samples; [`Logger::show`] shows it.
    pub(super) fn step(&mut self, record: &StepRecord, samples: usize) -> Result<()> {
        self.samples += samples as u64;
        self.joules += record.joules;
        let warning = self.metrics.append(record)?;
        self.caution(warning);
        Ok(())
    }

    /// Shows how far the run is.
    pub(super) fn show(&mut self, record: &StepRecord, samples: usize) {
        let StepRecord { step, loss, lr, .. } = *record;
        let figures = Figures {
            loss,
            lr,
            iou: self.iou,
            memory: match self.device {
                Device::Cuda => self.device.peak_bytes(self.gpu),
                Device::Cpu | Device::CpuLibTorch => resident_bytes(),
            },
            epoch_joules: joules_of_epoch(self.joules, self.samples, self.epoch),
        };
        self.progress.advance(step, Some(figures), samples);
    }

    /// Takes down and tells what a validation found.
    pub(super) fn validated(&mut self, record: &ValidationRecord) -> Result<()> {
        self.iou = record.scores.iou;
        let warning = self.metrics.append_validation(self.run, record)?;
        self.caution(warning);
        self.progress.say(&record.told());
        Ok(())
    }

    /// Keeps a picture of what the model makes of a window after a step.
    pub(super) fn drawn(&mut self, step: u64, png: &[u8], size: [usize; 2]) -> Result<()> {
        let warning = self.metrics.append_panel(self.run, step, png, size)?;
        self.caution(warning);
        Ok(())
    }

    /// Tells a warning, also where the run is to be quiet, as errors are.
    fn caution(&self, warning: Option<String>) {
        if let Some(warning) = warning {
            self.warn(&warning);
        }
    }

    /// The same of one that is there.
    pub(super) fn warn(&self, warning: &str) {
        let line = format!("warning: {warning}");
        match self.display {
            Display::Auto => self.progress.say(&line),
            Display::Quiet => tell(&line),
        }
    }

    /// Leaves the display as it stands.
    pub(super) fn finish(&self) {
        self.progress.finish();
    }
}

/// Tells a warning of a rank, whether it has the display or not.
pub(super) fn warn(logger: Option<&Logger<'_>>, warning: &str) {
    match logger {
        Some(logger) => logger.warn(warning),
        None => tell(&format!("warning: {warning}")),
    }
}
