//! Runs that fail, rehearsed by processes without a GPU: a call is complete when the store knows that all ranks have made
//! it. What ends the run, and the line that says why, are those of GPUs.

use std::env;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use burn::tensor::FloatDType;

use super::process::{Carrier, Completion, Group, Process};
use super::watchdog::Part;
use super::{Check, Options};
use crate::bootstrap::{Launched, Store};
use crate::{Call, Result, Verb};

/// What a process rehearses, if it is a rank of a rehearsal.
const SCENARIO: &str = "TERRASHARD_REHEARSAL";

/// Ranks of a rehearsal. The last one is the culprit, where it is not the first.
const RANKS: usize = 3;

#[derive(Debug)]
struct Nothing;

impl Carrier for Nothing {
    fn failure(&self) -> Option<String> {
        None
    }

    fn abort(&self) {}
}

/// A call of all ranks, known by its number.
#[derive(Debug)]
struct MadeByAll {
    store: Store,
    sequence: u64,
}

impl Completion for MadeByAll {
    fn is_done(&self) -> Result<bool> {
        for rank in 0..RANKS {
            if self
                .store
                .look(&format!("made/{rank}/{}", self.sequence))?
                .is_none()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// One rank's end of the only group.
struct Rank {
    process: Arc<Process>,
    group: Arc<Group>,
}

impl Rank {
    /// Makes a call, and waits for it as for a GPU: for ever.
    fn call(&self, verb: Verb, len: usize) -> Result<()> {
        let call = Call {
            verb,
            len,
            dtype: FloatDType::F32,
        };
        let sequence = self.group.begin(call);
        if self.process.options.check == Check::EveryCall {
            self.group.agree(&self.process, sequence, call)?;
        }
        let store = self.process.store.connect()?;
        store.set(&format!("made/{}/{sequence}", self.process.rank()), &[])?;
        let done = Arc::new(MadeByAll { store, sequence });
        self.group.watch(sequence, done.clone());
        while !done.is_done()? {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// What a rank of a rehearsal does; nothing in a run of the tests.
#[test]
fn a_rank() {
    let Ok(scenario) = env::var(SCENARIO) else {
        return;
    };
    let launched = Launched::from_environment().unwrap().expect("a rank");
    let mut options = Options {
        timeout: Duration::from_secs(60),
        ..Options::default()
    };
    match scenario.as_str() {
        "checked" => options.check = Check::EveryCall,
        "stalls" => options.timeout = Duration::from_secs(2),
        _ => {}
    }
    let store = Store::join(&launched, options.join).unwrap();
    let process = Arc::new(Process::new(store, options));
    let part = Part::begin(&process).unwrap();
    let members: Arc<[usize]> = (0..RANKS).collect();
    let group = Group::new("world".into(), launched.rank, members, Arc::new(Nothing));
    let group = Arc::new(group);
    process.add(&group);
    let rank = Rank { process, group };
    let outcome = rehearse(&rank, &scenario);
    drop(part);
    outcome.unwrap();
}

fn rehearse(rank: &Rank, scenario: &str) -> Result<()> {
    for len in [3, 4] {
        rank.call(Verb::AllReduce, len)?;
    }
    let me = rank.process.rank();
    let is_culprit = me
        == if scenario == "killed first" {
            0
        } else {
            RANKS - 1
        };
    if is_culprit {
        match scenario {
            "killed" | "killed first" => {
                let pid = std::process::id().to_string();
                let killed = Command::new("kill").args(["-9", &pid]).status();
                panic!("killed, but still here: {killed:?}");
            }
            "exits" => std::process::exit(0),
            "leaves" => return Ok(()),
            "aborts" => {
                let reason = format!("rank {me} gave up: scene.tif is truncated");
                rank.process.end(&rank.process.store, &reason);
            }
            "panics" => panic!("index 7 out of bounds"),
            "differs" | "checked" => return rank.call(Verb::AllGather, 7),
            "stalls" => thread::sleep(Duration::from_secs(60)),
            _ => {}
        }
    }
    rank.call(Verb::AllReduce, 8)?;
    rank.call(Verb::AllReduce, 9)
}

/// How the ranks of a rehearsal end.
fn outputs(scenario: &str) -> Vec<Output> {
    let port = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let start = |rank| {
        let launched = Launched {
            rank,
            ranks: RANKS,
            local_rank: rank,
            port,
            ..Launched::alone()
        };
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "nccl::rehearsal::a_rank", "--nocapture"])
            .env(SCENARIO, scenario)
            .envs(launched.variables())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..RANKS).map(start).collect();
    let wait = |child: std::process::Child| child.wait_with_output().unwrap();
    children.into_iter().map(wait).collect()
}

/// All ranks that can speak end with code 1 and the same last line, which begins as expected.
fn check(scenario: &str, expected: &str, silent: Option<usize>) {
    let mut said = None;
    for (rank, output) in outputs(scenario).iter().enumerate() {
        if silent == Some(rank) {
            continue;
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().last().unwrap_or_default().to_owned();
        let begins = last.starts_with(&format!("error: {expected}"));
        assert!(begins, "{scenario}, rank {rank}: {text}");
        assert_eq!(
            output.status.code(),
            Some(1),
            "{scenario}, rank {rank}: {text}"
        );
        let calls =
            format!("rank {rank}: group world, call 1: all-reduce of 4 f32, 16 bytes, done");
        assert!(text.contains(&calls), "{scenario}, rank {rank}: {text}");
        assert_eq!(
            said.get_or_insert_with(|| last.clone()),
            &last,
            "{scenario}, rank {rank}"
        );
    }
}

#[test]
fn a_run_that_is_fine_ends_well() {
    for output in outputs("fine") {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.is_empty(), "{text}");
    }
}

#[test]
fn h11_ranks_that_end_without_a_word() {
    let line = "rank 2 has ended without a word; its own output may say why";
    check("killed", line, Some(2));
    check("exits", line, Some(2));
}

#[test]
fn the_store_ends_with_rank_0() {
    for (rank, output) in outputs("killed first").iter().enumerate().skip(1) {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("error: rank 0 has ended without a word"),
            "rank {rank}: {text}"
        );
        assert_eq!(output.status.code(), Some(1), "rank {rank}: {text}");
    }
}

#[test]
fn a_rank_that_leaves() {
    let line =
        "rank 2 has ended without making call 2, for which rank 0 waits: all-reduce of 8 f32";
    check("leaves", line, None);
}

#[test]
fn a_rank_that_gives_up() {
    check("aborts", "rank 2 gave up: scene.tif is truncated", None);
    check("panics", "rank 2 gave up: panicked", None);
}

#[test]
fn a_rank_that_makes_another_call() {
    let line = "ranks disagree on call 2: rank 0 makes all-reduce of 8 f32, rank 2 makes all-gather of 7 f32";
    check("differs", line, None);
}

/// Here it is an error of the call, with which each rank ends.
#[test]
fn calls_that_are_checked_do_not_run() {
    for (rank, output) in outputs("checked").iter().enumerate() {
        let text = String::from_utf8_lossy(&output.stderr);
        let is_told = text.contains("ranks disagree on call 2") || text.contains("Mismatch");
        assert!(is_told, "rank {rank}: {text}");
        assert!(!output.status.success(), "rank {rank}: {text}");
    }
}

#[test]
fn a_rank_that_stalls() {
    let line = "rank 2 is behind: it has made 2 calls in group world, rank 1 3; it never came to call 2, all-reduce of 8 f32 (rank ";
    check("stalls", line, None);
}
