//! One sentence from the numbers of a plan.

use terrashard_layout::{Offload, Stage};

use super::choices::MicroBatch;
use super::page::{bytes, way};
use super::{Choice, PlanRecord, Planned, StagePlan};
use crate::config::{Recompute, RecomputeChoice};
use crate::record::counted;

/// From this share of the model on, stage 3 shards little more than stage 2 does.
const MOSTLY_REPLICATED: f64 = 0.5;

/// Below this share of what a rank holds, what stages can shard is not what fills the memory.
const LITTLE: f64 = 0.25;

/// From this share of the memory on, fragments and the driver's own memory may be too much.
const TIGHT: f64 = 0.92;

/// What to do, and why.
pub(super) fn advice(plan: &PlanRecord, planned: &Planned<'_>) -> String {
    match plan.memory {
        Some(memory) => within(plan, planned, memory),
        None => without_limit(plan),
    }
}

/// The choices that fit with the configured micro-batch, the fastest first.
fn fitting(plan: &PlanRecord) -> impl Iterator<Item = (&Choice, &MicroBatch)> {
    let mut choices: Vec<_> = plan.choices.iter().collect();
    choices.sort_by_key(|choice| cost(choice));
    let of = |choice| Some((choice, Choice::of(choice, plan.micro_batch)?));
    let with = choices.into_iter().filter_map(of);
    with.filter(|(_, own)| own.fits == Some(true))
}

/// The order in which one would try them: what costs time last. Recomputation is a third more computation; states in host memory
/// travel over its bus in every step, and so do activations that are kept there.
fn cost(choice: &Choice) -> (u8, u8, u8) {
    let recompute = match &choice.recompute {
        RecomputeChoice::All(Recompute::Keep) => 0,
        RecomputeChoice::ByBlock(_) => 1,
        RecomputeChoice::All(Recompute::Recompute) => 2,
        RecomputeChoice::All(Recompute::Offload) => 4,
    };
    let (offload, host) = match choice.offload {
        Offload::None => (0, 0),
        Offload::Optimizer => (3, 1),
        Offload::Parameters => (3, 2),
    };
    (recompute + offload, host, u8::from(choice.stage))
}

fn within(plan: &PlanRecord, planned: &Planned<'_>, memory: u64) -> String {
    let samples = counted(plan.micro_batch, "sample");
    let Some((best, own)) = fitting(plan).next() else {
        return nothing_fits(plan, planned, memory);
    };
    let left = memory - own.total;
    let tight = match own.total as f64 > TIGHT * memory as f64 {
        true => ", which is tight: the driver and gaps between tensors take some more",
        false => "",
    };
    let more = match best.largest {
        Some(largest) if largest > plan.micro_batch => {
            format!("; it has room for micro-batches of {largest}")
        }
        _ => String::new(),
    };
    let plain = plan.choices.first();
    let reason = match plain.and_then(|plain| Some((plain, plain.of(plan.micro_batch)?))) {
        Some((plain, _)) if std::ptr::eq(plain, best) => {
            "it fits as it is, so nothing has to be sharded".into()
        }
        Some((_, alone)) => reason(plan, best, alone, memory),
        None => String::new(),
    };
    format!(
        "take {}: {reason}; with {samples} a rank holds {} of {} at most and {} are left{tight}{more}{}",
        way(best),
        bytes(own.total),
        bytes(memory),
        bytes(left),
        replicated(plan, best),
    )
}

/// Why it has to be this one and not stage 0 as it is.
fn reason(plan: &PlanRecord, best: &Choice, alone: &MicroBatch, memory: u64) -> String {
    let recomputes = best.recompute != RecomputeChoice::All(Recompute::Keep);
    let sharded = best.stage != Stage::Zero;
    let too_much = format!("stage 0 would take {}", bytes(alone.total));
    match (sharded, recomputes) {
        (false, _) => format!(
            "ZeRO will not help you here, since {too_much}, of which activations are {} that no stage makes smaller",
            bytes(alone.activations)
        ),
        (true, false) => format!(
            "{too_much}, and sharding makes {} of it smaller",
            sharable(plan)
        ),
        (true, true) => {
            let kept = plan.stages.iter().map(|stage| stage.total).min();
            format!(
                "{too_much}, and with all activations kept every stage is above {} ({} at the least)",
                bytes(memory),
                bytes(kept.unwrap_or(alone.total))
            )
        }
    }
}

