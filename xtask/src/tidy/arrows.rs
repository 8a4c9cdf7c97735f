//! Which crate may depend on which: the layers of the workspace.
//!
//! A new arrow is a change of design. It is made here and in the drawing of `ARCHITECTURE.md`, in one commit.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;

/// What all packages of this workspace begin with, `xtask` excepted.
const PREFIX: &str = "terrashard-";

/// A crate and the crates of ours that it may depend on. `tests` and `benches` may depend on anything, `xtask` on
/// nothing of ours.
const ARROWS: &[(&str, &[&str])] = &[
    ("terrashard-layout", &[]),
    ("terrashard-torch", &[]),
    ("terrashard-collectives", &["terrashard-torch"]),
    ("terrashard-checkpoint", &["terrashard-layout"]),
    (
        "terrashard-zero",
        &[
            "terrashard-collectives",
            "terrashard-layout",
            "terrashard-torch",
        ],
    ),
    ("terrashard-raster", &[]),
    (
        "terrashard-data",
        &["terrashard-layout", "terrashard-raster"],
    ),
    ("terrashard-ops", &["terrashard-torch"]),
    ("terrashard-models", &["terrashard-ops"]),
    (
        "terrashard-trainer",
        &[
            "terrashard-checkpoint",
            "terrashard-collectives",
            "terrashard-data",
            "terrashard-layout",
            "terrashard-models",
            "terrashard-ops",
            "terrashard-raster",
            "terrashard-torch",
            "terrashard-zero",
        ],
    ),
    ("xtask", &[]),
];

/// Every dependency on a crate of ours, dev- and build-dependencies too, follows an arrow.
pub(super) fn manifests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let folders = tree
        .crates()
        .into_iter()
        .map(|name| format!("crates/{name}"));
    for folder in folders.chain(["xtask".to_owned()]) {
        let path = format!("{folder}/Cargo.toml");
        // A crate without a manifest is reported by another rule.
        let Some(text) = tree.text(&path) else {
            continue;
        };
        let name = folder.rsplit('/').next().unwrap_or(&folder);
        let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == name) else {
            findings.push(Finding::new(
                &path,
                1,
                format!("crate `{name}` is not in the table of xtask/src/tidy/arrows.rs"),
            ));
            continue;
        };
        let manifest: toml::Table = match text.parse() {
            Ok(manifest) => manifest,
            Err(error) => {
                findings.push(Finding::new(
                    &path,
                    1,
                    format!("is no TOML: {}", error.to_string().replace('\n', " ")),
                ));
                continue;
            }
        };
        for dependency in our_dependencies(&manifest) {
            if !allowed.contains(&dependency.as_str()) && dependency != name {
                let message = format!(
                    "`{name}` must not depend on `{dependency}`: no such arrow in ARCHITECTURE.md"
                );
                findings.push(Finding::new(&path, line_of(text, &dependency), message));
            }
        }
    }
    findings
}

/// The arrows drawn in `ARCHITECTURE.md` (a Mermaid block, `a --> b & c`) are those of the table.
pub(super) fn drawing(tree: &Tree) -> Vec<Finding> {
    const PATH: &str = "ARCHITECTURE.md";
    // Whether it exists at all is the rule of the top level.
    let Some(text) = tree.text(PATH) else {
        return Vec::new();
    };
    let drawn: BTreeSet<(String, String)> = text.lines().flat_map(drawn_arrows).collect();
    let table: BTreeSet<(String, String)> = ARROWS
        .iter()
        .flat_map(|(from, to)| to.iter().map(|to| ((*from).to_owned(), (*to).to_owned())))
        .collect();
    let first = text
        .lines()
        .position(|line| line.contains("-->"))
        .map_or(1, |index| index + 1);
    let extra = drawn.difference(&table).map(|(from, to)| {
        let line = text
            .lines()
            .position(|line| drawn_arrows(line).contains(&(from.clone(), to.clone())))
            .unwrap_or(0)
            + 1;
        Finding::new(
            PATH,
            line,
            format!("draws `{from} --> {to}`, which the table of xtask/src/tidy/arrows.rs lacks"),
        )
    });
    let missing = table.difference(&drawn).map(|(from, to)| {
        Finding::new(
            PATH,
            first,
            format!(
                "does not draw `{from} --> {to}`, which the table of xtask/src/tidy/arrows.rs has"
            ),
        )
    });
    extra.chain(missing).collect()
}

fn drawn_arrows(line: &str) -> Vec<(String, String)> {
    let Some((from, to)) = line.split_once("-->") else {
        return Vec::new();
    };
    let from = from.trim();
    to.split('&')
        .map(|to| (from.to_owned(), to.trim().to_owned()))
        .collect()
}

