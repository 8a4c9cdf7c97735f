//! The border to `graph.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_int;

use super::{Call, Message};
use crate::Result;

// SAFETY: the signatures are those of `graph.cc`; `bool` is one byte on both sides.
unsafe extern "C" {
    fn terrashard_set_graphs(message: Message, on: bool) -> c_int;
    fn terrashard_forget_graphs(message: Message) -> c_int;
    fn terrashard_graph_counts(message: Message, out: *mut i64) -> c_int;
}

pub(crate) fn set(on: bool) -> Result<()> {
    // SAFETY: nothing is handed over but a truth value and the place for the message.
    Call::Graphs.run(|message| unsafe { terrashard_set_graphs(message, on) })
}

pub(crate) fn forget() -> Result<()> {
    // SAFETY: nothing is handed over but the place for the message.
    Call::Graphs.run(|message| unsafe { terrashard_forget_graphs(message) })
}

/// Graphs made, runs of them, bytes that they hold.
pub(crate) fn counts() -> Result<[i64; 3]> {
    let mut out = [0; 3];
    let place = out.as_mut_ptr();
    // SAFETY: the place has room for the three numbers that are written.
    Call::Graphs.run(|message| unsafe { terrashard_graph_counts(message, place) })?;
    Ok(out)
}
