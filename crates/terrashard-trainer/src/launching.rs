//! `launch`: the same command once for each GPU.

use std::env;
use std::process::Command;
use std::time::Duration;

use terrashard_collectives::bootstrap::{Launcher, Output};

use crate::error::{Error, Result};

/// What is started, and how.
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    /// Number of ranks; one for each GPU where `None`.
    pub ranks: Option<usize>,
    /// Whose output is shown.
    pub output: Output,
    /// How long the other ranks may take to end by themselves after one has failed.
    pub end_within: Duration,
    /// A command of this program, with its arguments.
    pub command: Vec<String>,
}

/// Starts the command once for each rank, and returns when all have ended.
///
/// # Errors
/// [`Error::NotSupported`] for ranks that cannot be processes, [`Error::InvalidValue`] if there are more ranks than GPUs,
/// [`Error::Collective`] for the rank that failed first.
pub fn launch(options: &LaunchOptions) -> Result<()> {
    let command = on_gpus(&options.command)?;
    let ranks = count(options.ranks, gpus()?)?;
    let program = env::current_exe().map_err(|source| Error::Read {
        path: "the program itself".into(),
        source,
    })?;
    let launcher = Launcher {
        ranks,
        output: options.output,
        end_within: options.end_within,
    };
    launcher.run(|_| {
        let mut child = Command::new(&program);
        child.args(&command);
        child
    })?;
    Ok(())
}

/// The command with its device, which is that of GPUs.
fn on_gpus(command: &[String]) -> Result<Vec<String>> {
    let mut words = command.iter();
    while let Some(word) = words.next() {
        let device = match word.strip_prefix("--device") {
            Some("") => words.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        match device {
            Some("cuda") => return Ok(command.to_vec()),
            Some(device) => {
                return Err(Error::NotSupported {
                    key: format!("launch with --device {device}"),
                    remedy: "ranks on the processor are threads of one process: use `--ranks N` without `launch`".into(),
                });
            }
            None => {}
        }
    }
    let mut command = command.to_vec();
    command.extend(["--device".to_owned(), "cuda".to_owned()]);
    Ok(command)
}

/// As many as are asked for, or as there are GPUs.
fn count(ranks: Option<usize>, gpus: usize) -> Result<usize> {
    match ranks {
        Some(0) => Err(Error::invalid("--ranks", 0, "at least 1")),
        Some(ranks) if ranks > gpus => Err(Error::invalid(
            "--ranks",
            ranks,
            format!("at most {gpus}, the GPUs that can be used: each rank needs one of its own"),
        )),
        None if gpus == 0 => Err(no_gpu("there is none, or CUDA_VISIBLE_DEVICES hides it")),
        ranks => Ok(ranks.unwrap_or(gpus)),
    }
}

fn no_gpu(why: &str) -> Error {
    Error::invalid("launch", "no GPU", format!("one at least: {why}"))
}

/// GPUs that this process may use.
#[cfg(feature = "nccl")]
fn gpus() -> Result<usize> {
    terrashard_collectives::nccl::gpus().map_err(|error| no_gpu(&error.to_string()))
}

/// None in a build for the processor.
#[cfg(not(feature = "nccl"))]
fn gpus() -> Result<usize> {
    Err(no_gpu("this program was built without the feature `nccl`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn commands_run_on_gpus() {
        let check = |line: &str, expected: &str| {
            assert_eq!(on_gpus(&words(line)).expect("it can be"), words(expected));
        };
        check("fit c.toml", "fit c.toml --device cuda");
        check("fit --device cuda c.toml", "fit --device cuda c.toml");
        check("fit --device=cuda c.toml", "fit --device=cuda c.toml");
        for line in ["fit c.toml --device cpu", "fit --device=cpu c.toml"] {
            let text = on_gpus(&words(line)).expect_err("no GPU").to_string();
            assert!(
                text.contains("--device cpu") && text.contains("--ranks N"),
                "{text}"
            );
        }
    }

    #[test]
    fn e1_each_rank_has_a_gpu() {
        assert_eq!(count(None, 4).expect("it can be"), 4);
        assert_eq!(count(Some(2), 4).expect("it can be"), 2);
        let text = count(Some(3), 2).expect_err("too many").to_string();
        assert!(
            text.contains("got 3") && text.contains("at most 2"),
            "{text}"
        );
        for (ranks, gpus) in [(Some(0), 2), (None, 0)] {
            count(ranks, gpus).expect_err("nothing to start");
        }
    }
}
