//! `bench checkpoint`: saving and loading beside `dd`, and the stall of an asynchronous save beside a copy in memory.
//!
//! The states are those of AdamW: three numbers of 32 bits for each parameter, in matrices of 16 MiB and vectors. `dd` writes as many
//! bytes with `conv=fsync` and reads them after they were dropped from the system's cache, as the checkpoint's files are. All takes
//! turns in each round; the fastest of each side counts, and the median of the quotients within rounds stands beside it.
//!
//! `load` reads and verifies each tensor into memory that is there, as `dd` does; `load, new` into memory of its own, which the system
//! has to make first.

mod stall;

use std::borrow::Cow;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use terrashard_checkpoint::{Checkpoint, ElementType, Kind, Saver, Slot, State, TensorSpec};

use crate::numbers::{count, size};
use crate::report::{Output, Report};

/// What to measure.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Parameters of the states, 12 bytes each.
    #[arg(long, default_value = "1e9", value_parser = size)]
    parameters: usize,
    /// Ranks that write and read, each a thread.
    #[arg(long, default_value = "1", value_parser = count)]
    ranks: usize,
    /// How often all that is compared takes its turn.
    #[arg(long, default_value = "3", value_parser = count)]
    rounds: usize,
    /// A folder on the disk to be measured, with space for the states; what is written there is removed [default: the system's for
    /// temporary files].
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The model whose asynchronous save is measured; an empty name for none.
    #[arg(long, default_value = "b5")]
    model: String,
    #[command(flatten)]
    output: Output,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRow {
    /// Which benchmark.
    pub bench: String,
    /// What was done: `save`, `load`, `load, new` or `stall`.
    pub what: String,
    /// Parameters.
    pub parameters: usize,
    /// Ranks, each a thread.
    pub ranks: usize,
    /// Bytes of the states.
    pub bytes: u64,
    /// Bytes of the checkpoint's files, where it was written.
    pub disk: Option<u64>,
    /// The fastest, seconds.
    pub seconds: f64,
    /// States in a second, 10^9 bytes.
    #[serde(rename = "GB_s")]
    pub gb_s: f64,
    /// The fastest of what is compared with: `dd`, or a copy in memory.
    pub other_seconds: f64,
    /// `other_seconds / seconds`.
    pub fraction: f64,
    /// The median of the same within each round.
    pub fraction_median: f64,
}

/// Why nothing could be measured.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures and reports.
///
/// # Errors
/// Whatever the disk, `dd`, or the checkpoint says.
pub fn report(arguments: &Arguments) -> Result<(), Failure> {
    let head = [
        "what",
        "parameters",
        "ranks",
        "GB",
        "GB on disk",
        "s",
        "GB/s",
        "dd or copy, s",
        "fraction",
        "median",
    ];
    let mut report = Report::new(&arguments.output, &head);
    run(arguments, |row| report.add(row, CheckpointRow::cells))?;
    Ok(report.write("Saving and loading checkpoints")?)
}

impl CheckpointRow {
    fn cells(&self) -> Vec<String> {
        let gb = |bytes: u64| format!("{:.4}", bytes as f64 / 1e9);
        vec![
            self.what.clone(),
            self.parameters.to_string(),
            self.ranks.to_string(),
            gb(self.bytes),
            self.disk.map_or("-".into(), gb),
            format!("{:.3}", self.seconds),
            format!("{:.2}", self.gb_s),
            format!("{:.3}", self.other_seconds),
            format!("{:.2}", self.fraction),
            format!("{:.2}", self.fraction_median),
        ]
    }
}

