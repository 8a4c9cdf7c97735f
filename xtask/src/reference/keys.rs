//! The keys of a configuration, read from the structs that they are parsed into.

use std::fmt::Write;

use crate::tidy::Tree;

/// Where the sections are listed with their structs.
const SECTIONS: &str = "crates/terrashard-trainer/src/config/keys.rs";

/// One key.
#[derive(Debug, PartialEq)]
struct Key {
    name: String,
    values: String,
    default: String,
    meaning: String,
}

/// The page of the book.
pub(super) fn page(tree: &Tree) -> String {
    let mut text = String::from(
        "# Configuration\n\n<!-- Made by `cargo xtask reference` from the sources. -->\n\n\
         A configuration is one TOML file. Every key may be left out but `data.scenes` (or `data.chips`); an unknown key is an error that names the nearest\n\
         known one. `--set KEY=VALUE` changes a key from the command line, the value in TOML: `--set train.precision=bf16`. The file `config.toml` in a\n\
         run directory shows what was in force. `model.preset`, `\"b0\"` to `\"b5\"`, stands for the published sizes; other keys of `model` beside it change them.\n",
    );
    for (section, of) in tree.text(SECTIONS).map_or_else(Vec::new, sections) {
        let _ = write!(
            text,
            "\n## `[{section}]`\n\n| key | values | default | meaning |\n|---|---|---|---|\n"
        );
        let escape = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
        for key in body(tree, "struct", &of).map_or_else(Vec::new, |(body, _)| keys(tree, body)) {
            let Key {
                name,
                values,
                default,
                meaning,
            } = key;
            let _ = writeln!(
                text,
                "| `{name}` | {} | {} | {} |",
                escape(&values),
                escape(&default),
                escape(&meaning)
            );
        }
    }
    text
}

/// `("data.scaling", fields::<Scaling>())`: each section and the struct that it is.
fn sections(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| {
        let (section, rest) = line
            .trim()
            .strip_prefix("(\"")?
            .split_once("\", fields::<")?;
        let (of, _) = rest.split_once('>')?;
        Some((section.to_owned(), of.to_owned()))
    });
    lines.collect()
}

/// What stands between the braces of `pub struct NAME` or `pub enum NAME`, and the attributes before it.
///
/// Of several of one name it is the one that is read from a file: that which has attributes of serde.
fn body<'a>(tree: &'a Tree, kind: &str, name: &str) -> Option<(&'a str, &'a str)> {
    let head = format!("pub {kind} {name} {{\n");
    let mut found = tree.files().filter_map(|(path, text)| {
        let ours = path.starts_with("crates/") && path.ends_with(".rs");
        let (before, after) = ours.then(|| text.split_once(&head))??;
        let attributes = before.rsplit("\n\n").next().unwrap_or(before);
        Some((after.split("\n}\n").next().unwrap_or(after), attributes))
    });
    found.find(|(_, attributes)| {
        attributes.contains("#[serde(") || attributes.contains("Deserialize")
    })
}

fn keys(tree: &Tree, body: &str) -> Vec<Key> {
    let mut keys = Vec::new();
    let (mut docs, mut renamed) = (Vec::new(), None);
    for line in body.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("/// ") {
            docs.push(doc);
        } else if let Some(name) = line.strip_prefix("#[serde(rename = \"") {
            renamed = name.split('"').next();
        } else if let Some((name, of)) = line
            .strip_prefix("pub ")
            .and_then(|field| field.strip_suffix(',')?.split_once(": "))
        {
            let docs = std::mem::take(&mut docs)
                .join(" ")
                .replace("[`", "`")
                .replace("`]", "`");
            let (meaning, default) = match docs.split_once("Default: ") {
                Some((meaning, default)) => (meaning, default.trim_end_matches('.')),
                None => (docs.as_str(), ""),
            };
            keys.push(Key {
                name: renamed.take().unwrap_or(name).to_owned(),
                values: values(tree, of),
                default: default.to_owned(),
                meaning: match meaning.trim() {
                    "" => of_type(tree, of),
                    meaning => meaning.to_owned(),
                },
            });
        }
    }
    keys
}

/// What a type says of itself, of a key that says nothing more.
fn of_type(tree: &Tree, of: &str) -> String {
    let docs = body(tree, "enum", of)
        .and_then(|(_, attributes)| attributes.trim_start().strip_prefix("/// ")?.lines().next());
    docs.unwrap_or_default().to_owned()
}

