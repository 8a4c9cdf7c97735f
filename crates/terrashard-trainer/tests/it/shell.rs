//! What helps in the use of the program: completions, pages of the manual, codes of errors.

use std::fs;
use std::process::Command;

use crate::scenario::Scenario;

/// The commands that `--help` lists.
const COMMANDS: [&str; 19] = [
    "fit",
    "launch",
    "test",
    "predict",
    "plan",
    "doctor",
    "verify",
    "export",
    "ckpt",
    "import",
    "align",
    "check",
    "chip",
    "stats",
    "info",
    "report",
    "explain",
    "completions",
    "man",
];

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_terrashard"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn completions_know_every_command_and_flag() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, text, error) = run(&["completions", shell]);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{shell}");
        for command in COMMANDS {
            assert!(text.contains(command), "{shell} lacks {command}");
        }
        for flag in ["stop-after", "allow-partial", "keep-last"] {
            assert!(text.contains(flag), "{shell} lacks --{flag}");
        }
    }
    let (code, _, error) = run(&["completions", "tcsh"]);
    assert_eq!(code, Some(2));
    assert!(
        error.starts_with("error: invalid value 'tcsh'") && error.ends_with(" [usage]\n"),
        "{error}"
    );
}

/// Bash itself completes with it.
#[test]
fn bash_completes_commands() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("terrashard.bash");
    fs::write(&script, run(&["completions", "bash"]).1).unwrap();
    let complete = "source \"$1\"; COMP_WORDS=(terrashard fit --stop); COMP_CWORD=2; _terrashard terrashard --stop fit; echo \"${COMPREPLY[@]}\"";
    let Ok(output) = Command::new("bash")
        .args(["-c", complete, "bash"])
        .arg(&script)
        .output()
    else {
        eprintln!("left out: there is no bash here");
        return;
    };
    let (found, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(found.trim(), "--stop-after", "{error}");
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let (code, page, _) = run(&["man"]);
    assert_eq!(code, Some(0));
    assert!(
        page.contains(".TH terrashard 1") && page.contains("super\\-resolution"),
        "{page}"
    );
    let folder = tempfile::tempdir().unwrap();
    let (code, written, error) = run(&["man", folder.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{error}");
    let mut names: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected: Vec<String> = COMMANDS
        .map(|command| format!("terrashard-{command}.1"))
        .into();
    expected.extend(
        ["ls", "inspect", "diff", "verify", "gc"]
            .map(|command| format!("terrashard-ckpt-{command}.1")),
    );
    expected.push("terrashard.1".into());
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(written.lines().count(), expected.len());
    let fit = fs::read_to_string(folder.path().join("terrashard-fit.1")).unwrap();
    assert!(fit.contains("\\-\\-stop\\-after"), "{fit}");
}

#[test]
fn help_follows_the_conventions() {
    let (code, help, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for command in COMMANDS {
        let listed = help
            .lines()
            .any(|line| line.trim_start().starts_with(&format!("{command} ")));
        assert!(listed, "{command} is not listed in:\n{help}");
        let (code, of_command, error) = run(&[command, "--help"]);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{command}");
        assert!(of_command.contains("Usage: terrashard "), "{of_command}");
    }
    assert_eq!(
        run(&["--version"]).1,
        format!("terrashard {}\n", env!("CARGO_PKG_VERSION"))
    );
    // Without anything it is help, on standard error, and wrong use.
    let (code, out, error) = run(&[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(error.contains("Usage: terrashard <COMMAND>"), "{error}");
}

/// An error ends with its code, by which more is told.
#[test]
fn errors_have_codes_that_are_explained() {
    let check = |arguments: &[&str], code: &str| {
        let (exit, _, error) = run(arguments);
        assert_eq!(exit, Some(2), "{error}");
        assert!(
            error.starts_with("error: ") && error.ends_with(&format!(" [{code}]\n")),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
        let (exit, told, _) = run(&["explain", code]);
        assert_eq!(exit, Some(0));
        assert!(told.starts_with(&format!("{code}\n\n")), "{told}");
    };
    check(&["fit", "no.toml"], "trainer::Read");
    check(&["fit", "no.toml", "--rnaks", "2"], "usage");
    check(&["info", "no.tif"], "raster::NotFound");
    check(&["explain", "raster::Nothing"], "trainer::InvalidValue");
    let scenario = Scenario::new();
    let output = scenario.terrashard(&["fit", "run.toml", "--set", "zero.stages=1"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.ends_with(" [trainer::UnknownKey]\n"), "{error}");

    let (_, all, _) = run(&["explain", "--json"]);
    let all: Vec<serde_json::Value> = serde_json::from_str(&all).unwrap();
    assert!(
        all.len() > 100
            && all.iter().all(|entry| entry["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()))
    );
    assert_eq!(run(&["explain"]).1.lines().count(), all.len());
}

/// Curves for TensorBoard lie beside the JSON lines, unless they are switched off.
#[test]
fn event_files_lie_beside_the_metrics() {
    let scenario = Scenario::new();
    let events = |run: &str, set: &[&str]| {
        let output = scenario.terrashard(
            &[
                &[
                    "fit",
                    "run.toml",
                    "--run",
                    run,
                    "--quiet",
                    "--set",
                    "train.steps=2",
                ],
                set,
            ]
            .concat(),
        );
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let entries = fs::read_dir(scenario.path(run))
            .unwrap()
            .map(|entry| entry.unwrap());
        let files = entries.filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("events.out.tfevents.")
        });
        files
            .map(|entry| fs::read(entry.path()).unwrap())
            .collect::<Vec<_>>()
    };
    let files = events("with", &[]);
    assert_eq!(files.len(), 1);
    let count = |part: &[u8]| {
        files[0]
            .windows(part.len())
            .filter(|window| *window == part)
            .count()
    };
    assert_eq!(
        (
            count(b"brain.Event:2"),
            count(b"train/loss"),
            count(b"speed/images_s")
        ),
        (1, 2, 2)
    );
    assert_eq!(
        events("without", &["--set", "log.tensorboard=false"]).len(),
        0
    );
}
