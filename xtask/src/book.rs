//! `cargo xtask book`: the pages of `docs/` as a site, by mdBook.

use crate::error::{Error, Result};
use crate::step::Step;
use crate::workspace::root;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Open it in a browser.
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let version = Step::new("mdbook", "mdbook").arg("--version");
    if version.capture().is_err() {
        return Err(Error::Usage {
            message: "there is no mdbook: `cargo install mdbook --locked` builds it; the pages in docs/src read well without".into(),
        });
    }
    let build = Step::new("book", "mdbook").args(["build", "docs"]);
    let build = match args.open {
        true => build.arg("--open"),
        false => build,
    };
    build.dir(root()).run()?;
    println!("target/book/index.html");
    Ok(())
}
