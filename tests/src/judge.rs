//! Compares tensors with the reference, as `fixtures/README.md` says under "Judging".

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fixture::{Error, Fixture, Result, Tensors};

/// One comparison: a line of `parity`'s output.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The group of tensors: `out/feat0`, `grad`, `dp2.step5`.
    pub quantity: String,
    /// A tensor of the group, `all` for all of them as one vector, or `NAME (zero gradient)`.
    pub tensor: String,
    /// The relative difference in the L2 norm; for elements with zero gradient the largest difference.
    pub rel: f64,
    /// The largest value of `rel` that is allowed.
    pub allowed: f64,
    /// Whether it is.
    pub ok: bool,
}

/// What a run is allowed to differ by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bounds {
    /// What the set says, for float32.
    OfTheSet,
    /// One relative bound for everything: for float64. Elements with zero gradient keep the set's allowance.
    Uniform(f64),
}

/// The group that a key of the expected file belongs to, and the tensor's name in it.
fn group(key: &str) -> (String, &str) {
    match key.split_once('/') {
        Some(("out", _)) | None => (key.into(), key),
        Some((head, name)) if name.contains(".running_") => (format!("{head}:running"), name),
        Some((head, name)) => (head.into(), name),
    }
}

/// Compares what was `observed` under the prefixes that were run. Expected keys of other runs are left aside.
///
/// # Errors
/// [`Error::Unknown`] for an expected key of these runs that was not observed.
pub fn judge(
    fixture: &Fixture,
    observed: &Tensors,
    keys: &[String],
    bounds: Bounds,
) -> Result<Vec<Verdict>> {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for key in keys {
        if !observed.contains_key(key) {
            return Err(Error::Unknown { key: key.clone() });
        }
        groups.entry(group(key).0).or_default().push(key);
    }
    let mut verdicts = Vec::new();
    for (name, keys) in groups {
        judge_group(fixture, observed, &name, &keys, bounds, &mut verdicts);
    }
    Ok(verdicts)
}

fn judge_group(
    fixture: &Fixture,
    observed: &Tensors,
    group_name: &str,
    keys: &[&str],
    bounds: Bounds,
    verdicts: &mut Vec<Verdict>,
) {
    let tolerance = &fixture.parity.tolerance;
    let Some(allowed) = tolerance.groups.get(group_name) else {
        return;
    };
    let (mut all_difference, mut all_norm) = (0.0, 0.0);
    let verdict = |tensor: &str, rel: f64, allowed: f64| Verdict {
        quantity: group_name.into(),
        tensor: tensor.into(),
        rel,
        allowed,
        // A comparison with NaN is false: NaN is never ok.
        ok: rel <= allowed,
    };
    for key in keys {
        let name = group(key).1;
        let (got, expected) = (&observed[*key].values, &fixture.expected[*key].values);
        if got.len() != expected.len() {
            verdicts.push(verdict(name, f64::INFINITY, 0.0));
            continue;
        }
        let init = allowed.minus_init.then(|| fixture.initial(name)).flatten();
        let zero = fixture.parity.zero_gradient.as_ref();
        let skipped = zero.and_then(|zero| zero.elements.get(name)).copied();
        let is_zero = |i: usize| skipped.is_some_and(|[first, end]| (first..end).contains(&i));
        let (mut difference, mut norm, mut largest) = (0.0f64, 0.0f64, 0.0f64);
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            if is_zero(i) && !group_name.ends_with(":running") {
                let apart = (got - expected).abs();
                // Once it is NaN it stays so: `max` would forget it.
                if !largest.is_nan() && (apart.is_nan() || apart > largest) {
                    largest = apart;
                }
                continue;
            }
            let base = init.map_or(0.0, |init| init.values[i]);
            difference += (got - expected).powi(2);
            norm += (expected - base).powi(2);
        }
        if let (Some(_), Some(allowance)) = (
            skipped,
            zero.and_then(|zero| zero.allowance.get(group_name)),
        ) {
            verdicts.push(verdict(
                &format!("{name} (zero gradient)"),
                largest,
                *allowance,
            ));
        }
        let bound = match bounds {
            Bounds::OfTheSet => allowed.tensors.get(name).copied().unwrap_or(allowed.each),
            Bounds::Uniform(bound) => bound,
        };
        if norm == 0.0 {
            verdicts.push(verdict(name, difference.sqrt(), tolerance.floor));
        } else {
            verdicts.push(verdict(name, (difference / norm).sqrt(), bound));
        }
        all_difference += difference;
        all_norm += norm;
    }
    let bound = match bounds {
        Bounds::OfTheSet => allowed.all,
        Bounds::Uniform(bound) => bound,
    };
    if all_norm > 0.0 {
        verdicts.push(verdict("all", (all_difference / all_norm).sqrt(), bound));
    }
}
