//! The conformance suite with ranks that are processes, and what happens when one of them does not do what the others
//! do. Started by `mpirun`; `cargo xtask mpi` does it.

use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use clap::{Parser, ValueEnum};
use terrashard_collectives::conformance::Sums;
use terrashard_collectives::local::Patience;
use terrashard_collectives::mpi::MpiWorld;
use terrashard_collectives::{Communicator, Result, conformance, local};

/// What the ranks do.
#[derive(Parser)]
struct Cli {
    #[arg(value_enum, default_value = "conforms")]
    scenario: Scenario,
}

/// In all but the first, the last rank does what the name says and the others make calls. They must end, with an error.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// The conformance suite; results equal those of threads. Prints one JSON line.
    Conforms,
    /// Its process is killed.
    Killed,
    /// Its process ends without a word.
    Exits,
    /// It returns before the others.
    Leaves,
    /// It gives up, as after a file that cannot be read.
    Aborts,
    /// It panics.
    Panics,
    /// It makes another call.
    Differs,
    /// It makes another call in a group, while ranks of another group wait for all.
    DiffersInGroup,
    /// It panics while others wait in its group, and others elsewhere.
    PanicsInGroup,
    /// It never makes the call.
    Stalls,
    /// It makes the call and never ends, while the others have.
    StaysBehind,
    /// Its process is stopped with all its threads, as by a debugger.
    Stopped,
    /// It never makes the call, and the others do not come back to see that.
    StallsUnseen,
}

fn main() -> ExitCode {
    match run(Cli::parse().scenario) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mpi_conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(scenario: Scenario) -> Result<()> {
    let patience = Patience::from_environment(|_, words| {
        eprintln!("mpi_conformance: {words}; it does not end, so the process does");
        std::process::exit(1);
    })?;
    let world = MpiWorld::init(patience)?;
    let comm = world.communicator();
    let is_culprit = comm.rank() + 1 == comm.ranks();
    match scenario {
        Scenario::StaysBehind => {
            comm.barrier()?;
            match is_culprit {
                true => stall(),
                false => return Ok(()),
            }
        }
        Scenario::Conforms => return conforms(&world),
        Scenario::DiffersInGroup | Scenario::PanicsInGroup => {
            let group = comm.split(comm.rank() % 2)?;
            match is_culprit {
                true if scenario == Scenario::PanicsInGroup => panic!("index 7 out of bounds"),
                true => drop(group.all_gather(tensor(comm.rank(), 7))?.wait()?),
                false if group.rank() == 0 => group.barrier()?,
                false => {}
            }
            return comm.barrier();
        }
        Scenario::StallsUnseen if !is_culprit => {
            let _pending = comm.all_reduce(tensor(comm.rank(), 8))?;
            stall()
        }
        _ if !is_culprit => {}
        Scenario::Stalls | Scenario::StallsUnseen => stall(),
        Scenario::Stopped => stop(),
        Scenario::Killed => kill(),
        Scenario::Exits => std::process::exit(0),
        Scenario::Leaves => return Ok(()),
        Scenario::Aborts => comm.abort("scene.tif is truncated"),
        Scenario::Panics => panic!("index 7 out of bounds"),
        Scenario::Differs => return comm.all_gather(tensor(0, 7))?.wait().map(drop),
    }
    comm.all_reduce(tensor(comm.rank(), 8))?.wait().map(drop)
}

/// Never returns, and waits for nobody.
fn stall() -> ! {
    loop {
        thread::park();
    }
}

/// Sends this process a signal.
fn signal(signal: &str) -> std::io::Result<ExitStatus> {
    let pid = std::process::id().to_string();
    Command::new("kill").args([signal, &pid]).status()
}

/// Ends this process in a way that it cannot notice.
fn kill() {
    panic!("killed, but still here: {:?}", signal("-KILL"));
}

/// Stops this process with all its threads. The launcher continues it to end it.
fn stop() -> ! {
    let stopped = signal("-STOP");
    assert!(
        stopped.is_ok_and(|status| status.success()),
        "it can stop itself"
    );
    stall()
}

fn conforms(world: &MpiWorld) -> Result<()> {
    let started = Instant::now();
    let comm = world.communicator();
    let (rank, ranks) = (comm.rank(), comm.ranks());
    conformance::run(&comm, &Device::flex(), Sums::InRankOrder)?;

    let here = bits(&comm)?;
    let threads = local::run(ranks, |comm| bits(&comm)).expect("threads conform, too");
    assert!(
        here == threads[rank],
        "rank {rank}: processes sum to other bits than threads"
    );
    let patience = Patience::from_environment(|_, _| {})?;
    assert!(MpiWorld::init(patience).is_err(), "MPI is initialized once");
    comm.barrier()?;
    let suite = started.elapsed().as_secs_f64();

    let small = seconds(&comm, 200, 1)?;
    let large = seconds(&comm, 5, 4 << 20)?;
    comm.barrier()?;
    if rank == 0 {
        let threads = local::run(ranks, |comm| seconds(&comm, 5, 4 << 20));
        let threads = threads.expect("threads conform, too")[0];
        let line = serde_json::json!({
            "suite": "conformance",
            "ranks": ranks,
            "seconds": suite,
            "all_reduce_of_1_element_us": small * 1e6,
            "all_reduce_of_16_mib_ms": large * 1e3,
            "with_threads_ms": threads * 1e3,
        });
        println!("{line}");
    }
    Ok(())
}

/// Seconds that an all-reduce takes.
fn seconds(comm: &dyn Communicator, calls: u32, len: usize) -> Result<f64> {
    let input = tensor(comm.rank(), len);
    comm.barrier()?;
    let started = Instant::now();
    for _ in 0..calls {
        comm.all_reduce(input.clone())?.wait()?;
    }
    Ok(started.elapsed().as_secs_f64() / f64::from(calls))
}

/// Bits of all verbs' results for inputs whose sums depend on the order.
fn bits(comm: &dyn Communicator) -> Result<Vec<u8>> {
    let group: Arc<dyn Communicator> = comm.split(comm.rank() / 2)?;
    let mut bits = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let input = || tensor(comm.rank(), 60_060).cast(dtype);
        for pending in [
            comm.all_reduce(input())?,
            comm.reduce_scatter(input())?,
            comm.all_gather(input())?,
            comm.broadcast(input(), comm.ranks() - 1)?,
            group.all_reduce(input())?,
        ] {
            bits.extend_from_slice(pending.wait()?.into_data().as_bytes());
        }
    }
    Ok(bits)
}

fn tensor(rank: usize, len: usize) -> Tensor<1> {
    let value = |i: usize| ((i + 1) as f32 * (rank + 1) as f32).sin() * 1e3;
    let values: Vec<f32> = (0..len).map(value).collect();
    Tensor::from_data(values.as_slice(), (&Device::flex(), DType::F32))
}
