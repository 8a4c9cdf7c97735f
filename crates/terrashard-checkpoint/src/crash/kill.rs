//! Saves of several processes, of which one is killed with signal 9 at every possible point.
//!
//! A rank is this test program once more. It says on standard error where it is, and goes on when a line comes in: that is its barrier,
//! and a rank that stands at its point waits there for the kill.

use std::env;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use super::LEFT;
use super::tests::{KEEP, copy, mark, names, pieces, save, state};
use crate::{Result, Saver, prune};

/// Where a rank says that it is.
const BARRIER: &str = "@barrier";
const POINT: &str = "@point";
const DONE: &str = "@done";

/// What tells a process that it is a rank: `rank ranks points root`, where after `points` points it waits for the kill.
const RANK: &str = "TERRASHARD_TEST_RANK";

/// The mark of the save that is killed, and of the same save after it.
const KILLED: u8 = 100;
const AGAIN: u8 = 101;

/// The step that is saved; 1 and 2 are there.
const STEP: u64 = 3;

/// Whether this process is one that is to be killed.
pub(super) fn is_awaited() -> bool {
    env::var_os(RANK).is_some()
}

/// Says so, and waits.
pub(super) fn await_it(path: &Path) -> Result<()> {
    tell(&format!("{POINT} {}", path.display()));
    panic!("nothing ever comes in at a point");
}

/// Says where this rank is, and waits for the line that lets it go on.
fn tell(at: &str) {
    eprintln!("{at}");
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).unwrap();
    assert!(read > 0, "whoever started this rank has gone");
}

/// Does nothing by itself: a rank of [`c8_killed_at_every_point_on_two_and_four_processes`] is this test in a process of its own.
#[test]
fn one_rank() {
    let Ok(told) = env::var(RANK) else {
        return;
    };
    let words: Vec<&str> = told.splitn(4, ' ').collect();
    let number = |index: usize| words[index].parse::<usize>().unwrap();
    let (rank, ranks, root) = (number(0), number(1), Path::new(words[3]));
    LEFT.set(Some(number(2)));
    let saver = Saver::create(root, STEP, rank, ranks).unwrap();
    saver.prepare().unwrap();
    tell(BARRIER);
    saver.write(&pieces(rank, ranks, KILLED)).unwrap();
    tell(BARRIER);
    saver.publish(&state(STEP, KILLED)).unwrap();
    tell(BARRIER);
    if rank == 0 {
        prune(root, KEEP).unwrap();
    }
    LEFT.set(None);
    tell(DONE);
}

/// The processes of one save.
struct Ranks(Vec<(Child, Lines<BufReader<ChildStderr>>)>);

impl Ranks {
    /// Starts them; `killed` waits after `points` points.
    fn start(root: &Path, ranks: usize, killed: usize, points: usize) -> Self {
        let start = |rank| {
            let points = if rank == killed { points } else { usize::MAX };
            let mut command = Command::new(env::current_exe().unwrap());
            command
                .args(["--exact", "crash::kill::one_rank", "--nocapture"])
                .env(RANK, format!("{rank} {ranks} {points} {}", root.display()))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let lines = BufReader::new(child.stderr.take().unwrap()).lines();
            (child, lines)
        };
        Self((0..ranks).map(start).collect())
    }

    /// Where a rank says next that it is.
    fn hear(&mut self, rank: usize) -> String {
        let (_, lines) = &mut self.0[rank];
        let line = lines.next().expect("a rank says where it is").unwrap();
        assert!(line.starts_with('@'), "rank {rank}: {line}");
        line
    }

    fn go_on(&mut self, rank: usize) {
        let stdin = self.0[rank].0.stdin.as_mut().unwrap();
        stdin.write_all(b"\n").unwrap();
    }

