//! `docs/scenarios.md`: every scenario that users of such systems have reported stands there once, with a test that exists.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::code_only;
use super::tree::Tree;

const PAGE: &str = "docs/scenarios.md";

/// Rows that may give a reason in place of a test.
const REASONS: usize = 5;

/// What the second column of such a row begins with.
const REASON: &str = "no test: ";

/// Of sharded training, by what they are about: hangs, memory, numbers, loss scale and clipping, checkpoints,
/// first values, buffers, element types and layouts, recomputation, offload, environment.
const OF_RANKS: &[&str] = &[
    "H1", "H2", "H3", "H4", "H5", "H6", "H7", "H8", "H9", "H10", "H11", "H12", "H13", "H14", "M1",
    "M2", "M3", "M4", "M6", "M8", "N1", "N2", "N3", "N4", "N5", "N6", "N9", "N10", "N12", "L1",
    "L3", "L4", "L6", "L7", "L8", "L10", "C1", "C2", "C3", "C4", "C6", "C8", "C9", "C10", "C11",
    "C12", "I1", "I2", "B1", "B2", "B3", "B4", "B6", "D1", "D3", "D4", "A2", "O1", "O2", "O4",
    "E1", "E2",
];

/// Of geodata, written `geo-N`.
const OF_PIXELS: &[u32] = &[
    1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 18, 20, 21, 22, 23, 25, 27, 28, 29, 30, 32, 33, 34,
    36, 38, 39, 40, 42, 43, 45, 46, 47, 48, 49, 52,
];

/// Each known id has one row, each row a test or one of few reasons, and each test is there. Other paths of tests on the
/// page are looked up, too.
pub(super) fn table(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(PAGE) else {
        return vec![Finding::new(PAGE, 1, "does not exist")];
    };
    let tests = tests(tree);
    let mut findings = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut reasons = 0;
    let mut finding =
        |line: usize, message: String| findings.push(Finding::new(PAGE, line, message));
    let known: BTreeSet<String> = known().collect();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        for path in line.split('`').skip(1).step_by(2) {
            let is_path = path.contains("::") && !path.contains(|c: char| !is_of_path(c));
            if is_path && !tests.contains(path) {
                finding(line_number, format!("there is no test `{path}`"));
            }
        }
        let Some((id, rest)) = line
            .strip_prefix("| ")
            .and_then(|row| row.split_once(" | "))
        else {
            continue;
        };
        if id == "id" {
            continue;
        }
        if !known.contains(id) {
            finding(line_number, format!("`{id}` is no known scenario"));
        }
        *seen.entry(id).or_default() += 1;
        let cell = rest.split(" |").next().unwrap_or_default();
        if cell.starts_with(REASON) {
            reasons += 1;
        } else if !(cell.starts_with('`') && cell.ends_with('`') && cell.contains("::")) {
            finding(
                line_number,
                format!(
                    "`{id}` has neither a test, `crate::path::test`, nor a reason, `{REASON}...`"
                ),
            );
        }
    }
    for id in &known {
        match seen.get(id.as_str()) {
            Some(1) => {}
            None => finding(1, format!("`{id}` has no row")),
            Some(count) => finding(1, format!("`{id}` has {count} rows")),
        }
    }
    if reasons > REASONS {
        finding(
            1,
            format!("{reasons} rows give a reason in place of a test, at most {REASONS} may"),
        );
    }
    findings
}

fn known() -> impl Iterator<Item = String> {
    let of_ranks = OF_RANKS.iter().map(ToString::to_string);
    of_ranks.chain(OF_PIXELS.iter().map(|number| format!("geo-{number}")))
}

fn is_of_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Every test by its path: the crate, the modules below `src` or `tests`, the function. A module `tests` within a file is left
/// out, as every file of a library names it so.
fn tests(tree: &Tree) -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for (path, text) in tree.rust() {
        if let Some(module) = module(path) {
            for (inner, function) in functions(&code_only(text)) {
                tests.insert(format!("{module}{inner}::{function}"));
            }
        }
    }
    tests
}

/// `crates/a-b/tests/it/c.rs` is the module `a_b::it::c`.
fn module(path: &str) -> Option<String> {
    let path = path.strip_suffix(".rs")?;
    let (package, rest) = if let Some(rest) = path.strip_prefix("crates/") {
        let (package, rest) = rest.split_once('/')?;
        (package.to_owned(), rest)
    } else if let Some(rest) = path.strip_prefix("xtask/") {
        ("xtask".to_owned(), rest)
    } else {
        let (folder, rest) = path.split_once('/')?;
        (format!("terrashard-{folder}"), rest)
    };
    let rest = rest
        .strip_prefix("src/")
        .or_else(|| rest.strip_prefix("tests/"))?;
    let mut parts: Vec<&str> = rest.split('/').collect();
    if matches!(parts.last(), Some(&("main" | "lib" | "mod"))) {
        parts.pop();
    }
    parts.insert(0, &package);
    Some(parts.join("::").replace('-', "_"))
}

