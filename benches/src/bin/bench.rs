//! The benchmarks behind `cargo xtask bench`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use terrashard_benches::branch::{self, BranchBench, BranchRow};
use terrashard_benches::checkpoint;
use terrashard_benches::host_adam::{self, HostAdamBench, HostAdamRow, Variant};
use terrashard_benches::model::{self, Backend, ModelRow, Peer};
use terrashard_benches::numbers::{count, size};
use terrashard_benches::raster::{self, RasterBench};
use terrashard_benches::report::{Output, Report};
use terrashard_benches::stages::largest::{self, Sought, Trial};
use terrashard_benches::stages::peer::Peers;
use terrashard_benches::stages::scaling::{self, Scaling};
use terrashard_benches::stages::{
    self, Device, Job, Precision, Scripts, Sharding, StagesBench, StagesRow,
};
use terrashard_benches::{torch, training_step};
use terrashard_trainer::config::bytes;

/// Benchmarks. Rows are printed as they are measured.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// Forward and backward of one model with both branches, without an optimizer, beside PyTorch's; and the memory of one
    /// training step.
    Model(Model),
    /// One training step, for `model`, which starts a process for it.
    #[command(hide = true)]
    TrainingStep(TrainingStep),
    /// AdamW in host memory, beside the bandwidth of the memory and beside PyTorch's.
    HostAdam(HostAdam),
    /// Saving and loading beside `dd`, and the stall of an asynchronous save beside a copy in memory.
    Checkpoint(checkpoint::Arguments),
    /// The cloud task with and without the super-resolution branch: what it costs and what it is good for.
    Branch(Branch),
    /// One training of `branch`.
    #[command(hide = true)]
    BranchRun {
        /// Its configuration.
        config: PathBuf,
        /// Its run directory.
        run: PathBuf,
    },
    /// Reading windows and writing a Cloud Optimized GeoTIFF, beside rasterio.
    Raster(RasterBench),
    /// Training steps of whole models at each ZeRO stage, beside PyTorch's and DeepSpeed's.
    Stages(Box<Stages>),
    /// What more ranks are worth, from records of `stages` with one rank among them.
    Scaling {
        /// Record folders.
        #[arg(required = true)]
        records: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// One process of `stages`.
    #[command(hide = true)]
    StagesRank {
        /// The job, JSON.
        #[arg(value_parser = job)]
        job: Job,
    },
}

