//! The tensors of a call: what it reads, what it writes, and who owns them while it is under way.

use std::mem;
use std::sync::Arc;

use burn::tensor::Tensor;
use terrashard_torch::tch::{self, Device, Kind};
use terrashard_torch::{LibTorch, Primitive, inner, is_unshared, outer};

use super::channel::kind;
use super::driver::{Event, Gpu};
use crate::{Call, Error, Result, Verb};

/// What a rank puts in.
#[derive(Debug)]
pub(super) struct Source(Primitive);

/// What a call reads and writes.
#[derive(Debug)]
pub(super) enum Buffers {
    /// It works in place.
    One(Primitive),
    /// Each in memory of its own.
    Two { input: Primitive, output: Primitive },
}

impl Source {
    /// LibTorch's tensor in one of burn's.
    ///
    /// # Errors
    ///
    /// [`Error::Buffer`] if another backend has made it.
    pub(super) fn of(tensor: Tensor<1>) -> Result<Self> {
        let device = tensor.device();
        let primitive = tensor.try_into_primitive::<LibTorch>();
        primitive.map(Self).map_err(|_| Error::Buffer {
            got: format!("{device:?}"),
            expected: "a GPU of LibTorch".to_owned(),
        })
    }

    /// One element, for a barrier.
    pub(super) fn one(gpu: &Gpu) -> Result<Buffers> {
        let tensor = tch::Tensor::f_zeros([1], (Kind::Float, Device::Cuda(gpu.index())));
        Ok(Buffers::One(outer(tensor.map_err(refused)?)))
    }

    /// With a place for the result of `call` on `rank` of `ranks`.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if there is no memory.
    pub(super) fn buffers(self, call: &Call, rank: usize, ranks: usize) -> Result<Buffers> {
        let Self(input) = self;
        let input = match inner(&input).is_contiguous() {
            true => input,
            false => outer(inner(&input).f_contiguous().map_err(refused)?),
        };
        let len = match call.verb {
            Verb::ReduceScatter => call.len / ranks,
            Verb::AllGather => call.len * ranks,
            // The root's input is what comes out, and nobody changes it.
            Verb::Broadcast { root } if root == rank => return Ok(Buffers::One(input)),
            // The others' says only what they expect.
            Verb::Broadcast { .. } => {
                return Ok(Buffers::One(empty(&input, call, call.len)?));
            }
            Verb::AllReduce if is_unshared(&input) => return Ok(Buffers::One(input)),
            _ => call.len,
        };
        let output = empty(&input, call, len)?;
        Ok(Buffers::Two { input, output })
    }
}

/// A tensor like another, of another length.
fn empty(like: &Primitive, call: &Call, len: usize) -> Result<Primitive> {
    let len = i64::try_from(len).expect("lengths of tensors are below 2^63");
    let options = (kind(call.dtype)?, inner(like).device());
    tch::Tensor::f_empty([len], options)
        .map(outer)
        .map_err(refused)
}

fn refused(error: tch::TchError) -> Error {
    let text = error.to_string();
    Error::Transport {
        reason: format!(
            "LibTorch has no buffer: {}",
            text.lines().next().unwrap_or_default()
        ),
    }
}

impl Buffers {
    /// What the call reads, and what it writes.
    pub(super) fn tensors(&self) -> (&tch::Tensor, &tch::Tensor) {
        match self {
            Self::One(tensor) => (inner(tensor), inner(tensor)),
            Self::Two { input, output } => (inner(input), inner(output)),
        }
    }

    /// What the call has written.
    fn into_result(self) -> Primitive {
        match self {
            Self::One(tensor) | Self::Two { output: tensor, .. } => tensor,
        }
    }
}

/// A call under way, with its buffers. Nobody gets at them, or their memory, before LibTorch's stream waits for the call.
pub(super) struct InFlight {
    done: Arc<Event>,
    buffers: Option<Buffers>,
}

impl InFlight {
    pub(super) fn new(done: Arc<Event>, buffers: Buffers) -> Self {
        Self {
            done,
            buffers: Some(buffers),
        }
    }

    /// The result, for what LibTorch is asked for from now on.
    pub(super) fn result(mut self) -> Result<Tensor<1>> {
        self.done.hold_legacy()?;
        let buffers = self.buffers.take().expect("taken here alone, once");
        Ok(Tensor::from_primitive::<LibTorch>(buffers.into_result()))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(buffers) = self.buffers.take() else {
            return;
        };
        if self.done.hold_legacy().is_err() {
            // The GPU may write there still: the memory is lost with the run.
            mem::forget(buffers);
        }
    }
}