/// What a type takes, in words.
fn values(tree: &Tree, of: &str) -> String {
    let inner = |prefix: &str| of.strip_prefix(prefix)?.strip_suffix('>');
    if let Some(of) = inner("Option<") {
        return values(tree, of);
    }
    if let Some(of) = inner("Vec<") {
        return match values(tree, of).as_str() {
            "table" => "tables".into(),
            other => format!("list of {}", plural(other)),
        };
    }
    if let Some((of, count)) = of
        .strip_prefix('[')
        .and_then(|list| list.strip_suffix(']')?.split_once("; "))
    {
        return format!("{count} {}", plural(&values(tree, of)));
    }
    match of {
        "bool" => "`true`, `false`".into(),
        "f32" | "f64" => "number".into(),
        "u8" | "u32" | "u64" | "usize" | "i64" => "whole number".into(),
        "PathBuf" => "path".into(),
        "String" => "text".into(),
        "Band" => "name or number".into(),
        "IgnoreFrom" => "text".into(),
        "Offset" => "number or `\"auto\"`".into(),
        "Ranks" => "`\"auto\"` or whole number".into(),
        "Resume" => "`\"auto\"`, `\"none\"` or path".into(),
        "Stage" => "0, 1, 2, 3".into(),
        "RecomputeChoice" => format!("{} or table", values(tree, "Recompute")),
        other => words(tree, other).unwrap_or_else(|| "table".into()),
    }
}

/// The same for more than one.
fn plural(of: &str) -> &str {
    match of {
        "number" => "numbers",
        "whole number" => "whole numbers",
        "name or number" => "names or numbers",
        other => other,
    }
}

/// The words of an enum that is written as one of them.
fn words(tree: &Tree, name: &str) -> Option<String> {
    let (body, attributes) = body(tree, "enum", name)?;
    let (_, rest) = attributes.split_once("rename_all = \"")?;
    let case = rest.split('"').next()?;
    // Each variant with the fields that it has names for.
    let mut variants: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in body.lines().map(str::trim) {
        if line.starts_with(|first: char| first.is_ascii_uppercase()) {
            variants.push((line.trim_end_matches(','), Vec::new()));
        } else if let Some((name, _)) = line.split_once(": ")
            && !line.starts_with(['/', '#'])
            && let Some((_, fields)) = variants.last_mut()
        {
            fields.push(name);
        }
    }
    let words = variants.into_iter().map(|(name, fields)| {
        // One with a value is a table, one with fields is a table of a table.
        let value = match fields.as_slice() {
            [] => name.contains('(').then(|| "…".to_owned()),
            fields => Some(format!("{{ {} = … }}", fields.join(" = …, "))),
        };
        let name = name.split(['(', ' ']).next().unwrap_or(name);
        let mut word = String::new();
        for letter in name.chars() {
            if case == "snake_case" && letter.is_ascii_uppercase() && !word.is_empty() {
                word.push('_');
            }
            word.push(letter.to_ascii_lowercase());
        }
        match value {
            Some(value) => format!("`{{ {word} = {value} }}`"),
            None => format!("`\"{word}\"`"),
        }
    });
    Some(words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "    let nested = [\n        (\"train\", fields::<TrainSection>()),\n        (\"data.scenes\", fields::<SceneEntry>()),\n    ];\n";
    const STRUCTS: &str = r#"
/// A section.
#[serde(default)]
pub struct TrainSection {
    /// Optimizer steps. Default: 1000, unless
    /// `epochs` is given.
    pub steps: Option<u64>,
    /// Default: `sync`.
    #[serde(rename = "async")]
    pub mode: Mode,
    /// Decays, see [`Mode`].
    pub betas: Option<[f64; 2]>,
}

/// A mode.
#[derive(Debug)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One.
    SyncAll,
    /// Two.
    AtMost(u32),
    /// Three.
    Between {
        /// From.
        least: u32,
        /// To.
        most: u32,
    },
}

#[derive(Deserialize)]
pub struct SceneEntry {
    /// The image.
    pub image: PathBuf,
}
"#;

    #[test]
    fn keys_are_read_from_the_structs() {
        let tree = Tree::from([
            (SECTIONS, KEYS),
            ("crates/terrashard-trainer/src/config/train.rs", STRUCTS),
        ]);
        let page = page(&tree);
        let (_, tables) = page.split_once("\n## ").unwrap();
        let head = "| key | values | default | meaning |\n|---|---|---|---|\n";
        assert_eq!(
            tables,
            format!(
                "`[train]`\n\n{head}\
                 | `steps` | whole number | 1000, unless `epochs` is given | Optimizer steps. |\n\
                 | `async` | `\"sync_all\"`, `{{ at_most = … }}`, `{{ between = {{ least = …, most = … }} }}` | `sync` | A mode. |\n\
                 | `betas` | 2 numbers |  | Decays, see `Mode`. |\n\
                 \n## `[data.scenes]`\n\n{head}| `image` | path |  | The image. |\n"
            )
        );
    }
}
