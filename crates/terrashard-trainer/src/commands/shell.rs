//! `completions`, `man` and `explain`.

use std::fs;

use clap::CommandFactory;
use serde_json::json;

use crate::arguments::{Arguments, CompletionsArguments, ExplainArguments, ManArguments};
use crate::console::print;
use crate::error::{Error, Result};
use crate::explanation::{self, Explanation};
use crate::run_directory::replace;

pub(super) fn completions(arguments: &CompletionsArguments) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut Arguments::command(),
        "terrashard",
        &mut text,
    );
    print(&String::from_utf8_lossy(&text))
}

pub(super) fn man(arguments: &ManArguments) -> Result<()> {
    let mut whole = Arguments::command();
    whole.build();
    let Some(dir) = &arguments.dir else {
        return print(&page(whole)?);
    };
    fs::create_dir_all(dir).map_err(Error::write(dir))?;
    for command in with_subcommands(whole) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let path = dir.join(format!("{name}.1"));
        replace(&path, page(command)?.as_bytes())?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

/// A command and all below it, without `help`, which every command has as a flag.
fn with_subcommands(command: clap::Command) -> Vec<clap::Command> {
    let below = command
        .get_subcommands()
        .filter(|below| below.get_name() != "help");
    let below: Vec<_> = below.cloned().flat_map(with_subcommands).collect();
    [vec![command], below].concat()
}

fn page(command: clap::Command) -> Result<String> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(Error::write("a page of the manual"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

pub(super) fn explain(arguments: &ExplainArguments) -> Result<()> {
    let found: Vec<Explanation> = match &arguments.code {
        Some(code) => vec![explanation::of(code)?],
        None => explanation::all().collect(),
    };
    let entry = |found: &Explanation| json!({"code": found.code, "cause": found.cause, "message": found.message, "remedy": found.remedy});
    print(&match (arguments.json, &arguments.code) {
        (true, Some(_)) => super::document(&entry(&found[0])),
        (true, None) => super::document(&found.iter().map(entry).collect::<Vec<_>>()),
        (false, Some(_)) => found[0].to_string(),
        (false, None) => {
            let line = |found: &Explanation| format!("{:<32} {}\n", found.code, found.cause);
            found.iter().map(line).collect()
        }
    })
}
