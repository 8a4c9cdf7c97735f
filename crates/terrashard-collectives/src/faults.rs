//! Faults on demand, for tests (feature `faults`): at a named point of one rank, once, something goes wrong.
//!
//! A process that a launcher has not started again has at most one [`Fault`], which the variable [`VARIABLE`] describes: `rank=1,point=all-reduce,number=17,kind=kill`.
//! Whoever passes a point calls [`pass`], which counts the point for its rank and, where it is the fault's, delays, stalls, panics or
//! kills the process by itself, or returns the [`Strike`] that only the caller can carry out. [`Faulty`] is a communicator whose
//! calls and waits are points; checkpoints and loaders have theirs.
//!
//! ```
//! use terrashard_collectives::faults::{Fault, Kind};
//!
//! let fault: Fault = "rank=1,point=step,number=3,kind=nan".parse()?;
//! assert_eq!((fault.rank, fault.number, fault.kind), (1, 3, Kind::Nan));
//! assert_eq!(fault.to_string(), "rank=1,point=step,number=3,kind=nan");
//! # Ok::<(), String>(())
//! ```

mod communicator;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use crate::bootstrap::RESTARTS;

pub use communicator::Faulty;

/// The variable that describes a process's fault.
pub const VARIABLE: &str = "TERRASHARD_FAULT";

/// How a line on standard error begins that tells of a fault which has struck, or of a point that was passed.
pub const STRUCK: &str = "fault struck:";
/// As [`STRUCK`], for points that are traced.
pub const PASSED: &str = "fault point:";

/// Longer than any timeout of a test.
const STALL: Duration = Duration::from_secs(86_400);

/// One thing that goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub rank: usize,
    /// The name of the point.
    pub point: String,
    /// How many times the rank has passed the point before.
    pub number: u64,
    /// What goes wrong.
    pub kind: Kind,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: all ranks tell of every point that they pass.
    Trace,
    /// The rank is late.
    Delay(Duration),
    /// The rank never comes.
    Stall,
    /// The rank panics.
    Panic,
    /// The process is killed by signal 9.
    Kill,
    /// A gradient is not a number.
    Nan,
    /// A message is announced with another length than the others announce.
    Length,
    /// The rank makes another call than the others.
    Branch,
    /// The rank ends as if it had no more data.
    Leave,
    /// The disk is full.
    Disk,
    /// A file cannot be read.
    Read,
    /// There is no memory left.
    Memory,
}

/// What is left to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// [`Kind::Nan`].
    Nan,
    /// [`Kind::Length`].
    Length,
    /// [`Kind::Branch`].
    Branch,
    /// [`Kind::Leave`].
    Leave,
    /// An operation of the system fails.
    Io(io::ErrorKind),
}

impl Strike {
    /// The failure, as the system would tell it; other strikes are told as such.
    pub fn error(self) -> io::Error {
        match self {
            Self::Io(kind) => io::Error::new(kind, format!("{kind} (a fault on demand)")),
            other => io::Error::other(format!("{other:?} (a fault on demand)")),
        }
    }
}

const KINDS: [(&str, Kind); 11] = [
    ("trace", Kind::Trace),
    ("stall", Kind::Stall),
    ("panic", Kind::Panic),
    ("kill", Kind::Kill),
    ("nan", Kind::Nan),
    ("length", Kind::Length),
    ("branch", Kind::Branch),
    ("leave", Kind::Leave),
    ("disk", Kind::Disk),
    ("read", Kind::Read),
    ("memory", Kind::Memory),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Delay(time) = self {
            return write!(f, "delay:{}", time.as_millis());
        }
        let name = KINDS.iter().find(|(_, kind)| kind == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(time) = text.strip_prefix("delay:") {
            let time = time.parse().map_err(|_| format!("`{text}`: no time"))?;
            return Ok(Self::Delay(Duration::from_millis(time)));
        }
        let kind = KINDS.iter().find(|(name, _)| *name == text);
        kind.map(|(_, kind)| *kind)
            .ok_or_else(|| format!("`{text}` is no kind of fault"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            point,
            number,
            kind,
        } = self;
        write!(f, "rank={rank},point={point},number={number},kind={kind}")
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: BTreeMap<&str, &str> = text
            .split(',')
            .filter_map(|word| word.split_once('='))
            .collect();
        let word = |key: &str| {
            let word = words.get(key).copied();
            word.ok_or_else(|| format!("`{text}` has no `{key}`"))
        };
        let number = |key: &str| {
            let number = word(key)?.parse::<u64>();
            number.map_err(|_| format!("`{text}`: `{key}` is no number"))
        };
        Ok(Self {
            rank: usize::try_from(number("rank")?).map_err(|error| error.to_string())?,
            point: word("point")?.to_owned(),
            number: number("number")?,
            kind: word("kind")?.parse()?,
        })
    }
}

/// A fault with what was passed so far.
#[derive(Debug)]
struct Plane {
    fault: Fault,
    passed: Mutex<BTreeMap<(usize, String), u64>>,
}

impl Plane {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            passed: Mutex::default(),
        }
    }

    /// The fault's kind if it is struck by this passing.
    fn strikes(&self, point: &str, rank: usize) -> Option<Kind> {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let count = passed.entry((rank, point.to_owned())).or_default();
        let number = *count;
        *count += 1;
        let Fault { kind, .. } = self.fault;
        if kind == Kind::Trace {
            eprintln!("{PASSED} rank={rank},point={point},number={number}");
            return None;
        }
        let own = Fault {
            rank,
            point: point.to_owned(),
            number,
            kind,
        };
        (own == self.fault).then_some(kind)
    }
}

