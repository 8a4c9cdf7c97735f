//! The stage grid with ranks that are processes: every training equals that of ranks that are threads, bit by bit.
//! Started by `mpirun`; `cargo xtask mpi` does it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use terrashard_collectives::mpi::MpiWorld;
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_tests::nasty::{Case, Trained, train};
use terrashard_zero::{Offload, Precision, Recompute, Result};

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
    let world = MpiWorld::init()?;
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
    communicator.barrier()?;
    if rank == 0 {
        let line = serde_json::json!({
            "suite": "stages",
            "ranks": ranks,
            "cases": cases.len(),
            "seconds": started.elapsed().as_secs_f64(),
        });
        println!("{line}");
    }
    Ok(())
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
