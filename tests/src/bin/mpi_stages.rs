//! The stage grid with ranks that are processes: every training equals that of ranks that are threads, bit by bit,
//! and sends what the formulas say.
//! Started by `mpirun`; `cargo xtask mpi` does it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use terrashard_collectives::local::Patience;
use terrashard_collectives::mpi::MpiWorld;
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_tests::counted::sent;
use terrashard_tests::nasty::{Case, Trained, train};
use terrashard_zero::{Offload, Precision, Recompute, Result, ZeroConfig};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mpi_stages: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let started = Instant::now();
    let patience = Patience::from_environment(|_, words| {
        eprintln!("mpi_stages: {words}");
        std::process::exit(1);
    })?;
    let world = MpiWorld::init(patience)?;
    let communicator: Arc<dyn Communicator> = Arc::new(world.communicator());
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let cases = cases(ranks);
    for case in &cases {
        let processes = train(case, communicator.clone())?;
        // Every process trains all ranks once more by itself: nobody has to send what it compares.
        let threads = threads(case);
        assert!(
            processes == threads[rank],
            "rank {rank}: processes train to other bits than threads: {case:?}"
        );
    }
    let counted = traffic(&communicator)?;
    communicator.barrier()?;
    if rank == 0 {
        let line = serde_json::json!({
            "suite": "stages",
            "ranks": ranks,
            "cases": cases.len(),
            "counted": counted,
            "seconds": started.elapsed().as_secs_f64(),
        });
        println!("{line}");
    }
    Ok(())
}

/// Bytes that a step sends, for every stage with and without accumulation: as the layout predicts, and within padding of the
/// formulas. How many cases were counted.
fn traffic(communicator: &Arc<dyn Communicator>) -> Result<usize> {
    const WIDTHS: [usize; 4] = [31, 35, 39, 33];
    let others = communicator.ranks() as u64 - 1;
    let mut cases = 0;
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        for accumulate in [1, 3] {
            let config = ZeroConfig {
                stage,
                accumulate,
                ..ZeroConfig::default()
            };
            let step = sent(&WIDTHS, &config, Recompute::Keep, communicator.clone())?;
            assert_eq!(
                step.counted, step.predicted,
                "stage {stage}, accumulate {accumulate}"
            );
            let times = match stage {
                Stage::Zero | Stage::One => 2,
                Stage::Two => accumulate as u64 + 1,
                Stage::Three => 3 * accumulate as u64,
            };
            let formula = times * step.numel * others * 4 / (others + 1);
            let over = step.counted.total().checked_sub(formula);
            assert!(
                over.is_some_and(|over| over <= times * step.padding * 4 + others + 1),
                "stage {stage}, accumulate {accumulate}: {:?} for {formula}",
                step.counted
            );
            cases += 1;
        }
    }
    Ok(cases)
}

fn threads(case: &Case) -> Vec<Trained> {
    let results = local::run(case.ranks, |communicator| {
        train(case, Arc::new(communicator))
    });
    results.unwrap_or_else(|error| panic!("{error}"))
}

/// A reduced grid: every stage with and without offload, each way of recomputation, both precisions, accumulation, and
/// hybrid groups where there are ranks for them.
fn cases(ranks: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for precision in [Precision::F32, Precision::F64] {
        for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
            let offload = match stage {
                Stage::Zero => Offload::None,
                Stage::One | Stage::Two => Offload::Optimizer,
                Stage::Three => Offload::Parameters,
            };
            for (recompute, offload, accumulate) in [
                (Recompute::Keep, Offload::None, 1),
                (Recompute::Recompute, offload, 1),
                (Recompute::Offload, offload, 3),
            ] {
                let mut case = Case::new(ranks);
                case.steps = 10;
                case.recompute = recompute;
                case.config.precision = precision;
                case.config.stage = stage;
                case.config.offload = offload;
                case.config.accumulate = accumulate;
                cases.push(case.clone());
                if ranks.is_multiple_of(4) && accumulate == 1 {
                    case.config.shard_group = Some(2);
                    cases.push(case);
                }
            }
        }
    }
    cases
}
