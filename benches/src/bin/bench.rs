//! The benchmarks behind `cargo xtask bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use terrashard_benches::host_adam::{self, HostAdamBench, HostAdamRow, Variant};
use terrashard_benches::model::{self, ModelBench, ModelRow};
use terrashard_benches::record::{self, Circumstances};
use terrashard_benches::torch;
use terrashard_models::ModelConfig;

/// Benchmarks. Rows are printed as they are measured.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// Forward and backward of one model with both branches, without an optimizer.
    Model(Model),
    /// AdamW in host memory, beside the bandwidth of the memory and beside PyTorch's.
    HostAdam(HostAdam),
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
    /// Measured repetitions; the median is reported.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// What computes.
    #[arg(long, default_value = "flex", value_parser = ["flex"])]
    backend: String,
    #[command(flatten)]
    output: Output,
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
struct Output {
    /// One JSON row a line on standard output instead of a table.
    #[arg(long)]
    json: bool,
    /// Write a record folder.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// A count that may be written as `1e6`.
fn size(text: &str) -> Result<usize, String> {
    match text.parse::<f64>() {
        Ok(value) if (1.0..=1e12).contains(&value) && value.fract() == 0.0 => Ok(value as usize),
        _ => Err("expected a whole number from 1 to 1e12, such as 1e6".into()),
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().suite {
        Suite::Model(arguments) => run_model(&arguments),
        Suite::HostAdam(arguments) => run_host_adam(arguments),
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
    let head = [
        "model",
        "px",
        "batch",
        "ms",
        "smallest",
        "largest",
        "forward ms",
        "peak MiB",
    ];
    let mut report = Report::new(&arguments.output, &head);
    for name in &arguments.models {
        for &px in &arguments.px {
            let row = model::run(&ModelBench {
                name: name.clone(),
                config: ModelConfig::preset(name)?,
                px,
                batch: arguments.batch,
                repetitions: arguments.repetitions as usize,
            })?;
            report.add(row, model_cells);
        }
    }
    let title = "Forward and backward of one model, burn's CPU backend";
    report.write(title, Vec::new())
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
    let mut others: Vec<String> = first
        .map(|row| format!("instruction set: {}", row.instruction_set))
        .into_iter()
        .collect();
    let version = first.and_then(|row| row.torch.as_ref());
    others.extend(version.map(|version| format!("pytorch: {version}")));
    report.write("AdamW in host memory", others)
}

/// Rows, printed as they come and written as a record in the end.
struct Report<'a, R> {
    output: &'a Output,
    table: Vec<Vec<String>>,
    rows: Vec<R>,
}

impl<'a, R: Serialize> Report<'a, R> {
    fn new(output: &'a Output, head: &[&str]) -> Self {
        if !output.json {
            println!("{}", head.join("\t"));
        }
        Self {
            output,
            table: vec![head.iter().map(ToString::to_string).collect()],
            rows: Vec::new(),
        }
    }

    fn add(&mut self, row: R, cells: impl Fn(&R) -> Vec<String>) {
        let line = cells(&row);
        match self.output.json {
            true => println!("{}", serde_json::json!(row)),
            false => println!("{}", line.join("\t")),
        }
        self.table.push(line);
        self.rows.push(row);
    }

    fn write(self, title: &str, others: Vec<String>) -> Result<(), Failure> {
        let Some(out) = &self.output.out else {
            return Ok(());
        };
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let mut circumstances =
            Circumstances::of(format!("cargo xtask bench {}", arguments.join(" ")));
        circumstances.others = others;
        record::write(out, title, &circumstances, &self.table, &self.rows)?;
        Ok(())
    }
}

fn model_cells(row: &ModelRow) -> Vec<String> {
    let peak = row.peak_bytes.map_or("-".into(), |bytes| {
        format!("{:.0}", bytes as f64 / f64::from(1 << 20))
    });
    vec![
        row.model.clone(),
        row.px.to_string(),
        row.batch.to_string(),
        format!("{:.1}", row.ms),
        format!("{:.1}", row.spread_ms[0]),
        format!("{:.1}", row.spread_ms[1]),
        format!("{:.1}", row.forward_ms),
        peak,
    ]
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
