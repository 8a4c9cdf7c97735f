//! A record folder: `README.md` with the exact command and one table, `results.json` with the rows.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

/// What ran, for the head of a record.
#[derive(Clone, Debug)]
pub struct Circumstances {
    /// The command line that a reader repeats.
    pub command: String,
    /// The commit, with `+` if files differed from it.
    pub commit: String,
    /// Processor and threads.
    pub machine: String,
    /// The compiler's version.
    pub compiler: String,
    /// Versions of others that took part: `name: version`.
    pub others: Vec<String>,
}

impl Circumstances {
    /// Those of this process.
    pub fn of(command: String) -> Self {
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().ok()?;
            output
                .status
                .success()
                .then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
        };
        let unknown = || "unknown".to_string();
        let dirty = run("git", &["status", "--porcelain"]).is_some_and(|text| !text.is_empty());
        let commit = run("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(unknown);
        let processor = std::fs::read_to_string("/proc/cpuinfo")
            .ok()
            .and_then(|text| {
                let line = text.lines().find(|line| line.starts_with("model name"))?;
                Some(line.split_once(':')?.1.trim().to_string())
            });
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            command,
            commit: if dirty { commit + "+" } else { commit },
            machine: format!("{}, {threads} threads", processor.unwrap_or_else(unknown)),
            compiler: run("rustc", &["--version"]).unwrap_or_else(unknown),
            others: Vec::new(),
        }
    }
}

/// Why a record could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write {path}: {source}")]
pub struct Error {
    /// The file or folder.
    pub path: PathBuf,
    /// What the system reports.
    #[source]
    pub source: std::io::Error,
}

/// Writes the folder `dir` with `rows` and a table whose first line names the columns.
///
/// # Errors
/// [`Error`] with the path that cannot be written.
pub fn write<R: Serialize>(
    dir: &Path,
    title: &str,
    circumstances: &Circumstances,
    table: &[Vec<String>],
    rows: &[R],
) -> Result<(), Error> {
    let fail = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error { path, source }
    };
    std::fs::create_dir_all(dir).map_err(fail(dir))?;
    let Circumstances {
        command,
        commit,
        machine,
        compiler,
        others,
    } = circumstances;
    let mut text = format!(
        "# {title}\n\n```sh\n{command}\n```\n\n- commit: {commit}\n- machine: {machine}\n- compiler: {compiler}\n"
    );
    for other in others {
        let _ = writeln!(text, "- {other}");
    }
    text.push('\n');
    for (index, row) in table.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
    let readme = dir.join("README.md");
    std::fs::write(&readme, text).map_err(fail(&readme))?;
    let results = dir.join("results.json");
    let json = serde_json::to_vec_pretty(rows)
        .map_err(std::io::Error::from)
        .map_err(fail(&results))?;
    std::fs::write(&results, json).map_err(fail(&results))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_holds_command_table_and_rows() {
        let dir = std::env::temp_dir().join(format!("terrashard-record-{}", std::process::id()));
        let circumstances = Circumstances {
            command: "cargo xtask bench model".into(),
            commit: "abc".into(),
            machine: "m".into(),
            compiler: "c".into(),
            others: vec!["pytorch: 2".into()],
        };
        let table = [
            vec!["px".to_string(), "ms".into()],
            vec!["64".into(), "1.5".into()],
        ];
        write(
            &dir,
            "Title",
            &circumstances,
            &table,
            &[serde_json::json!({"px": 64})],
        )
        .expect("writable");
        let readme = std::fs::read_to_string(dir.join("README.md")).expect("written");
        assert!(readme.contains("cargo xtask bench model\n"), "{readme}");
        assert!(
            readme.contains("- compiler: c\n- pytorch: 2\n\n"),
            "{readme}"
        );
        assert!(
            readme.ends_with("| px | ms |\n|---|---|\n| 64 | 1.5 |\n"),
            "{readme}"
        );
        let rows = std::fs::read_to_string(dir.join("results.json")).expect("written");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&rows).expect("JSON")[0]["px"],
            64
        );
        std::fs::remove_dir_all(&dir).expect("removable");
    }
}
