//! Faults on demand, for tests (feature `faults`): whoever sets [`before_each_operation`] sees every operation on files that a save
//! consists of before it is done, and may let it fail, panic, or end the process there.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use crate::Result;
use crate::durable;

/// What is asked before an operation, with the path that it is done to.
pub type Hook = fn(&Path) -> io::Result<()>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Sets what is asked, once in a process: later calls change nothing.
pub fn before_each_operation(hook: Hook) {
    HOOK.get_or_init(|| hook);
}

pub(crate) fn point(path: &Path) -> Result<()> {
    match HOOK.get() {
        Some(hook) => hook(path).map_err(durable::io("write", path)),
        None => Ok(()),
    }
}
