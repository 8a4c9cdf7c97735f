//! `ckpt ls`, `inspect`, `diff`, `verify` and `gc`.

use super::document;
use crate::arguments::{CkptCommand, GcArguments};
use crate::checkpoints::{self, Cleared, Comparison, GcOptions, Inspected, Listing, Verified};
use crate::console::print;
use crate::error::{Error, Result};
use crate::record::counted;
use crate::training::METRICS;

pub(super) fn run(command: CkptCommand) -> Result<()> {
    match command {
        CkptCommand::Ls { run, json } => {
            let listing = checkpoints::list(&run)?;
            print(&match json {
                true => document(&listing),
                false => listing_table(&listing),
            })
        }
        CkptCommand::Inspect { checkpoint, json } => {
            let inspected = checkpoints::inspect(&checkpoint)?;
            print(&match json {
                true => document(&inspected),
                false => inspected_table(&inspected),
            })
        }
        CkptCommand::Diff {
            first,
            second,
            json,
        } => {
            let comparison = checkpoints::compare(&first, &second)?;
            print(&match json {
                true => document(&comparison),
                false => comparison_table(&comparison),
            })?;
            match comparison.differences() {
                0 => Ok(()),
                differences => Err(Error::CheckpointsDiffer { differences }),
            }
        }
        CkptCommand::Verify { paths, json } => {
            let mut verified = Vec::new();
            for path in paths {
                verified.extend(checkpoints::verify(&path)?);
            }
            print(&match json {
                true => document(&verified),
                false => verified.iter().map(verified_lines).collect(),
            })?;
            let damaged: Vec<&Verified> = verified
                .iter()
                .filter(|each| !each.faults.is_empty())
                .collect();
            match damaged.first() {
                None => Ok(()),
                Some(first) => Err(Error::DamagedCheckpoints {
                    damaged: damaged.len(),
                    checked: verified.len(),
                    first: first.path.display().to_string(),
                }),
            }
        }
        CkptCommand::Gc(GcArguments {
            run,
            keep_last,
            keep_best,
            dry_run,
            json,
        }) => {
            let options = GcOptions {
                keep_last,
                keep_best,
                dry_run,
            };
            let cleared = checkpoints::gc(&run, options)?;
            print(&match json {
                true => document(&cleared),
                false => cleared_lines(&cleared, dry_run),
            })
        }
    }
}

fn listing_table(listing: &Listing) -> String {
    let mut lines = vec![format!(
        "{:<14}{:>6}{:>9}{:>16}{:>14}{:>9}",
        "checkpoint", "ranks", "tensors", "bytes", "score", "iou"
    )];
    // Without a pointer `fit` goes on from the newest that is sound.
    let newest = listing
        .fault
        .as_ref()
        .and_then(|_| {
            listing
                .checkpoints
                .iter()
                .rfind(|each| each.fault.is_none())
        })
        .map(|each| each.step);
    for each in &listing.checkpoints {
        let name = format!("step-{:06}", each.step);
        let number = |number: Option<String>| number.unwrap_or_else(|| "-".into());
        lines.push(match &each.fault {
            Some(fault) => format!("{name:<14}damaged: {fault}"),
            None => format!(
                "{name:<14}{:>6}{:>9}{:>16}{:>14}{:>9}{}",
                number(each.ranks.map(|ranks| ranks.to_string())),
                number(each.tensors.map(|tensors| tensors.to_string())),
                number(each.bytes.map(|bytes| bytes.to_string())),
                number(each.score.map(|score| format!("{score:.6}"))),
                number(each.iou.map(|iou| format!("{iou:.4}"))),
                marks(listing, newest, each.step)
            ),
        });
    }
    lines.extend(listing.scored_by.as_deref().map(explained));
    lines.extend(
        listing
            .remains
            .iter()
            .map(|name| format!("{name}: left by a crash, `ckpt gc` removes it")),
    );
    lines.extend(listing.fault.clone());
    lines.join("\n") + "\n"
}

