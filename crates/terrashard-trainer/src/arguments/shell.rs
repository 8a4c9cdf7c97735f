//! What helps in the use of the program itself: `completions`, `man`, `explain`.

use std::path::PathBuf;

use clap::Args;
pub use clap_complete::Shell;

/// `terrashard completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell that reads it
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `terrashard man`.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// Folder for a page of each command, terrashard.1 and so on [default: the first page alone, on standard output]
    pub dir: Option<PathBuf>,
}

/// `terrashard explain`.
#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// What stands in brackets at the end of an error, for example raster::Truncated [default: a list of all]
    pub code: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
