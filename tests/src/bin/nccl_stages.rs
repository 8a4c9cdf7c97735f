//! The stage grid with ranks that are GPUs, and how fast they communicate, alone and beside matrix products. Starts itself
//! for each GPU.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{DType, Device, Distribution, Tensor};
use clap::{Parser, ValueEnum};
use terrashard_collectives::nccl::NcclWorld;
use terrashard_collectives::{Communicator, Error, Result};
use terrashard_tests::gpu_ranks::{self, Checks};
use terrashard_tests::stage_grid;

const NAME: &str = "nccl_stages";

/// Optimizer steps of each training.
const STEPS: u64 = 20;

/// Matrix products beside which the ranks communicate, and their size.
const PRODUCTS: usize = 20;
const SIDE: usize = 8192;

/// Trains at every stage on GPUs and measures how they communicate.
#[derive(Parser)]
struct Cli {
    /// What is done.
    #[arg(value_enum, default_value = "all")]
    part: Part,
    /// Number of ranks [default: one for each GPU]
    #[arg(long)]
    ranks: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// All that follows.
    All,
    /// The grid, as fast as LibTorch computes.
    Grid,
    /// The grid with LibTorch's deterministic algorithms.
    Deterministic,
    /// The table of bandwidths.
    Bandwidth,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    gpu_ranks::exit(
        NAME,
        gpu_ranks::run(cli.ranks, |world| run(world, cli.part)),
    )
}

fn run(world: &NcclWorld, part: Part) -> Result<()> {
    let communicator: Arc<dyn Communicator> = Arc::new(world.communicator());
    let device = world.device();
    let mut checks = Checks::new(NAME, communicator.rank() == 0);
    checks.say(&gpu_ranks::machine(world)?);
    let torch = |result: terrashard_torch::Result<()>| {
        result.map_err(|error| Error::Transport {
            reason: error.to_string(),
        })
    };
    torch(terrashard_torch::set_tf32(false))?;
    let alone = communicator.split(communicator.rank())?;
    let cells = stage_grid::cells(communicator.ranks(), STEPS, &device);
    if matches!(part, Part::All | Part::Grid) {
        checks.say("the stage grid, f32, 20 steps");
        stage_grid::run(&mut checks, &communicator, &alone, &cells);
        stage_grid::run_spoilt(&mut checks, &communicator, &device);
    }
    if matches!(part, Part::All | Part::Deterministic) {
        checks.say("the same with deterministic algorithms");
        torch(terrashard_torch::set_deterministic(true))?;
        stage_grid::run(&mut checks, &communicator, &alone, &cells);
        torch(terrashard_torch::set_deterministic(false))?;
    }
    if matches!(part, Part::All | Part::Bandwidth) {
        checks.say(&format!(
            "reduce-scatter and all-gather of f32, {PRODUCTS} products of {SIDE} x {SIDE} bf16 matrices beside them"
        ));
        for mebibytes in [1, 4, 16, 64, 256, 1024] {
            let name = format!("{mebibytes:5} MiB");
            checks.check(&name, || {
                bandwidth(&*communicator, &device, mebibytes << 18)
            });
        }
    }
    checks.summary()
}

/// Times a reduce-scatter of `len` elements and an all-gather of the result: alone, and beside products.
fn bandwidth(comm: &dyn Communicator, device: &Device, len: usize) -> Result<String> {
    let ranks = comm.ranks();
    let len = len / ranks * ranks;
    let input = Tensor::<1>::ones([len], (device, DType::F32));
    // Products keep their size, since numbers that grow beyond bounds cost the GPU less.
    let spread = Distribution::Normal(0.0, 1.0 / (SIDE as f64).sqrt());
    let matrix = Tensor::<2>::random([SIDE, SIDE], spread, (device, DType::BF16));
    let both = |calls: usize| -> Result<()> {
        for _ in 0..calls {
            let part = comm.reduce_scatter(input.clone())?.wait()?;
            drop(comm.all_gather(part)?.wait()?);
        }
        Ok(())
    };
    let products = || {
        let mut product = matrix.clone();
        for _ in 0..PRODUCTS {
            product = product.matmul(matrix.clone());
        }
        product
    };
    // For the same time as the products take, roughly.
    both(2)?;
    drop(products());
    let one = median(comm, device, 10, &mut || both(1))?;
    let compute = median(comm, device, 5, &mut || {
        drop(products());
        Ok(())
    })?;
    let calls = ((compute / one) as usize).clamp(1, 64);
    let alone = median(comm, device, 5, &mut || both(calls))?;
    let beside = median(comm, device, 5, &mut || {
        // Waited for after the products, so that these need not wait for them.
        let mut pending = Vec::with_capacity(calls);
        for _ in 0..calls {
            pending.push(comm.reduce_scatter(input.clone())?);
        }
        drop(products());
        for pending in pending {
            pending.wait()?;
        }
        Ok(())
    })?;
    let scatters = median(comm, device, 5, &mut || {
        for _ in 0..calls {
            drop(comm.reduce_scatter(input.clone())?.wait()?);
        }
        Ok(())
    })?;
    let bytes = (len * 4) as f64;
    // What each GPU sends in both, as bandwidths of busses are told.
    let bus = 2.0 * bytes * (ranks - 1) as f64 / ranks as f64 / one / 1e9;
    let hidden = ((compute + scatters - beside) / compute.min(scatters)).clamp(0.0, 1.0);
    Ok(format!(
        "one pair {:.3} ms, bus {bus:.1} GB/s; {calls} pairs {:.2} ms; products {:.2} ms, {calls} reduce-scatters {:.2} ms, beside each other {:.2} ms: {:.0} % hidden",
        one * 1e3,
        alone * 1e3,
        compute * 1e3,
        scatters * 1e3,
        beside * 1e3,
        hidden * 100.0
    ))
}

/// Seconds that something takes, the median of several times, all ranks starting together.
fn median(
    comm: &dyn Communicator,
    device: &Device,
    times: usize,
    body: &mut dyn FnMut() -> Result<()>,
) -> Result<f64> {
    let sync = || {
        device.sync().map_err(|error| Error::Transport {
            reason: format!("the GPU: {error}"),
        })
    };
    let mut seconds = Vec::with_capacity(times);
    for _ in 0..times {
        sync()?;
        comm.barrier()?;
        let started = Instant::now();
        body()?;
        sync()?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    // The same number on all ranks, which derive from it how much to do.
    let median = Tensor::<1>::from_data([seconds[times / 2]].as_slice(), (device, DType::F64));
    let sum = comm.all_reduce(median)?.wait()?.into_scalar::<f64>();
    Ok(sum / comm.ranks() as f64)
}
