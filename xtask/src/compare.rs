//! `cargo xtask compare A B`: what differs between two records by more than they vary by themselves.
//!
//! A record is a folder of `benches/runs`, its `results.json`, a run directory of `terrashard fit`, or its `metrics.jsonl`.

mod judgement;
mod page;
mod quantity;
mod record;

use std::path::PathBuf;

use serde_json::json;

use crate::error::{Error, Result};
use judgement::{Comparison, Verdict};
use record::{Reading, Record};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What B is compared with: a record folder, results.json, a run directory or metrics.jsonl
    a: PathBuf,
    /// The same
    b: PathBuf,
    /// Fields by which cases may differ and are compared all the same, for example stage or who,stage
    #[arg(long, value_name = "FIELDS", value_delimiter = ',')]
    across: Vec<String>,
    /// Percent that figures without a recorded spread may differ by
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    tolerance: f64,
    /// Steps at the start of a run that are left out; of a run of fewer than four times as many, a quarter is
    #[arg(long, value_name = "STEPS", default_value_t = 10)]
    warm_up: usize,
    /// Show what does not differ, too
    #[arg(long)]
    all: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Write a self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=1000.0).contains(&value) => Ok(value),
        _ => Err("expected 0 to 1000".into()),
    }
}

/// Exit code 0: nothing in B is worse than in A beyond noise; 1: something is; 2: wrong use, or nothing to compare.
pub(crate) fn run(args: &Args) -> Result<()> {
    let reading = Reading {
        warm_up: args.warm_up,
        across: &args.across,
    };
    let (a, b) = (
        Record::read(&args.a, &reading)?,
        Record::read(&args.b, &reading)?,
    );
    let comparison = Comparison::of(&a, &b, args.tolerance / 100.0);
    if comparison.rows.is_empty() {
        let message = format!(
            "{} and {} have no case in common{}; `--across FIELD` compares cases that differ by a field",
            a.name,
            b.name,
            match (comparison.only_a.first(), comparison.only_b.first()) {
                (Some(a), Some(b)) => format!(", the first ones are {a} and {b}"),
                _ => String::new(),
            }
        );
        return Err(Error::Usage { message });
    }
    if let Some(path) = &args.html {
        std::fs::write(path, page::render(&a, &b, &comparison))
            .map_err(|source| Error::file(path, source))?;
    }
    if args.json {
        let document = json!({
            "a": a.document(), "b": b.document(),
            "rows": comparison.rows.iter().map(judgement::Row::document).collect::<Vec<_>>(),
            "only_a": comparison.only_a, "only_b": comparison.only_b,
            "better": comparison.count(Verdict::Better), "worse": comparison.count(Verdict::Worse),
            "different": comparison.count(Verdict::Different), "noise": comparison.count(Verdict::Noise),
        });
        println!("{document:#}");
    } else {
        print!("{}", comparison.table(&a, &b, args.all));
    }
    match comparison.count(Verdict::Worse) {
        0 => Ok(()),
        count => Err(Error::Worse { count }),
    }
}
