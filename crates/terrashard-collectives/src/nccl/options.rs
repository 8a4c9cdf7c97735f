//! How long ranks wait for each other, and when they compare their calls.

use std::env;
use std::time::Duration;

use crate::{Error, Result};

/// How a run of GPUs behaves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// How long ranks may take to find each other.
    pub join: Duration,
    /// How long a call may take after it was made, with all that the GPU has to do before it.
    pub timeout: Duration,
    /// When calls are compared between ranks.
    pub check: Check,
}

/// When calls are compared between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// While they run.
    #[default]
    Watching,
    /// Before they run, at the price of a round trip of the host for each.
    EveryCall,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            join: Duration::from_secs(300),
            timeout: Duration::from_secs(600),
            check: Check::Watching,
        }
    }
}

impl Options {
    /// The defaults, but `TERRASHARD_TIMEOUT` seconds for [`join`](Self::join) and [`timeout`](Self::timeout), and
    /// [`Check::EveryCall`] where `TERRASHARD_CHECK_CALLS` is 1.
    ///
    /// # Errors
    ///
    /// [`Error::Variable`] for a value that makes no sense.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(|name| env::var(name).ok())
    }

    fn from_variables(value: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut options = Self::default();
        let wrong = |variable: &str, value: String, expected: &str| Error::Variable {
            variable: variable.to_owned(),
            value,
            expected: expected.to_owned(),
        };
        let name = "TERRASHARD_TIMEOUT";
        if let Some(text) = value(name) {
            let seconds = text.parse::<u32>().ok().filter(|seconds| *seconds > 0);
            let seconds =
                seconds.ok_or_else(|| wrong(name, text, "a whole number of seconds from 1"))?;
            options.timeout = Duration::from_secs(seconds.into());
            options.join = options.timeout;
        }
        let name = "TERRASHARD_CHECK_CALLS";
        options.check = match value(name).as_deref() {
            None | Some("" | "0") => Check::Watching,
            Some("1") => Check::EveryCall,
            Some(text) => return Err(wrong(name, text.to_owned(), "0 or 1")),
        };
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_from_the_environment() {
        let read = |variables: &[(&str, &str)]| {
            Options::from_variables(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let options = read(&[]).unwrap();
        assert_eq!(
            (options.timeout.as_secs(), options.check),
            (600, Check::Watching)
        );
        let options = read(&[
            ("TERRASHARD_TIMEOUT", "20"),
            ("TERRASHARD_CHECK_CALLS", "1"),
        ])
        .unwrap();
        assert_eq!(
            (options.timeout.as_secs(), options.join.as_secs()),
            (20, 20)
        );
        assert_eq!(options.check, Check::EveryCall);
        for (name, value) in [
            ("TERRASHARD_TIMEOUT", "0"),
            ("TERRASHARD_CHECK_CALLS", "yes"),
        ] {
            let text = read(&[(name, value)]).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }
}
