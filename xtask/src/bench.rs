//! `cargo xtask bench`: benchmarks in the release profile.
//!
//! The compiled `xtask` runs them away from cargo as well: `xtask bench stages --bin PATH --no-build ...`.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::libtorch::LibTorch;
use crate::step::Step;
use crate::workspace::{Profile, build_binary, build_binary_with, root};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(clap::Subcommand)]
enum Suite {
    /// One model, forward and backward, without an optimizer.
    Model(Passed),
    /// AdamW in host memory, beside the bandwidth of the memory and beside PyTorch's.
    HostAdam(Passed),
    /// Saving and loading checkpoints beside `dd`, and the stall of an asynchronous save.
    Checkpoint(Passed),
    /// The cloud task with and without the super-resolution branch: what it costs and what it is good for.
    Branch(Passed),
    /// Reading windows and writing a Cloud Optimized GeoTIFF, beside rasterio.
    Raster(Passed),
    /// Training steps of whole models at each ZeRO stage, beside PyTorch's and DeepSpeed's.
    Stages(Passed),
}

#[derive(clap::Args)]
struct Passed {
    /// `--bin PATH` for a benchmark that is built already, `--no-build` beside it; all others are passed to the benchmark:
    /// `-- --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (suite, passed) = match &args.suite {
        Suite::Model(passed) => ("model", passed),
        Suite::HostAdam(passed) => ("host-adam", passed),
        Suite::Checkpoint(passed) => ("checkpoint", passed),
        Suite::Branch(passed) => ("branch", passed),
        Suite::Raster(passed) => ("raster", passed),
        Suite::Stages(passed) => ("stages", passed),
    };
    let call = Call::new(&passed.args)?;
    let step = match (call.bin, call.computes) {
        // What its libraries are, whoever calls it has said in the environment.
        (Some(bin), _) => Step::new("bench", bin),
        (None, Computes::Flex) => Step::new("bench", build_binary("bench", Profile::Release)?),
        (None, Computes::LibTorch) => {
            let libtorch = LibTorch::found()?;
            let binary = build_binary_with(&libtorch, "bench", Profile::Release)?;
            libtorch.surround(Step::new("bench", binary))
        }
    };
    step.arg(suite).dir(root()).args(call.args).run()
}

/// What is asked of us, and what of the benchmark.
#[derive(Debug, PartialEq)]
struct Call {
    bin: Option<PathBuf>,
    computes: Computes,
    args: Vec<String>,
}

/// What the benchmark has to be built with.
#[derive(Debug, PartialEq)]
enum Computes {
    Flex,
    LibTorch,
}

impl Call {
    fn new(given: &[String]) -> Result<Self> {
        let mut call = Self {
            bin: None,
            computes: Computes::Flex,
            args: Vec::new(),
        };
        let mut built = false;
        let mut given = given.iter();
        while let Some(arg) = given.next() {
            match arg.as_str() {
                "--bin" => call.bin = given.next().map(PathBuf::from),
                "--no-build" => built = true,
                _ => call.args.push(arg.clone()),
            }
        }
        if built && call.bin.is_none() {
            return Err(Error::Usage {
                message: "--no-build needs --bin PATH, which says what to use instead".into(),
            });
        }
        let libtorch = |pair: &[String]| match pair[0].as_str() {
            "--device" => pair[1] == "cuda",
            "--backend" => pair[1].split(',').any(|backend| backend == "tch"),
            _ => false,
        };
        if call.args.windows(2).any(libtorch) {
            call.computes = Computes::LibTorch;
        }
        // The benchmark runs in the root folder: a path given from elsewhere has to be made whole first.
        if let Some(bin) = &mut call.bin {
            *bin = std::path::absolute(&*bin).map_err(|source| Error::file(&*bin, source))?;
        }
        Ok(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Result<Call> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Call::new(&words)
    }

    #[test]
    fn what_is_ours_is_taken_out_and_the_rest_passed_on() {
        let built = call("--models b0 --bin /x/bench --no-build --device cuda").unwrap();
        assert_eq!(built.bin, Some("/x/bench".into()));
        assert_eq!(built.args, ["--models", "b0", "--device", "cuda"]);
        let message = call("--no-build").unwrap_err().to_string();
        assert!(message.contains("--bin"), "{message}");
    }

    #[test]
    fn libtorch_is_built_in_where_it_computes() {
        for (line, computes) in [
            ("--device cpu", Computes::Flex),
            ("--backend flex", Computes::Flex),
            ("--backend flex,tch", Computes::LibTorch),
            ("--px 64 --device cuda", Computes::LibTorch),
        ] {
            assert_eq!(call(line).unwrap().computes, computes, "{line}");
        }
    }
}