/// Measures, and tells each row.
fn run(bench: &Arguments, mut tell: impl FnMut(CheckpointRow)) -> Result<(), Failure> {
    let folder = match &bench.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let tensors = tensors(bench.parameters);
    let bytes: u64 = tensors.iter().map(|tensor| 4 * tensor.numel() as u64).sum();
    let (mut saves, mut disk) = (Turns::default(), 0);
    let mut loads = [Memory::There, Memory::New].map(|memory| (memory, Turns::default()));
    for _ in 0..bench.rounds {
        let dd = folder.path().join("dd");
        let wrote = dd_write(&dd, bytes)?;
        drop_cache(&dd)?;
        let read = dd_read(&dd)?;
        fs::remove_file(&dd)?;
        let root = folder.path().join("checkpoints");
        let saved = timed(|| save(&root, &tensors, bench.ranks))?;
        saves.add(saved, wrote);
        for (memory, turns) in &mut loads {
            disk = 0;
            for entry in fs::read_dir(terrashard_checkpoint::step_folder(&root, 1))? {
                let path = entry?.path();
                disk += path.metadata()?.len();
                drop_cache(&path)?;
            }
            turns.add(load(&root, &tensors, bench.ranks, *memory)?, read);
        }
        fs::remove_dir_all(&root)?;
    }
    let row = |what: &str, turns: &Turns, disk| CheckpointRow {
        bench: "checkpoint".into(),
        what: what.into(),
        parameters: bench.parameters,
        ranks: bench.ranks,
        bytes,
        disk,
        seconds: turns.fastest(),
        gb_s: bytes as f64 / turns.fastest() / 1e9,
        other_seconds: turns.fastest_other(),
        fraction: turns.fastest_other() / turns.fastest(),
        fraction_median: turns.median(),
    };
    tell(row("save", &saves, Some(disk)));
    for (memory, turns) in &loads {
        tell(row(memory.name(), turns, None));
    }
    if !bench.model.is_empty() {
        tell(stall::row(bench, &folder.path().join("stall"))?);
    }
    Ok(())
}

/// Seconds of both sides, round by round.
#[derive(Debug, Default)]
struct Turns(Vec<(f64, f64)>);

impl Turns {
    fn add(&mut self, ours: f64, other: f64) {
        self.0.push((ours, other));
    }

    fn fastest(&self) -> f64 {
        self.0
            .iter()
            .map(|(ours, _)| *ours)
            .fold(f64::INFINITY, f64::min)
    }

    fn fastest_other(&self) -> f64 {
        self.0
            .iter()
            .map(|(_, other)| *other)
            .fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        let mut quotients: Vec<f64> = self.0.iter().map(|(ours, other)| other / ours).collect();
        quotients.sort_by(f64::total_cmp);
        quotients[quotients.len() / 2]
    }
}

fn timed<E: Into<Failure>>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, Failure> {
    let began = Instant::now();
    work().map_err(Into::into)?;
    Ok(began.elapsed().as_secs_f64())
}

/// Parameters and both moments of a model of so many parameters.
fn tensors(parameters: usize) -> Vec<TensorSpec> {
    const WIDTH: usize = 1024;
    let mut left = parameters;
    let mut tensors = Vec::new();
    while left > 0 {
        let layer = tensors.len() / 3;
        let shape = match (layer % 4, left) {
            (0, WIDTH..) => vec![(4 * WIDTH).min(left / WIDTH), WIDTH],
            (1, WIDTH..) => vec![WIDTH, (4 * WIDTH).min(left / WIDTH)],
            (2, _) => vec![(4 * WIDTH).min(left)],
            _ => vec![WIDTH.min(left)],
        };
        left -= shape.iter().product::<usize>();
        let name = format!("layers.{}.{}", layer / 4, layer % 4);
        tensors.extend(
            [Kind::Parameter, Kind::M, Kind::V]
                .map(|kind| TensorSpec::new(name.as_str(), kind, shape.clone(), ElementType::F32)),
        );
    }
    tensors
}

fn own(tensor: &TensorSpec, rank: usize, ranks: usize) -> Range<usize> {
    let share = tensor.numel().div_ceil(ranks);
    let end = |rank: usize| tensor.numel().min(rank * share);
    end(rank)..end(rank + 1)
}

/// Runs a body on a thread for each rank.
fn on_ranks(
    ranks: usize,
    body: impl Fn(usize) -> terrashard_checkpoint::Result<()> + Sync,
) -> terrashard_checkpoint::Result<()> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || body(rank)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn save(root: &Path, tensors: &[TensorSpec], ranks: usize) -> terrashard_checkpoint::Result<()> {
    let savers = (0..ranks).map(|rank| Saver::create(root, 1, rank, ranks));
    let savers = savers.collect::<terrashard_checkpoint::Result<Vec<_>>>()?;
    savers[0].prepare()?;
    let largest = tensors.iter().map(TensorSpec::numel).max().unwrap_or(0);
    // Bytes that no disk can make fewer of.
    let bytes: Vec<u8> = (0..largest as u32)
        .flat_map(|index| {
            index
                .wrapping_mul(0x9E37_79B9)
                .rotate_left(15)
                .to_le_bytes()
        })
        .collect();
    on_ranks(ranks, |rank| {
        let slot = |tensor: &TensorSpec| Slot {
            tensor: tensor.clone(),
            interval: own(tensor, rank, ranks),
        };
        let slots: Vec<Slot> = tensors.iter().map(slot).collect();
        savers[rank].write_with(&slots, |slot| {
            Ok::<_, std::io::Error>(Cow::Borrowed(&bytes[..4 * slot.interval.len()]))
        })
    })?;
    savers[0].publish(&State {
        step: 1,
        ..State::default()
    })?;
    Ok(())
}

