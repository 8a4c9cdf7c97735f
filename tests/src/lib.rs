//! Behaviour across crates: parity with reference values, equality of the stages.
//!
//! The library part is what `cargo xtask parity` and the tests share.

pub mod backend;
#[cfg(feature = "tch")]
pub mod both_backends;
pub mod chain;
pub mod checkpoints;
pub mod counted;
pub mod fixture;
#[cfg(feature = "nccl")]
pub mod gpu_program;
#[cfg(feature = "nccl")]
pub mod gpu_ranks;
pub mod hash;
pub mod judge;
pub mod loss_cases;
pub mod maps;
pub mod nasty;
#[cfg(feature = "nccl")]
pub mod stage_grid;
pub mod training;

use terrashard_layout::{ElementType, Stage};

use backend::Backend;
use checkpoints::{ROLES, observe_import};
use fixture::{Fixture, Kind, Result};
use judge::{Bounds, Verdict, judge};
use loss_cases::{has_labels, observe_cases, observe_net};
use training::{Role, Run, observe};

/// Runs all that the set describes at one stage and judges it. Cases of a loss whose targets are no labels are left out.
///
/// # Errors
/// Those of [`observe`], [`observe_cases`], [`observe_net`] and [`judge()`].
pub fn compare(
    fixture: &Fixture,
    backend: Backend,
    stage: Stage,
    dtype: ElementType,
) -> Result<Vec<Verdict>> {
    let run = |role: Role| Run {
        backend,
        role,
        stage,
        dtype,
    };
    let runs = |role: &str| fixture.parity.prefix.contains_key(role);
    let mut observed = fixture::Tensors::new();
    for role in [Role::One, Role::Ranks] {
        if runs(role.key()) {
            observed.extend(observe(fixture, run(role))?);
        }
    }
    if runs("net") {
        observed.extend(observe_net(fixture, run(Role::Ranks))?);
    }
    if runs("cases") {
        observed.extend(observe_cases(fixture, run(Role::Ranks))?);
    }
    let inputs = [
        // `in/..`, or `in` alone.
        "in",
        "check/",
        "logits/",
        "labels/",
        "net.labels",
        "net.valid",
        "x/",
        "t/",
    ];
    let keys: Vec<String> = fixture
        .expected
        .keys()
        .filter(|key| !inputs.iter().any(|input| key.starts_with(input)))
        .filter(|key| is_compared(fixture, key))
        .cloned()
        .collect();
    let bounds = match dtype {
        ElementType::F64 => Bounds::Uniform(1e-7),
        _ => Bounds::OfTheSet,
    };
    if fixture.parity.kind == Kind::Import {
        let mut verdicts = Vec::new();
        for role in ROLES {
            if !fixture.parity.files.contains_key(role.0) {
                continue;
            }
            let observed = observe_import(fixture, run(Role::One), role)?;
            let is_whole = |key: &&String| !role.0.ends_with("backbone") || key.contains("feat");
            let keys: Vec<String> = keys.iter().filter(is_whole).cloned().collect();
            verdicts.extend(judge(fixture, &observed, &keys, bounds)?);
        }
        return Ok(verdicts);
    }
    judge(fixture, &observed, &keys, bounds)
}

/// Whether a value of this key can be had: not that of a case whose targets are no labels.
fn is_compared(fixture: &Fixture, key: &str) -> bool {
    let case = key.split_once('/').map_or(key, |(_, case)| case);
    let targets = fixture.expected.get(&format!("t/{case}"));
    targets.is_none_or(has_labels)
}
