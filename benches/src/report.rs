//! Rows of a benchmark, told as they are measured and kept as a record.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::record::{self, Circumstances, Error};

/// How rows are told.
#[derive(Debug, Args)]
pub struct Output {
    /// One JSON row a line on standard output instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Write a record folder.
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// Rows, printed as they come and written as a record in the end.
#[derive(Debug)]
pub struct Report<'a, R> {
    output: &'a Output,
    /// What the record says of the run.
    pub circumstances: Circumstances,
    table: Vec<Vec<String>>,
    /// The rows so far.
    pub rows: Vec<R>,
}

impl<'a, R: Serialize> Report<'a, R> {
    /// Without rows; `head` names the columns.
    pub fn new(output: &'a Output, head: &[&str]) -> Self {
        if !output.json {
            println!("{}", head.join("\t"));
        }
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let command = format!("cargo xtask bench {}", arguments.join(" "));
        Self {
            output,
            circumstances: Circumstances::of(command),
            table: vec![head.iter().map(ToString::to_string).collect()],
            rows: Vec::new(),
        }
    }

    /// Prints a row and keeps it.
    pub fn add(&mut self, row: R, cells: impl Fn(&R) -> Vec<String>) {
        let line = cells(&row);
        match self.output.json {
            true => println!("{}", serde_json::json!(row)),
            false => println!("{}", line.join("\t")),
        }
        self.table.push(line);
        self.rows.push(row);
    }

    /// Writes the record folder, if one was asked for.
    ///
    /// # Errors
    /// [`Error`] with the path that cannot be written.
    pub fn write(&self, title: &str) -> Result<(), Error> {
        match &self.output.out {
            Some(out) => record::write(out, title, &self.circumstances, &self.table, &self.rows),
            None => Ok(()),
        }
    }
}
