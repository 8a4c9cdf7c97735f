//! `cargo xtask reference`: the parts of the documentation that are made of the sources.

mod errors;
mod keys;

use std::fs;

use crate::error::{Error, Result};
use crate::tidy::{Finding, Tree};
use crate::workspace::root;

/// Path and text of every file that is made.
fn files(tree: &Tree) -> Vec<(&'static str, String)> {
    let errors = errors::table(tree);
    vec![
        (
            "crates/terrashard-trainer/src/explanation/codes.txt",
            errors::codes(&errors),
        ),
        ("docs/src/errors.md", errors::page(&errors)),
        ("docs/src/configuration.md", keys::page(tree)),
    ]
}

pub(crate) fn run() -> Result<()> {
    let root = root();
    for (path, text) in files(&Tree::of_git(&root)?) {
        let path = root.join(path);
        if fs::read_to_string(&path).ok().as_deref() == Some(text.as_str()) {
            continue;
        }
        fs::write(&path, text).map_err(|source| Error::file(&path, source))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// What is made of the sources is what would be made of them now.
pub(crate) fn up_to_date(tree: &Tree) -> Vec<Finding> {
    let stale = files(tree)
        .into_iter()
        .filter(|(path, text)| tree.text(path) != Some(text.as_str()));
    let finding = |path| {
        Finding::new(
            path,
            1,
            "does not follow from the sources: `cargo xtask reference` makes it anew",
        )
    };
    let unlike = errors::unlike(&errors::table(tree), tree).into_iter();
    let unlike = unlike.map(|message| Finding::new(errors::REMEDIES, 1, message));
    stale.map(|(path, _)| finding(path)).chain(unlike).collect()
}
