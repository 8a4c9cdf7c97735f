//! What every crate needs to be published: metadata that a registry asks for, dependencies that carry a version, and nothing outside
//! its folder.

use toml::{Table, Value};

use super::Finding;
use super::tree::Tree;

/// Lengths that crates.io sets.
const KEYWORDS: usize = 5;
const KEYWORD: usize = 20;

/// Fields that are the crate's own or the workspace's.
const FIELDS: &[&str] = &[
    "description",
    "license",
    "readme",
    "keywords",
    "categories",
    "rust-version",
    "include",
];

/// Each manifest in `crates/` says all that a registry and its readers ask for, and takes the workspace's own crates from the
/// workspace, where they have a version beside their path.
pub(super) fn metadata(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let root = tree
        .text("Cargo.toml")
        .and_then(|text| text.parse::<Table>().ok());
    let workspace = root.as_ref().and_then(|root| root.get("workspace"));
    let version =
        workspace.and_then(|workspace| workspace.get("package")?.get("version")?.as_str());
    let shared = workspace.and_then(|workspace| workspace.get("dependencies")?.as_table());
    for name in tree.crates() {
        let dependency = shared.and_then(|shared| shared.get(name));
        let told = dependency.and_then(|dependency| dependency.get("version")?.as_str());
        if dependency.is_some() && told != version {
            findings.push(Finding::new(
                "Cargo.toml",
                1,
                format!("`{name}` in workspace.dependencies lacks the workspace's version beside its path"),
            ));
        }
        let path = format!("crates/{name}/Cargo.toml");
        // Other rules report a manifest that is missing or broken.
        let Some(Ok(manifest)) = tree.text(&path).map(str::parse::<Table>) else {
            continue;
        };
        let package = manifest.get("package").and_then(Value::as_table);
        for message in package.map_or_else(Vec::new, lacking) {
            findings.push(Finding::new(&path, 1, message));
        }
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let table = manifest.get(kind).and_then(Value::as_table);
            for (dependency, value) in table.into_iter().flatten() {
                if value.get("path").is_some() {
                    findings.push(Finding::new(
                        &path,
                        1,
                        format!("`{dependency}` in {kind} has a path of its own: take it from the workspace, which tells its version"),
                    ));
                }
            }
        }
    }
    findings
}

/// What the table `package` lacks.
fn lacking(package: &Table) -> Vec<String> {
    let mut lacking: Vec<String> = FIELDS
        .iter()
        .filter(|field| !package.contains_key(**field))
        .map(|field| format!("lacks `{field}`, which a published crate has"))
        .collect();
    if package
        .get("publish")
        .is_some_and(|publish| publish.as_bool() == Some(false))
    {
        lacking.push("is not to be published, so it does not belong in crates/".into());
    }
    let words = |field: &str| -> Vec<&str> {
        let words = package.get(field).and_then(Value::as_array);
        words
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    };
    let keywords = words("keywords");
    if keywords.len() > KEYWORDS || keywords.iter().any(|word| word.len() > KEYWORD) {
        lacking.push(format!(
            "has more than {KEYWORDS} keywords, or one of more than {KEYWORD} letters"
        ));
    }
    let include = words("include");
    for needed in ["/src", "/examples", "/README.md"] {
        if package.contains_key("include") && !include.contains(&needed) {
            lacking.push(format!("`include` lacks `{needed}`"));
        }
    }
    lacking
}

/// Files that are compiled into a crate lie in its folder, and in one that is packaged.
pub(super) fn inside(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let Some((name, rest)) = path
            .strip_prefix("crates/")
            .and_then(|rest| rest.split_once('/'))
        else {
            continue;
        };
        let packaged = |path: &str| {
            path.starts_with("src/") || path.starts_with("examples/") || path == "README.md"
        };
        if rest == "build.rs" {
            let include = tree
                .text(&format!("crates/{name}/Cargo.toml"))
                .unwrap_or_default();
            if !include.contains("\"/build.rs\"") {
                findings.push(Finding::new(
                    path,
                    1,
                    "is not among the files that `include` packages",
                ));
            }
            for (line, file) in quoted(text, "\"src/") {
                let file = format!("src/{file}");
                if !tree.contains(&format!("crates/{name}/{file}")) {
                    findings.push(Finding::new(
                        path,
                        line,
                        format!("builds `{file}`, which does not exist"),
                    ));
                }
            }
        }
        if !packaged(rest) {
            continue;
        }
        let folder = rest.rsplit_once('/').map_or("", |(folder, _)| folder);
        for macro_ in ["include_str!(\"", "include_bytes!(\"", "#[path = \""] {
            for (line, file) in quoted(text, macro_) {
                let place = resolve(folder, file);
                if !place.as_deref().is_some_and(packaged) {
                    findings.push(Finding::new(
                        path,
                        line,
                        format!("needs `{file}`, which the package lacks"),
                    ));
                }
            }
        }
    }
    findings
}

