//! One group's communicator of NCCL on one GPU, with a stream of its own: verbs over LibTorch's tensors.
//!
//! # Who waits for whom
//!
//! LibTorch computes on the legacy stream, NCCL on the channel's. Before a verb, the channel's stream waits for an event
//! on the legacy one, so the input is there and nobody uses the output any more. After it, an event on the channel's
//! stream marks its end; whoever uses the result, or gives back a buffer, has the legacy stream wait for that event
//! first. The host waits for neither. Buffers that are given back then go to LibTorch's allocator, which hands them out
//! again for the legacy stream, and so after the verb.

#![expect(unsafe_code, reason = "calls NCCL with pointers to tensors")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::FloatDType;
use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use terrashard_torch::tch::{Device, Kind, Tensor};

use super::driver::{Event, Gpu, Stream};
use super::library::{ID_BYTES, Library};
use super::process::Carrier;
use crate::{Call, Error, Result, Verb};

/// This rank's end of a group.
#[derive(Debug)]
pub(super) struct Channel {
    library: &'static Library,
    comm: ncclComm_t,
    ranks: usize,
    stream: Stream,
    /// What one thread at a time holds to issue a verb, so that all that belongs to it stays together.
    fork: Mutex<Event>,
}

// SAFETY: verbs of one communicator are issued under `fork`'s lock; asking for an error and aborting may be done beside
// them, from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Joins the group that `id` names, which all of its ranks do. Returns when they have.
    pub(super) fn join(
        gpu: &Arc<Gpu>,
        id: [u8; ID_BYTES],
        rank: usize,
        ranks: usize,
    ) -> Result<Self> {
        let library = Library::get()?;
        let (stream, fork) = (Stream::new(gpu)?, Event::new(gpu)?);
        let number = |count| {
            c_int::try_from(count).map_err(|_| Error::Transport {
                reason: format!("NCCL counts ranks in 32 bits: {count} are too many"),
            })
        };
        let (rank, count) = (number(rank)?, number(ranks)?);
        let id = ncclUniqueId {
            internal: id.map(|byte| c_char::from_ne_bytes([byte])),
        };
        let mut comm: ncclComm_t = ptr::null_mut();
        let _entered = gpu.enter()?;
        // SAFETY: the pointer is to a value of this function, the GPU's context is current, and the rank is below the
        // number of ranks, which NCCL checks.
        let result = unsafe { (library.comm_init_rank)(&raw mut comm, count, id, rank) };
        library.check("ncclCommInitRank", result)?;
        Ok(Self {
            library,
            comm,
            ranks,
            stream,
            fork: Mutex::new(fork),
        })
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        self.stream.gpu()
    }

    /// Has the GPU make `call` after all that LibTorch has been asked for until now. `note` is told the event that marks
    /// its end before another call may be issued.
    ///
    /// In a broadcast, and where an all-reduce works in place, input and output are the same tensor. All ranks' tensors
    /// have to live, and what they hold is undefined, until the event is done.
    ///
    /// # Errors
    ///
    /// [`Error::Buffer`] for a tensor of another type, device, layout or length; [`Error::Transport`].
    pub(super) fn issue(
        &self,
        call: &Call,
        input: &Tensor,
        output: &Tensor,
        note: impl FnOnce(Arc<Event>),
    ) -> Result<Arc<Event>> {
        let (scattered, gathered) = match call.verb {
            Verb::ReduceScatter => (call.len, call.len / self.ranks),
            Verb::AllGather => (call.len, call.len * self.ranks),
            _ => (call.len, call.len),
        };
        let device = Device::Cuda(self.gpu().index());
        check_buffer(input, call.dtype, device, scattered)?;
        check_buffer(output, call.dtype, device, gathered)?;
        if !matches!(call.verb, Verb::AllReduce | Verb::Broadcast { .. }) && call.len > 0 {
            let apart = input.data_ptr() != output.data_ptr();
            assert!(apart, "a result of another length has memory of its own");
        }
        let done = Arc::new(Event::new(self.gpu())?);
        let fork = self.fork.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream.wait_for_legacy(&fork)?;
        if call.len > 0 {
            self.enqueue(call, input.data_ptr(), output.data_ptr())?;
        }
        done.record(&self.stream)?;
        note(Arc::clone(&done));
        drop(fork);
        Ok(done)
    }

    /// # Safety of what it does
    ///
    /// Called by [`issue`](Self::issue) alone, which has checked the buffers and holds the lock.
    fn enqueue(&self, call: &Call, send: *mut c_void, receive: *mut c_void) -> Result<()> {
        let (library, comm) = (self.library, self.comm);
        let (send, stream) = (send.cast_const(), self.stream.raw() as cudaStream_t);
        let (dtype, sum) = (data_type(call.dtype)?, ncclRedOp_t::ncclSum);
        let _entered = self.gpu().enter()?;
        // In each of these the communicator lives, the stream is of its GPU, whose context is current, and the caller
        // has checked that both buffers are on that GPU, of this type, contiguous and as long as the verb reads and
        // writes. They live until the event after the verb is done.
        let (name, result) = match call.verb {
            Verb::AllReduce => ("ncclAllReduce", {
                // SAFETY: as above: `len` elements each.
                unsafe { (library.all_reduce)(send, receive, call.len, dtype, sum, comm, stream) }
            }),
            Verb::ReduceScatter => ("ncclReduceScatter", {
                let len = call.len / self.ranks;
                // SAFETY: as above: `len` elements in the output, and as many for each rank in the input.
                unsafe { (library.reduce_scatter)(send, receive, len, dtype, sum, comm, stream) }
            }),
            Verb::AllGather => ("ncclAllGather", {
                // SAFETY: as above: `len` elements in the input, and as many for each rank in the output.
                unsafe { (library.all_gather)(send, receive, call.len, dtype, comm, stream) }
            }),
            Verb::Broadcast { root } => ("ncclBroadcast", {
                let root = c_int::try_from(root).expect("below a number of ranks in 32 bits");
                // SAFETY: as above: `len` elements each.
                unsafe { (library.broadcast)(send, receive, call.len, dtype, root, comm, stream) }
            }),
            Verb::Barrier | Verb::Split => return Ok(()),
        };
        library.check(name, result)
    }
}