/// What stages shard, in bytes.
fn sharable(plan: &PlanRecord) -> String {
    let whole = plan
        .stages
        .first()
        .map_or(0, |zero| zero.states + zero.gradients);
    bytes(whole)
}

fn nothing_fits(plan: &PlanRecord, planned: &Planned<'_>, memory: u64) -> String {
    let mut choices: Vec<_> = plan.choices.iter().collect();
    choices.sort_by_key(|choice| cost(choice));
    let samples = counted(plan.micro_batch, "sample");
    let least = choices
        .iter()
        .filter_map(|it| Some((it, it.of(plan.micro_batch)?)));
    let Some((least, own)) = least.min_by_key(|(_, own)| own.total) else {
        return String::new();
    };
    let head = format!(
        "nothing fits into {} with {samples}: {} takes the least, {}",
        bytes(memory),
        way(least),
        bytes(own.total)
    );
    // The most samples, of those that are equal the fastest.
    let most = choices.iter().filter_map(|choice| choice.largest).max();
    if let Some(most) = most.filter(|most| *most < plan.micro_batch) {
        let fastest = choices.iter().find(|choice| choice.largest == Some(most));
        let name = fastest.map_or_else(String::new, |choice| way(choice));
        return format!(
            "{head}; ZeRO will not help you further, so take {name} with `train.micro_batch = {most}` and accumulate"
        );
    }
    let laid = planned
        .laid
        .iter()
        .find(|laid| (laid.stage, laid.offload) == (least.stage, least.offload));
    let chip = laid.and_then(|laid| planned.largest_chip(laid, &least.recompute, memory));
    match chip {
        Some(chip) => format!(
            "{head}; not even one sample of {} pixels fits, so take smaller tiles, `data.chip = {chip}`",
            plan.chip
        ),
        None => format!(
            "{head}; the model's states and buffers alone are too large, so use more ranks or a smaller model"
        ),
    }
}

fn without_limit(plan: &PlanRecord) -> String {
    let stage = |stage| {
        plan.stages
            .iter()
            .find(|it| (it.stage, it.offload) == (stage, Offload::None))
    };
    let (Some(zero), Some(three)) = (stage(Stage::Zero), stage(Stage::Three)) else {
        return String::new();
    };
    let ask = "`--memory 16GiB` tells which fit";
    let share = |part: u64| 100.0 * part as f64 / zero.total.max(1) as f64;
    let activations = zero.batch + zero.activations + zero.workspace;
    if plan.shard_group == 1 {
        return format!(
            "one rank has nobody to share with, so every stage takes about the {} of stage 0, {:.0} % of it activations and what \
             goes with them; plan for more with `--gpus N`, {ask}",
            bytes(zero.total),
            share(activations)
        );
    }
    let states = zero.states + zero.gradients;
    if (states as f64) < LITTLE * zero.total as f64 {
        return format!(
            "ZeRO will help little here: of the {} of stage 0, {:.0} % are activations and what goes with them, which no stage \
             makes smaller, and stage 3 still takes {}; recomputation, smaller micro-batches or smaller tiles help more ({ask})",
            bytes(zero.total),
            share(activations),
            bytes(three.total)
        );
    }
    let more = match plan.accumulate {
        1 => "no more",
        _ => "no more than stage 0, while stages 2 and 3 send in every micro-batch",
    };
    format!(
        "stage 0 takes {} a rank, stage 1 takes {} and sends {more}, stage 3 takes {}; take the lowest stage that fits ({ask})",
        bytes(zero.total),
        bytes(stage(Stage::One).map_or(0, |one| one.total)),
        bytes(three.total)
    )
}

/// A remark where most of the model is replicated at stage 3.
fn replicated(plan: &PlanRecord, best: &Choice) -> String {
    let own = |it: &&StagePlan| (it.stage, it.offload) == (best.stage, best.offload);
    let share = plan.stages.iter().find(own);
    let share = share.map_or(0.0, |plan| plan.replicated_share);
    match share >= MOSTLY_REPLICATED {
        true => format!(
            " (`zero.persist_bytes` keeps {:.0} % of the model whole, so this is nearly stage 2)",
            100.0 * share
        ),
        false => String::new(),
    }
}
