//! Graphs of a GPU's kernels: what many small kernels cost the host, a graph of them costs once.
//!
//! The branches of a block ([`AttentionBranch`](crate::AttentionBranch), [`FeedForwardBranch`](crate::FeedForwardBranch)) run by
//! them where they come again with parameters and inputs in the same places and are so small that the host is the bound. The bits are
//! the same with and without. They hold what a branch gives out between its runs, at most a thirty-second of the GPU's memory in all.

use std::sync::{Mutex, PoisonError};

use crate::{Result, shim};

/// Whether calls run by graphs.
#[derive(Debug)]
struct Switch {
    wanted: bool,
    /// How many there are of [`WithoutGraphs`].
    without: usize,
}

static SWITCH: Mutex<Switch> = Mutex::new(Switch {
    wanted: true,
    without: 0,
});

fn switch(change: impl FnOnce(&mut Switch)) -> Result<()> {
    let mut switch = SWITCH.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut switch);
    shim::graphs::set(switch.wanted && switch.without == 0)
}

/// What has become of the graphs of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Graphs {
    /// Made so far.
    pub made: u64,
    /// Runs so far.
    pub runs: u64,
    /// Bytes of GPUs that they hold now.
    pub held: u64,
}

impl Graphs {
    /// So far.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if LibTorch throws.
    pub fn counts() -> Result<Self> {
        let [made, runs, held] =
            shim::graphs::counts()?.map(|count| u64::try_from(count).unwrap_or(0));
        Ok(Self { made, runs, held })
    }

    /// Whether calls run by graphs, as they do at first. For the whole process.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if LibTorch throws.
    pub fn set(on: bool) -> Result<()> {
        switch(|switch| switch.wanted = on)
    }

    /// Gives back what graphs hold: those that are needed are made again. For when a model is no longer trained.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if LibTorch throws.
    pub fn forget() -> Result<()> {
        shim::graphs::forget()
    }
}

/// While there is one of these in a process, nothing there runs by graphs, whatever [`Graphs::set`] says: for parameters that lie elsewhere
/// at each use, and where memory counts more than the host's time.
#[derive(Debug)]
pub struct WithoutGraphs(());

impl WithoutGraphs {
    /// From now on.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if LibTorch throws.
    pub fn new() -> Result<Self> {
        switch(|switch| switch.without += 1)?;
        Ok(Self(()))
    }
}

impl Drop for WithoutGraphs {
    fn drop(&mut self) {
        // What cannot be switched on again stays off, which changes no result.
        let _ = switch(|switch| switch.without = switch.without.saturating_sub(1));
    }
}