impl Carrier for Channel {
    /// What NCCL has noticed since the last time.
    fn failure(&self) -> Option<String> {
        let mut noticed = ncclResult_t::ncclSuccess;
        // SAFETY: the communicator lives, and the pointer is to a value of this function.
        let asked = unsafe { (self.library.comm_get_async_error)(self.comm, &raw mut noticed) };
        [asked, noticed]
            .into_iter()
            .find_map(|result| match result {
                ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => None,
                result => Some(self.library.words(result)),
            })
    }

    fn abort(&self) {
        // SAFETY: the communicator lives; the process ends after this, and never destroys it.
        let _ = unsafe { (self.library.comm_abort)(self.comm) };
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by this type, and destroyed once: a process that has aborted it ends without dropping it.
        let _ = unsafe { (self.library.comm_destroy)(self.comm) };
    }
}

/// As NCCL names it.
fn data_type(dtype: FloatDType) -> Result<ncclDataType_t> {
    match dtype {
        FloatDType::F32 => Ok(ncclDataType_t::ncclFloat32),
        FloatDType::F64 => Ok(ncclDataType_t::ncclFloat64),
        FloatDType::BF16 => Ok(ncclDataType_t::ncclBfloat16),
        FloatDType::F16 => Ok(ncclDataType_t::ncclFloat16),
        other => Err(Error::UnsupportedType {
            dtype: other.into(),
        }),
    }
}

/// As LibTorch names it.
pub(super) fn kind(dtype: FloatDType) -> Result<Kind> {
    match dtype {
        FloatDType::F32 => Ok(Kind::Float),
        FloatDType::F64 => Ok(Kind::Double),
        FloatDType::BF16 => Ok(Kind::BFloat16),
        FloatDType::F16 => Ok(Kind::Half),
        other => Err(Error::UnsupportedType {
            dtype: other.into(),
        }),
    }
}

/// An error unless the tensor is what NCCL may read or write.
fn check_buffer(tensor: &Tensor, dtype: FloatDType, device: Device, len: usize) -> Result<()> {
    let refuse = |got: String, expected: String| Err(Error::Buffer { got, expected });
    if tensor.device() != device {
        return refuse(format!("{:?}", tensor.device()), format!("{device:?}"));
    }
    let kind = kind(dtype)?;
    if tensor.kind() != kind {
        return refuse(format!("{:?}", tensor.kind()), format!("{kind:?}"));
    }
    if tensor.numel() != len {
        return refuse(format!("{} elements", tensor.numel()), format!("{len}"));
    }
    if !tensor.is_contiguous() {
        return refuse(
            "a view with gaps".to_owned(),
            "one piece of memory".to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the CPU, which is checked like a GPU.
    #[test]
    fn buffers_are_checked() {
        let check = |tensor: &Tensor, dtype, len, expected: Option<&str>| {
            let text = check_buffer(tensor, dtype, Device::Cpu, len)
                .err()
                .map(|error| error.to_string());
            match (text, expected) {
                (None, None) => {}
                (Some(text), Some(expected)) => assert!(text.contains(expected), "{text}"),
                (text, expected) => panic!("{text:?} instead of {expected:?}"),
            }
        };
        let whole = Tensor::zeros([6], (Kind::BFloat16, Device::Cpu));
        check(&whole, FloatDType::BF16, 6, None);
        check(&whole, FloatDType::F16, 6, Some("BFloat16"));
        check(&whole, FloatDType::BF16, 7, Some("6 elements"));
        check(&whole.slice(0, 0, 6, 2), FloatDType::BF16, 3, Some("gaps"));
        check(&whole.slice(0, 2, 5, 1), FloatDType::BF16, 3, None);
        let elsewhere = check_buffer(&whole, FloatDType::BF16, Device::Cuda(1), 6).unwrap_err();
        assert!(elsewhere.to_string().contains("Cuda(1)"), "{elsewhere}");
    }

    #[test]
    fn every_type_that_is_exchanged_has_a_name() {
        for dtype in [
            FloatDType::F32,
            FloatDType::F64,
            FloatDType::BF16,
            FloatDType::F16,
        ] {
            data_type(dtype).unwrap();
            kind(dtype).unwrap();
        }
    }
}
