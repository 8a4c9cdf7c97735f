//! `terrashard`: trains, tests and runs models from the command line.

use std::process::ExitCode;

use clap::Parser;
use terrashard_trainer::arguments::Arguments;
use terrashard_trainer::{commands, console};

fn main() -> ExitCode {
    match commands::run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line: Vec<String> = error
                .to_string()
                .lines()
                .map(|line| line.trim().to_string())
                .collect();
            console::tell(&format!("error: {}", line.join(" ")));
            ExitCode::from(error.exit_code())
        }
    }
}
