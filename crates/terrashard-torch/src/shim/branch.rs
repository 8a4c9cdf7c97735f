//! The border to `branch.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_int;
use std::ptr;

use tch::Tensor;

use super::{In, Message, Out, Outputs, handle};
use crate::Result;

/// As `branch.cc` has it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attention {
    pub(crate) heads: i64,
    pub(crate) height: i64,
    pub(crate) width: i64,
    pub(crate) ratio: i64,
    pub(crate) epsilon: f64,
    pub(crate) reduced_epsilon: f64,
}

/// As `branch.cc` has it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FeedForward {
    pub(crate) height: i64,
    pub(crate) width: i64,
    pub(crate) activation: i64,
    pub(crate) epsilon: f64,
}

// SAFETY: the signatures are those of `branch.cc`. Tensors are `at::Tensor` by address, `bool` is one byte on both sides, the
// settings have C's layout.
unsafe extern "C" {
    fn terrashard_attention_branch(
        message: Message,
        x: In,
        parameters: *const In,
        how: *const Attention,
        kept: In,
        out: Out,
    ) -> c_int;
    fn terrashard_attention_branch_backward(
        message: Message,
        gradient: In,
        x: In,
        parameters: *const In,
        saved: *const In,
        how: *const Attention,
        kept: In,
        wanted: *const bool,
        out: Out,
    ) -> c_int;
    fn terrashard_feed_forward_branch(
        message: Message,
        x: In,
        parameters: *const In,
        how: *const FeedForward,
        kept: In,
        out: Out,
    ) -> c_int;
    fn terrashard_feed_forward_branch_backward(
        message: Message,
        gradient: In,
        x: In,
        parameters: *const In,
        saved: *const In,
        how: *const FeedForward,
        kept: In,
        wanted: *const bool,
        out: Out,
    ) -> c_int;
}

/// Parameters of an attention branch: twelve, or eight where nothing is reduced.
pub(crate) const ATTENTION_PARAMETERS: usize = 12;
/// What an attention branch keeps for its backward.
pub(crate) const ATTENTION_SAVED: usize = 5;
/// Parameters of a feed-forward branch.
pub(crate) const FEED_FORWARD_PARAMETERS: usize = 8;
/// What a feed-forward branch keeps for its backward.
pub(crate) const FEED_FORWARD_SAVED: usize = 2;

fn handle_or_null(tensor: Option<&Tensor>) -> In {
    tensor.map_or(ptr::null(), handle)
}

pub(crate) fn attention(
    how: Attention,
    x: &Tensor,
    parameters: [Option<&Tensor>; ATTENTION_PARAMETERS],
    kept: Option<&Tensor>,
    out: &mut Outputs<{ 1 + ATTENTION_SAVED }>,
) -> Result<()> {
    let (x, parameters, kept) = (
        handle(x),
        parameters.map(handle_or_null),
        handle_or_null(kept),
    );
    out.fill(|message, out| {
        // SAFETY: the tensors are borrowed until the call returns; of the parameters only the last four may be null, where
        // `ratio` is 1, which `crate::branch` has checked; `out` has the places it uses.
        unsafe {
            terrashard_attention_branch(message, x, parameters.as_ptr(), &raw const how, kept, out)
        }
    })
}

pub(crate) fn attention_backward(
    how: Attention,
    [gradient, x]: [&Tensor; 2],
    parameters: [Option<&Tensor>; ATTENTION_PARAMETERS],
    saved: [Option<&Tensor>; ATTENTION_SAVED],
    kept: Option<&Tensor>,
    wanted: [bool; 1 + ATTENTION_PARAMETERS],
    out: &mut Outputs<{ 1 + ATTENTION_PARAMETERS }>,
) -> Result<()> {
    let [gradient, x] = [gradient, x].map(handle);
    let (parameters, saved) = (parameters.map(handle_or_null), saved.map(handle_or_null));
    let kept = handle_or_null(kept);
    out.fill(|message, out| {
        // SAFETY: as in `attention`; it looks itself for what forward kept and is missing; `wanted` has the places it uses.
        unsafe {
            terrashard_attention_branch_backward(
                message,
                gradient,
                x,
                parameters.as_ptr(),
                saved.as_ptr(),
                &raw const how,
                kept,
                wanted.as_ptr(),
                out,
            )
        }
    })
}

pub(crate) fn feed_forward(
    how: FeedForward,
    x: &Tensor,
    parameters: [&Tensor; FEED_FORWARD_PARAMETERS],
    kept: Option<&Tensor>,
    out: &mut Outputs<{ 1 + FEED_FORWARD_SAVED }>,
) -> Result<()> {
    let (x, parameters, kept) = (handle(x), parameters.map(handle), handle_or_null(kept));
    out.fill(|message, out| {
        // SAFETY: the tensors are borrowed until the call returns; `out` has the places it uses.
        unsafe {
            terrashard_feed_forward_branch(
                message,
                x,
                parameters.as_ptr(),
                &raw const how,
                kept,
                out,
            )
        }
    })
}

pub(crate) fn feed_forward_backward(
    how: FeedForward,
    [gradient, x]: [&Tensor; 2],
    parameters: [&Tensor; FEED_FORWARD_PARAMETERS],
    saved: [Option<&Tensor>; FEED_FORWARD_SAVED],
    kept: Option<&Tensor>,
    wanted: [bool; 1 + FEED_FORWARD_PARAMETERS],
    out: &mut Outputs<{ 1 + FEED_FORWARD_PARAMETERS }>,
) -> Result<()> {
    let [gradient, x] = [gradient, x].map(handle);
    let (parameters, saved) = (parameters.map(handle), saved.map(handle_or_null));
    let kept = handle_or_null(kept);
    out.fill(|message, out| {
        // SAFETY: as in `attention_backward`.
        unsafe {
            terrashard_feed_forward_branch_backward(
                message,
                gradient,
                x,
                parameters.as_ptr(),
                saved.as_ptr(),
                &raw const how,
                kept,
                wanted.as_ptr(),
                out,
            )
        }
    })
}
