//! Faults on demand, for tests (feature `faults`): whoever sets [`before_each_batch`] is asked before a loader reads the tiles of a
//! micro-batch, and may let that fail, panic, or end the process there.

use std::io;
use std::sync::OnceLock;

use crate::{Error, Result};

/// What is asked before a micro-batch is read, with the loader's rank.
pub type Hook = fn(usize) -> io::Result<()>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Sets what is asked, once in a process: later calls change nothing.
pub fn before_each_batch(hook: Hook) {
    HOOK.get_or_init(|| hook);
}

pub(crate) fn point(rank: usize) -> Result<()> {
    let Some(hook) = HOOK.get() else {
        return Ok(());
    };
    hook(rank).map_err(|source| {
        Error::Raster(terrashard_raster::Error::Io {
            path: "a tile".into(),
            action: "read",
            source,
        })
    })
}
