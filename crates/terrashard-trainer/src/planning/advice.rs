//! One sentence from the numbers of a plan.

use terrashard_layout::{Offload, Stage};

use super::page::{bytes, name};
use super::{PlanRecord, StagePlan};

/// From this share of the model on, stage 3 shards little more than stage 2 does.
const MOSTLY_REPLICATED: f64 = 0.5;

/// What to do, from states, gradients and buckets alone.
pub(super) fn advice(plan: &PlanRecord) -> String {
    match plan.memory {
        Some(memory) => within(plan, memory),
        None => without_limit(plan),
    }
}

fn within(plan: &PlanRecord, memory: u64) -> String {
    match plan.stages.iter().find(|each| each.fits == Some(true)) {
        Some(first) => format!(
            "{} is the first that fits into {}; the activations, which are not counted yet, have to fit into the {} that are \
             left, and if they do not, no stage makes them smaller: take a smaller micro-batch or sample{}",
            name(first),
            bytes(memory),
            bytes(memory - first.total),
            replicated(first)
        ),
        None => {
            let least = plan.stages.iter().min_by_key(|each| each.total);
            let least = least.map_or_else(String::new, |least| {
                format!(": {} takes {}", name(least), bytes(least.total))
            });
            format!(
                "nothing fits into {}{least}, without activations, which are not counted yet; use more ranks or a smaller model",
                bytes(memory)
            )
        }
    }
}

fn without_limit(plan: &PlanRecord) -> String {
    let total = |stage| {
        let found = plan
            .stages
            .iter()
            .find(|each| (each.stage, each.offload) == (stage, Offload::None));
        bytes(found.map_or(0, |each| each.total))
    };
    if plan.shard_group == 1 {
        return format!(
            "one rank has nobody to share with, so every stage takes about the {} of stage 0, without activations, which are \
             not counted yet; plan for more with `--gpus N`",
            total(Stage::Zero)
        );
    }
    let more = match plan.accumulate {
        1 => "no more",
        _ => "no more than stage 0, while stages 2 and 3 send in every micro-batch",
    };
    format!(
        "stage 0 takes {} a rank, stage 1 takes {} and sends {more}, stage 3 takes {}; activations are not counted yet, and no \
         stage makes them smaller, so take the lowest stage that leaves room for them (`--memory 16GiB` tells which fit)",
        total(Stage::Zero),
        total(Stage::One),
        total(Stage::Three)
    )
}

/// A remark where most of the model is replicated at stage 3.
fn replicated(plan: &StagePlan) -> String {
    match plan.replicated_share >= MOSTLY_REPLICATED {
        true => format!(
            " (`zero.persist_bytes` keeps {:.0} % of the model whole, so this is nearly stage 2)",
            100.0 * plan.replicated_share
        ),
        false => String::new(),
    }
}