/// What stands between `before` and the next quotation mark, with its line.
fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    text.lines().enumerate().filter_map(move |(index, line)| {
        let (_, rest) = line.split_once(before)?;
        Some((index + 1, rest.split_once('"')?.0))
    })
}

/// A path within the crate; none where it leaves it.
fn resolve(folder: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.split('/') {
        match part {
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace.package]\nversion = \"0.1.0\"\n[workspace.dependencies]\na = { path = \"crates/a\", version = \"0.1.0\" }\n";
    const WHOLE: &str = "[package]\nname = \"a\"\ndescription = \"A\"\nlicense.workspace = true\nreadme = \"README.md\"\nkeywords = [\"x\"]\n\
        categories = [\"science\"]\nrust-version.workspace = true\ninclude = [\"/src\", \"/examples\", \"/README.md\"]\n";

    fn messages(findings: Vec<Finding>) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_whole_manifest_passes() {
        let tree = Tree::from([("Cargo.toml", ROOT), ("crates/a/Cargo.toml", WHOLE)]);
        assert_eq!(metadata(&tree), []);
    }

    #[test]
    fn what_a_registry_asks_for_is_named() {
        let check = |root: &str, manifest: &str, expected: &[&str]| {
            let tree = Tree::from([("Cargo.toml", root), ("crates/a/Cargo.toml", manifest)]);
            let messages = messages(metadata(&tree));
            assert_eq!(messages.len(), expected.len(), "{messages:?}");
            for (message, expected) in messages.iter().zip(expected) {
                assert!(message.contains(expected), "{message}: {expected}");
            }
        };
        check(
            ROOT,
            &WHOLE.replace("description = \"A\"\n", ""),
            &["lacks `description`"],
        );
        check(
            ROOT,
            &WHOLE.replace("\"x\"", "\"1\",\"2\",\"3\",\"4\",\"5\",\"6\""),
            &["more than 5 keywords"],
        );
        check(
            ROOT,
            &WHOLE.replace("\"x\"", "\"a-word-of-twenty-one-l\""),
            &["more than 20 letters"],
        );
        check(
            ROOT,
            &WHOLE.replace("\"/src\", ", ""),
            &["`include` lacks `/src`"],
        );
        check(
            ROOT,
            &format!("{WHOLE}publish = false\n"),
            &["not to be published"],
        );
        check(
            ROOT,
            &format!("{WHOLE}[dependencies]\nb = {{ path = \"../b\" }}\n"),
            &["`b` in dependencies has a path"],
        );
        check(
            &ROOT.replace(", version = \"0.1.0\"", ""),
            WHOLE,
            &["lacks the workspace's version"],
        );
        check(
            &ROOT.replace("a\", version = \"0.1.0\"", "a\", version = \"0.2.0\""),
            WHOLE,
            &["lacks the workspace's version"],
        );
    }

    #[test]
    fn files_outside_the_package_are_reported() {
        let tree = Tree::from([
            ("crates/a/Cargo.toml", "include = [\"/src\"]"),
            (
                "crates/a/build.rs",
                "cc.files([\"src/a.cc\", ])\n.file(\"src/gone.cc\")",
            ),
            ("crates/a/src/a.cc", ""),
            (
                "crates/a/src/lib.rs",
                "include_str!(\"../README.md\")\ninclude_str!(\"report/page.css\")",
            ),
            (
                "crates/a/src/b/c.rs",
                "include_bytes!(\"../../tests/x.bin\")\ninclude_str!(\"../../../../x\")",
            ),
            ("crates/a/tests/t.rs", "include_str!(\"../../../x\")"),
        ]);
        assert_eq!(
            messages(inside(&tree)),
            [
                "crates/a/build.rs:1: is not among the files that `include` packages",
                "crates/a/build.rs:2: builds `src/gone.cc`, which does not exist",
                "crates/a/src/b/c.rs:2: needs `../../../../x`, which the package lacks",
                "crates/a/src/b/c.rs:1: needs `../../tests/x.bin`, which the package lacks",
            ]
        );
    }
}
