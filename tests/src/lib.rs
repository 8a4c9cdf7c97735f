//! Behaviour across crates: parity with reference values, equality of the stages.
//!
//! The library part is what `cargo xtask parity` and the tests share.

pub mod backend;
pub mod chain;
pub mod counted;
pub mod fixture;
#[cfg(feature = "nccl")]
pub mod gpu_ranks;
pub mod hash;
pub mod judge;
pub mod maps;
pub mod nasty;
pub mod training;

use terrashard_layout::{ElementType, Stage};

use backend::Backend;
use fixture::{Fixture, Result};
use judge::{Bounds, Verdict, judge};
use training::{Role, Run, observe};

/// Runs all that the set describes at one stage and judges it.
///
/// # Errors
/// Those of [`observe`] and [`judge()`].
pub fn compare(
    fixture: &Fixture,
    backend: Backend,
    stage: Stage,
    dtype: ElementType,
) -> Result<Vec<Verdict>> {
    let mut observed = fixture::Tensors::new();
    for role in [Role::One, Role::Ranks] {
        if fixture.parity.prefix.contains_key(role.key()) {
            let run = Run {
                backend,
                role,
                stage,
                dtype,
            };
            observed.extend(observe(fixture, run)?);
        }
    }
    let inputs = [
        "in/",
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
        .cloned()
        .collect();
    let bounds = match dtype {
        ElementType::F64 => Bounds::Uniform(1e-7),
        _ => Bounds::OfTheSet,
    };
    judge(fixture, &observed, &keys, bounds)
}