/// The functions with `#[test]`, each with the modules of the file that it stands in, as `::a::b`.
fn functions(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut modules: Vec<(usize, String)> = Vec::new();
    let (mut depth, mut is_test) = (0, false);
    for line in code.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        is_test |= line.trim_start().starts_with("#[test]");
        let named = |keyword: &str| {
            let at = words.iter().position(|word| *word == keyword)?;
            let name = words.get(at + 1)?;
            Some(
                name.split(['(', '<', '{', ';'])
                    .next()
                    .unwrap_or(name)
                    .to_owned(),
            )
        };
        if let Some(name) = named("fn").filter(|_| is_test) {
            let inner = modules.iter().filter(|(_, name)| name != "tests");
            let inner = inner.map(|(_, name)| format!("::{name}")).collect();
            found.push((inner, name));
            is_test = false;
        }
        if let Some(name) = named("mod").filter(|_| line.contains('{')) {
            modules.push((depth, name));
        }
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
        modules.retain(|(from, _)| *from < depth);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: [(&str, &str); 4] = [
        (
            "crates/a-b/src/c/d.rs",
            "fn no_test() {\n}\n#[cfg(test)]\nmod tests {\n    #[test]\n    #[should_panic]\n    fn one() {}\n    mod more {\n        #[test]\n        fn two() {\n        }\n    }\n    // #[test]\n    fn none() {}\n}\n",
        ),
        ("crates/a-b/tests/it/main.rs", "#[test]\nfn three() {}\n"),
        ("tests/tests/scenarios/uneven.rs", "#[test]\nfn four() {}\n"),
        ("xtask/src/tidy.rs", "#[test] fn five() {}\n"),
    ];

    #[test]
    fn tests_are_found_by_their_paths() {
        let found: Vec<String> = tests(&Tree::from(SOURCES)).into_iter().collect();
        assert_eq!(
            found,
            [
                "a_b::c::d::more::two",
                "a_b::c::d::one",
                "a_b::it::three",
                "terrashard_tests::scenarios::uneven::four",
                "xtask::tidy::five",
            ]
        );
    }

    /// The findings of a page that has these rows in place of those of the same ids.
    fn check(rows: &[&str], expected: &[&str]) {
        let id = |row: &str| {
            row.split(" | ")
                .next()
                .unwrap_or_default()
                .replace("| ", "")
        };
        let mut page: Vec<String> = rows.iter().map(ToString::to_string).collect();
        for known in known() {
            if rows.iter().all(|row| id(row) != known) {
                page.push(format!("| {known} | `a_b::it::three` | it is shown |"));
            }
        }
        let page = page.join("\n");
        let [a, b, c, d] = SOURCES;
        let mut messages: Vec<String> = table(&Tree::from([a, b, c, d, (PAGE, &page)]))
            .into_iter()
            .map(|finding| format!("{}: {}", finding.line, finding.message))
            .collect();
        messages.sort();
        assert_eq!(messages, expected, "{rows:?}");
    }

    #[test]
    fn rows_name_tests_that_exist() {
        check(&["| id | test | what |", "|---|---|---|"], &[]);
        check(
            &["| H1 | `a_b::c::d::one` | also `xtask::tidy::five` in `tidy` |"],
            &[],
        );
        check(
            &["| H1 | `a_b::c::d::none` | also `xtask::six` |"],
            &[
                "1: there is no test `a_b::c::d::none`",
                "1: there is no test `xtask::six`",
            ],
        );
        check(
            &["| H1 | a_b::it::three |", "| geo-52 | missing |"],
            &[
                "1: `H1` has neither a test, `crate::path::test`, nor a reason, `no test: ...`",
                "2: `geo-52` has neither a test, `crate::path::test`, nor a reason, `no test: ...`",
            ],
        );
    }

    #[test]
    fn every_scenario_has_one_row_and_few_have_none() {
        let row = "| H1 | `a_b::it::three` |";
        check(&[row, row], &["1: `H1` has 2 rows"]);
        check(
            &["| H15 | `a_b::it::three` |"],
            &["1: `H15` is no known scenario"],
        );
        let reasons: Vec<String> = OF_RANKS[..6]
            .iter()
            .map(|id| format!("| {id} | no test: there is no such thing | |"))
            .collect();
        let reasons: Vec<&str> = reasons.iter().map(String::as_str).collect();
        check(&reasons[..5], &[]);
        check(
            &reasons,
            &["1: 6 rows give a reason in place of a test, at most 5 may"],
        );
        let gone = Tree::from([(PAGE, "")]);
        assert_eq!(table(&gone).len(), OF_RANKS.len() + OF_PIXELS.len());
        assert_eq!(table(&Tree::from([])).len(), 1);
    }
}
