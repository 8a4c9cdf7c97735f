//! A program run as one step: announced with its command line, timed, its failure turned into an error.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::error::{Error, Result};

/// One command line, in a form that can be both printed and run.
pub(crate) struct Step {
    shown: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(&'static str, String)>,
    dir: Option<PathBuf>,
}

impl Step {
    /// `shown` stands for the program where the command line is printed.
    pub(crate) fn new(shown: &str, program: impl Into<PathBuf>) -> Self {
        Self {
            shown: shown.to_owned(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.env.push((key, value.into()));
        self
    }

    pub(crate) fn dir(mut self, dir: PathBuf) -> Self {
        self.dir = Some(dir);
        self
    }

    /// The command line as one would type it.
    pub(crate) fn line(&self) -> String {
        let env = self
            .env
            .iter()
            .map(|(key, value)| format!("{key}={}", quoted(value)));
        let args = self.args.iter().map(|arg| quoted(&arg.to_string_lossy()));
        env.chain([self.shown.clone()])
            .chain(args)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Runs it with its output shown.
    pub(crate) fn run(&self) -> Result<()> {
        let started = self.announce();
        let status = self
            .command()
            .status()
            .map_err(|source| self.start_error(source))?;
        eprintln!("  {:.1} s", started.elapsed().as_secs_f64());
        self.check(status)
    }

    /// Runs it with all its output on standard error, where ours is meant for another program.
    pub(crate) fn run_beside_output(&self) -> Result<()> {
        let started = self.announce();
        let status = self
            .command()
            .stdout(io::stderr())
            .status()
            .map_err(|source| self.start_error(source))?;
        eprintln!("  {:.1} s", started.elapsed().as_secs_f64());
        self.check(status)
    }

    /// Runs it with its output shown, and hands every line of its standard output to `each` as well.
    pub(crate) fn run_lines(&self, mut each: impl FnMut(&str)) -> Result<()> {
        let started = self.announce();
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| self.start_error(source))?;
        let stdout = child
            .stdout
            .take()
            .expect("standard output was piped just above");
        for line in BufReader::new(stdout).lines() {
            // A line that is not UTF-8 is of no interest to `each`; the next one may be.
            let Ok(line) = line else { continue };
            println!("{line}");
            each(&line);
        }
        let status = child.wait().map_err(|source| self.start_error(source))?;
        eprintln!("  {:.1} s", started.elapsed().as_secs_f64());
        self.check(status)
    }

    /// Runs it announced, and returns its standard output instead of showing it.
    pub(crate) fn run_captured(&self) -> Result<String> {
        let started = self.announce();
        let output = self.capture()?;
        eprintln!("  {:.1} s", started.elapsed().as_secs_f64());
        Ok(output)
    }

    /// Runs it announced. It has to fail, and to say `text` on standard output or standard error.
    pub(crate) fn run_failing(&self, text: &str) -> Result<()> {
        let started = self.announce();
        let output = self
            .command()
            .output()
            .map_err(|source| self.start_error(source))?;
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        if output.status.success() || !(stdout.contains(text) || stderr.contains(text)) {
            eprint!("{stdout}{stderr}");
            return Err(Error::content(
                self.line(),
                format!(
                    "ended with {}, expected a failure that says `{text}`",
                    output.status
                ),
            ));
        }
        eprintln!(
            "  failed as expected, {:.1} s",
            started.elapsed().as_secs_f64()
        );
        Ok(())
    }

    /// Runs it silently and returns its standard output. Standard error stays visible.
    pub(crate) fn capture(&self) -> Result<String> {
        let output = self
            .command()
            .stderr(Stdio::inherit())
            .output()
            .map_err(|source| self.start_error(source))?;
        self.check(output.status)?;
        String::from_utf8(output.stdout)
            .map_err(|_| Error::content(self.line(), "its output is not UTF-8"))
    }

    fn announce(&self) -> Instant {
        eprintln!("$ {}", self.line());
        Instant::now()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    fn check(&self, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        // No code means that a signal ended it.
        Err(Error::Exit {
            command: self.line(),
            code: status.code().unwrap_or(1),
        })
    }

    fn start_error(&self, source: std::io::Error) -> Error {
        Error::Start {
            command: self.line(),
            source,
        }
    }
}

/// As a shell takes it.
pub(crate) fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) {
        arg.to_owned()
    } else {
        format!("'{}'", arg.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_can_be_typed() {
        let step = Step::new("tool", "/somewhere/tool")
            .args(["fit", "a b.toml", "--set", "train.steps=4"])
            .env("K", "-D w");
        assert_eq!(
            step.line(),
            "K='-D w' tool fit 'a b.toml' --set train.steps=4"
        );
    }

    #[test]
    fn failure_carries_the_code() {
        let error = Step::new("sh", "sh")
            .args(["-c", "exit 7"])
            .capture()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "`sh -c 'exit 7'` failed with exit code 7"
        );
    }

    #[test]
    fn a_failure_that_is_expected_says_why() {
        let check = |script: &str, expected: Result<(), &str>| {
            let result = Step::new("sh", "sh")
                .args(["-c", script])
                .run_failing("lost");
            let message = result.map_err(|error| error.to_string());
            match expected {
                Ok(()) => assert_eq!(message, Ok(())),
                Err(part) => assert!(message.unwrap_err().contains(part)),
            }
        };
        check("echo rank 1 is lost >&2; exit 3", Ok(()));
        check("echo rank 1 is lost; exit 3", Ok(()));
        check(
            "echo rank 1 is lost",
            Err("exit status: 0, expected a failure"),
        );
        check(
            "exit 3",
            Err("exit status: 3, expected a failure that says `lost`"),
        );
    }

    #[test]
    fn lines_are_handed_on() {
        let mut seen = Vec::new();
        Step::new("sh", "sh")
            .args(["-c", "echo one; echo two"])
            .run_lines(|line| seen.push(line.to_owned()))
            .unwrap();
        assert_eq!(seen, ["one", "two"]);
    }

    #[test]
    fn missing_program_is_named() {
        let error = Step::new("absent", "/nonexistent/absent")
            .run()
            .unwrap_err();
        assert!(
            error.to_string().starts_with("cannot start `absent`"),
            "{error}"
        );
    }
}
