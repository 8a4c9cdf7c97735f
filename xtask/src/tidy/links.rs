//! Links in the documents lead to files that exist.

use super::Finding;
use super::tree::Tree;

/// Every relative link of a Markdown file, `](path)`, names a tracked file or a folder with tracked files.
pub(super) fn relative(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (index, line) in text.lines().enumerate() {
            for link in links(line) {
                let exists = resolve(folder, link).is_some_and(|target| tree.has_path(&target));
                if !exists {
                    findings.push(Finding::new(
                        path,
                        index + 1,
                        format!("links to `{link}`, which does not exist"),
                    ));
                }
            }
        }
    }
    findings
}

/// Targets of the links of a line that stay within the repository, without their `#fragment`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0));
    let within = targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
    within
        .map(|target| target.split('#').next().unwrap_or(target))
        .filter(|target| !target.is_empty())
}

/// A path relative to the root; `None` where it leaves the repository.
fn resolve(folder: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
    {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expected: &[(usize, &str)]) {
        let tree = Tree::from([(path, text), ("README.md", ""), ("crates/a/src/lib.rs", "")]);
        let findings = relative(&tree);
        let seen: Vec<(usize, &str)> = findings
            .iter()
            .map(|finding| {
                (
                    finding.line,
                    finding.message.split('`').nth(1).unwrap_or(""),
                )
            })
            .collect();
        assert_eq!(seen, expected, "{text}");
    }

    #[test]
    fn files_and_folders_are_found() {
        check(
            "docs/x.md",
            "[a](../README.md) [b](../crates/a/)\n[c](../crates/a/src/lib.rs#L1)",
            &[],
        );
        check("X.md", "[a](README.md), [b](./crates/a)", &[]);
    }

    #[test]
    fn others_are_reported() {
        check(
            "X.md",
            "fine\n[a](NOT.md) and [b](crates/b)",
            &[(2, "NOT.md"), (2, "crates/b")],
        );
        check(
            "docs/x.md",
            "[a](../../README.md)",
            &[(1, "../../README.md")],
        );
        check("docs/x.md", "[a](README.md)", &[(1, "README.md")]);
    }

    #[test]
    fn the_web_and_fragments_are_not_ours() {
        check(
            "X.md",
            "[a](https://example.org/x) [b](#section) [c](mailto:a@example.org)",
            &[],
        );
    }
}
