//! Rules on single Rust files.

use super::Finding;
use super::source::code_only;
use super::tree::Tree;

/// Longer files do two things.
const MAX_LINES: usize = 500;

/// Files that may be longer, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Files, or folders where the path ends in `/`, that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    // Advice to the system about a range of memory.
    "crates/terrashard-zero/src/host/pages.rs",
    // NCCL: the library that is opened, the driver's streams and events, and verbs over pointers that were checked.
    "crates/terrashard-collectives/src/nccl/library.rs",
    "crates/terrashard-collectives/src/nccl/driver.rs",
    "crates/terrashard-collectives/src/nccl/channel.rs",
    // A counting allocator, which is an unsafe trait.
    "tests/tests/allocation/main.rs",
    // Calls into C++.
    "crates/terrashard-torch/src/shim.rs",
    "crates/terrashard-torch/src/shim/adamw.rs",
    "crates/terrashard-torch/src/shim/branch.rs",
    "crates/terrashard-torch/src/shim/columns.rs",
    "crates/terrashard-torch/src/shim/graphs.rs",
    "crates/terrashard-torch/src/shim/host_buffer.rs",
    "crates/terrashard-torch/src/shim/norm.rs",
    "crates/terrashard-torch/src/shim/profile.rs",
    "crates/terrashard-torch/src/shim/loss.rs",
    "crates/terrashard-torch/src/shim/resize.rs",
    "crates/terrashard-torch/src/shim/view.rs",
];

/// Names that say nothing of what is in a file.
const EMPTY_NAMES: &[&str] = &[
    "base", "common", "engine", "helper", "helpers", "manager", "misc", "util", "utils",
];

/// Code that is not meant to stay.
const LEFTOVERS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Every file begins with `//!`: what it holds and why.
pub(super) fn module_docs(tree: &Tree) -> Vec<Finding> {
    let lacks = |text: &str| {
        !text
            .lines()
            .find(|line| !line.trim().is_empty())
            .is_some_and(|line| line.starts_with("//!"))
    };
    let missing = tree.rust().filter(|(_, text)| lacks(text));
    missing
        .map(|(path, _)| Finding::new(path, 1, "does not begin with `//!` documentation"))
        .collect()
}

/// Files and modules are named after what they hold.
pub(super) fn file_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in tree.rust() {
        let names = path.trim_end_matches(".rs").split('/');
        if let Some(name) = names.into_iter().find(|name| EMPTY_NAMES.contains(name)) {
            findings.push(Finding::new(
                path,
                1,
                format!("the name `{name}` does not say what is inside: use a noun of the domain"),
            ));
        }
    }
    findings
}

/// No file is longer than [`MAX_LINES`], unless [`LONG_FILES`] says why.
pub(super) fn length(tree: &Tree) -> Vec<Finding> {
    length_except(tree, LONG_FILES)
}

fn length_except(tree: &Tree, exempt: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let lines = text.lines().count();
        let listed = exempt.iter().any(|(long, _)| *long == path);
        if lines > MAX_LINES && !listed {
            findings.push(Finding::new(
                path,
                MAX_LINES + 1,
                format!("has {lines} lines, at most {MAX_LINES} are allowed: split it"),
            ));
        }
        if lines <= MAX_LINES && listed {
            findings.push(Finding::new(
                path,
                1,
                "is listed as a long file in xtask/src/tidy/sources.rs but is short",
            ));
        }
    }
    findings
}

/// No unfinished code, no test that is switched off, no example in the docs that is not compiled.
pub(super) fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let code = code_only(text);
        for (index, (line, code)) in text.lines().zip(code.lines()).enumerate() {
            let mut found = |message: String| findings.push(Finding::new(path, index + 1, message));
            for leftover in LEFTOVERS {
                if words(code, leftover).next().is_some() {
                    found(format!("`{leftover}` is not to stay"));
                }
            }
            let squeezed: String = code.split_whitespace().collect();
            if squeezed.contains("#[ignore") {
                found("a test is switched off: repair it or remove it".to_owned());
            }
            let doc = line.trim_start();
            let fence = doc
                .strip_prefix("///")
                .or_else(|| doc.strip_prefix("//!"))
                .and_then(|doc| doc.trim().strip_prefix("```"));
            if fence.is_some_and(|attributes| {
                attributes
                    .split([',', ' '])
                    .any(|attribute| attribute.starts_with("ignore"))
            }) {
                found("an example is not compiled: use `no_run` where it cannot run".to_owned());
            }
        }
    }
    findings
}

/// `unsafe` stands only in the files listed, and each has a `// SAFETY:` comment just above it.
pub(super) fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    unsafe_except(tree, UNSAFE)
}

