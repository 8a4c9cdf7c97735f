//! Where a run keeps what it leaves behind.
//!
//! | file | holds |
//! |---|---|
//! | `config.toml` | the effective configuration |
//! | `metrics.jsonl` | one object per step, [`StepRecord`] |
//! | `validation.jsonl` | one object per validation, [`ValidationRecord`] |
//! | `events.out.tfevents.*` | the same for TensorBoard, a file for each call of `fit`, [`EventFile`](crate::record::EventFile) |
//! | `panels/step-NNNNNN.png` | image, label and map of one window beside each other, every `log.panels` steps |
//! | `sessions.jsonl` | one object per call of `fit`, [`SessionRecord`] |
//! | `checkpoints/step-NNNNNN/` | sharded checkpoints; `checkpoints/latest` names the newest |
//! | `test.json` | what `test` measured last |
//! | `report.json`, `report.html` | the report |
//! | `.lock` | held by the `fit` that runs |

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::record::{SessionRecord, StepRecord, ValidationRecord};

/// A run directory, there or to be made.
#[derive(Debug, Clone)]
pub struct RunDirectory {
    root: PathBuf,
}

impl RunDirectory {
    /// The directory at `root`; nothing is touched.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The default for a configuration: `runs/` and the configuration's name.
    pub fn for_config(config: &Path) -> Self {
        let name = config.file_stem().unwrap_or("run".as_ref());
        Self::new(Path::new("runs").join(name))
    }

    /// Makes the directory and its folder for checkpoints.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn create(&self) -> Result<()> {
        fs::create_dir_all(self.checkpoints()).map_err(Error::write(self.checkpoints()))
    }

    /// Keeps other processes from training into this directory, which exists, until the file is dropped. The system lets
    /// go of it even if the process is killed.
    ///
    /// # Errors
    /// [`Error::RunBusy`], [`Error::Write`].
    pub fn lock(&self) -> Result<File> {
        let path = self.root.join(".lock");
        let file = File::create(&path).map_err(Error::write(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(Error::RunBusy {
                path: self.root.clone(),
            }),
            Err(TryLockError::Error(source)) => Err(Error::Write { path, source }),
        }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The effective configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// One object per step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// One object per validation.
    pub fn validation(&self) -> PathBuf {
        self.root.join("validation.jsonl")
    }

    /// One object per call of `fit`.
    pub fn sessions(&self) -> PathBuf {
        self.root.join("sessions.jsonl")
    }

    /// What `test` measured last.
    pub fn test(&self) -> PathBuf {
        self.root.join("test.json")
    }

    /// The folder of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// The folder of the pictures that were drawn on the way.
    pub fn panels(&self) -> PathBuf {
        self.root.join("panels")
    }

    /// Keeps the picture drawn after a step, the bytes of a PNG.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save_panel(&self, step: u64, png: &[u8]) -> Result<()> {
        let folder = self.panels();
        fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        replace(&folder.join(format!("step-{step:06}.png")), png)
    }

    /// The pictures drawn so far, by step.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn drawn(&self) -> Result<Vec<(u64, PathBuf)>> {
        let folder = self.panels();
        if !folder.exists() {
            return Ok(Vec::new());
        }
        let mut drawn = Vec::new();
        for entry in fs::read_dir(&folder).map_err(Error::read(&folder))? {
            let path = entry.map_err(Error::read(&folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let digits = name.and_then(|name| name.strip_prefix("step-")?.strip_suffix(".png"));
            if let Some(Ok(step)) = digits.map(str::parse) {
                drawn.push((step, path));
            }
        }
        drawn.sort();
        Ok(drawn)
    }

    /// The steps recorded so far.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Syntax`].
    pub fn steps(&self) -> Result<Vec<StepRecord>> {
        lines(&self.metrics())
    }

    /// The calls of `fit` recorded so far: none where the first was killed.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Syntax`].
    pub fn session_records(&self) -> Result<Vec<SessionRecord>> {
        match self.sessions().exists() {
            true => lines(&self.sessions()),
            false => Ok(Vec::new()),
        }
    }

    /// The validations recorded so far.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Syntax`].
    pub fn validations(&self) -> Result<Vec<ValidationRecord>> {
        match self.validation().exists() {
            true => lines(&self.validation()),
            false => Ok(Vec::new()),
        }
    }

    /// Adds a call of `fit` to the record.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append_session(&self, record: &SessionRecord) -> Result<()> {
        append(&self.sessions(), record)
    }

    /// Adds a validation to the record.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn append_validation(&self, record: &ValidationRecord) -> Result<()> {
        append(&self.validation(), record)
    }

    /// Drops what was recorded after `step`: a run that goes on from there records it anew.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Syntax`], [`Error::Write`].
    pub fn forget_after(&self, step: u64) -> Result<()> {
        for (_, path) in self.drawn()?.into_iter().filter(|(drawn, _)| *drawn > step) {
            fs::remove_file(&path).map_err(Error::write(&path))?;
        }
        let validations = self.validations()?.into_iter();
        let kept = validations.filter(|record| record.step <= step);
        let kept: String = kept.map(|record| line(&record)).collect();
        if self.validation().exists() {
            replace(&self.validation(), kept.as_bytes())?;
        }
        let path = self.metrics();
        if !path.exists() {
            return Ok(());
        }
        let kept = self
            .steps()?
            .into_iter()
            .filter(|record| record.step <= step);
        let text: String = kept.map(|record| record.to_line()).collect();
        replace(&path, text.as_bytes())
    }
}

