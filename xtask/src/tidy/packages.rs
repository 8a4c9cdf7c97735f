//! What every crate has: a manifest of its own name, a README, a short runnable example, a row in the crate table.

use super::Finding;
use super::tree::Tree;

/// An example that is longer stops being one.
const EXAMPLE_LINES: usize = 60;

/// Each folder in `crates/` is a whole package.
pub(super) fn folders(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in tree.crates() {
        let folder = format!("crates/{name}");
        let manifest = format!("{folder}/Cargo.toml");
        match tree.text(&manifest).map(str::parse::<toml::Table>) {
            None => findings.push(Finding::new(&manifest, 1, "does not exist")),
            // The arrows' rule reports what is wrong.
            Some(Err(_)) => {}
            Some(Ok(table)) => {
                if table
                    .get("package")
                    .and_then(|package| package.get("name")?.as_str())
                    != Some(name)
                {
                    findings.push(Finding::new(
                        &manifest,
                        1,
                        format!("the package is not named `{name}` as its folder is"),
                    ));
                }
                if table
                    .get("lints")
                    .and_then(|lints| lints.get("workspace")?.as_bool())
                    != Some(true)
                {
                    findings.push(Finding::new(
                        &manifest,
                        1,
                        "lacks `[lints] workspace = true`",
                    ));
                }
            }
        }
        let readme = format!("{folder}/README.md");
        if !tree.contains(&readme) {
            findings.push(Finding::new(
                &readme,
                1,
                "does not exist: what the crate is for, one example, its invariants",
            ));
        }
        let prefix = format!("{folder}/examples/");
        let examples: Vec<_> = tree
            .rust()
            .filter(|(path, _)| path.starts_with(&prefix))
            .collect();
        if examples.is_empty() {
            findings.push(Finding::new(
                &manifest,
                1,
                "the crate has no runnable example in examples/",
            ));
        }
        for (path, text) in examples {
            let lines = text.lines().count();
            if lines > EXAMPLE_LINES {
                findings.push(Finding::new(
                    path,
                    EXAMPLE_LINES + 1,
                    format!("an example has at most {EXAMPLE_LINES} lines, this one {lines}"),
                ));
            }
        }
    }
    findings
}

/// The table of crates in `README.md` has one row for each folder in `crates/`: a line that begins with
/// ``| [`name`] ``.
pub(super) fn crate_table(tree: &Tree) -> Vec<Finding> {
    const PATH: &str = "README.md";
    // Whether it exists at all is the rule of the top level.
    let Some(text) = tree.text(PATH) else {
        return Vec::new();
    };
    let rows: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .filter_map(|(index, line)| {
            Some((index + 1, line.strip_prefix("| [`")?.split_once('`')?.0))
        })
        // Other tables of the document list files, by their paths.
        .filter(|(_, name)| !name.contains('/'))
        .collect();
    let crates = tree.crates();
    let mut findings = Vec::new();
    for name in &crates {
        match rows.iter().filter(|(_, row)| row == name).count() {
            1 => {}
            0 => findings.push(Finding::new(
                PATH,
                1,
                format!("the crate table has no row for `{name}`"),
            )),
            count => findings.push(Finding::new(
                PATH,
                1,
                format!("the crate table has {count} rows for `{name}`"),
            )),
        }
    }
    for (line, row) in rows.iter().filter(|(_, row)| !crates.contains(row)) {
        findings.push(Finding::new(
            PATH,
            *line,
            format!("the crate table has a row for `{row}`, which is no folder in crates/"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"a\"\n[lints]\nworkspace = true\n";

    fn messages(findings: Vec<Finding>) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn whole_package() {
        let tree = Tree::from([
            ("crates/a/Cargo.toml", MANIFEST),
            ("crates/a/README.md", "A"),
            ("crates/a/examples/use.rs", "//! Use."),
        ]);
        assert_eq!(folders(&tree), []);
    }

    #[test]
    fn missing_parts_are_named() {
        let tree = Tree::from([("crates/a/Cargo.toml", "[package]\nname = \"b\"\n")]);
        let messages = messages(folders(&tree));
        assert_eq!(messages.len(), 4, "{messages:?}");
        assert!(messages[0].contains("not named `a`"));
        assert!(messages[1].contains("lints"));
        assert!(messages[2].starts_with("crates/a/README.md:1: does not exist"));
        assert!(messages[3].contains("no runnable example"));
    }

    #[test]
    fn folder_without_manifest() {
        let tree = Tree::from([("crates/a/README.md", ""), ("crates/a/examples/use.rs", "")]);
        assert_eq!(
            messages(folders(&tree)),
            ["crates/a/Cargo.toml:1: does not exist"]
        );
    }

    #[test]
    fn long_example() {
        let long = "//! Use.\n".repeat(EXAMPLE_LINES + 1);
        let tree = Tree::from([
            ("crates/a/Cargo.toml", MANIFEST),
            ("crates/a/README.md", "A"),
            ("crates/a/examples/use.rs", &long),
        ]);
        assert_eq!(
            messages(folders(&tree)),
            ["crates/a/examples/use.rs:61: an example has at most 60 lines, this one 61"]
        );
    }

    #[test]
    fn table_rows_and_folders_match() {
        let readme = "# T\n| crate | what |\n|---|---|\n| [`a`](crates/a) | A |\n| [`c`](crates/c) | C |\n| [`a/x.rs`](crates/a/x.rs) | X |\n";
        let tree = Tree::from([
            ("README.md", readme),
            ("crates/a/x.rs", ""),
            ("crates/b/x.rs", ""),
        ]);
        assert_eq!(
            messages(crate_table(&tree)),
            [
                "README.md:1: the crate table has no row for `b`",
                "README.md:5: the crate table has a row for `c`, which is no folder in crates/"
            ]
        );
    }

    #[test]
    fn table_row_twice() {
        let tree = Tree::from([
            ("README.md", "| [`a`] | A |\n| [`a`] | A |\n"),
            ("crates/a/x.rs", ""),
        ]);
        assert_eq!(
            messages(crate_table(&tree)),
            ["README.md:1: the crate table has 2 rows for `a`"]
        );
    }
}
