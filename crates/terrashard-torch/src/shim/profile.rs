//! The border to `profile.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::{c_char, c_int};
use std::ptr;

use super::{Call, Message, owned_text};
use crate::Result;

// SAFETY: the signatures are those of `profile.cc`; `bool` is one byte on both sides.
unsafe extern "C" {
    fn terrashard_profile_start(message: Message, device: bool) -> c_int;
    fn terrashard_profile_finish(message: Message, text: Message) -> c_int;
}

pub(crate) fn start(device: bool) -> Result<()> {
    // SAFETY: nothing is handed over but the place for the message.
    Call::ProfileStart.run(|message| unsafe { terrashard_profile_start(message, device) })
}

pub(crate) fn finish() -> Result<String> {
    let mut text: *mut c_char = ptr::null_mut();
    let place = &raw mut text;
    // SAFETY: both places live until the call returns.
    Call::ProfileFinish.run(|message| unsafe { terrashard_profile_finish(message, place) })?;
    Ok(owned_text(text).unwrap_or_default())
}
