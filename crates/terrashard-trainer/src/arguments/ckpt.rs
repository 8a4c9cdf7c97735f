//! `ckpt` and what it can do.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `terrashard ckpt`.
#[derive(Debug, Args)]
pub struct CkptArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: CkptCommand,
}

/// What to do with checkpoints.
#[derive(Debug, Subcommand)]
pub enum CkptCommand {
    /// List a run's checkpoints: step, ranks, tensors, bytes, score; the one in force is marked.
    Ls {
        /// Run directory
        run: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Tell what is in a checkpoint or an exported file: its state, its tensors, its files.
    Inspect {
        /// Run directory, checkpoint, or exported file
        checkpoint: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Compare two checkpoints or exported files, tensor by tensor; exit code 1 if they differ.
    Diff {
        /// Run directory, checkpoint, or exported file
        first: PathBuf,
        /// The same
        second: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Check every byte against its hash; exit code 2 if any is damaged, each damaged tensor is named.
    Verify {
        /// Run directories, for all of their checkpoints, single checkpoints, or exported files
        #[arg(required = true, value_name = "RUN_OR_FILE")]
        paths: Vec<PathBuf>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Remove old checkpoints and what crashes have left.
    Gc(GcArguments),
}

/// `terrashard ckpt gc`.
#[derive(Debug, Args)]
pub struct GcArguments {
    /// Run directory
    pub run: PathBuf,
    /// The newest checkpoints to keep, at least 1 [default: the run's `checkpoint.keep_last`]
    #[arg(long, value_name = "N")]
    pub keep_last: Option<usize>,
    /// The best checkpoints to keep beside those [default: the run's `checkpoint.keep_best`]
    #[arg(long, value_name = "N")]
    pub keep_best: Option<usize>,
    /// Remove nothing, tell what would be
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
