//! The command line of `terrashard`.

mod ckpt;
mod exchange;
mod launch;
mod prediction;
mod scenes;
mod shell;

pub use ckpt::{CkptArguments, CkptCommand, GcArguments};
pub use exchange::{DtypeFlag, ExportArguments, ImportArguments, OriginFlag};
pub use launch::{LaunchArguments, OutputFlag};
pub use prediction::PredictArguments;
pub use scenes::{AlignArguments, CheckArguments, ChipArguments, SplitFlag, StatsArguments};
pub use shell::{CompletionsArguments, ExplainArguments, ManArguments, Shell};

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use terrashard_raster::keep_credentials;

use crate::config::{Device, bytes};
use crate::doctor::DoctorArguments;
use crate::error::Result;

/// Trains, tests and runs Sentinel-2 super-resolution segmentation models on sharded model states.
#[derive(Debug, Parser)]
#[command(name = "terrashard", version, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train the model of a configuration, or go on where a run ended.
    Fit(FitArguments),
    /// Start a command once for each GPU, as the ranks of one run.
    Launch(LaunchArguments),
    /// Measure a checkpoint on the test region, beside a trivial baseline.
    #[command(mut_arg("ranks", |ranks| ranks.help(
        "Number of ranks, each a thread [default: the configuration's `zero.ranks`, where `auto` is one for each core]"
    )))]
    #[command(mut_arg("stage", |stage| stage.help(
        "ZeRO stage: at 3 each rank holds a shard of the weights, below all share one copy"
    )))]
    Test(TestArguments),
    /// Map whole scenes: GeoTIFFs of classes, probabilities or the super-resolved image for each input.
    Predict(PredictArguments),
    /// Tell what each ZeRO stage takes and sends on a rank and which to take; nothing is allocated and no scene is read.
    Plan(PlanArguments),
    /// Tell what this machine has for training and what is wrong with it, each problem with its remedy.
    Doctor(DoctorArguments),
    /// Compare the configuration's training with one rank at stage 0, step by step.
    Verify(VerifyArguments),
    /// Write a checkpoint's parameters as one safetensors file that describes itself.
    Export(ExportArguments),
    /// List, look into, compare, check and clear away a run's checkpoints.
    Ckpt(CkptArguments),
    /// Make a model file of a checkpoint of another project, to start a training from with `train.init`.
    Import(ImportArguments),
    /// Lay images at high resolution and labels onto the fine grid over an image, and measure how far they lie from it.
    Align(AlignArguments),
    /// List everything that is wrong with the files of a configuration, before it is trained.
    Check(CheckArguments),
    /// Cut scenes into chips with a split that shares no ground.
    Chip(ChipArguments),
    /// Tell mean, deviation, extremes and percentiles of bands, over all pixels and by part of the split.
    Stats(StatsArguments),
    /// Tell what a raster file holds.
    Info(InfoArguments),
    /// Write report.json and a self-contained report.html of a run.
    Report(ReportArguments),
    /// Explain an error by the code at its end, or list all codes.
    Explain(ExplainArguments),
    /// Print what a shell needs to complete commands and flags: `source <(terrashard completions bash)`.
    Completions(CompletionsArguments),
    /// Print the manual page, or write one of each command.
    Man(ManArguments),
}

/// Flags that change a configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigFlags {
    /// Number of ranks [default: the configuration's `zero.ranks`, where `auto` is 1 on the CPU]
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// ZeRO stage [default: the configuration's `zero.stage`]
    #[arg(long, value_name = "S")]
    pub stage: Option<u8>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub device: DeviceFlags,
    /// Set a key of the configuration, the value in TOML: `--set zero.stage=1`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigFlags {
    /// The flags as `section.key=value`, the special ones after `--set`.
    pub fn overrides(&self) -> Vec<String> {
        let ranks = self.ranks.map(|ranks| format!("zero.ranks={ranks}"));
        let stage = self.stage.map(|stage| format!("zero.stage={stage}"));
        self.set.iter().cloned().chain(ranks).chain(stage).collect()
    }
}

