//! The border to `host_buffer.cc`.

#![expect(
    unsafe_code,
    reason = "calls into C++, and a buffer's memory as a slice"
)]

use std::ffi::c_int;
use std::{ptr, slice};

use tch::Tensor;

use super::{Call, Handle, In, Message, Out, Outputs, changed, handle};
use crate::Result;

/// An event of LibTorch's, of which Rust knows no more than where it lies.
#[repr(C)]
struct EventHandle {
    _private: [u8; 0],
}

// SAFETY: the signatures are those of `host_buffer.cc`; `bool` is one byte on both sides.
unsafe extern "C" {
    fn terrashard_host_buffer(message: Message, bytes: i64, pinned: bool, out: Out) -> c_int;
    fn terrashard_copy_down(
        message: Message,
        from: In,
        buffer: *mut Handle,
        event: *mut *mut EventHandle,
    ) -> c_int;
    fn terrashard_copy_up(
        message: Message,
        buffer: In,
        to: *mut Handle,
        event: *mut *mut EventHandle,
    ) -> c_int;
    fn terrashard_copy_beside(
        message: Message,
        buffer: In,
        to: *mut Handle,
        event: *mut *mut EventHandle,
    ) -> c_int;
    fn terrashard_follow(message: Message, event: *mut EventHandle) -> c_int;
    fn terrashard_wait(message: Message, event: *mut EventHandle) -> c_int;
    fn terrashard_free_event(event: *mut EventHandle);
}

/// A moment in the work of a GPU.
#[derive(Debug)]
pub(crate) struct Event(*mut EventHandle);

// SAFETY: an event may be waited for and freed by any thread, and nothing else is done with it.
unsafe impl Send for Event {}

impl Event {
    /// Takes over what a call gave, if it gave one.
    fn given(handle: *mut EventHandle) -> Option<Self> {
        (!handle.is_null()).then_some(Self(handle))
    }

    /// Has the GPU do what it is told from now on behind it.
    pub(crate) fn follow(self) -> Result<()> {
        // SAFETY: as of `wait`.
        Call::HostBuffer.run(|message| unsafe { terrashard_follow(message, self.0) })
    }

    pub(crate) fn wait(self) -> Result<()> {
        // SAFETY: the event is alive until `self` is dropped.
        Call::HostBuffer.run(|message| unsafe { terrashard_wait(message, self.0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by C++ for this value alone, and freed once.
        unsafe { terrashard_free_event(self.0) };
    }
}

pub(crate) fn new(bytes: usize, pinned: bool) -> Result<Tensor> {
    let mut out = Outputs::<1>::new(Call::HostBuffer);
    // SAFETY: `out` has the one place it uses.
    out.fill(|message, out| unsafe { terrashard_host_buffer(message, bytes as i64, pinned, out) })?;
    out.tensor(0)
}

pub(crate) fn copy_down(from: &Tensor, buffer: &mut Tensor) -> Result<Option<Event>> {
    let mut event = ptr::null_mut();
    let (from, buffer, place) = (handle(from), changed(buffer), &raw mut event);
    let call = |message| {
        // SAFETY: the tensors are borrowed until the call returns, the buffer mutably; LibTorch keeps their memory until the GPU
        // is done with it.
        unsafe { terrashard_copy_down(message, from, buffer, place) }
    };
    Call::HostBuffer.run(call)?;
    Ok(Event::given(event))
}

pub(crate) fn copy_up(buffer: &Tensor, to: &mut Tensor) -> Result<Option<Event>> {
    let mut event = ptr::null_mut();
    let (buffer, to, place) = (handle(buffer), changed(to), &raw mut event);
    // SAFETY: as of `copy_down`.
    Call::HostBuffer.run(|message| unsafe { terrashard_copy_up(message, buffer, to, place) })?;
    Ok(Event::given(event))
}

pub(crate) fn copy_beside(buffer: &Tensor, to: &mut Tensor) -> Result<Option<Event>> {
    let mut event = ptr::null_mut();
    let (buffer, to, place) = (handle(buffer), changed(to), &raw mut event);
    let call = |message| {
        // SAFETY: as of `copy_down`.
        unsafe { terrashard_copy_beside(message, buffer, to, place) }
    };
    Call::HostBuffer.run(call)?;
    Ok(Event::given(event))
}

/// The memory of a buffer that [`new`] made and that no copy is under way with.
pub(crate) fn bytes(buffer: &mut Tensor) -> &mut [u8] {
    let len = buffer.numel();
    if len == 0 {
        return &mut [];
    }
    // SAFETY: `new` made `len` bytes of the host's memory in one piece, of which no other tensor is told and which live as long
    // as the borrow; whatever they hold are bytes, since the system or an earlier user wrote them.
    unsafe { slice::from_raw_parts_mut(buffer.data_ptr().cast(), len) }
}