/// What a checkpoint is among its like.
fn marks(listing: &Listing, newest: Option<u64>, step: u64) -> String {
    let marks = [
        (listing.in_force, "  latest"),
        (newest, "  newest, in place of `latest`"),
        (listing.best, "  best"),
    ];
    let those = marks.into_iter().filter(|(of, _)| *of == Some(step));
    those.map(|(_, mark)| mark).collect()
}

/// What the column of scores holds.
fn explained(metric: &str) -> String {
    match METRICS.contains(&metric) {
        true => {
            format!("score: 1 - {metric} of the validation at that step, the least is the best")
        }
        false => format!(
            "score: mean {metric} of the steps since the checkpoint before, the least is the best; `--set checkpoint.best_by` of \
             `fit` chooses another"
        ),
    }
}

fn inspected_table(inspected: &Inspected) -> String {
    let Inspected {
        path,
        ranks,
        bytes,
        state,
        kinds,
        tensors,
    } = inspected;
    let written = ranks.map_or_else(String::new, |ranks| {
        format!(", written by {}", counted(ranks, "rank"))
    });
    let mut lines = vec![format!("{}: {bytes} bytes{written}", path.display())];
    for (key, value) in state.as_object().into_iter().flatten() {
        match value.as_str() {
            // The configuration has lines of its own.
            Some(text) if text.contains('\n') => {
                lines.push(format!("{key}:"));
                lines.extend(text.lines().map(|line| format!("    {line}")));
            }
            Some(text) => lines.push(format!("{key}: {text}")),
            None => lines.push(format!("{key}: {value}")),
        }
    }
    for (kind, total) in kinds {
        lines.push(format!(
            "{kind}: {}, {} elements, {} bytes",
            counted(total.tensors, "tensor"),
            total.elements,
            total.bytes
        ));
    }
    for tensor in tensors {
        let tie = match &tensor.tied_to {
            Some(owner) => format!(", that of {owner}"),
            None => String::new(),
        };
        let (kind, name, dtype) = (tensor.kind, &tensor.name, tensor.dtype);
        lines.push(format!(
            "{kind:<10}{dtype:<6}{name} {:?}{tie}",
            tensor.shape
        ));
    }
    lines.join("\n") + "\n"
}

fn comparison_table(comparison: &Comparison) -> String {
    let Comparison {
        equal,
        only_first,
        only_second,
        changed,
        state,
    } = comparison;
    let mut lines = vec![format!("{} equal bit by bit", counted(*equal, "tensor"))];
    for (which, names) in [("first", only_first), ("second", only_second)] {
        lines.extend(
            names
                .iter()
                .map(|name| format!("only in the {which}: {name}")),
        );
    }
    for each in changed {
        let form = each.form.as_ref();
        let form = form.map_or_else(String::new, |[ours, theirs]| {
            format!(" {ours} and {theirs}")
        });
        let distance = match (each.max, each.relative) {
            (Some(max), Some(relative)) => {
                format!(" differs by {max:.3e} at most, {relative:.3e} of its norm")
            }
            _ => String::new(),
        };
        lines.push(format!("{}:{form}{distance}", each.tensor));
    }
    for (key, values) in state {
        lines.push(format!("{key}: {} and {}", values[0], values[1]));
    }
    lines.join("\n") + "\n"
}

fn verified_lines(verified: &Verified) -> String {
    let path = verified.path.display();
    if verified.faults.is_empty() {
        return format!("{path}: sound, {} bytes\n", verified.bytes);
    }
    let faults = verified.faults.iter();
    faults
        .map(|fault| format!("{path}: damaged: {fault}\n"))
        .collect()
}

fn cleared_lines(cleared: &Cleared, dry_run: bool) -> String {
    let verb = match dry_run {
        true => "would remove",
        false => "removed",
    };
    let steps = cleared.removed.iter().map(|step| format!("step-{step:06}"));
    let mut lines: Vec<String> = steps
        .chain(cleared.remains.iter().cloned())
        .map(|name| format!("{verb} {name}"))
        .collect();
    lines.push(format!(
        "{} bytes; {} left",
        cleared.bytes,
        counted(cleared.kept.len(), "checkpoint")
    ));
    lines.join("\n") + "\n"
}