/// Where a tensor is read into.
#[derive(Clone, Copy, Debug)]
enum Memory {
    /// That of the tensor before it.
    There,
    /// Its own.
    New,
}

impl Memory {
    fn name(self) -> &'static str {
        match self {
            Self::There => "load",
            Self::New => "load, new",
        }
    }
}

/// Reads each rank's share of all tensors. Returns the seconds.
fn load(root: &Path, tensors: &[TensorSpec], ranks: usize, memory: Memory) -> Result<f64, Failure> {
    let largest = tensors.iter().map(TensorSpec::numel).max().unwrap_or(0);
    let buffers = (0..ranks).map(|_| Mutex::new(vec![1; 4 * largest.div_ceil(ranks)]));
    let buffers: Vec<Mutex<Vec<u8>>> = buffers.collect();
    timed(|| {
        let checkpoint = Checkpoint::open(root)?;
        on_ranks(ranks, |rank| {
            let mut buffer = buffers[rank].lock().unwrap_or_else(PoisonError::into_inner);
            tensors.iter().try_for_each(|tensor| {
                let (name, kind) = (&tensor.name, tensor.kind);
                let interval = own(tensor, rank, ranks);
                match memory {
                    Memory::There => {
                        let out = &mut buffer[..4 * interval.len()];
                        checkpoint.read_into(name, kind, interval, out)
                    }
                    Memory::New => checkpoint.read(name, kind, interval).map(|_| ()),
                }
            })
        })
    })
}

fn dd(arguments: &[String]) -> Result<f64, Failure> {
    timed(|| {
        let status = Command::new("dd")
            .args(arguments)
            .stderr(Stdio::null())
            .status()?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::from(format!("dd {} failed", arguments.join(" ")))),
        }
    })
}

fn dd_write(path: &Path, bytes: u64) -> Result<f64, Failure> {
    let count = bytes.div_ceil(1 << 20);
    let of = format!("of={}", path.display());
    dd(&[
        "if=/dev/zero".into(),
        of,
        "bs=1M".into(),
        format!("count={count}"),
        "conv=fsync".into(),
    ])
}

fn dd_read(path: &Path) -> Result<f64, Failure> {
    dd(&[
        format!("if={}", path.display()),
        "of=/dev/null".into(),
        "bs=1M".into(),
    ])
}

/// Has the system forget what it holds of a file in memory.
fn drop_cache(path: &Path) -> Result<(), Failure> {
    dd(&[
        format!("if={}", path.display()),
        "iflag=nocache".into(),
        "count=0".into(),
    ])
    .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_have_as_many_parameters_as_are_asked_for() {
        for parameters in [1, 1023, 1024, 8_400_000, 10_000_019] {
            let tensors = tensors(parameters);
            let of = |kind| {
                let own = tensors.iter().filter(|tensor| tensor.kind == kind);
                own.map(TensorSpec::numel).sum::<usize>()
            };
            for kind in [Kind::Parameter, Kind::M, Kind::V] {
                assert_eq!(of(kind), parameters);
            }
        }
    }

    #[test]
    fn a_small_run_tells_its_rows_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bench = Arguments {
            parameters: 100_000,
            ranks: 2,
            rounds: 1,
            folder: Some(folder.path().into()),
            model: String::new(),
            output: Output {
                json: true,
                out: None,
            },
        };
        let mut rows = Vec::new();
        run(&bench, |row| rows.push(row)).expect("there is a disk and dd");
        let whats: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
        assert_eq!(whats, ["save", "load", "load, new"]);
        assert!(rows[0].bytes == 1_200_000 && rows[0].disk > Some(1_200_000));
        assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }
}