/// Names of the packages of ours in any table of dependencies, also those under `[target.*]` and renamed ones.
fn our_dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let mut tables = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().filter_map(toml::Value::as_table));
    }
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    tables
        .iter()
        .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()))
        .flatten()
        .map(|(key, value)| {
            value
                .get("package")
                .and_then(toml::Value::as_str)
                .unwrap_or(key)
                .to_owned()
        })
        .filter(|name| name.starts_with(PREFIX) || name == "xtask")
        .collect()
}

/// The first line that names the dependency, from 1.
fn line_of(text: &str, dependency: &str) -> usize {
    let names_it =
        |line: &str| line.starts_with(dependency) || line.contains(&format!("\"{dependency}\""));
    // The package's own name may begin with the dependency's; that line starts with `name`, not with it.
    text.lines()
        .position(|line| !line.starts_with("name") && names_it(line))
        .map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, manifest: &str, expected: &[(usize, &str)]) {
        let path = format!("crates/{name}/Cargo.toml");
        let tree = Tree::from([(path.as_str(), manifest)]);
        let findings = manifests(&tree);
        assert_eq!(findings.len(), expected.len(), "{findings:?}");
        for (finding, (line, part)) in findings.iter().zip(expected) {
            assert_eq!(
                (finding.path.as_str(), finding.line),
                (path.as_str(), *line),
                "{finding}"
            );
            assert!(finding.message.contains(part), "{finding}");
        }
    }

    #[test]
    fn arrows_are_allowed() {
        check(
            "terrashard-zero",
            "[dependencies]\nburn = \"1\"\nterrashard-layout = { workspace = true }\n",
            &[],
        );
    }

    #[test]
    fn other_arrows_are_not() {
        let manifest = "[package]\nname = \"terrashard-models\"\n[dependencies]\nterrashard-zero = { workspace = true }\n";
        check(
            "terrashard-models",
            manifest,
            &[(4, "must not depend on `terrashard-zero`")],
        );
    }

    #[test]
    fn dev_build_target_and_renamed_dependencies_count() {
        check(
            "terrashard-layout",
            "[dev-dependencies]\nterrashard-data.workspace = true\n",
            &[(2, "`terrashard-data`")],
        );
        check(
            "terrashard-layout",
            "[build-dependencies]\nterrashard-ops = \"1\"\n",
            &[(2, "`terrashard-ops`")],
        );
        check(
            "terrashard-raster",
            "[target.'cfg(unix)'.dependencies]\nterrashard-ops = \"1\"\n",
            &[(2, "`terrashard-ops`")],
        );
        check(
            "terrashard-ops",
            "[dependencies]\nz = { package = \"terrashard-zero\", path = \"..\" }\n",
            &[(2, "`terrashard-zero`")],
        );
    }

    #[test]
    fn unknown_crate_and_broken_manifest() {
        check(
            "terrashard-new",
            "[dependencies]\n",
            &[(1, "is not in the table")],
        );
        check("terrashard-ops", "[dependencies\n", &[(1, "is no TOML")]);
    }

    #[test]
    fn xtask_depends_on_nothing_of_ours() {
        let tree = Tree::from([(
            "xtask/Cargo.toml",
            "[dependencies]\nclap = \"4\"\nterrashard-layout = \"1\"\n",
        )]);
        assert_eq!(manifests(&tree).len(), 1);
    }

    #[test]
    fn tests_and_benches_may_depend_on_anything() {
        let tree = Tree::from([(
            "tests/Cargo.toml",
            "[dependencies]\nterrashard-trainer = \"1\"\n",
        )]);
        assert_eq!(manifests(&tree), []);
    }

    #[test]
    fn drawing_equals_table() {
        let mut drawn: String = ARROWS
            .iter()
            .filter(|(_, to)| !to.is_empty())
            .map(|(from, to)| format!("    {from} --> {}\n", to.join(" & ")))
            .collect();
        assert_eq!(
            drawing(&Tree::from([("ARCHITECTURE.md", drawn.as_str())])),
            []
        );

        drawn = drawn.replace(
            "terrashard-models --> terrashard-ops",
            "terrashard-models --> terrashard-zero",
        );
        let findings = drawing(&Tree::from([("ARCHITECTURE.md", drawn.as_str())]));
        let messages: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(
            messages[0].contains("draws `terrashard-models --> terrashard-zero`"),
            "{messages:?}"
        );
        assert!(
            messages[1].contains("does not draw `terrashard-models --> terrashard-ops`"),
            "{messages:?}"
        );
    }

    #[test]
    fn table_has_no_cycle() {
        // Crates stand after all that they depend on, so an arrow can only point upwards in the table.
        for (index, (from, to)) in ARROWS.iter().enumerate() {
            for to in *to {
                assert!(
                    ARROWS[..index].iter().any(|(earlier, _)| earlier == to),
                    "{from} -> {to}"
                );
            }
        }
    }
}
