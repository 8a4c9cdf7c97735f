//! The errors of all crates, read from the source of their enums.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::tidy::Tree;

/// One variant.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    /// `raster::Truncated`.
    code: String,
    /// Its documentation.
    cause: String,
    /// Its message, with the names of what is filled in.
    message: String,
    /// What to do, of [`REMEDIES`].
    remedy: String,
}

/// By code, what a user of the program is to do: crates do not know of its keys and commands.
pub(super) const REMEDIES: &str = "crates/terrashard-trainer/src/explanation/remedies.txt";

/// Variants that carry another error, whose code is told instead.
const PASSED_ON: &[&str] = &[
    "trainer::Rank",
    "trainer::Save",
    "trainer::Import",
    "zero::Layout",
    "zero::Collective",
];

/// Those of all crates and the one without a variant, sorted by code.
pub(super) fn table(tree: &Tree) -> Vec<Entry> {
    let mut entries = vec![Entry {
        code: "usage".into(),
        cause: "A command, an argument or a flag is not one of the program's.".into(),
        message: "{what is wrong}; see `terrashard help {command}`".into(),
        remedy: String::new(),
    }];
    for name in tree.crates() {
        let path = format!("crates/{name}/src/error.rs");
        if let Some(text) = tree.text(&path) {
            let short = name.strip_prefix("terrashard-").unwrap_or(name);
            entries.extend(variants(short, text));
        }
    }
    entries.retain(|entry| !PASSED_ON.contains(&entry.code.as_str()));
    entries.sort_by(|a, b| a.code.cmp(&b.code));
    let remedies: BTreeMap<&str, &str> = remedies(tree).collect();
    for entry in &mut entries {
        let remedy = remedies.get(entry.code.as_str());
        entry.remedy = remedy.copied().unwrap_or_default().into();
    }
    entries
}

fn remedies(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let lines = tree.text(REMEDIES).unwrap_or_default().lines();
    lines.filter_map(|line| line.split_once('\t'))
}

/// What is wrong with the remedies: each code has one, and each is one of a code.
pub(super) fn unlike(entries: &[Entry], tree: &Tree) -> Vec<String> {
    let without = entries.iter().filter(|entry| entry.remedy.is_empty());
    let without = without.map(|entry| format!("no remedy for `{}`", entry.code));
    let known = |code: &str| entries.iter().any(|entry| entry.code == code);
    let stale = remedies(tree).filter(|(code, _)| !known(code));
    let stale = stale.map(|(code, _)| format!("a remedy for `{code}`, which is no code"));
    without.chain(stale).collect()
}

/// What the program reads: a line of code, cause, message and remedy for each.
pub(super) fn codes(entries: &[Entry]) -> String {
    entries.iter().fold(String::new(), |mut text, entry| {
        let Entry {
            code,
            cause,
            message,
            remedy,
        } = entry;
        let _ = writeln!(text, "{code}\t{cause}\t{message}\t{remedy}");
        text
    })
}

/// The page of the book.
pub(super) fn page(entries: &[Entry]) -> String {
    let mut text = String::from(
        "# Errors\n\n<!-- Made by `cargo xtask reference` from the sources. -->\n\n\
         An error is one line on standard error: what failed, what to do, and a code in brackets that is the same in every version.\n\
         `terrashard explain CODE` tells what stands here. The exit code is 2 for wrong use and bad input, 1 for a failure while working.\n",
    );
    let mut section = "";
    for Entry {
        code,
        cause,
        message,
        remedy,
    } in entries
    {
        let of = code.split_once("::").map_or("usage", |(of, _)| of);
        if of != section {
            let _ = write!(
                text,
                "\n## {of}\n\n| code | cause, message and remedy |\n|---|---|\n"
            );
            section = of;
        }
        let escape = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
        let _ = writeln!(
            text,
            "| `{code}` | {}<br>*{}*<br>{} |",
            escape(cause),
            escape(message),
            escape(remedy)
        );
    }
    text
}

/// The variants of the enum `Error` in a source file. One without a message of its own has none here either.
fn variants(short: &str, text: &str) -> Vec<Entry> {
    let Some((_, body)) = text.split_once("pub enum Error {") else {
        return Vec::new();
    };
    let body = body.split("\n}\n").next().unwrap_or(body);
    let mut entries = Vec::new();
    let (mut docs, mut attribute) = (Vec::new(), String::new());
    // Variants are indented by one step; what belongs to their fields by more.
    for line in body.lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("/// ").filter(|_| depth == 4) {
            docs.push(doc);
        } else if depth == 4 && line.starts_with("#[error(")
            || !attribute.is_empty() && !attribute.ends_with(")]")
        {
            attribute.push_str(line);
            attribute.push('\n');
            if line.ends_with(")]") {
                attribute.truncate(attribute.trim_end().len());
            }
        } else if depth == 4 && line.starts_with(|first: char| first.is_ascii_uppercase()) {
            let name = line
                .split(|letter: char| !letter.is_alphanumeric())
                .next()
                .unwrap_or(line);
            if let Some(message) = message(&attribute) {
                entries.push(Entry {
                    code: format!("{short}::{name}"),
                    cause: plain(&docs.join(" ")),
                    message,
                    remedy: String::new(),
                });
            }
            docs.clear();
            attribute.clear();
        }
    }
    entries
}

