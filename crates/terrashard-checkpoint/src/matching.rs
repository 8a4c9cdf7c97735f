//! Which tensors of a checkpoint or model file a reader will find, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::{Kind, TensorSpec};

/// How many names a message lists before it only counts.
const NAMES_SHOWN: usize = 8;

/// What is there compared with what is expected. Tensors are shown as kind and name: ``parameter `head.bias` ``.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Matching {
    /// Expected and there, in the same shape and element type.
    pub matched: Vec<String>,
    /// Expected and not there.
    pub missing: Vec<String>,
    /// There and not expected, although tensors of that kind are.
    pub unexpected: Vec<String>,
    /// Expected and there, but in another shape or element type.
    pub different: Vec<String>,
}

impl Matching {
    /// Compares tensors by name and kind. Ties do not matter: a tied tensor reads like any other.
    pub fn of<'a>(
        found: impl IntoIterator<Item = &'a TensorSpec>,
        expected: &[TensorSpec],
    ) -> Self {
        let kinds: BTreeSet<Kind> = expected.iter().map(|spec| spec.kind).collect();
        let mut found: BTreeMap<(&str, Kind), &TensorSpec> = found
            .into_iter()
            .map(|spec| ((spec.name.as_str(), spec.kind), spec))
            .collect();
        let mut matching = Self::default();
        for spec in expected {
            match found.remove(&(spec.name.as_str(), spec.kind)) {
                None => matching.missing.push(spec.label()),
                Some(there) if (&there.shape, there.dtype) == (&spec.shape, spec.dtype) => {
                    matching.matched.push(spec.label());
                }
                Some(there) => matching.different.push(format!(
                    "{} (found {:?} {}, expected {:?} {})",
                    spec.label(),
                    there.shape,
                    there.dtype,
                    spec.shape,
                    spec.dtype
                )),
            }
        }
        let rest = found.values().filter(|spec| kinds.contains(&spec.kind));
        matching.unexpected = rest.map(|spec| spec.label()).collect();
        matching
    }

    /// Whether all that is expected is there, and nothing else.
    pub fn is_exact(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.different.is_empty()
    }
}

impl fmt::Display for Matching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} match", self.matched.len())?;
        for (what, names) in [
            ("missing", &self.missing),
            ("unexpected", &self.unexpected),
            ("different", &self.different),
        ] {
            let Some((first, rest)) = names.split_first() else {
                continue;
            };
            write!(f, "; {what}: {first}")?;
            for name in rest.iter().take(NAMES_SHOWN - 1) {
                write!(f, ", {name}")?;
            }
            if names.len() > NAMES_SHOWN {
                write!(f, " and {} more", names.len() - NAMES_SHOWN)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrashard_layout::ElementType::{Bf16, F32};

    use super::*;

    #[test]
    fn every_name_falls_into_one_group() {
        let spec = |name: &str, kind, dim: usize| TensorSpec::new(name, kind, [dim], F32);
        let found = [
            spec("same", Kind::Parameter, 2),
            spec("reshaped", Kind::Parameter, 2),
            spec("retyped", Kind::Parameter, 2),
            spec("old", Kind::Parameter, 2),
            spec("same", Kind::M, 2),
        ];
        let expected = [
            spec("same", Kind::Parameter, 2),
            spec("reshaped", Kind::Parameter, 3),
            TensorSpec::new("retyped", Kind::Parameter, [2], Bf16),
            spec("new", Kind::Parameter, 2),
        ];
        let matching = Matching::of(&found, &expected);
        assert_eq!(
            matching.to_string(),
            "1 match; missing: parameter `new`; unexpected: parameter `old`; different: parameter `reshaped` (found \
             [2] f32, expected [3] f32), parameter `retyped` (found [2] f32, expected [2] bf16)"
        );
        assert!(!matching.is_exact());
        assert!(Matching::of(&found[..1], &expected[..1]).is_exact());
    }

    #[test]
    fn a_message_stays_one_short_line() {
        let expected: Vec<TensorSpec> = (0..20)
            .map(|i| TensorSpec::new(format!("w{i}"), Kind::V, [1], F32))
            .collect();
        let text = Matching::of([], &expected).to_string();
        assert!(text.ends_with("v `w7` and 12 more"), "{text}");
    }
}
