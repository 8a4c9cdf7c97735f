//! What `terrashard plan` foretells, against the peaks that were measured on GPUs.

use std::path::Path;

use serde_json::Value;
use terrashard_benches::stages::foretold::foretold;
use terrashard_benches::stages::{Device, Job, Sharding};
use terrashard_trainer::planning::dry_run::Losses;

const GIB: f64 = (1u64 << 30) as f64;

/// Every row of ours in a record.
fn rows(record: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("runs")
        .join(record)
        .join("results.json");
    let text = std::fs::read_to_string(path).expect("the record is kept");
    let rows: Vec<Value> = serde_json::from_str(&text).expect("a record is JSON");
    let ours = rows
        .into_iter()
        .filter(|row| row["who"] == "terrashard" && row["alloc_GiB"].is_number());
    ours.collect()
}

fn job(row: &Value) -> Job {
    let number = |key: &str| row[key].as_u64().expect("a number") as usize;
    Job {
        model: row["model"].as_str().expect("a name").into(),
        px: number("px"),
        batch: number("batch_per_rank"),
        precision: serde_json::from_value(row["precision"].clone()).expect("a type"),
        sharding: Sharding {
            stage: number("stage") as u8,
            offload: row["offload"] == true,
            recompute: row["recompute"] == true,
            group: None,
        },
        ranks: number("ranks"),
        device: Device::Cuda,
        steps: 1,
        warm_up: 0,
        overlap: true,
        persist_bytes: row["persist_bytes"].as_u64().unwrap_or(0) as usize,
        memory: None,
        profile: false,
        graphs: row["graphs"].is_object(),
    }
}

/// Models of 4, 82 and 1011 million parameters, at each stage, in 16 and 32 bits, kept, recomputed and offloaded. The first record was
/// made before losses had kernels of their own.
#[test]
fn peaks_on_gpus_are_foretold_within_two_percent() {
    let records = [
        ("2026-11-30-2x-h200", Losses::Composed),
        ("2026-11-30-h200", Losses::OnePass),
        ("2026-11-30-2x-h200-graphs", Losses::OnePass),
    ];
    for (record, losses) in records {
        let rows = rows(record);
        assert!(rows.len() >= 12, "{}", rows.len());
        for row in rows {
            let job = job(&row);
            let measured = row["alloc_GiB"].as_f64().expect("a number");
            let foretold = foretold(&job, losses).expect("the models are known");
            let foretold = foretold.total as f64 / GIB;
            let error = 100.0 * (foretold / measured - 1.0);
            let what = format!(
                "| {} | {} | {} | {} | {} | {} | {foretold:.3} | {measured:.3} | {error:+.1} |",
                job.model, job.px, job.precision, job.batch, job.ranks, job.sharding
            );
            println!("{what}");
            assert!(error.abs() < 2.0, "{what}");
        }
    }
}