    fn kill(&mut self, rank: usize) {
        use std::os::unix::process::ExitStatusExt;
        let child = &mut self.0[rank].0;
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Ranks {
    /// As a launcher ends the others.
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // It may be dead already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Where one rank is killed.
#[derive(Debug, Clone, Copy)]
enum Kill {
    /// Before this operation on a file.
    Point(usize),
    /// At this barrier, once all have come.
    Barrier { index: usize, others: Others },
}

/// What the others do when one is killed at a barrier.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Others {
    /// They have not noticed yet that all have come.
    Wait,
    /// They have.
    GoOn,
}

/// Saves until the kill. Returns whether there was one: a rank has an end, and so has a save.
fn killed(root: &Path, ranks: usize, rank: usize, kill: Kill) -> bool {
    let points = match kill {
        Kill::Point(points) => points,
        Kill::Barrier { .. } => usize::MAX,
    };
    let mut processes = Ranks::start(root, ranks, rank, points);
    for barrier in 0.. {
        // The others come as far as they can beside the one that is killed.
        let at: Vec<String> = (0..ranks).map(|rank| processes.hear(rank)).collect();
        if at[rank].starts_with(POINT) {
            processes.kill(rank);
            return true;
        }
        if at[rank] == DONE {
            return false;
        }
        match kill {
            Kill::Barrier { index, others } if index == barrier => {
                processes.kill(rank);
                let left = (0..ranks).filter(|&other| other != rank && others == Others::GoOn);
                for other in left {
                    processes.go_on(other);
                    processes.hear(other);
                }
                return true;
            }
            _ => (0..ranks).for_each(|rank| processes.go_on(rank)),
        }
    }
    unreachable!("a save has an end");
}

/// Kills a save of `ranks` processes over two earlier ones, and looks what the next start would find; then makes that save again.
/// Returns whether there was anything to kill.
fn check(earlier: &Path, ranks: usize, rank: usize, kill: Kill) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("checkpoints");
    copy(earlier, &root);
    let was_killed = killed(&root, ranks, rank, kill);
    let what = format!("rank {rank} of {ranks} at {kill:?}");
    let now = mark(&root, ranks);
    match was_killed {
        true => assert!(now == Some(2) || now == Some(KILLED), "{what}: {now:?}"),
        false => assert_eq!(now, Some(KILLED), "{what}"),
    }
    save(&root, STEP, ranks, AGAIN).unwrap();
    assert_eq!(mark(&root, ranks), Some(AGAIN), "{what}");
    let left = ["latest", "step-000002", "step-000003"];
    assert_eq!(names(&root), left, "{what}");
    was_killed
}

#[test]
fn c8_killed_at_every_point_on_two_and_four_processes() {
    for ranks in [2, 4] {
        let earlier = tempfile::tempdir().unwrap();
        for step in [1, 2] {
            save(earlier.path(), step, ranks, step as u8).unwrap();
        }
        let mut kills = 0;
        // All ranks but the first do the same.
        for rank in [0, ranks - 1] {
            let points = (0..).map(Kill::Point);
            kills += points
                .take_while(|&kill| check(earlier.path(), ranks, rank, kill))
                .count();
            for index in 0..3 {
                for others in [Others::Wait, Others::GoOn] {
                    let kill = Kill::Barrier { index, others };
                    assert!(check(earlier.path(), ranks, rank, kill), "{kill:?}");
                    kills += 1;
                }
            }
        }
        assert!(kills >= 25, "{kills} kills of {ranks} processes");
    }
}

/// Processes that begin a save together.
const RACING: usize = 4;

/// Four processes make the first save of a run at the same time, whose folder and all above it do not exist yet.
#[test]
fn h9_processes_that_make_the_same_folders_at_once_all_succeed() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..50 {
        let root = folder.path().join(format!("{number}/of/a/run/checkpoints"));
        let mut processes = Ranks::start(&root, RACING, 0, usize::MAX);
        loop {
            // None goes on before all have come: they make the folders between two barriers, together.
            let at: Vec<String> = (0..RACING).map(|rank| processes.hear(rank)).collect();
            assert!(at.windows(2).all(|pair| pair[0] == pair[1]), "{at:?}");
            if at[0] == DONE {
                break;
            }
            (0..RACING).for_each(|rank| processes.go_on(rank));
        }
        assert_eq!(mark(&root, RACING), Some(KILLED));
        assert_eq!(names(&root), ["latest", "step-000003"]);
    }
}
