//! `parity DIR`: compares the model, its losses, gradients and training with a folder of reference values. One JSON
//! line for each quantity on standard output, a summary for each stage on standard error; exit code 1 if anything is
//! out of bounds, 2 if the comparison cannot be made.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use terrashard_layout::{ElementType, Stage};
use terrashard_tests::{backend::Backend, compare, fixture::Fixture};

/// Compares with the set that DIR/parity.json describes.
#[derive(Parser)]
struct Arguments {
    /// The folder of the set.
    dir: PathBuf,
    /// What computes.
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    backend: Backend,
    /// Only this ZeRO stage; default: all four, or 0 alone where nothing is trained.
    #[arg(long, value_parser = stage)]
    stage: Option<Stage>,
    /// Element type: float32 within the set's tolerances, float64 within 1e-7.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
}

#[derive(Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    F64,
}

fn stage(text: &str) -> Result<Stage, String> {
    let number: u8 = text
        .parse()
        .map_err(|_| format!("{text} is not a number"))?;
    Stage::try_from(number).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> terrashard_tests::fixture::Result<bool> {
    let fixture = Fixture::open(&arguments.dir)?;
    let stages = match arguments.stage {
        Some(stage) => vec![stage],
        None if fixture.trains() => vec![Stage::Zero, Stage::One, Stage::Two, Stage::Three],
        None => vec![Stage::Zero],
    };
    let dtype = match arguments.precision {
        Precision::F32 => ElementType::F32,
        Precision::F64 => ElementType::F64,
    };
    let mut all_ok = true;
    for stage in stages {
        let verdicts = compare(&fixture, arguments.backend, stage, dtype)?;
        let mut failed = 0;
        for verdict in &verdicts {
            let mut line = serde_json::json!(verdict);
            line["stage"] = u8::from(stage).into();
            println!("{line}");
            failed += usize::from(!verdict.ok);
        }
        all_ok &= failed == 0 && !verdicts.is_empty();
        let dir = arguments.dir.display();
        eprintln!(
            "{dir}, stage {stage}: {} compared, {failed} out of bounds",
            verdicts.len()
        );
    }
    Ok(all_ok)
}