/// That of this process, from the environment when it is first asked for.
fn plane() -> Option<&'static Plane> {
    static PLANE: OnceLock<Option<Plane>> = OnceLock::new();
    let read = || {
        if std::env::var(RESTARTS).is_ok_and(|count| count != "0") {
            return None;
        }
        let text = std::env::var(VARIABLE).ok()?;
        match text.parse() {
            Ok(fault) => Some(Plane::new(fault)),
            // A fault that is not the one that was meant would prove nothing.
            Err(error) => panic!("{VARIABLE}: {error}"),
        }
    };
    PLANE.get_or_init(read).as_ref()
}

/// Whether this process may have a fault.
pub fn is_armed() -> bool {
    plane().is_some()
}

/// Passes a point. Delays, stalls, panics and kills happen here.
///
/// # Panics
/// Where that is the fault, or the fault's description makes no sense.
pub fn pass(point: &str, rank: usize) -> Option<Strike> {
    let plane = plane()?;
    let kind = plane.strikes(point, rank)?;
    eprintln!("{STRUCK} {}", plane.fault);
    let io = |kind| Some(Strike::Io(kind));
    match kind {
        Kind::Trace => None,
        Kind::Delay(time) => {
            thread::sleep(time);
            None
        }
        Kind::Stall => loop {
            thread::sleep(STALL);
        },
        Kind::Panic => panic!("a fault on demand: {}", plane.fault),
        Kind::Kill => {
            // Nothing can be done where the system refuses; the run then ends as if there had been no fault.
            let _ = kill_process(getpid(), Signal::KILL);
            None
        }
        Kind::Nan => Some(Strike::Nan),
        Kind::Length => Some(Strike::Length),
        Kind::Branch => Some(Strike::Branch),
        Kind::Leave => Some(Strike::Leave),
        Kind::Disk => io(io::ErrorKind::StorageFull),
        Kind::Read => io(io::ErrorKind::InvalidData),
        Kind::Memory => io(io::ErrorKind::OutOfMemory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let kinds = KINDS.map(|(_, kind)| kind);
        for kind in kinds
            .into_iter()
            .chain([Kind::Delay(Duration::from_millis(30))])
        {
            let fault = Fault {
                rank: 3,
                point: "all-gather".into(),
                number: 12,
                kind,
            };
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        let refused = |text: &str| text.parse::<Fault>().unwrap_err();
        assert!(refused("rank=1,point=step,number=2").contains("kind"));
        assert!(refused("rank=1,point=step,number=2,kind=fire").contains("fire"));
        assert!(refused("rank=x,point=step,number=2,kind=kill").contains("rank"));
        assert!(refused("rank=0,point=step,number=2,kind=delay:x").contains("time"));
    }

    #[test]
    fn strikes_once_where_it_is_meant_to() {
        let fault = Fault {
            rank: 1,
            point: "step".into(),
            number: 2,
            kind: Kind::Nan,
        };
        let plane = Plane::new(fault);
        for rank in [0, 1] {
            for point in ["step", "read"] {
                let struck: Vec<_> = (0..5).map(|_| plane.strikes(point, rank)).collect();
                let mut expected = [None; 5];
                if (rank, point) == (1, "step") {
                    expected[2] = Some(Kind::Nan);
                }
                assert_eq!(struck, expected, "{point} of rank {rank}");
            }
        }
    }
}