/// What computes.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct DeviceFlags {
    /// Where tensors are; GPUs need a build with LibTorch
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceFlag,
    /// What computes on the processor: burn's own, or LibTorch in a build that has it
    #[arg(long, value_enum, default_value = "flex")]
    pub backend: BackendFlag,
}

/// `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum DeviceFlag {
    /// The processor
    #[default]
    Cpu,
    /// NVIDIA GPUs, one for each rank
    Cuda,
}

/// `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum BackendFlag {
    /// burn's own
    #[default]
    Flex,
    /// LibTorch
    Tch,
}

impl DeviceFlags {
    /// The device, if this build and this machine have it.
    ///
    /// # Errors
    /// [`Error::NotInBuild`](crate::Error::NotInBuild), [`Error::NoGpu`](crate::Error::NoGpu).
    pub fn device(self) -> Result<Device> {
        let device = self.named();
        device.check()?;
        Ok(device)
    }

    /// The device, whether or not it is there.
    pub(crate) fn named(self) -> Device {
        match (self.device, self.backend) {
            (DeviceFlag::Cuda, _) => Device::Cuda,
            (DeviceFlag::Cpu, BackendFlag::Flex) => Device::Cpu,
            (DeviceFlag::Cpu, BackendFlag::Tch) => Device::CpuLibTorch,
        }
    }
}

/// `terrashard fit`.
#[derive(Debug, Args)]
pub struct FitArguments {
    /// Configuration in TOML
    pub config: PathBuf,
    /// Run directory [default: runs/ and the configuration's name]
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Where to start: `auto` (the run's newest checkpoint, if any), a run or checkpoint, or `none`
    #[arg(long, value_name = "auto|PATH|none")]
    pub resume: Option<PathBuf>,
    /// Take what there is of a checkpoint that is damaged or lacks parameters; each name that begins anew is told
    #[arg(long)]
    pub allow_partial: bool,
    /// Leave out scenes of which a file is missing or damaged, and tell which; every file is read to its last pixel first
    #[arg(long)]
    pub skip_missing: bool,
    /// End cleanly after this step, with a checkpoint saved, as Ctrl-C, SIGTERM and SIGUSR1 make it do after the step at hand; exit code 0
    #[arg(long, value_name = "STEP")]
    pub stop_after: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Print nothing but warnings
    #[arg(long)]
    pub quiet: bool,
}

/// `terrashard test`.
#[derive(Debug, Args)]
pub struct TestArguments {
    /// Configuration in TOML
    pub config: PathBuf,
    /// Run directory, checkpoint, or exported file [default: the run directory of the configuration's name]
    #[arg(long, value_name = "RUN_OR_FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Memory to stay below, for example 1GiB [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Leave out scenes of which a file is missing or damaged, and tell which; every file is read to its last pixel first
    #[arg(long)]
    pub skip_missing: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Show no progress
    #[arg(long)]
    pub quiet: bool,
}

/// `terrashard plan`.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// Configuration in TOML
    pub config: PathBuf,
    /// Number of ranks, one for each GPU [default: the configuration's `zero.ranks`, where `auto` is 1]
    #[arg(long, value_name = "N")]
    pub gpus: Option<usize>,
    /// Memory of a rank, for example 16GiB, to tell what fits [default: the configuration's `zero.device_memory`]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory: Option<u64>,
    /// What is to compute; the machine need not have it [default: cuda with `--gpus`, else cpu]
    #[arg(long, value_enum)]
    pub device: Option<DeviceFlag>,
    /// What computes on the processor
    #[arg(long, value_enum, default_value = "flex")]
    pub backend: BackendFlag,
    /// Set a key of the configuration, the value in TOML: `--set train.precision=bf16`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

impl PlanArguments {
    /// What is to compute.
    pub fn device(&self) -> Device {
        let device = match (self.device, self.gpus) {
            (Some(device), _) => device,
            (None, Some(_)) => DeviceFlag::Cuda,
            (None, None) => DeviceFlag::Cpu,
        };
        let backend = self.backend;
        DeviceFlags { device, backend }.named()
    }

