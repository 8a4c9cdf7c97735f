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
            let lines: Vec<String> = error
                .to_string()
                .lines()
                .map(|line| plain(line.trim()))
                .collect();
            let line = lines.join(" ");
            let (code, remedy) = (explanation::code(&error), remedy(&line));
            console::tell(&format!("error: {line}{remedy} [{code}]"));
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

/// What helps where the system's own reason stands in a message, whoever met it: not every library keeps it as an error's source.
fn remedy(message: &str) -> &'static str {
    match message.contains("(os error 24)") {
        true => "; raise the limit with `ulimit -n`",
        false => "",
    }
}

/// A line in which nothing steers the terminal: names may come from files of others.
fn plain(line: &str) -> String {
    let mut plain = String::new();
    for character in line.chars() {
        match character.is_control() {
            true => plain.extend(character.escape_default()),
            false => plain.push(character),
        }
    }
    plain
}
