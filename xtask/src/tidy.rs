//! `cargo xtask tidy`: the rules on structure that the compiler does not know.
//!
//! Each finding is one line, `path:line: message`. What is exempt from a rule stands in a list beside the rule, with
//! its reason.

mod arrows;
mod book;
mod links;
mod packages;
mod packaging;
mod scenarios;
mod source;
mod sources;
mod top_level;
mod tree;

use std::fmt;

use crate::error::{Error, Result};
use crate::{reference, workspace};

pub(crate) use tree::Tree;

/// What one rule found at one place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    /// From 1.
    line: usize,
    message: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A rule: from all files to what is wrong with them.
type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: &[Rule] = &[
    top_level::entries,
    arrows::manifests,
    arrows::drawing,
    packages::folders,
    packages::crate_table,
    packaging::metadata,
    packaging::inside,
    links::relative,
    book::summary,
    scenarios::table,
    reference::up_to_date,
    sources::module_docs,
    sources::file_names,
    sources::length,
    sources::leftovers,
    sources::unsafe_code,
];

pub(crate) fn run() -> Result<()> {
    let tree = Tree::of_git(&workspace::root())?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!(
                "tidy: {} files, {} rules, nothing found",
                tree.len(),
                RULES.len()
            );
            Ok(())
        }
        count => Err(Error::Untidy { count }),
    }
}
