//! The files that the rules look at, with the text of those that are text.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::step::Step;

/// Path relative to the root, with `/`, to the file's text. Files of other kinds than [`TEXT`] have an empty one.
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

/// Extensions of the files that some rule reads.
const TEXT: &[&str] = &["rs", "toml", "md", "txt"];

/// Where a file counts before it is added to git, so that one hears of it before the commit. Elsewhere an untracked
/// file is somebody's own business.
const OURS: &[&str] = &[
    "crates", "xtask", "tests", "benches", "examples", "docs", ".cargo", ".ci",
];

impl Tree {
    /// All files that git tracks below `root`, and new ones in the workspace's own folders.
    pub(crate) fn of_git(root: &Path) -> Result<Self> {
        let git = |args: &[&str]| {
            Step::new("git", "git")
                .args(args)
                .dir(root.to_owned())
                .capture()
        };
        let tracked = git(&["ls-files", "-z", "--cached"])?;
        let mut new = vec!["ls-files", "-z", "--others", "--exclude-standard", "--"];
        new.extend(OURS);
        let new = git(&new)?;
        let mut files = BTreeMap::new();
        for path in tracked
            .split('\0')
            .chain(new.split('\0'))
            .filter(|path| !path.is_empty())
        {
            let full = root.join(path);
            // Deleted in the working tree, not yet in git.
            if !full.is_file() {
                continue;
            }
            let is_text = Path::new(path)
                .extension()
                .is_some_and(|ext| TEXT.iter().any(|text| ext == *text));
            let text = if is_text {
                fs::read_to_string(&full).map_err(|source| Error::file(&full, source))?
            } else {
                String::new()
            };
            files.insert(path.to_owned(), text);
        }
        Ok(Self { files })
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Whether it is a file or a folder.
    pub(super) fn has_path(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.contains(path)
            || self
                .files
                .range(folder.clone()..)
                .next()
                .is_some_and(|(file, _)| file.starts_with(&folder))
    }

    /// Path and text of every file, sorted by path.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Path and text of every Rust file.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Names of the folders in `crates/`.
    pub(crate) fn crates(&self) -> Vec<&str> {
        let folder = |path: &'_ str| {
            path.strip_prefix("crates/")
                .and_then(|rest| rest.split_once('/'))
                .map(|(name, _)| name.len())
        };
        let mut names: Vec<&str> = self
            .files
            .keys()
            .filter_map(|path| folder(path).map(|len| &path["crates/".len()..][..len]))
            .collect();
        names.dedup();
        names
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Tree {
    fn from(files: [(&str, &str); N]) -> Self {
        Self {
            files: files
                .into_iter()
                .map(|(path, text)| (path.to_owned(), text.to_owned()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_decides_what_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("README.md", "read me");
        write("crates/a/src/lib.rs", "//! A.");
        write("crates/a/data.bin", "bytes");
        write("crates/b/gone.rs", "");
        write("notes.txt", "somebody's own");
        write(".gitignore", "*.tmp\n");
        write("crates/a/x.tmp", "");
        let git = |args: &[&str]| {
            Step::new("git", "git")
                .args(args)
                .dir(dir.path().to_owned())
                .capture()
                .unwrap()
        };
        git(&["init", "-q"]);
        git(&["add", "README.md", "crates/b/gone.rs"]);
        fs::remove_file(dir.path().join("crates/b/gone.rs")).unwrap();

        let tree = Tree::of_git(dir.path()).unwrap();
        let seen: Vec<_> = tree.files().collect();
        assert_eq!(
            seen,
            [
                ("README.md", "read me"),
                ("crates/a/data.bin", ""),
                ("crates/a/src/lib.rs", "//! A.")
            ]
        );
    }

    #[test]
    fn crates_are_folders() {
        let tree = Tree::from([
            ("crates/a/x.rs", ""),
            ("crates/a/y.rs", ""),
            ("crates/b/z/w.rs", ""),
            ("crates/README.md", ""),
        ]);
        assert_eq!(tree.crates(), ["a", "b"]);
    }
}
