//! `terrashard`: trains, tests and runs models from the command line.

use std::process::ExitCode;

use clap::Parser;
use terrashard_trainer::arguments::{Arguments, usage_error};
use terrashard_trainer::{commands, console, explanation};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match commands::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line: Vec<String> = error
                .to_string()
                .lines()
                .map(|line| line.trim().to_string())
                .collect();
            let code = explanation::code(&error);
            console::tell(&format!("error: {} [{code}]", line.join(" ")));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints what the command line asked for in place of a command, help or the version, or what is wrong with it.
fn refuse(error: &clap::Error) -> ExitCode {
    match usage_error(error, std::env::args().nth(1).as_deref()) {
        Some(line) => console::tell(&format!("{line} [{}]", explanation::USAGE)),
        // Where nobody can read it, there is nobody to tell.
        None => error.print().unwrap_or_default(),
    }
    match error.use_stderr() {
        true => ExitCode::from(2),
        false => ExitCode::SUCCESS,
    }
}
