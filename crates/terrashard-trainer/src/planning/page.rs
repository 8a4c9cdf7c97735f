//! A plan as tables for people.

use serde::Serialize;
use terrashard_layout::Offload;

use super::{Choice, PlanRecord, StagePlan};
use crate::config::{Device, Precision, Recompute, RecomputeChoice};
use crate::record::counted;

const COLUMNS: [&str; 13] = [
    "stage",
    "offload",
    "parameters",
    "gradients",
    "optimizer",
    "buckets",
    "gathered",
    "activations",
    "workspace",
    "at most",
    "host",
    "sent a step",
    "fits",
];

/// The plan as it is printed, lines of text.
pub fn page(plan: &PlanRecord) -> String {
    let mut lines = vec![heading(plan)];
    let mut rows = vec![COLUMNS.map(String::from).to_vec()];
    rows.extend(plan.stages.iter().map(|stage| row(stage).to_vec()));
    // Without `--memory` nobody asked what fits.
    let columns = COLUMNS.len() - usize::from(plan.memory.is_none());
    rows.iter_mut().for_each(|row| row.truncate(columns));
    lines.extend(aligned(&rows, 2));
    lines.push(
        "\"at most\" is what a rank's device holds at once, with the batch: gradients come as activations go".into(),
    );
    let replicated = plan.stages.iter().map(|each| each.replicated_share);
    let replicated = replicated.fold(0.0, f64::max);
    if replicated > 0.0 {
        lines.push(format!(
            "zero.persist_bytes keeps {:.1} % of the model whole on every rank at stage 3",
            100.0 * replicated
        ));
    }
    if !plan.choices.is_empty() {
        lines.push(String::new());
        lines.push(match plan.memory {
            Some(memory) => format!(
                "at most, by samples of a micro-batch; what is in brackets does not fit into {}:",
                bytes(memory)
            ),
            None => "at most, by samples of a micro-batch:".into(),
        });
        lines.extend(aligned(&choices(plan), 3));
        lines.push(String::new());
    }
    lines.push(plan.advice.clone());
    lines.join("\n") + "\n"
}

fn heading(plan: &PlanRecord) -> String {
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
    let device = match plan.device {
        Device::Cpu => "the processor (flex)",
        Device::CpuLibTorch => "the processor (LibTorch)",
        Device::Cuda => "a GPU (LibTorch)",
    };
    let micro_batches = match plan.accumulate {
        1 => "1 micro-batch".into(),
        more => format!("{more} micro-batches"),
    };
    format!(
        "{} parameters, {} in {precision}; on {device}, on each of {}{groups}, with {micro_batches} of {} of {} px a step:",
        thousands(plan.parameters),
        bytes(plan.parameter_bytes),
        counted(plan.ranks, "rank"),
        counted(plan.micro_batch, "sample"),
        plan.chip,
    )
}

/// Rows of cells, as many of the first columns as are words to the left, the others to the right.
fn aligned(rows: &[Vec<String>], words: usize) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, width))| match column < words {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            })
            .collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
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
        bytes(plan.activations),
        bytes(plan.workspace),
        bytes(plan.total),
        bytes(plan.host),
        bytes(plan.wire),
        fits.into(),
    ]
}

fn choices(plan: &PlanRecord) -> Vec<Vec<String>> {
    let sizes = plan
        .choices
        .first()
        .map_or(&[][..], |choice| &choice.micro_batches);
    let mut head: Vec<String> = ["stage", "offload", "recompute"].map(String::from).to_vec();
    head.extend(sizes.iter().map(|size| size.samples.to_string()));
    head.extend(plan.memory.map(|_| "largest".to_string()));
    let row = |choice: &Choice| {
        let mut row = vec![
            choice.stage.to_string(),
            word(&choice.offload),
            recomputation(&choice.recompute),
        ];
        row.extend(choice.micro_batches.iter().map(|size| match size.fits {
            Some(false) => format!("({})", bytes(size.total)),
            _ => bytes(size.total),
        }));
        row.extend(plan.memory.map(|_| {
            let largest = choice.largest.map(|largest| largest.to_string());
            largest.unwrap_or_else(|| "none".into())
        }));
        row
    };
    let mut rows = vec![head];
    rows.extend(plan.choices.iter().map(row));
    rows
}

fn recomputation(choice: &RecomputeChoice) -> String {
    match choice {
        RecomputeChoice::All(one) => word(one),
        RecomputeChoice::ByBlock(_) => "as configured".into(),
    }
}

/// A way to train, in words.
pub(super) fn way(choice: &Choice) -> String {
    let offload = match choice.offload {
        Offload::None => "",
        Offload::Optimizer => " with `offload = \"optimizer\"`",
        Offload::Parameters => " with `offload = \"parameters\"`",
    };
    let recompute = match &choice.recompute {
        RecomputeChoice::All(Recompute::Keep) => String::new(),
        RecomputeChoice::ByBlock(_) => " with `recompute` as configured".into(),
        RecomputeChoice::All(one) => format!(" with `recompute = \"{}\"`", word(one)),
    };
    let and = match (offload.is_empty(), recompute.is_empty()) {
        (false, false) => " and",
        _ => "",
    };
    format!("stage {}{offload}{and}{recompute}", choice.stage)
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
