//! The conformance suite with ranks that are GPUs, and what happens when one of them does not do what the others do.
//! Starts itself for each GPU.

use std::env;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Tensor};
use clap::{Parser, ValueEnum};
use terrashard_collectives::bootstrap::Launched;
use terrashard_collectives::conformance::{self, Sums};
use terrashard_collectives::nccl::NcclWorld;
use terrashard_collectives::{Communicator, Error, Result};
use terrashard_tests::gpu_ranks::{self, Checks};

const NAME: &str = "nccl_conformance";

/// Seconds after which a call is late, where that is what is tested.
const TIMEOUT: &str = "8";

/// How long a run may take that has to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// Checks ranks that are GPUs.
#[derive(Parser)]
struct Cli {
    /// What the ranks do.
    #[arg(value_enum, default_value = "all")]
    scenario: Scenario,
    /// Number of ranks [default: one for each GPU]
    #[arg(long)]
    ranks: Option<usize>,
}

/// In all but the first two, one rank does what the name says and the others make calls. They must end, with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// All that follows, one after another.
    All,
    /// The conformance suite.
    Conforms,
    /// The last rank's process is killed.
    Killed,
    /// Rank 0's process, which holds the store, is killed.
    KilledFirst,
    /// It ends without a word.
    Exits,
    /// It returns before the others.
    Leaves,
    /// It gives up, as after a file that cannot be read.
    Aborts,
    /// It panics.
    Panics,
    /// It makes another call.
    Differs,
    /// The same, and calls are compared before they run.
    DiffersChecked,
    /// It makes no call, but goes on.
    Stalls,
}

