//! The file of a run that programs follow, and what becomes of the run where it cannot be written.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use super::{EventFile, StepRecord, ValidationRecord};
use crate::config::OnFailure;
use crate::error::{Error, Result};
use crate::run_directory::RunDirectory;

/// Appends to `metrics.jsonl`, a line at a time, so that a killed run leaves whole lines.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
    events: Option<EventFile>,
    on_failure: OnFailure,
    /// Whether a line is missing already.
    lacks: bool,
}

impl Metrics {
    /// Opens the file of a run for appending. What cannot be written later is an error, or with [`OnFailure::Continue`] a
    /// warning of which one is given.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn open(run: &RunDirectory, on_failure: OnFailure) -> Result<Self> {
        let path = run.metrics();
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::write(&path))?;
        Ok(Self {
            path,
            file,
            events: None,
            on_failure,
            lacks: false,
        })
    }

    /// Keeps an event file of TensorBoard beside it.
    pub fn beside(mut self, events: EventFile) -> Self {
        self.events = Some(events);
        self
    }

    /// Appends one step. Returns a warning, if there is one.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append(&mut self, record: &StepRecord) -> Result<Option<String>> {
        let before = self.file.metadata().map(|file| file.len());
        let written = self.file.write_all(record.to_line().as_bytes());
        if let (Err(_), Ok(before)) = (&written, before) {
            // A part of a line would spoil the next one.
            let _ = self.file.set_len(before);
        }
        let written = written.map_err(Error::write(&self.path));
        let events = self.events.as_mut();
        let drawn = events.map_or(Ok(()), |events| events.append(record));
        self.judge(written.and(drawn))
    }

    /// Appends what a validation found to the run's file of those, and to the event file if there is one. Returns a warning, if there is
    /// one.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append_validation(
        &mut self,
        run: &RunDirectory,
        record: &ValidationRecord,
    ) -> Result<Option<String>> {
        let written = run.append_validation(record);
        let events = self.events.as_mut();
        let drawn = events.map_or(Ok(()), |events| events.append_validation(record));
        self.judge(written.and(drawn))
    }

    /// Keeps a picture drawn after a step in the run's folder of those, and in the event file if there is one. Returns a warning, if there
    /// is one.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append_panel(
        &mut self,
        run: &RunDirectory,
        step: u64,
        png: &[u8],
        size: [usize; 2],
    ) -> Result<Option<String>> {
        let written = run.save_panel(step, png);
        let events = self.events.as_mut();
        let drawn = events.map_or(Ok(()), |events| events.append_panel(step, png, size));
        self.judge(written.and(drawn))
    }

    fn judge(&mut self, written: Result<()>) -> Result<Option<String>> {
        match (written, self.on_failure) {
            (Ok(()), _) => Ok(None),
            (Err(error), OnFailure::Abort) => Err(error),
            (Err(_), OnFailure::Continue) if self.lacks => Ok(None),
            (Err(error), OnFailure::Continue) => {
                self.lacks = true;
                Ok(Some(format!(
                    "{error}; the run goes on, as `checkpoint.on_failure` says, and what cannot be written is left out"
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run whose metrics go to a disk that is always full.
    #[cfg(target_os = "linux")]
    fn full(folder: &std::path::Path) -> RunDirectory {
        let run = RunDirectory::new(folder);
        std::os::unix::fs::symlink("/dev/full", run.metrics()).unwrap();
        run
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_ends_the_run_or_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = full(folder.path());
        let record = StepRecord::default();
        let mut metrics = Metrics::open(&run, OnFailure::Abort).unwrap();
        let error = metrics.append(&record).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl"), "{error}");
        let mut metrics = Metrics::open(&run, OnFailure::Continue).unwrap();
        let warning = metrics.append(&record).unwrap().expect("a warning");
        assert!(
            warning.contains("metrics.jsonl") && warning.contains("the run goes on"),
            "{warning}"
        );
        assert_eq!(metrics.append(&record).unwrap(), None);
    }
}