    /// What a reader should know of the device, where it is by another flag's leave.
    pub fn note(&self) -> &'static str {
        match (self.device, self.gpus) {
            (None, Some(_)) => {
                "`--gpus` plans for GPUs; with `--device cpu` beside it the ranks are threads of the processor\n"
            }
            _ => "",
        }
    }
}

/// `terrashard verify`.
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// Configuration, TOML
    pub config: PathBuf,
    /// Flags that change the configuration
    #[command(flatten)]
    pub flags: ConfigFlags,
    /// Keep optimizer states, and at stage 3 parameters, in host memory
    #[arg(long)]
    pub offload: bool,
    /// Optimizer steps to compare
    #[arg(long, value_name = "K", default_value_t = 5)]
    pub steps: u64,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `terrashard info`.
#[derive(Debug, Args)]
pub struct InfoArguments {
    /// Raster file or its address
    #[arg(value_parser = scene())]
    pub file: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `terrashard report`.
#[derive(Debug, Args)]
pub struct ReportArguments {
    /// Run directory
    pub run: PathBuf,
    /// Folder for report.json and report.html [default: the run directory]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Predicted map to show [default: prediction.tif in the output folder, if there]
    #[arg(long, value_name = "FILE")]
    pub prediction: Option<PathBuf>,
}

/// The path or address of a scene: what gives access to it is in no message and in nothing that is written.
fn scene() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(keep_credentials)
}

/// What is wrong with a command line, in one line; `first` is its first word, which may be a command. None where the error is
/// a request for help or the version.
pub fn usage_error(error: &clap::Error, first: Option<&str>) -> Option<String> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    let text = error.to_string();
    // What is missing stands on lines of its own; usage and hints come after an empty line.
    let message: Vec<&str> = text
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .flat_map(str::split_whitespace)
        .collect();
    let help = first
        .filter(|first| Arguments::command().find_subcommand(first).is_some())
        .map_or_else(|| "help".into(), |command| format!("help {command}"));
    Some(format!("{}; see `terrashard {help}`", message.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn flags_override_in_order() {
        let line = [
            "terrashard",
            "fit",
            "run.toml",
            "--set",
            "zero.stage=0",
            "--set",
            "train.lr=1e-3",
            "--ranks",
            "4",
            "--stage",
            "2",
        ];
        let Command::Fit(fit) = Arguments::parse_from(line).command else {
            panic!("fit was asked for")
        };
        assert_eq!(
            fit.flags.overrides(),
            [
                "zero.stage=0",
                "train.lr=1e-3",
                "zero.ranks=4",
                "zero.stage=2"
            ]
        );
    }

    #[test]
    fn wrong_use_is_told_in_one_line() {
        let check = |line: &str, expected: Option<&str>| {
            let words: Vec<&str> = line.split(' ').collect();
            let error = Arguments::try_parse_from(&words).expect_err("it is wrong");
            let told = usage_error(&error, words.get(1).copied());
            assert_eq!(told.as_deref(), expected, "{line}");
        };
        check(
            "terrashard fit run.toml --rnaks 2",
            Some("error: unexpected argument '--rnaks' found; see `terrashard help fit`"),
        );
        check(
            "terrashard predict a.tif -o map.tif",
            Some(
                "error: the following required arguments were not provided: --checkpoint <RUN_OR_FILE>; \
                 see `terrashard help predict`",
            ),
        );
        check(
            "terrashard tset",
            Some("error: unrecognized subcommand 'tset'; see `terrashard help`"),
        );
        check("terrashard", None);
        check("terrashard fit --help", None);
    }

    #[test]
    fn what_does_not_work_is_not_offered() {
        let help = |command: &str| {
            let line = ["terrashard", command, "--help"];
            let asked = Arguments::try_parse_from(line).expect_err("help is no command");
            asked.to_string()
        };
        assert!(help("test").contains("a shard of the weights"));
        assert!(!help("fit").contains("a shard of the weights"));
    }
}
