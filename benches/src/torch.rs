//! PyTorch's optimizer in a process beside this one, which steps when it is asked to.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = include_str!("../torch_adamw.py");

/// A running `torch_adamw.py`. It ends when this is dropped.
#[derive(Debug)]
pub struct Torch {
    child: Child,
    /// Open until this is dropped.
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    python: PathBuf,
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

impl Torch {
    /// Starts `python` with `size` parameters and as many threads as asked.
    ///
    /// # Errors
    /// [`Error`] if it cannot be started or has no torch.
    pub fn start(python: &Path, size: usize, threads: usize) -> Result<Self, Error> {
        let fail = |source: std::io::Error| Error {
            python: python.to_path_buf(),
            what: source.to_string(),
        };
        let mut child = Command::new(python)
            .args(["-c", SCRIPT, &size.to_string(), &threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        let stdout = child.stdout.take().expect("piped just above");
        let mut torch = Self {
            asks: child.stdin.take(),
            answers: BufReader::new(stdout),
            child,
            python: python.to_path_buf(),
            version: String::new(),
        };
        torch.version = torch.answer()?;
        Ok(torch)
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
        let asks = self.asks.as_mut().expect("open until dropped");
        let asked = writeln!(asks, "{name} {steps}").and_then(|()| asks.flush());
        asked.map_err(|source| self.fail(source.to_string()))?;
        let answer = self.answer()?;
        let number = answer.parse();
        number.map_err(|_| self.fail(format!("it answered `{answer}` instead of a time")))
    }

    fn answer(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(self.fail("it ended early".into())),
            Ok(_) => Ok(line.trim().to_string()),
            Err(source) => Err(self.fail(source.to_string())),
        }
    }

    fn fail(&self, what: String) -> Error {
        Error {
            python: self.python.clone(),
            what,
        }
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // The script ends with its input.
        drop(self.asks.take());
        let _ = self.child.wait();
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
