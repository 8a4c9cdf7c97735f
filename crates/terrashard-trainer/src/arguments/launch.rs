//! The command line of `launch`.

use clap::{Args, ValueEnum};

/// `terrashard launch`.
#[derive(Debug, Args)]
pub struct LaunchArguments {
    /// Number of ranks, each a process with a GPU of its own [default: one for each GPU that can be used]; with `--device cpu` in the
    /// command as many as you like
    #[arg(short = 'n', long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Whose output is shown; other ranks' errors always are
    #[arg(long, value_enum, default_value = "first")]
    pub output: OutputFlag,
    /// How long the other ranks may take to end by themselves after one has failed, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub end_within: u64,
    /// How many times all ranks are started again after one has failed, which goes on from the newest checkpoint
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub restarts: u32,
    /// Start again with one rank fewer each time, where `zero.ranks` is "auto"
    #[arg(long, requires = "restarts")]
    pub elastic: bool,
    /// A command with its arguments: `-- fit run.toml`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `--output`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFlag {
    /// That of rank 0
    First,
    /// That of all ranks, each line with its rank
    All,
}