/// Links of the documentation as plain text.
fn plain(docs: &str) -> String {
    docs.replace("[`", "`").replace("`]", "`")
}

/// The message of an attribute `#[error(...)]`, with names for what is filled in; none of a transparent one.
fn message(attribute: &str) -> Option<String> {
    let (_, rest) = attribute.split_once('"')?;
    let mut literal = String::new();
    let mut letters = rest.char_indices();
    let mut end = rest.len();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => {
                end = index + 1;
                break;
            }
            '\\' => match letters.next() {
                // A line that goes on: what indents the next one does not count.
                Some((_, '\n')) => {
                    let spaces = rest[index + 2..].len() - rest[index + 2..].trim_start().len();
                    for _ in 0..spaces {
                        letters.next();
                    }
                }
                Some((_, escaped)) => literal.push(escaped),
                None => {}
            },
            other => literal.push(other),
        }
    }
    let mut arguments = arguments(rest[end..].trim_start_matches(',').trim_end_matches(")]"));
    let mut filled = String::new();
    let mut rest = literal.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (inside, after) = after.split_once('}')?;
        let name = inside.split(':').next().unwrap_or(inside);
        match name {
            "" if arguments.is_empty() => filled.push_str("{…}"),
            "" => filled.push_str(&format!("{{{}}}", arguments.remove(0))),
            "0" => filled.push_str("{reason}"),
            name => filled.push_str(&format!("{{{name}}}")),
        }
        rest = after;
    }
    filled.push_str(rest);
    Some(filled.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A name for each argument: the first field that it is made of.
fn arguments(text: &str) -> Vec<String> {
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for letter in text.chars() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is one").push(letter);
    }
    let name = |part: &String| {
        let words = part.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let functions = ["counted", "crate", "record", "if", "match"];
        let mut words =
            words.filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()));
        words
            .find(|word| !functions.contains(word) && !part.contains(&format!("{word}(")))
            .unwrap_or("…")
            .to_owned()
    };
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
/// Why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be
    /// read, see [`Error::Other`].
    #[error("failed to read {}: {source}; check {kind:?}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
    },
    /// Passed on.
    #[error(transparent)]
    Inner(#[from] inner::Error),
    /// Long.
    #[error(
        "{} of {checked} are \"bad\", \
         the first is {0}",
        counted(*damaged, "file")
    )]
    Long,
}

impl Error {}
"#;

    #[test]
    fn variants_are_read_with_their_messages() {
        let entry = |code: &str, cause: &str, message: &str| Entry {
            code: code.into(),
            cause: cause.into(),
            message: message.into(),
            remedy: String::new(),
        };
        assert_eq!(
            variants("a", SOURCE),
            [
                entry(
                    "a::Read",
                    "A file cannot be read, see `Error::Other`.",
                    "failed to read {path}: {source}; check {kind}"
                ),
                entry(
                    "a::Long",
                    "Long.",
                    "{damaged} of {checked} are \"bad\", the first is {reason}"
                ),
            ]
        );
    }

    #[test]
    fn the_page_has_a_table_for_each_crate() {
        let remedies = "a::Long\tDo | that.\na::Gone\tNothing.\n";
        let tree = Tree::from([
            ("crates/terrashard-a/src/error.rs", SOURCE),
            (REMEDIES, remedies),
        ]);
        let entries = table(&tree);
        assert_eq!(
            unlike(&entries, &tree),
            [
                "no remedy for `a::Read`",
                "no remedy for `usage`",
                "a remedy for `a::Gone`, which is no code"
            ]
        );
        assert_eq!(codes(&entries).lines().count(), 3);
        let page = page(&entries);
        assert!(
            page.contains(
                "\n## a\n\n| code | cause, message and remedy |\n|---|---|\n| `a::Long` | Long.<br>*"
            ),
            "{page}"
        );
        assert!(
            page.contains("the first is {reason}*<br>Do \\| that. |\n"),
            "{page}"
        );
        assert!(page.contains("\n## usage\n"), "{page}");
    }
}
