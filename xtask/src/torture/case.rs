//! From a number to a training and its fault.

use std::collections::BTreeMap;
use std::fmt;

/// The finalizer of SplitMix64 over a Weyl step.
pub(super) fn scramble(state: u64) -> u64 {
    let bits = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Numbers that follow from one.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = scramble(self.0);
        self.0 % count.max(1)
    }

    fn of<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// How a training is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Setting {
    pub(super) ranks: u64,
    pub(super) stage: u64,
    pub(super) offload: &'static str,
}

impl Setting {
    /// All that there are.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let stages = (2..=5).flat_map(|ranks| (0..=3).map(move |stage| (ranks, stage)));
        stages.flat_map(|(ranks, stage)| {
            offloads(stage).iter().map(move |offload| Self {
                ranks,
                stage,
                offload,
            })
        })
    }

    /// That of a run's number.
    pub(super) fn of(number: u64) -> Self {
        let mut draw = Draw(number);
        let (ranks, stage) = (2 + draw.below(4), draw.below(4));
        Self {
            ranks,
            stage,
            offload: *draw.of(offloads(stage)),
        }
    }

    /// As settings of the configuration.
    pub(super) fn overrides(&self) -> [String; 4] {
        [
            format!("zero.ranks={}", self.ranks),
            format!("zero.stage={}", self.stage),
            format!("zero.offload={}", self.offload),
            // One sample for each rank.
            format!("train.global_batch={}", self.ranks),
        ]
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ranks,
            stage,
            offload,
        } = self;
        write!(f, "{ranks} ranks, stage {stage}, offload {offload}")
    }
}

/// What may lie in host memory.
fn offloads(stage: u64) -> &'static [&'static str] {
    match stage {
        0 => &["none"],
        1 | 2 => &["none", "optimizer"],
        _ => &["none", "optimizer", "parameters"],
    }
}

/// How often each rank passes each point, by point and rank.
pub(super) type Points = BTreeMap<(String, u64), u64>;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Delay(u64),
    Stall,
    Panic,
    Kill,
    Nan,
    Length,
    Branch,
    Leave,
    Disk,
    Read,
    Memory,
}

impl Kind {
    /// Its name, as the fault plane knows it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::Stall => "stall",
            Self::Panic => "panic",
            Self::Kill => "kill",
            Self::Nan => "nan",
            Self::Length => "length",
            Self::Branch => "branch",
            Self::Leave => "leave",
            Self::Disk => "disk",
            Self::Read => "read",
            Self::Memory => "memory",
        }
    }
}

/// The points of a kind, and what can go wrong there.
struct Place {
    points: &'static [&'static str],
    kinds: &'static [Kind],
}

const PLACES: [Place; 5] = [
    Place {
        points: &[
            "all-reduce",
            "reduce-scatter",
            "all-gather",
            "broadcast",
            "barrier",
            "split",
        ],
        kinds: &[
            Kind::Delay(0),
            Kind::Panic,
            Kind::Kill,
            Kind::Length,
            Kind::Branch,
            Kind::Memory,
        ],
    },
    Place {
        points: &["wait"],
        kinds: &[Kind::Delay(0), Kind::Panic, Kind::Kill, Kind::Memory],
    },
    Place {
        points: &["step"],
        kinds: &[
            Kind::Delay(0),
            Kind::Panic,
            Kind::Kill,
            Kind::Nan,
            Kind::Leave,
            Kind::Branch,
            Kind::Memory,
        ],
    },
    Place {
        points: &["read"],
        kinds: &[
            Kind::Delay(0),
            Kind::Panic,
            Kind::Kill,
            Kind::Read,
            Kind::Memory,
        ],
    },
    Place {
        points: &["write", "publish"],
        kinds: &[
            Kind::Delay(0),
            Kind::Panic,
            Kind::Kill,
            Kind::Disk,
            Kind::Memory,
        ],
    },
];

