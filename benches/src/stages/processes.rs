//! The processes of one measurement, one for each rank, and what the first of them says.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Measured;

/// What stands before a result, as the peers print it.
pub const RESULT: &str = "RESULT ";

/// Lines of a process's output that are told where it fails.
const TOLD: usize = 6;

/// How long the others may go on once one process has failed: it may be they who say why.
const GRACE: Duration = Duration::from_secs(5);

/// A program with arguments.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// What it reads a result from.
    pub read: fn(&serde_json::Value) -> Result<Measured, String>,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What its environment has beside ours.
    pub environment: Vec<(&'static str, String)>,
}

/// The place of a process among those of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Rank {
    /// All of `ranks`.
    pub fn all(ranks: usize) -> Vec<Self> {
        (0..ranks).map(|rank| Self { rank, ranks }).collect()
    }

    /// The environment in which torchrun starts processes.
    fn environment(self, port: u16) -> [(&'static str, String); 5] {
        [
            ("RANK", self.rank.to_string()),
            ("LOCAL_RANK", self.rank.to_string()),
            ("WORLD_SIZE", self.ranks.to_string()),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port.to_string()),
        ]
    }
}

/// What comes from a process.
enum Said {
    Line(usize, String),
    /// All its output has come.
    End(usize),
}

/// Runs a process for each of `ranks` and returns what the one that speaks has measured. All have ended then.
///
/// # Errors
/// Why there is no result, in one line: what a process said last, or that the time was over.
pub fn run(program: &Program, ranks: &[Rank], limit: Duration) -> Result<Measured, String> {
    let port = free_port().map_err(|error| format!("no port is free: {error}"))?;
    let (sender, said) = channel();
    let mut children = Children(Vec::new());
    for &rank in ranks {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments);
        command.envs(program.environment.iter().map(|(key, value)| (key, value)));
        command.envs(rank.environment(port));
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown = program.path.display();
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("failed to start {shown}: {error}"))?;
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|it| Box::new(it) as _),
            child.stderr.take().map(|it| Box::new(it) as _),
        ];
        children.0.push(child);
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            thread::spawn(move || forward(rank.rank, output, &sender));
        }
    }
    drop(sender);
    let result = listen(&said, &mut children, limit);
    drop(children);
    let value = result?;
    match value["error"].as_str() {
        Some(error) => Err(error.into()),
        None => (program.read)(&value),
    }
}

/// Processes, which end with it.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already cannot be ended again.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn forward(rank: usize, output: Box<dyn Read + Send>, sender: &Sender<Said>) {
    for line in BufReader::new(output).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line).trim_end().to_string();
        if sender.send(Said::Line(rank, line)).is_err() {
            return;
        }
    }
    let _ = sender.send(Said::End(rank));
}

/// Hears the processes until both outputs of each have ended.
fn listen(
    said: &Receiver<Said>,
    children: &mut Children,
    limit: Duration,
) -> Result<serde_json::Value, String> {
    let mut end = Instant::now() + limit;
    let mut over = format!("no result within {} s", limit.as_secs());
    let mut last: Vec<VecDeque<String>> = vec![VecDeque::new(); children.0.len()];
    let mut open = vec![2; children.0.len()];
    let mut result = None;
    let mut failed = None;
    while open.iter().any(|open| *open > 0) {
        match said.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Said::Line(rank, line)) => match line.strip_prefix(RESULT) {
                Some(json) => {
                    let value: serde_json::Value = serde_json::from_str(json)
                        .map_err(|error| format!("a result is no JSON: {error}"))?;
                    // An error tells more than what another rank may say.
                    if result.is_none() || !value["error"].is_null() {
                        result = Some(value);
                    }
                }
                None => {
                    let last = &mut last[rank];
                    last.push_back(line);
                    if last.len() > TOLD {
                        last.pop_front();
                    }
                }
            },
            Ok(Said::End(rank)) => {
                open[rank] -= 1;
                if open[rank] > 0 || failed.is_some() {
                    continue;
                }
                let status = children.0[rank].wait();
                if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
                    failed = Some(rank);
                    end = end.min(Instant::now() + GRACE);
                    over = match status {
                        Ok(status) => format!("rank {rank} ended with {status}"),
                        Err(error) => format!("rank {rank} was lost: {error}"),
                    };
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                failed.get_or_insert(0);
                break;
            }
        }
    }
    match (result, failed) {
        (Some(result), None) => Ok(result),
        (Some(result), _) if !result["error"].is_null() => Ok(result),
        (_, failed) => {
            let told = &last[failed.unwrap_or(0)];
            let told: Vec<&str> = told.iter().map(String::as_str).collect();
            let reason = match failed {
                Some(_) => over,
                None => "the processes ended without a result".into(),
            };
            Err(format!("{reason}: {}", told.join(" | ")))
        }
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program {
            path: "/bin/sh".into(),
            read: |value| {
                Ok(Measured {
                    step_ms: value["step_ms"].as_f64().unwrap_or(0.0),
                    ..Measured::default()
                })
            },
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("X", "5".into())],
        }
    }

    #[test]
    fn the_result_of_the_rank_that_speaks_is_read() {
        let script = r#"echo starting; test "$RANK" = 0 && echo "RESULT {\"step_ms\": $WORLD_SIZE$X}"; true"#;
        let program = shell(script);
        let limit = Duration::from_secs(60);
        let measured = run(&program, &Rank::all(3), limit).unwrap();
        assert_eq!(measured.step_ms, 35.0);
    }

    #[test]
    fn a_failure_is_told_in_one_line_and_ends_the_others() {
        let limit = Duration::from_secs(60);
        let fail = |script: &str| run(&shell(script), &Rank::all(2), limit).unwrap_err();
        let message = fail(r#"echo no memory >&2; test "$RANK" = 0 || exit 3"#);
        assert!(message.contains("rank 1"), "{message}");
        assert!(message.ends_with("no memory"), "{message}");
        let message = fail(r#"echo 'RESULT {"error": "it broke"}'; exit 1"#);
        assert_eq!(message, "it broke");
        let message = fail("true");
        assert!(message.contains("without a result"), "{message}");
    }

    #[test]
    fn a_program_that_hangs_is_given_up() {
        let program = shell("echo waiting; exec sleep 1000");
        let limit = Duration::from_millis(200);
        let message = run(&program, &Rank::all(2), limit).unwrap_err();
        assert!(message.contains("no result within"), "{message}");
    }
}