#[derive(Args)]
struct Model {
    /// Models: b0 to b5.
    #[arg(long, value_delimiter = ',', default_value = "b0")]
    models: Vec<String>,
    /// Input heights and widths in pixels.
    #[arg(long, value_delimiter = ',', default_value = "64,128")]
    px: Vec<usize>,
    /// Samples in a batch.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Measured turns; the median and the fastest are reported.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// What computes.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "flex")]
    backend: Vec<Backend>,
    /// A folder with PyTorch's side, `model.py`, which takes turns with ours.
    #[arg(long)]
    peers: Option<PathBuf>,
    /// A Python that has torch [default: the first on the path].
    #[arg(long)]
    python: Option<PathBuf>,
    /// Threads of each side [default: all that the machine offers].
    #[arg(long)]
    threads: Option<usize>,
    /// Input height and width of the training step whose memory is measured; 0 measures none.
    #[arg(long, default_value_t = 128)]
    memory_px: usize,
    /// Samples of that step.
    #[arg(long, default_value_t = 4)]
    memory_batch: usize,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct TrainingStep {
    #[arg(long)]
    model: String,
    #[arg(long)]
    px: usize,
    #[arg(long)]
    batch: usize,
    #[arg(long)]
    threads: usize,
    #[arg(long, value_enum)]
    backend: Backend,
}

#[derive(Args)]
struct HostAdam {
    /// Numbers of parameters.
    #[arg(long, value_delimiter = ',', default_value = "1e6,1e8", value_parser = size)]
    sizes: Vec<usize>,
    /// How often all that is compared takes its turn.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// A Python that has torch [default: the first on the path, if any].
    #[arg(long)]
    python: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct Branch {
    /// Reflectance, a NumPy array [height, width, 6] of float32: blue, green, red, near infrared and two more.
    #[arg(long)]
    image: PathBuf,
    /// Classes, a NumPy array [height, width] of uint8.
    #[arg(long)]
    mask: PathBuf,
    /// The class that is foreground.
    #[arg(long, default_value_t = 4)]
    class: u8,
    /// Optimizer steps of each training.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Weights of the image's L1 loss, each a training with the branch.
    #[arg(long, value_delimiter = ',', default_value = "0.001")]
    l1_weight: Vec<f64>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct Stages {
    /// Models: tiny, b0 to b5, xl.
    #[arg(long, value_delimiter = ',', default_value = "b0")]
    models: Vec<String>,
    /// What computes.
    #[arg(long, value_enum, default_value = "cpu")]
    device: DeviceFlag,
    /// What computes on the CPU.
    #[arg(long, default_value = "flex", value_parser = ["flex", "tch"])]
    backend: String,
    /// Numbers of ranks: one for each GPU, threads on the CPU.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = count)]
    ranks: Vec<usize>,
    /// Stages, with `+recompute`, `+offload` or, for groups of 4 ranks that shard, `+group4` behind them [default: 0; with `--largest` all].
    #[arg(long, value_delimiter = ',')]
    stages: Vec<Sharding>,
    /// Search the largest micro-batch, or the largest model with one sample, that a GPU of `--memory` has room for.
    #[arg(long, value_enum, requires = "memory")]
    largest: Option<Sought>,
    /// What a rank may take of its GPU with `--largest`, such as 16GiB.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    /// Element types of the computation.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bf16")]
    precision: Vec<Precision>,
    /// Input heights and widths in pixels [default: 512; 256 for xl, 64 for tiny].
    #[arg(long, value_delimiter = ',', value_parser = count)]
    px: Vec<usize>,
    /// Samples of each rank [default: 8; 24 for b5, 48 for xl, 2 for tiny].
    #[arg(long, value_delimiter = ',', value_parser = count)]
    batch: Vec<usize>,
    /// Steps that are timed.
    #[arg(long, default_value = "20", value_parser = count)]
    steps: usize,
    /// Steps before those.
    #[arg(long, default_value = "8", value_parser = count)]
    warm_up: usize,
    /// Communicate without computing at the same time.
    #[arg(long)]
    no_overlap: bool,
    /// At stage 3 a parameter of fewer bytes stays whole.
    #[arg(long, default_value = "0")]
    persist_bytes: usize,
    /// Profile one more step of each of ours: kernels and calls with their numbers and times go into the row.
    #[arg(long)]
    profile: bool,
    /// Start each kernel by itself, and none by graphs of what comes again.
    #[arg(long)]
    no_graphs: bool,
    /// The peers' scripts, to run theirs beside ours.
    #[arg(long, requires = "python")]
    peers: Option<PathBuf>,
    /// Which peers [default: PyTorch's own].
    #[arg(long, value_delimiter = ',', requires = "peers")]
    peer: Vec<String>,
    /// A Python that has torch.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Seconds after which a measurement is given up.
    #[arg(long, default_value = "180", value_parser = count)]
    limit: usize,
    /// Seconds after which none is begun.
    #[arg(long, default_value = "500", value_parser = count)]
    seconds: usize,
    /// The commit to note, where there is no git.
    #[arg(long)]
    commit: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// `--device`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DeviceFlag {
    /// The processor.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
}

fn job(text: &str) -> Result<Job, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().suite {
        Suite::Model(arguments) => run_model(&arguments),
        Suite::TrainingStep(arguments) => run_training_step(&arguments),
        Suite::HostAdam(arguments) => run_host_adam(arguments),
        Suite::Checkpoint(arguments) => {
            checkpoint::report(&arguments).map_err(|error| error as Failure)
        }
        Suite::Branch(arguments) => run_branch(arguments),
        Suite::BranchRun { config, run } => run_one_branch(&config, &run),
        Suite::Raster(bench) => raster::run(&bench).map_err(Failure::from),
        Suite::Stages(arguments) => run_stages(*arguments),
        Suite::Scaling { records, output } => run_scaling(&records, &output),
        // What went wrong is in the result already.
        Suite::StagesRank { job } => match stages::speak(&job) {
            Ok(()) => Ok(()),
            Err(_) => return ExitCode::FAILURE,
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

type Failure = Box<dyn std::error::Error>;

fn run_model(arguments: &Model) -> Result<(), Failure> {
    let mut report = Report::new(&arguments.output, &ModelRow::HEAD);
    let peer = match &arguments.peers {
        None => None,
        Some(folder) => Some(Peer {
            folder: std::path::absolute(folder)?,
            python: arguments
                .python
                .clone()
                .or_else(torch::find)
                .ok_or("no Python with torch on the path; give one with --python")?,
        }),
    };
    let offered = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(offered);
    let program = std::env::current_exe()?;
    for name in &arguments.models {
        for &px in &arguments.px {
            let bench = training_step::bench_of(name, px, arguments.batch, threads)?;
            let repetitions = arguments.repetitions as usize;
            for row in model::time(&bench, &arguments.backend, peer.as_ref(), repetitions)? {
                report.add(row, ModelRow::cells);
            }
        }
        if arguments.memory_px > 0 {
            let (px, batch) = (arguments.memory_px, arguments.memory_batch);
            let bench = training_step::bench_of(name, px, batch, threads)?;
            let backends = &arguments.backend;
            for row in training_step::rows(&bench, backends, peer.as_ref(), &program)? {
                report.add(row, ModelRow::cells);
            }
        }
    }
    Ok(report.write("Forward and backward of one model on the CPU")?)
}

fn run_training_step(arguments: &TrainingStep) -> Result<(), Failure> {
    let TrainingStep {
        model,
        px,
        batch,
        threads,
        backend,
    } = arguments;
    let bench = training_step::bench_of(model, *px, *batch, *threads)?;
    let step = training_step::run(&bench, *backend)?;
    println!("{}", serde_json::json!(step));
    Ok(())
}

fn run_host_adam(arguments: HostAdam) -> Result<(), Failure> {
    let python = arguments.python.or_else(torch::find);
    let head = [
        "parameters",
        "writes",
        "ms",
        "GB/s",
        "read-modify-write GB/s",
        "fraction",
        "median",
        "torch fused ms",
        "torch foreach ms",
        "ratio to fused",
        "median",
    ];
    let mut report = Report::new(&arguments.output, &head);
    for size in arguments.sizes {
        let rows = host_adam::run(&HostAdamBench {
            size,
            rounds: arguments.rounds as usize,
            python: python.clone(),
        })?;
        for row in rows {
            report.add(row, host_adam_cells);
        }
    }
    let first = report.rows.first();
    let instructions = first.map(|row| format!("instruction set: {}", row.instruction_set));
    let version = first.and_then(|row| row.torch.as_ref());
    let version = version.map(|version| format!("pytorch: {version}"));
    let others = instructions.into_iter().chain(version).collect();
    report.circumstances.others = others;
    Ok(report.write("AdamW in host memory")?)
}

fn run_stages(arguments: Stages) -> Result<(), Failure> {
    let title = "Training steps at each ZeRO stage";
    let mut report = Report::new(&arguments.output, &StagesRow::HEAD);
    if let Some(commit) = arguments.commit.clone() {
        report.circumstances.commit = commit;
    }
    let scripts = arguments.peers.zip(arguments.python);
    let bench = StagesBench {
        models: arguments.models,
        px: arguments.px,
        batches: arguments.batch,
        precisions: arguments.precision,
        shardings: match (arguments.stages, arguments.largest) {
            (given, _) if !given.is_empty() => given,
            (_, None) => vec![Sharding::default()],
            (_, Some(_)) => Sharding::all(),
        },
        ranks: arguments.ranks,
        device: match (arguments.device, arguments.backend.as_str()) {
            (DeviceFlag::Cuda, _) => Device::Cuda,
            (DeviceFlag::Cpu, "tch") => Device::Tch,
            (DeviceFlag::Cpu, _) => Device::Flex,
        },
        steps: arguments.steps,
        warm_up: arguments.warm_up,
        overlap: !arguments.no_overlap,
        persist_bytes: arguments.persist_bytes,
        profile: arguments.profile,
        graphs: !arguments.no_graphs,
        peers: scripts.map(|(folder, python)| Peers {
            scripts: Scripts { folder, python },
            names: arguments.peer,
        }),
        limit: Duration::from_secs(arguments.limit as u64),
        total: Duration::from_secs(arguments.seconds as u64),
        commit: report.circumstances.commit.clone(),
    };
    if let (Some(sought), Some(memory)) = (arguments.largest, arguments.memory) {
        return run_largest(&bench, sought, memory, &arguments.output);
    }
    let mut failed = None;
    stages::run(&bench, |row| {
        report.add(row, StagesRow::cells);
        // What is measured is kept, whatever becomes of the rest.
        if let Err(error) = report.write(title) {
            failed.get_or_insert(error);
        }
    })?;
    Ok(failed.map_or(Ok(()), Err)?)
}

fn run_scaling(records: &[PathBuf], output: &Output) -> Result<(), Failure> {
    let rows = scaling::rows(records)?;
    let mut report = Report::new(output, &Scaling::HEAD);
    for beside in scaling::scaling(&rows) {
        report.add(beside.row.clone(), |_| beside.cells());
    }
    Ok(report.write("Training steps on more ranks beside one rank alone")?)
}

fn run_largest(
    bench: &StagesBench,
    sought: Sought,
    memory: u64,
    output: &Output,
) -> Result<(), Failure> {
    let mut report = Report::new(output, &Trial::HEAD);
    report.circumstances.commit.clone_from(&bench.commit);
    let mut failed = None;
    largest::run(bench, sought, memory, |trial| {
        report.add(trial, Trial::cells);
        if let Err(error) = report.write("The largest that a GPU with limited memory has room for")
        {
            failed.get_or_insert(error);
        }
    })?;
    Ok(failed.map_or(Ok(()), Err)?)
}

fn run_branch(arguments: Branch) -> Result<(), Failure> {
    let mut report = Report::new(&arguments.output, &branch::HEAD);
    let bench = BranchBench {
        image: arguments.image,
        mask: arguments.mask,
        class: arguments.class,
        steps: arguments.steps,
        seeds: arguments.seeds,
        l1_weights: arguments.l1_weight,
    };
    branch::run(&bench, &std::env::current_exe()?, |row| {
        report.add(row, BranchRow::cells);
    })?;
    report.circumstances.others.push(format!(
        "{} steps of 8 samples of 32 x 32 pixels; west half trained on, east half tested",
        bench.steps
    ));
    Ok(report.write("The cloud task with and without the super-resolution branch")?)
}

fn run_one_branch(config: &Path, run: &Path) -> Result<(), Failure> {
    let row = branch::run_one(config, run)?;
    println!("{}", serde_json::to_string(&row)?);
    Ok(())
}

fn host_adam_cells(row: &HostAdamRow) -> Vec<String> {
    let optional = |value: Option<f64>, digits: usize| {
        value.map_or("-".into(), |value| format!("{value:.digits$}"))
    };
    let writes = match row.variant {
        Variant::F32 => "f32",
        Variant::F32WithBf16Copy => "f32 + bf16 copy",
    };
    vec![
        format!("{:e}", row.size as f64),
        writes.to_string(),
        format!("{:.3}", row.ms),
        format!("{:.1}", row.gb_s),
        format!("{:.1}", row.rmw_gb_s),
        format!("{:.2}", row.fraction),
        format!("{:.2}", row.fraction_median),
        optional(row.torch_fused_ms, 3),
        optional(row.torch_foreach_ms, 3),
        optional(row.ratio, 2),
        optional(row.ratio_median, 2),
    ]
}
