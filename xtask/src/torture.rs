//! `cargo xtask torture`: seeded faults in tiny trainings, each judged by what is left of it.
//!
//! Each run trains a small net on ranks that are threads or launched processes, or processes of MPI, with one fault at one point of one rank, and is then trained
//! to its end without. It is held to three things: no process hangs, none that claims success has other bits than the run without a
//! fault, and no checkpoint that was in force is lost. A run follows from one number, which `--replay` takes.

mod case;
mod judgement;
mod program;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::mpi;
use crate::workspace::{Profile, build_binary_with_features, root, target_dir};

/// Runs that go with the tests.
const FEW: u64 = 32;
use case::{Case, Ranks, Setting, scramble};
use judgement::{Baseline, Judged, Verdict};
use program::Program;

/// The features without which the program has no faults, and no ranks under `mpirun`.
const FAULTS: &str = "terrashard-trainer/faults";
const MPI: &str = "terrashard-tests/mpi,terrashard-trainer/mpi,terrashard-trainer/faults";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many runs.
    #[arg(long, default_value_t = FEW)]
    runs: u64,
    /// What the numbers of the runs follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Makes the run of one number again, and tells all of it.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["runs", "seed"])]
    replay: Option<u64>,
    /// Ranks are processes of MPI in every run, under `mpirun`.
    #[arg(long)]
    mpi: bool,
    /// Runs at once [default: one for each processor]
    #[arg(long)]
    jobs: Option<usize>,
    /// Where the runs are; those that are judged good are removed [default: `torture` in the target folder]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Use this `terrashard` binary, built with the feature `terrashard-trainer/faults`, instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
}

impl Args {
    /// As many runs as go with the tests.
    pub(crate) fn few() -> Self {
        Self {
            runs: FEW,
            seed: 1,
            replay: None,
            mpi: false,
            jobs: None,
            out: None,
            bin: None,
        }
    }

    /// As many, with ranks under `mpirun`.
    pub(crate) fn few_under_mpirun() -> Self {
        Self {
            mpi: true,
            ..Self::few()
        }
    }
}

/// The runs that are under way together.
struct Torture {
    program: Program,
    /// Where ranks are; None where that follows from a run's number.
    ranks: Option<Ranks>,
    /// What a run without a fault leaves, by its setting.
    baselines: BTreeMap<Setting, OnceLock<Baseline>>,
    tally: Mutex<Tally>,
}

/// What became of all runs.
#[derive(Debug, Default)]
struct Tally {
    judged: u64,
    verdicts: BTreeMap<Verdict, u64>,
    /// Faults that struck, by kind.
    struck: BTreeMap<&'static str, u64>,
    longest: Duration,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (features, ranks) = match args.mpi {
        true => (MPI, Some(Ranks::Mpi)),
        false => (FAULTS, None),
    };
    if args.mpi {
        mpi::require_tools()?;
    }
    let bin = match &args.bin {
        Some(bin) => bin.clone(),
        None => build_binary_with_features("terrashard", Profile::Dev, features)?,
    };
    let out = match &args.out {
        Some(out) => out.clone(),
        None => target_dir()?.join("torture"),
    };
    if out.exists() {
        fs::remove_dir_all(&out).map_err(|error| Error::file(&out, error))?;
    }
    fs::create_dir_all(&out).map_err(|error| Error::file(&out, error))?;
    let torture = Torture {
        program: Program::set_up(&bin, &out, &root().join("examples/water.toml"))?,
        ranks,
        baselines: Setting::all()
            .map(|setting| (setting, OnceLock::new()))
            .collect(),
        tally: Mutex::default(),
    };
    if let Some(number) = args.replay {
        let judged = torture.judge(number)?;
        println!("{judged}");
        println!("{}", judged.told);
        return torture.verdict(&[number]);
    }
    let started = Instant::now();
    let numbers: Vec<u64> = (0..args.runs)
        .map(|index| scramble(args.seed ^ scramble(index)))
        .collect();
    let jobs = args
        .jobs
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    torture.all(&numbers, jobs)?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{}", torture.summary(args, jobs, seconds));
    torture.verdict(&numbers)
}

impl Torture {
    /// Makes and judges the runs of these numbers, `jobs` at once.
    fn all(&self, numbers: &[u64], jobs: usize) -> Result<()> {
        let next = AtomicU64::new(0);
        let first_error = Mutex::new(None);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(number) = numbers.get(index as usize) else {
                    return;
                };
                match self.judge(*number) {
                    Ok(judged) if judged.verdict.is_fault() => {
                        println!("{judged}\n{}", judged.told);
                    }
                    Ok(_) if (index + 1).is_multiple_of(100) => println!("{} runs", index + 1),
                    Ok(_) => {}
                    Err(error) => {
                        // The others end after what they are at.
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                        let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert(error);
                        return;
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..jobs.max(1) {
                scope.spawn(work);
            }
        });
        let first = first_error.into_inner();
        first
            .unwrap_or_else(PoisonError::into_inner)
            .map_or(Ok(()), Err)
    }

    fn judge(&self, number: u64) -> Result<Judged> {
        let began = Instant::now();
        let setting = Setting::of(number);
        let baseline = &self.baselines[&setting];
        if baseline.get().is_none() {
            // Two runs may make the same one; they are alike.
            let made = Baseline::make(&self.program, &setting, number)?;
            let _ = baseline.set(made);
        }
        let baseline = baseline.get().expect("it was set just above");
        let mut case = Case::of(number, &baseline.points);
        case.ranks = self.ranks.unwrap_or(case.ranks);
        let judged = judgement::judge(&self.program, &case, baseline)?;
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.judged += 1;
        *tally.verdicts.entry(judged.verdict).or_default() += 1;
        if judged.struck {
            *tally.struck.entry(case.kind.name()).or_default() += 1;
        }
        tally.longest = tally.longest.max(began.elapsed());
        drop(tally);
        Ok(judged)
    }

    fn verdict(&self, numbers: &[u64]) -> Result<()> {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let faults: u64 = tally
            .verdicts
            .iter()
            .filter(|(verdict, _)| verdict.is_fault())
            .map(|(_, count)| count)
            .sum();
        if faults == 0 && tally.judged == numbers.len() as u64 {
            return Ok(());
        }
        Err(Error::content(
            "torture",
            format!("{faults} of {} runs did what none may do", numbers.len()),
        ))
    }

    fn summary(&self, args: &Args, jobs: usize, seconds: f64) -> String {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |verdict| tally.verdicts.get(&verdict).copied().unwrap_or(0);
        let mut lines = vec![format!(
            "xtask torture: {} runs of seed {}, {jobs} at once, {seconds:.0} s; the longest took {:.1} s",
            tally.judged,
            args.seed,
            tally.longest.as_secs_f64()
        )];
        lines.extend(Verdict::ALL.map(|verdict| format!("  {:>5} {verdict}", count(verdict))));
        let kinds: Vec<String> = tally
            .struck
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        lines.push(format!("  struck: {}", kinds.join(", ")));
        lines.join("\n")
    }
}
