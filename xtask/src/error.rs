//! What can go wrong in a command, and the exit code that says so.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thiserror::Error;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command failed. Messages complete "xtask: ".
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// A program could not be started at all.
    #[error("cannot start `{command}`: {source}")]
    Start {
        command: String,
        #[source]
        source: std::io::Error,
    },
    /// A program ended with another code than zero; it has told the reason itself.
    #[error("`{command}` failed with exit code {code}")]
    Exit { command: String, code: i32 },
    /// One named step of several failed.
    #[error("step `{step}` failed: {source}")]
    Step {
        step: &'static str,
        #[source]
        source: Box<Error>,
    },
    /// A file could not be read, written or removed.
    #[error("{path}: {source}", path = path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A file or an output was read but says something else than expected.
    #[error("{place}: {message}")]
    Content { place: String, message: String },
    /// `tidy` found something.
    #[error("tidy: {count} finding(s), listed above")]
    Untidy { count: usize },
    /// `compare` found figures that became worse.
    #[error("{count} figure(s) of B are worse than A's by more than noise")]
    Worse { count: usize },
    /// The arguments contradict each other or the state of the machine.
    #[error("{message}")]
    Usage { message: String },
}

impl Error {
    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn content(place: impl ToString, message: impl Into<String>) -> Self {
        Self::Content {
            place: place.to_string(),
            message: message.into(),
        }
    }

    /// 2 for wrong use, the code of the program that failed where there is one, else 1.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage { .. } => ExitCode::from(2),
            Self::Exit { code, .. } => ExitCode::from(u8::try_from(*code).unwrap_or(1)),
            Self::Step { source, .. } => source.exit_code(),
            _ => ExitCode::FAILURE,
        }
    }
}
