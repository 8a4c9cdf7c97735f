//! Every stage gives the reference's forward pass, losses, gradients, moments and parameters.

use std::path::Path;

use terrashard_layout::{ElementType, Stage};
use terrashard_tests::backend::Backend;
use terrashard_tests::fixture::{Error, Fixture};
use terrashard_tests::judge::{Bounds, judge};
use terrashard_tests::{compare, fixture::Tensors};

const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

fn open(set: &str) -> Fixture {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(set);
    Fixture::open(&dir).expect("the set is shipped")
}

fn check(set: &str, at_least: usize) {
    check_on(Backend::Flex, set, at_least);
}

fn check_on(backend: Backend, set: &str, at_least: usize) {
    let fixture = open(set);
    let stages = if fixture.trains() {
        &STAGES[..]
    } else {
        &STAGES[..1]
    };
    for dtype in [ElementType::F32, ElementType::F64] {
        for &stage in stages {
            let verdicts = compare(&fixture, backend, stage, dtype).expect("training runs");
            assert!(
                verdicts.len() >= at_least,
                "{set}: only {} compared",
                verdicts.len()
            );
            let failed: Vec<_> = verdicts.iter().filter(|verdict| !verdict.ok).collect();
            assert!(
                failed.is_empty(),
                "{set}, {backend:?}, stage {stage}, {dtype:?}: {failed:#?}"
            );
        }
    }
}

#[test]
fn both_branches_with_batch_norm() {
    check("dual", 800);
}

#[test]
fn both_branches_without_batch_norm() {
    check("dual_nobn", 250);
}

#[test]
fn accumulation_clipping_and_parameter_groups() {
    check("clip", 380);
}

#[test]
fn one_branch() {
    check("single", 370);
}

#[test]
fn losses_over_the_valid_pixels_of_all_ranks() {
    check("ignore", 380);
}

#[test]
fn losses_by_themselves() {
    check("losses", 30);
}

#[test]
fn checkpoints_of_other_projects() {
    check("hf_import/bands6", 16);
    check("hf_import/rgb", 50);
}

#[cfg(feature = "tch")]
#[test]
fn every_set_on_libtorch() {
    let sets = [
        ("dual", 800),
        ("dual_nobn", 250),
        ("clip", 380),
        ("single", 370),
        ("ignore", 380),
        ("losses", 30),
        ("hf_import/bands6", 16),
        ("hf_import/rgb", 50),
    ];
    for (set, at_least) in sets {
        check_on(Backend::Tch, set, at_least);
    }
}

#[test]
fn a_value_off_by_more_than_its_bound_is_seen() {
    let fixture = open("dual_nobn");
    let mut observed: Tensors = fixture.expected.clone();
    let key = "grad/tail.head.fuse.weight".to_string();
    let exact = judge(
        &fixture,
        &observed,
        std::slice::from_ref(&key),
        Bounds::OfTheSet,
    )
    .expect("known");
    assert!(exact.iter().all(|verdict| verdict.ok && verdict.rel == 0.0));
    let values = &mut observed.get_mut(&key).expect("in the set").values;
    values.iter_mut().for_each(|value| *value *= 1.001);
    let off = judge(
        &fixture,
        &observed,
        std::slice::from_ref(&key),
        Bounds::OfTheSet,
    )
    .expect("known");
    assert!(
        off.iter()
            .all(|verdict| !verdict.ok && (verdict.rel - 1e-3).abs() < 1e-6),
        "{off:?}"
    );
    let nan = &mut observed.get_mut(&key).expect("in the set").values[0];
    *nan = f64::NAN;
    let off = judge(
        &fixture,
        &observed,
        std::slice::from_ref(&key),
        Bounds::OfTheSet,
    )
    .expect("known");
    assert!(
        off.iter().all(|verdict| !verdict.ok),
        "NaN is never within bounds: {off:?}"
    );
    // Not even where gradients are zero, whatever comes after it.
    let zero = "grad/stages.0.blocks.0.attn.kv.bias".to_string();
    observed.get_mut(&zero).expect("in the set").values[0] = f64::NAN;
    let keys = std::slice::from_ref(&zero);
    let off = judge(&fixture, &observed, keys, Bounds::OfTheSet).expect("known");
    let zeros = off
        .iter()
        .find(|verdict| verdict.tensor.contains("zero gradient"));
    assert!(!zeros.expect("it has some").ok, "{off:?}");
    observed.remove(&key);
    let missing = judge(&fixture, &observed, &[key], Bounds::OfTheSet);
    assert!(matches!(missing, Err(Error::Unknown { .. })));
}