/// One fault of so many is a rank that stalls, which takes as long as the timeout.
const STALLS: u64 = 40;

/// One training of so many has ranks that are processes.
const PROCESSES: u64 = 4;

/// Where ranks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranks {
    /// Threads of one process.
    Threads,
    /// Processes that `terrashard launch` has started.
    Processes,
    /// Processes that `mpirun` has started.
    Mpi,
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Mpi => "processes of MPI",
        })
    }
}

/// Milliseconds by which a rank is late at most.
const LATEST: u64 = 200;

/// A training with one fault.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) number: u64,
    pub(super) setting: Setting,
    pub(super) rank: u64,
    pub(super) point: String,
    pub(super) passed: u64,
    pub(super) kind: Kind,
    /// What becomes of a run whose save failed.
    pub(super) on_failure: &'static str,
    /// Whether saves go on beside the steps.
    pub(super) asynchronous: bool,
    pub(super) ranks: Ranks,
}

impl Case {
    /// The case of a number, at one of the points that a run without a fault passes.
    pub(super) fn of(number: u64, points: &Points) -> Self {
        let setting = Setting::of(number);
        // Another sequence than that of the setting.
        let mut draw = Draw(scramble(!number));
        let place = draw.of(&PLACES);
        let here: Vec<_> = points
            .iter()
            .filter(|((point, _), _)| place.points.contains(&point.as_str()))
            .collect();
        let ((point, rank), count) = *draw.of(&here);
        let mut kind = *draw.of(place.kinds);
        if matches!(kind, Kind::Delay(_)) {
            kind = Kind::Delay(draw.below(LATEST));
        }
        if draw.below(STALLS) == 0 && !matches!(place.points[0], "read" | "write") {
            kind = Kind::Stall;
        }
        Self {
            number,
            setting,
            rank: *rank,
            point: point.clone(),
            passed: draw.below(*count),
            kind,
            on_failure: *draw.of::<&str>(&["abort", "continue"]),
            asynchronous: draw.below(2) == 0,
            ranks: match draw.below(PROCESSES) {
                0 => Ranks::Processes,
                _ => Ranks::Threads,
            },
        }
    }

    /// As the fault plane reads it.
    pub(super) fn fault(&self) -> String {
        let Self {
            rank,
            point,
            passed,
            kind,
            ..
        } = self;
        let time = match kind {
            Kind::Delay(time) => format!(":{time}"),
            _ => String::new(),
        };
        format!(
            "rank={rank},point={point},number={passed},kind={}{time}",
            kind.name()
        )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "run {}: {}, {}, checkpoint.on_failure {}, checkpoint.async {}, ranks are {}",
            self.number,
            self.setting,
            self.fault(),
            self.on_failure,
            self.asynchronous,
            self.ranks
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Points {
        let names = ["all-reduce", "wait", "step", "read", "write", "publish"];
        let both = names
            .iter()
            .flat_map(|name| (0..2).map(move |rank| ((*name).to_owned(), rank)));
        both.map(|key| (key, 7)).collect()
    }

    #[test]
    fn a_case_follows_from_its_number() {
        let cases: Vec<_> = (0..500)
            .map(|index| Case::of(scramble(index), &points()))
            .collect();
        for case in &cases {
            assert_eq!(
                Case::of(case.number, &points()).to_string(),
                case.to_string()
            );
            assert!(case.passed < 7 && case.rank < 2, "{case}");
        }
        let has = |kind: &str| cases.iter().any(|case| case.kind.name() == kind);
        for kind in [
            "delay", "stall", "panic", "kill", "nan", "length", "branch", "leave", "disk", "read",
            "memory",
        ] {
            assert!(has(kind), "{kind} in 500 cases");
        }
        let settings: std::collections::BTreeSet<_> =
            cases.iter().map(|case| case.setting).collect();
        assert_eq!(
            settings,
            Setting::all().collect(),
            "each setting in 500 cases"
        );
        assert_eq!(settings.len(), 32);
    }
}
