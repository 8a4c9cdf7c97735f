//! PyTorch in a process beside this one, which works when it is asked to: its optimizer, and the peers' network.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ADAMW: &str = include_str!("../torch_adamw.py");
const MODEL: &str = include_str!("../torch_model.py");

/// A running script, which answers each line by a line. It ends when this is dropped.
#[derive(Debug)]
struct Script {
    child: Child,
    /// Open until this is dropped.
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    python: PathBuf,
}

/// A running `torch_adamw.py`. It ends when this is dropped.
#[derive(Debug)]
pub struct Torch {
    script: Script,
    /// PyTorch's version and the instruction set it chose.
    pub version: String,
}

/// Which network, for `torch_model.py`.
#[derive(Clone, Debug)]
pub struct Network<'a> {
    /// The interpreter.
    pub python: &'a Path,
    /// The folder that holds the peers' `model.py`.
    pub peers: &'a Path,
    /// The model's name.
    pub name: &'a str,
    /// Input height and width in pixels.
    pub px: usize,
    /// Samples in a batch.
    pub batch: usize,
    /// Threads that compute.
    pub threads: usize,
}

/// A running `torch_model.py` that takes turns with us.
#[derive(Debug)]
pub struct TorchModel {
    script: Script,
    /// PyTorch's version and the instruction set it chose.
    pub version: String,
}

/// Which of PyTorch's implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// One kernel over all.
    Fused,
    /// That kernel, and then one that writes the parameters to a copy in bf16.
    FusedWithBf16Copy,
    /// A kernel for every operation.
    Foreach,
}

/// Why PyTorch could not be timed.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to time PyTorch with {python}: {what}; give a Python that has torch with --python, or none"
)]
pub struct Error {
    /// The interpreter.
    pub python: PathBuf,
    /// What happened.
    pub what: String,
}

impl Script {
    /// Starts `python` with a script and its arguments.
    fn start(python: &Path, script: &str, arguments: &[String]) -> Result<Self, Error> {
        let mut child = Command::new(python)
            .args(["-c", script])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| Error {
                python: python.to_path_buf(),
                what: source.to_string(),
            })?;
        let stdout = child.stdout.take().expect("piped just above");
        Ok(Self {
            asks: child.stdin.take(),
            answers: BufReader::new(stdout),
            child,
            python: python.to_path_buf(),
        })
    }

    fn ask(&mut self, line: &str) -> Result<String, Error> {
        let asks = self.asks.as_mut().expect("open until dropped");
        let asked = writeln!(asks, "{line}").and_then(|()| asks.flush());
        asked.map_err(|source| self.fail(source.to_string()))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(self.fail("it ended early".into())),
            Ok(_) => Ok(line.trim().to_string()),
            Err(source) => Err(self.fail(source.to_string())),
        }
    }

    /// The numbers of an answer.
    fn numbers<const N: usize>(&self, answer: &str) -> Result<[f64; N], Error> {
        let numbers: Result<Vec<f64>, _> = answer.split(' ').map(str::parse).collect();
        let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
        numbers.ok_or_else(|| self.fail(format!("it answered `{answer}` instead of numbers")))
    }

    fn fail(&self, what: String) -> Error {
        Error {
            python: self.python.clone(),
            what,
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // The script ends with its input.
        drop(self.asks.take());
        let _ = self.child.wait();
    }
}

impl Torch {
    /// Starts `python` with `size` parameters and as many threads as asked.
    ///
    /// # Errors
    /// [`Error`] if it cannot be started or has no torch.
    pub fn start(python: &Path, size: usize, threads: usize) -> Result<Self, Error> {
        let mut script = Script::start(python, ADAMW, &[size.to_string(), threads.to_string()])?;
        let version = script.answer()?;
        Ok(Self { script, version })
    }

    /// The time of the fastest of `steps` steps, milliseconds.
    ///
    /// # Errors
    /// [`Error`] if the process has ended.
    pub fn fastest(&mut self, which: Implementation, steps: usize) -> Result<f64, Error> {
        let name = match which {
            Implementation::Fused => "fused",
            Implementation::FusedWithBf16Copy => "fused_copy",
            Implementation::Foreach => "foreach",
        };
        let answer = self.script.ask(&format!("{name} {steps}"))?;
        let [time] = self.script.numbers(&answer)?;
        Ok(time)
    }
}

impl Network<'_> {
    fn script(&self, work: &str) -> Result<Script, Error> {
        let arguments = [
            self.peers.to_string_lossy().into_owned(),
            self.name.into(),
            self.px.to_string(),
            self.batch.to_string(),
            self.threads.to_string(),
            work.into(),
        ];
        Script::start(self.python, MODEL, &arguments)
    }

    /// A process that runs the network forward and backward when it is asked to.
    ///
    /// # Errors
    /// [`Error`] if it cannot be started, has no torch, or the folder has no such network.
    pub fn start(&self) -> Result<TorchModel, Error> {
        let mut script = self.script("turns")?;
        let version = script.answer()?;
        Ok(TorchModel { script, version })
    }

    /// Growth of the resident size of a process over one training step, bytes, and the loss.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn training_step(&self) -> Result<(u64, f64), Error> {
        let mut script = self.script("step")?;
        let _version = script.answer()?;
        let answer = script.answer()?;
        let [bytes, loss] = script.numbers(&answer)?;
        Ok((bytes as u64, loss))
    }
}

impl TorchModel {
    /// Milliseconds of one forward with its losses, of forward and backward together, and the loss.
    ///
    /// # Errors
    /// [`Error`] if the process has ended.
    pub fn turn(&mut self) -> Result<[f64; 3], Error> {
        let answer = self.script.ask("turn")?;
        self.script.numbers(&answer)
    }
}

/// The first `python3` or `python` on the path that has torch.
pub fn find() -> Option<PathBuf> {
    let has_torch = |python: &str| {
        let mut command = Command::new(python);
        let silent = command.args(["-c", "import torch"]).stderr(Stdio::null());
        silent.status().is_ok_and(|status| status.success())
    };
    let mut names = ["python3", "python"].into_iter();
    names.find(|name| has_torch(name)).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_that_is_none_is_named() {
        let error = Torch::start(Path::new("/nonexistent/python"), 8, 1).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/python"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_python_without_torch_ends_early() {
        let error = Torch::start(Path::new("true"), 8, 1).unwrap_err();
        assert!(error.to_string().contains("it ended early"), "{error}");
    }
}
