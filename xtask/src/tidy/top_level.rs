//! What may lie in the root folder, so that the first screen of the repository stays readable.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;

const ALLOWED: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "crates",
    "xtask",
    "tests",
    "benches",
    "examples",
    "docs",
    ".cargo",
    ".ci",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    // Settings of tools.
    ".gitattributes",
    ".gitignore",
    "clippy.toml",
    "deny.toml",
    "deny.toml",
    "rustfmt.toml",
];

const REQUIRED: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "crates",
    "xtask",
    "tests",
    "benches",
    ".cargo",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];

/// Only the listed entries, and all of those that the project cannot be without.
pub(super) fn entries(tree: &Tree) -> Vec<Finding> {
    let present: BTreeSet<&str> = tree
        .files()
        .filter_map(|(path, _)| path.split('/').next())
        .collect();
    let extra = present
        .iter()
        .filter(|entry| !ALLOWED.contains(entry))
        .map(|entry| {
            Finding::new(
                entry,
                1,
                "is not among the entries allowed at the top level (xtask/src/tidy/top_level.rs)",
            )
        });
    let missing = REQUIRED
        .iter()
        .filter(|entry| !present.contains(*entry))
        .map(|entry| Finding::new(entry, 1, "is missing at the top level"));
    extra.chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_and_missing_entries() {
        let tree = Tree::from([
            ("Cargo.toml", ""),
            ("Cargo.lock", ""),
            ("crates/a/x.rs", ""),
            ("xtask/x.rs", ""),
            ("tests/x.rs", ""),
            ("benches/x.rs", ""),
            (".cargo/config.toml", ""),
            ("README.md", ""),
            ("ARCHITECTURE.md", ""),
            ("CONTRIBUTING.md", ""),
            ("LICENSE-MIT", ""),
            ("LICENSE-APACHE", ""),
            ("notebooks/x.md", ""),
        ]);
        let messages: Vec<_> = entries(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(
            messages[0].starts_with("notebooks:1: is not among"),
            "{messages:?}"
        );
        assert_eq!(messages[1], "CHANGELOG.md:1: is missing at the top level");
    }

    #[test]
    fn required_entries_are_allowed() {
        assert!(REQUIRED.iter().all(|entry| ALLOWED.contains(entry)));
    }
}
