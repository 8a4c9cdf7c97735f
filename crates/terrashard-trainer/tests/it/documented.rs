//! Commands that the documents show: those in blocks marked `sh run` are run as they stand, of all others the command line is
//! parsed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use clap::error::ErrorKind;
use terrashard_trainer::arguments::{self, Arguments};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown files of the book and the READMEs.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut folders = vec![root.join("docs/src")];
    let mut found = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    found.extend(
        fs::read_dir(root.join("crates"))
            .unwrap()
            .map(|entry| entry.unwrap().path().join("README.md"))
            .filter(|path| path.is_file()),
    );
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "md") => {
                    found.push(path)
                }
                false => {}
            }
        }
    }
    found.sort();
    found
}

/// The fenced blocks of a document: what stands behind the fence, and the lines, each with those that it goes on in.
fn blocks(text: &str) -> Vec<(String, Vec<String>)> {
    let (mut blocks, mut open) = (Vec::new(), None::<(String, String)>);
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info.trim().to_owned(), String::new())),
            (Some((_, lines)), None) => {
                lines.push_str(line);
                lines.push('\n');
            }
            (Some(_), Some(_)) => {
                let (info, lines) = open.take().unwrap();
                let lines = lines.replace("\\\n", " ");
                blocks.push((info, lines.lines().map(str::to_owned).collect()));
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// The words of a line that calls the program, without comments and what its output goes through.
fn call(line: &str) -> Option<Vec<String>> {
    let line = line.trim().trim_start_matches("$ ");
    let at = line
        .find("terrashard ")
        .filter(|&at| at == 0 || line[..at].ends_with(' '))?;
    // Before it there may be a launcher.
    let launchers = ["srun", "torchrun"];
    if at > 0 && !launchers.iter().any(|launcher| line.starts_with(launcher)) {
        return None;
    }
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in line[at..].chars() {
        match (quote, letter) {
            (Some(end), letter) if letter == end => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#' | '|' | '>' | '&' | ';') if word.is_empty() => break,
            (None, ' ') if word.is_empty() => {}
            (None, ' ') => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    // A line that tells of other flags in words.
    (!words.contains(&"…".to_owned())).then_some(words)
}

#[test]
fn words_of_a_call() {
    let check = |line: &str, expected: Option<&[&str]>| {
        let found = call(line);
        let found = found
            .as_ref()
            .map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.as_deref(), expected, "{line}");
    };
    check(
        "terrashard fit a.toml --set 'x = 1'   # why",
        Some(&["terrashard", "fit", "a.toml", "--set", "x = 1"]),
    );
    check(
        "srun terrashard fit \"$A/b\"",
        Some(&["terrashard", "fit", "$A/b"]),
    );
    check(
        "terrashard info a.tif | head -1",
        Some(&["terrashard", "info", "a.tif"]),
    );
    check("cargo install --path crates/terrashard-trainer", None);
    check("echo terrashard fit", None);
}

/// Every command line that a document shows is one that the program takes.
#[test]
fn documented_commands_are_parsed() {
    let mut count = 0;
    for path in documents() {
        for (info, lines) in blocks(&fs::read_to_string(&path).unwrap()) {
            if !["sh", "bash", "text"]
                .iter()
                .any(|shell| info.split(' ').next() == Some(shell))
            {
                continue;
            }
            for mut words in lines.iter().filter_map(|line| call(line)) {
                loop {
                    count += 1;
                    if let Err(error) = Arguments::try_parse_from(&words) {
                        let asked = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
                        assert!(
                            asked.contains(&error.kind()),
                            "{}: {}: {:?}",
                            path.display(),
                            words.join(" "),
                            arguments::usage_error(&error, None)
                        );
                    }
                    // What `launch` starts is a command, too.
                    let Some(at) = words.iter().position(|word| word == "--") else {
                        break;
                    };
                    words.splice(1..=at, []);
                }
            }
        }
    }
    assert!(count > 60, "only {count} commands were found");
}

/// The folder of a package of the workspace.
fn folder_of(package: &str) -> PathBuf {
    let inner = root().join("crates").join(package);
    match inner.is_dir() {
        true => inner,
        false => root().join(package.trim_start_matches("terrashard-")),
    }
}

/// Packages, examples, tests and features that a `cargo` line names are there.
#[test]
fn documented_cargo_commands_name_what_is_there() {
    let mut count = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let blocks = blocks(&text).into_iter();
        let shells = blocks.filter(|(info, _)| info.starts_with("sh") || info.starts_with("bash"));
        for line in shells.flat_map(|(_, lines)| lines) {
            let words: Vec<&str> = line.split(" #").next().unwrap().split(' ').collect();
            let value = |flag: &str| {
                let at = words.iter().position(|word| *word == flag)?;
                words.get(at + 1).copied()
            };
            let is_ours = words[0] == "cargo" && ["run", "test", "install"].contains(&words[1]);
            let folder = match (value("-p"), value("--path")) {
                (Some(package), _) if is_ours => folder_of(package),
                (None, Some(path)) if is_ours => root().join(path),
                _ => continue,
            };
            count += 1;
            let there = |what: &str, file: PathBuf| {
                assert!(file.exists(), "{}: {line}: no {what}", path.display());
            };
            there("package", folder.join("Cargo.toml"));
            if let Some(example) = value("--example") {
                there("example", folder.join(format!("examples/{example}.rs")));
            }
            if let Some(test) = value("--test") {
                there("test", folder.join(format!("tests/{test}.rs")));
            }
            if let Some(feature) = value("--features") {
                let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
                assert!(manifest.contains(&format!("\n{feature} = ")), "{line}");
            }
        }
    }
    assert!(count > 5, "only {count} commands were found");
}

/// The configuration of the documents with a model that is trained in a moment.
fn small(folder: &Path) {
    let (from, to) = (root().join("examples"), folder.join("examples"));
    fs::create_dir_all(to.join("water")).unwrap();
    for entry in fs::read_dir(from.join("water")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join("water").join(entry.file_name())).unwrap();
    }
    let text = fs::read_to_string(from.join("water.toml")).unwrap();
    let mut config: toml::Table = text.parse().unwrap();
    let small: toml::Table =
        "model = { dims = [8, 8, 16, 16], heads = [1, 1, 2, 2], head_channels = 8 }\n\
        data = { train = { pixels = [0, 0, 128, 128] } }\n\
        train = { steps = 4, warmup_steps = 0, global_batch = 8 }\n\
        checkpoint = { every = 2 }"
            .parse()
            .unwrap();
    for (section, keys) in small {
        let section = config[&section].as_table_mut().unwrap();
        section.extend(keys.as_table().unwrap().clone());
    }
    fs::write(to.join("water.toml"), config.to_string()).unwrap();
}

/// Each page's commands are run in order in a folder of its own, by a shell, as a reader would.
#[test]
fn geo_04_documented_commands_run() {
    let program = Path::new(env!("CARGO_BIN_EXE_terrashard"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut count = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let blocks = blocks(&text)
            .into_iter()
            .filter(|(info, _)| info == "sh run");
        let lines: Vec<String> = blocks.flat_map(|(_, lines)| lines).collect();
        if lines.is_empty() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        small(folder.path());
        for line in lines.iter().filter(|line| !line.trim().is_empty()) {
            let output = Command::new("sh")
                .args(["-c", line])
                .env("PATH", &path)
                .current_dir(folder.path())
                .output()
                .unwrap();
            // What the machine of the tests lacks is no fault of the document.
            let allowed: &[i32] = if line.starts_with("terrashard doctor") {
                &[0, 1]
            } else {
                &[0]
            };
            assert!(
                output
                    .status
                    .code()
                    .is_some_and(|code| allowed.contains(&code)),
                "{}: {line}: {}",
                document.display(),
                String::from_utf8_lossy(&output.stderr)
            );
            count += 1;
        }
    }
    assert!(count > 35, "only {count} commands were run");
}