impl Scenario {
    /// What the line says that ends the run: these words, after `rank` and the last rank where they begin with a space.
    fn line(self) -> &'static str {
        match self {
            Self::All | Self::Conforms => "",
            Self::Killed | Self::Exits => " has ended without a word",
            Self::KilledFirst => "rank 0 has ended without a word",
            Self::Leaves => " has ended without making call",
            Self::Aborts => " gave up: scene.tif is truncated",
            Self::Panics => " gave up: panicked",
            Self::Differs | Self::DiffersChecked => "ranks disagree on call",
            Self::Stalls => " is behind",
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    gpu_ranks::exit(NAME, run(&cli))
}

fn run(cli: &Cli) -> Result<()> {
    if cli.scenario == Scenario::All && Launched::from_environment()?.is_none() {
        return all(cli);
    }
    gpu_ranks::run(cli.ranks, |world| match cli.scenario {
        Scenario::All | Scenario::Conforms => conforms(world),
        scenario => fails(world, scenario),
    })
}

/// Every scenario in processes of its own.
fn all(cli: &Cli) -> Result<()> {
    let ranks = gpu_ranks::count(cli.ranks)?;
    let mut checks = Checks::new(NAME, true);
    checks.check("conforms", || {
        child(Scenario::Conforms, ranks).and_then(Child::succeeds)
    });
    if ranks > 1 {
        for &scenario in &Scenario::value_variants()[2..] {
            let name = format!("{scenario:?}");
            checks.check(&name, || child(scenario, ranks)?.fails(scenario, ranks));
        }
    }
    checks.summary()
}

/// How a scenario went.
struct Child {
    is_success: bool,
    text: String,
}

/// Runs a scenario. The suite itself is shown as it goes.
fn child(scenario: Scenario, ranks: usize) -> Result<Child> {
    let failed = |what: &str, error: std::io::Error| Error::Transport {
        reason: format!("{what}: {error}"),
    };
    let program = env::current_exe().map_err(|error| failed("this program", error))?;
    let name = scenario.to_possible_value().expect("none is skipped");
    let mut command = Command::new(program);
    command.args([name.get_name(), "--ranks", &ranks.to_string()]);
    if scenario != Scenario::Conforms {
        command
            .env("TERRASHARD_TIMEOUT", TIMEOUT)
            .stderr(Stdio::piped());
    }
    if scenario == Scenario::DiffersChecked {
        command.env("TERRASHARD_CHECK_CALLS", "1");
    }
    let mut child = command
        .spawn()
        .map_err(|error| failed("the processes", error))?;
    let reader = child.stderr.take().map(|mut stderr| {
        thread::spawn(move || {
            let mut text = Vec::new();
            // What was read until then is what there is.
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child
            .try_wait()
            .map_err(|error| failed("the processes", error))?
        {
            break Some(status);
        }
        if scenario != Scenario::Conforms && started.elapsed() > ENDS_WITHIN {
            let _ = child.kill();
            break None;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let Some(status) = status else {
        return Err(Error::Transport {
            reason: format!("it does not end within {} s", ENDS_WITHIN.as_secs()),
        });
    };
    let text = reader
        .and_then(|reader| reader.join().ok())
        .unwrap_or_default();
    Ok(Child {
        is_success: status.success(),
        text,
    })
}

impl Child {
    fn succeeds(self) -> Result<String> {
        match self.is_success {
            true => Ok(String::new()),
            false => Err(Error::Transport {
                reason: "a rank has failed".to_owned(),
            }),
        }
    }

    /// It has to fail with a line that names the culprit.
    fn fails(self, scenario: Scenario, ranks: usize) -> Result<String> {
        let expected = match scenario.line() {
            words if words.starts_with(' ') => format!("rank {}{words}", ranks - 1),
            words => words.to_owned(),
        };
        let line = self.text.lines().find(|line| line.contains(&expected));
        match line {
            Some(line) if !self.is_success => Ok(line.to_owned()),
            _ => Err(Error::Transport {
                reason: format!(
                    "success: {}, no line with `{expected}` in: {}",
                    self.is_success,
                    self.text.lines().collect::<Vec<_>>().join(" | ")
                ),
            }),
        }
    }
}

fn fails(world: &NcclWorld, scenario: Scenario) -> Result<()> {
    let (comm, device) = (world.communicator(), world.device());
    let call = |len| tensor(comm.rank(), len, &device);
    for _ in 0..3 {
        comm.all_reduce(call(8))?.wait()?;
    }
    device_sync(&device)?;
    let is_first = scenario == Scenario::KilledFirst;
    let is_culprit = comm.rank() == if is_first { 0 } else { comm.ranks() - 1 };
    if is_culprit {
        match scenario {
            Scenario::Killed | Scenario::KilledFirst => kill(),
            Scenario::Exits => std::process::exit(0),
            Scenario::Leaves => return Ok(()),
            Scenario::Aborts => comm.abort("scene.tif is truncated"),
            Scenario::Panics => panic!("index 7 out of bounds"),
            Scenario::Differs | Scenario::DiffersChecked => {
                return comm
                    .all_gather(call(7))?
                    .wait()
                    .map(|tensor| drop(tensor.into_data()));
            }
            Scenario::Stalls => thread::sleep(ENDS_WITHIN),
            Scenario::All | Scenario::Conforms => {}
        }
    }
    comm.all_reduce(call(8))?.wait()?;
    comm.all_reduce(call(8))?
        .wait()
        .map(|tensor| drop(tensor.into_data()))
}

/// Ends this process in a way that it cannot notice.
fn kill() {
    let pid = std::process::id().to_string();
    let killed = Command::new("kill").args(["-9", &pid]).status();
    panic!("killed, but still here: {killed:?}");
}

fn conforms(world: &NcclWorld) -> Result<()> {
    let (comm, device) = (world.communicator(), world.device());
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let sums = if ranks <= 2 {
        Sums::InRankOrder
    } else {
        Sums::InAnyOrder
    };
    let mut checks = Checks::new("conforms", rank == 0);
    checks.say(&gpu_ranks::machine(world)?);
    // A rank that fails a check makes other calls than the rest from there on: it ends the run.
    let mut check = |name: &str, body: &mut dyn FnMut() -> Result<String>| {
        checks.check(name, &mut *body);
        comm.barrier()
    };
    let silent = |result: Result<()>| result.map(|()| String::new());
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let named = |name: &str| format!("{name} {dtype:?}").to_lowercase();
        check(&named("verbs"), &mut || {
            silent(conformance::verbs(&comm, &device, dtype))
        })?;
        match sums {
            Sums::InRankOrder => {
                check(&named("rank order"), &mut || {
                    silent(conformance::rank_order(&comm, &device, dtype))
                })?;
                check(&named("composition"), &mut || {
                    silent(conformance::composition(&comm, &device, dtype))
                })?;
            }
            Sums::InAnyOrder => {
                check(&named("close"), &mut || {
                    silent(conformance::close_and_repeatable(&comm, &device, dtype))
                })?;
            }
        }
        check(&named("any order"), &mut || {
            silent(conformance::any_order(&comm, &device, dtype))
        })?;
    }
    check("traffic", &mut || {
        silent(conformance::traffic(&comm, &device))
    })?;
    check("splits", &mut || {
        silent(conformance::splits(&comm, &device))
    })?;
    check("interleaving", &mut || {
        silent(conformance::interleaving(&comm, &device))
    })?;
    check("progress", &mut || {
        silent(conformance::progress(&comm, &device))
    })?;
    for (name, host) in [
        ("flex", Device::flex()),
        ("libtorch", terrashard_torch::cpu()),
    ] {
        let name = format!("tensors of the host, {name}");
        check(&name, &mut || {
            silent(conformance::verbs(&comm, &host, DType::F64))
        })?;
    }
    check("buffers live as long as calls", &mut || {
        silent(buffers(&comm, &device))
    })?;
    check("the host waits for nothing", &mut || host(&comm, &device))?;
    check("what is refused", &mut || silent(refused(&comm, &device)))?;
    checks.summary()
}

/// Results are right though nobody holds the inputs, and though their memory is used for something else at once.
fn buffers(comm: &dyn Communicator, device: &Device) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    const LEN: usize = 1 << 20;
    let filled = |value: usize, len: usize| {
        Tensor::<1>::zeros([len], (device, DType::F32)).add_scalar(value as f32)
    };
    for round in 0..200_usize {
        let value = |rank: usize| round % 50 + rank;
        let sum: usize = (0..ranks).map(value).sum();
        let started = [
            (comm.all_reduce(filled(value(rank), LEN))?, sum as f64),
            (
                comm.reduce_scatter(filled(value(rank), LEN * ranks))?,
                sum as f64,
            ),
            (
                comm.all_gather(filled(value(rank), LEN))?,
                sum as f64 / ranks as f64,
            ),
            (
                comm.broadcast(filled(value(rank), LEN), round % ranks)?,
                value(round % ranks) as f64,
            ),
        ];
        // Dropped, and its memory overwritten while it may be under way.
        drop(comm.all_reduce(filled(1, LEN))?);
        let garbage = [filled(7_777, LEN), filled(7_778, LEN * ranks)];
        for (at, (pending, expected)) in started.into_iter().enumerate() {
            let mean = f64::from(pending.wait()?.mean().into_scalar::<f32>());
            assert!(
                (mean - expected).abs() < 1e-3,
                "round {round}, call {at} on rank {rank}: {mean} instead of {expected}"
            );
        }
        drop(garbage);
    }
    Ok(())
}

/// Issuing calls and waiting for them takes the host a small part of the time that the GPU needs.
fn host(comm: &dyn Communicator, device: &Device) -> Result<String> {
    const CALLS: u32 = 40;
    let input = tensor(comm.rank(), 1 << 26, device);
    let calls = |count| -> Result<()> {
        for _ in 0..count {
            let sum = comm.all_reduce(input.clone())?.wait()?;
            drop(sum.add_scalar(1.0));
        }
        Ok(())
    };
    // Memory is taken, and NCCL has its connections, before time counts.
    calls(3)?;
    comm.barrier()?;
    device_sync(device)?;
    let started = Instant::now();
    calls(CALLS)?;
    let host = started.elapsed().as_secs_f64();
    device_sync(device)?;
    let all = started.elapsed().as_secs_f64();
    let words = format!(
        "{:.1} us of the host, {:.1} us of the GPU for each of {CALLS} all-reduces of 256 MiB",
        host / f64::from(CALLS) * 1e6,
        all / f64::from(CALLS) * 1e6
    );
    let is_alone = comm.ranks() == 1;
    assert!(is_alone || host < 0.5 * all, "{words}");
    Ok(words)
}

/// What cannot be communicated is an error, after which the next call works.
fn refused(comm: &dyn Communicator, device: &Device) -> Result<()> {
    let ranks = comm.ranks();
    if ranks > 1 {
        let odd = comm.reduce_scatter(tensor(0, ranks + 1, device));
        assert!(matches!(odd, Err(Error::Indivisible { .. })));
    }
    let nobody = comm.broadcast(tensor(0, 1, device), ranks);
    assert!(matches!(nobody, Err(Error::RootOutOfRange { .. })));
    // A view with gaps is made whole.
    let column = tensor(comm.rank(), 6, device)
        .reshape([3, 2])
        .slice([0..3, 0..1])
        .reshape([3]);
    let sum = comm.all_reduce(column)?.wait()?;
    let expected: Vec<f32> = [0, 2, 4]
        .map(|at| (0..ranks).map(|rank| value(rank, at)).sum())
        .to_vec();
    let got: Vec<f32> = sum.into_data().iter::<f32>().collect();
    assert_eq!(got, expected);
    Ok(())
}

fn device_sync(device: &Device) -> Result<()> {
    device.sync().map_err(|error| Error::Transport {
        reason: format!("the GPU: {error}"),
    })
}

/// Whole numbers, so that sums are exact.
fn value(rank: usize, i: usize) -> f32 {
    ((i * 7 + rank * 5) % 31) as f32
}

fn tensor(rank: usize, len: usize, device: &Device) -> Tensor<1> {
    let values: Vec<f32> = (0..len).map(|i| value(rank, i)).collect();
    Tensor::from_data(values.as_slice(), (device, DType::F32))
}
