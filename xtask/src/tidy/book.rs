//! The book in `docs/`: its table of contents and its pages are the same.

use super::Finding;
use super::tree::Tree;

const PAGES: &str = "docs/src/";
const SUMMARY: &str = "docs/src/SUMMARY.md";

/// Every page stands in `SUMMARY.md` once. That links lead to files is a rule for all documents.
pub(super) fn summary(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.text(SUMMARY) else {
        return match tree.has_path("docs/src") {
            true => vec![Finding::new(
                SUMMARY,
                1,
                "does not exist: the table of contents of the book",
            )],
            false => Vec::new(),
        };
    };
    let pages = tree.files().map(|(path, _)| path);
    let pages = pages.filter_map(|path| {
        path.strip_prefix(PAGES)
            .filter(|page| page.ends_with(".md") && *page != "SUMMARY.md")
    });
    let finding = |page: &str| {
        let message = match summary.matches(&format!("]({page})")).count() {
            1 => return None,
            0 => "is not in SUMMARY.md, so the book lacks it".to_owned(),
            count => format!("is in SUMMARY.md {count} times"),
        };
        Some(Finding::new(&format!("{PAGES}{page}"), 1, message))
    };
    pages.filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_contents_match() {
        let tree = Tree::from([
            (
                SUMMARY,
                "# Summary\n\n[A](a.md)\n- [B](b/c.md)\n- [A](a.md)\n",
            ),
            ("docs/src/a.md", ""),
            ("docs/src/b/c.md", ""),
            ("docs/src/b/d.md", ""),
            ("docs/src/x.svg", ""),
        ]);
        let messages: Vec<_> = summary(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "docs/src/a.md:1: is in SUMMARY.md 2 times",
                "docs/src/b/d.md:1: is not in SUMMARY.md, so the book lacks it"
            ]
        );
        assert_eq!(summary(&Tree::from([("docs/src/a.md", "")])).len(), 1);
        assert_eq!(summary(&Tree::from([("README.md", "")])), []);
    }
}
