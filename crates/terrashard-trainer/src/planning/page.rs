//! A plan as a table for people.

use serde::Serialize;
use terrashard_layout::Offload;

use super::{PlanRecord, StagePlan};
use crate::config::Precision;
use crate::record::counted;

const COLUMNS: [&str; 11] = [
    "stage",
    "offload",
    "parameters",
    "gradients",
    "optimizer",
    "buckets",
    "gathered",
    "total",
    "host",
    "sent a step",
    "fits",
];

/// The plan as it is printed, lines of text.
pub fn page(plan: &PlanRecord) -> String {
    let precision = match plan.precision {
        Precision::Fp32 => "fp32",
        Precision::Tf32 => "tf32",
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
    };
    let groups = match plan.shard_group == plan.ranks {
        true => String::new(),
        false => format!(" in groups of {}", plan.shard_group),
    };
    let mut lines = vec![format!(
        "{} parameters, {} in {precision}; on each of {}{groups}, with {} a step, activations not counted:",
        thousands(plan.parameters),
        bytes(plan.parameter_bytes),
        counted(plan.ranks, "rank"),
        match plan.accumulate {
            1 => "1 micro-batch".into(),
            more => format!("{more} micro-batches"),
        },
    )];
    let mut rows = vec![COLUMNS.map(String::from)];
    rows.extend(plan.stages.iter().map(row));
    // Without `--memory` nobody asked what fits.
    let columns = COLUMNS.len() - usize::from(plan.memory.is_none());
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, width))| match column {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        lines.push(cells.join("  ").trim_end().to_string());
    }
    let replicated = plan.stages.iter().map(|each| each.replicated_share);
    let replicated = replicated.fold(0.0, f64::max);
    if replicated > 0.0 {
        lines.push(format!(
            "zero.persist_bytes keeps {:.1} % of the model whole on every rank at stage 3",
            100.0 * replicated
        ));
    }
    lines.push(plan.advice.clone());
    lines.join("\n") + "\n"
}

fn row(plan: &StagePlan) -> [String; COLUMNS.len()] {
    let fits = match plan.fits {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    };
    [
        plan.stage.to_string(),
        word(&plan.offload),
        bytes(plan.parameters),
        bytes(plan.gradients),
        bytes(plan.optimizer),
        bytes(plan.buckets),
        bytes(plan.gathered),
        bytes(plan.total),
        bytes(plan.host),
        bytes(plan.wire),
        fits.into(),
    ]
}

/// A stage with its offload, in words.
pub(super) fn name(plan: &StagePlan) -> String {
    match plan.offload {
        Offload::None => format!("stage {}", plan.stage),
        Offload::Optimizer => format!("stage {} with `offload = \"optimizer\"`", plan.stage),
        Offload::Parameters => format!("stage {} with `offload = \"parameters\"`", plan.stage),
    }
}

/// The word by which a configuration names a value.
fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_string()
}

/// Bytes in MiB or GiB with three digits or more.
pub(super) fn bytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    match mebibytes {
        0.0 => "0".into(),
        _ if mebibytes >= 1024.0 => format!("{:.2} GiB", mebibytes / 1024.0),
        _ if mebibytes >= 0.1 => format!("{mebibytes:.1} MiB"),
        _ => "<0.1 MiB".into(),
    }
}

/// A number with its digits in groups of three.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let grouped = digits.char_indices().map(|(at, digit)| {
        let left = digits.len() - at;
        match at > 0 && left.is_multiple_of(3) {
            true => format!(" {digit}"),
            false => digit.to_string(),
        }
    });
    grouped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(10_816_123_456), "10 816 123 456");
        assert_eq!(bytes(0), "0");
        assert_eq!(bytes(1000), "<0.1 MiB");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        assert_eq!(bytes(5 << 29), "2.50 GiB");
    }
}