fn unsafe_except(tree: &Tree, allowed: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let is_allowed = allowed
            .iter()
            .any(|entry| *entry == path || (entry.ends_with('/') && path.starts_with(entry)));
        let code = code_only(text);
        let lines: Vec<&str> = text.lines().collect();
        for (index, code) in code.lines().enumerate() {
            if words(code, "unsafe").next().is_none() {
                continue;
            }
            if !is_allowed {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    "`unsafe` is allowed only in the files listed in xtask/src/tidy/sources.rs",
                ));
            } else if !has_reason(&lines[..index]) {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    "`unsafe` without a `// SAFETY:` comment just above it",
                ));
            }
        }
    }
    findings
}

/// Whether the comments and attributes that end `above` give the reason: `SAFETY:` for a block, `# Safety` for a
/// function.
fn has_reason(above: &[&str]) -> bool {
    let is_attached =
        |line: &&&str| line.trim_start().starts_with("//") || line.trim_start().starts_with("#[");
    above
        .iter()
        .rev()
        .take_while(is_attached)
        .any(|line| line.contains("SAFETY:") || line.contains("# Safety"))
}

/// Where `word` stands in `code` as a word of its own.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let after = &code[at + word.len()..];
            !code[..at].ends_with(part_of_word)
                && (word.ends_with('!') || !after.starts_with(part_of_word))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/a/src/x.rs";

    fn check(rule: impl Fn(&Tree) -> Vec<Finding>, text: &str, expected_lines: &[usize]) {
        let tree = Tree::from([(PATH, text)]);
        let lines: Vec<usize> = rule(&tree).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, expected_lines, "{text}");
    }

    #[test]
    fn docs_come_first() {
        check(module_docs, "//! What.\n", &[]);
        check(module_docs, "\n//! What.\n", &[]);
        check(module_docs, "use std::fs;\n//! What.\n", &[1]);
        check(module_docs, "// What.\n", &[1]);
        check(module_docs, "", &[1]);
    }

    #[test]
    fn names_say_something() {
        let tree = Tree::from([
            ("crates/a/src/bucket.rs", ""),
            ("crates/a/src/utils.rs", ""),
            ("tests/tests/common/mod.rs", ""),
            ("crates/a/src/base/lib.rs", ""),
            ("crates/a/src/database.rs", ""),
        ]);
        let paths: Vec<_> = file_names(&tree)
            .into_iter()
            .map(|finding| finding.path)
            .collect();
        assert_eq!(
            paths,
            [
                "crates/a/src/base/lib.rs",
                "crates/a/src/utils.rs",
                "tests/tests/common/mod.rs"
            ]
        );
    }

    #[test]
    fn length_is_bounded() {
        let (long, short) = ("//\n".repeat(MAX_LINES + 1), "//\n".repeat(MAX_LINES));
        check(length, &short, &[]);
        check(length, &long, &[MAX_LINES + 1]);
        let listed = |tree: &Tree| length_except(tree, &[(PATH, "a table")]);
        check(listed, &long, &[]);
        check(listed, &short, &[1]);
    }

    #[test]
    fn leftovers_are_found() {
        check(leftovers, "fn f() {\n    todo!()\n}\n", &[2]);
        check(leftovers, "dbg!(1);\nunimplemented!();\n", &[1, 2]);
        check(
            leftovers,
            "// todo!()\nlet s = \"dbg!(1)\";\nmy_todo!();\n",
            &[],
        );
        check(
            leftovers,
            "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n",
            &[2],
        );
        check(leftovers, "#[ ignore ]\n", &[1]);
        check(
            leftovers,
            "/// ```ignore\n/// ```\n//! ```rust,ignore\n/// ```no_run\n",
            &[1, 3],
        );
    }

    #[test]
    fn unsafe_only_where_listed() {
        check(unsafe_code, "fn f() {\n    unsafe { g() }\n}\n", &[2]);
        check(
            unsafe_code,
            "#![deny(unsafe_code)]\n// unsafe\nlet unsafely = \"unsafe\";\n",
            &[],
        );
    }

    #[test]
    fn unsafe_gives_its_reason() {
        let listed = |tree: &Tree| unsafe_except(tree, &[PATH]);
        check(listed, "// SAFETY: checked above.\nunsafe { g() }\n", &[]);
        check(
            listed,
            "// SAFETY: checked above,\n// in two lines.\n#[expect(unsafe_code)]\nunsafe { g() }\n",
            &[],
        );
        check(
            listed,
            "// SAFETY: for another.\nf();\nunsafe { g() }\n",
            &[3],
        );
        check(
            listed,
            "/// # Safety\n/// Only on Mondays.\nunsafe fn g() {}\n",
            &[],
        );
        check(
            |tree| unsafe_except(tree, &["crates/a/"]),
            "unsafe { g() }\n",
            &[1],
        );
        check(
            |tree| unsafe_except(tree, &["crates/b/"]),
            "// SAFETY: ok.\nunsafe { g() }\n",
            &[2],
        );
    }
}
