//! `bench model`: the benchmarks behind `cargo xtask bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use terrashard_benches::model::{ModelBench, ModelRow, run};
use terrashard_benches::record::{self, Circumstances};
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
    Model {
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
        /// One JSON row a line on standard output instead of a table.
        #[arg(long)]
        json: bool,
        /// Write a record folder.
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let Suite::Model {
        models,
        px,
        batch,
        repetitions,
        backend: _,
        json,
        out,
    } = Arguments::parse().suite;
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
    let mut table = vec![head.map(String::from).to_vec()];
    let mut rows: Vec<ModelRow> = Vec::new();
    if !json {
        println!("{}", table[0].join("\t"));
    }
    for name in models {
        for &px in &px {
            let config = ModelConfig::preset(&name);
            let row = config.and_then(|config| {
                run(&ModelBench {
                    name: name.clone(),
                    config,
                    px,
                    batch,
                    repetitions: repetitions as usize,
                })
            });
            let row = match row {
                Ok(row) => row,
                Err(error) => return fail(&error),
            };
            let line = cells(&row);
            match json {
                true => println!("{}", serde_json::json!(row)),
                false => println!("{}", line.join("\t")),
            }
            table.push(line);
            rows.push(row);
        }
    }
    let Some(out) = out else {
        return ExitCode::SUCCESS;
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let circumstances = Circumstances::of(format!("cargo xtask bench {}", arguments.join(" ")));
    let title = "Forward and backward of one model, burn's CPU backend";
    match record::write(&out, title, &circumstances, &table, &rows) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn cells(row: &ModelRow) -> Vec<String> {
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

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(2)
}