/// A record as one line.
fn line(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("a record is plain data") + "\n"
}

/// Adds a record to a file of them.
fn append(path: &Path, record: &impl Serialize) -> Result<()> {
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line(record).as_bytes()))
        .map_err(Error::write(path))
}

/// Writes a file as a whole: to a temporary one beside it, which then takes its place.
///
/// # Errors
/// [`Error::Write`].
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with(path, |file| file.write_all(bytes))
}

/// The same with what `write` writes.
///
/// # Errors
/// [`Error::Write`].
pub fn replace_with(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let written = || {
        let mut file = BufWriter::new(File::create(&temporary)?);
        write(&mut file)?;
        file.flush()
    };
    written()
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|source| {
            // Best effort: the error that is told is the first one.
            let _ = fs::remove_file(&temporary);
            Error::Write {
                path: path.into(),
                source,
            }
        })
}

/// One value per line; a last line that a crash cut short is left out.
fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = fs::read_to_string(path).map_err(Error::read(path))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |(index, line)| {
        serde_json::from_str(line).map_err(|error| Error::Syntax {
            path: path.into(),
            message: format!("line {}: {error}", index + 1),
        })
    };
    whole.lines().enumerate().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> StepRecord {
        StepRecord {
            step,
            loss: 0.5,
            ..StepRecord::default()
        }
    }

    #[test]
    fn one_fit_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let held = run.lock().unwrap();
        assert!(matches!(run.lock(), Err(Error::RunBusy { .. })));
        drop(held);
        assert!(run.lock().is_ok());
    }

    #[test]
    fn a_resumed_run_forgets_later_steps_and_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let text: String = (1..=4).map(|step| record(step).to_line()).collect();
        fs::write(run.metrics(), format!("{text}{{\"step\": 5, \"lo")).unwrap();
        assert_eq!(run.steps().unwrap().len(), 4);
        for step in [2, 4] {
            run.save_panel(step, b"png").unwrap();
        }
        run.forget_after(2).unwrap();
        let kept = run.panels().join("step-000002.png");
        assert_eq!(run.drawn().unwrap(), [(2, kept)]);
        fs::remove_dir_all(run.panels()).unwrap();
        assert_eq!(run.steps().unwrap(), [record(1), record(2)]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
