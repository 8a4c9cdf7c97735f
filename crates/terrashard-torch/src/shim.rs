//! The border to C++: the only files that call `shim.cc` and, in `shim/branch.rs`, `branch.cc`.
//!
//! Every function hands over pointers to tensors that it has borrowed, takes over the tensors that come back, and turns an
//! exception's text into an [`Error`].

#![expect(unsafe_code, reason = "calls into C++")]

pub(crate) mod adamw;
pub(crate) mod branch;
pub(crate) mod columns;
pub(crate) mod graphs;
pub(crate) mod host_buffer;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod profile;
pub(crate) mod resize;
pub(crate) mod view;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use tch::Tensor;

use crate::error::{Error, Result};
use crate::flat::Pieces;

/// A tensor of LibTorch, of which Rust knows no more than where it lies.
#[repr(C)]
struct Handle {
    _private: [u8; 0],
}

type In = *const Handle;
type Out = *mut *mut Handle;
type Message = *mut *mut c_char;

// SAFETY: the signatures are those of `shim.cc`. Tensors are `at::Tensor` by address, `bool` is one byte on both sides.
unsafe extern "C" {
    fn terrashard_free_text(text: *mut c_char);
    fn terrashard_torch_version() -> *const c_char;
    fn terrashard_conv2d_backward(
        message: Message,
        gradient: In,
        x: In,
        weight: In,
        stride: i64,
        padding: i64,
        groups: i64,
        wanted: *const bool,
        out: Out,
    ) -> c_int;
    fn terrashard_attention(message: Message, q: In, k: In, v: In, scale: f64, out: Out) -> c_int;
    fn terrashard_attention_backward(
        message: Message,
        gradient: In,
        q: In,
        k: In,
        v: In,
        saved: *const In,
        scale: f64,
        out: Out,
    ) -> c_int;
    fn terrashard_pack(
        message: Message,
        tensors: *const In,
        count: i64,
        buffer: *mut Handle,
        rows: i64,
        columns: i64,
        offsets: *const i64,
        lengths: *const i64,
    ) -> c_int;
    fn terrashard_unpack(
        message: Message,
        buffer: In,
        tensors: *const *mut Handle,
        count: i64,
        rows: i64,
        columns: i64,
        offsets: *const i64,
        lengths: *const i64,
    ) -> c_int;
    fn terrashard_sums_of_squares(
        message: Message,
        tensors: *const In,
        count: i64,
        out: Out,
    ) -> c_int;
    fn terrashard_load_cuda(message: Message) -> c_int;
    fn terrashard_is_deterministic() -> c_int;
    fn terrashard_set_deterministic(message: Message, on: c_int) -> c_int;
    fn terrashard_memory(message: Message, device: i64, out: *mut i64) -> c_int;
    fn terrashard_limit_memory(message: Message, device: i64, bytes: i64) -> c_int;
    fn terrashard_count_cpu(message: Message) -> c_int;
    fn terrashard_counted_cpu(message: Message, out: *mut i64) -> c_int;
    fn terrashard_reset_peak(message: Message, device: i64) -> c_int;
    fn terrashard_first_memory(message: Message, device: i64) -> c_int;
    fn terrashard_set_tf32(message: Message, on: c_int) -> c_int;
    fn terrashard_empty_cache(message: Message) -> c_int;
}

/// What is called, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    Conv2dBackward,
    Graphs,
    LayerNorm,
    LayerNormBackward,
    Attention,
    AttentionBackward,
    AttentionBranch,
    AttentionBranchBackward,
    FeedForwardBranch,
    FeedForwardBranchBackward,
    AdamW,
    LoadCuda,
    Copies,
    Squares,
    HostBuffer,
    Deterministic,
    Memory,
    Limit,
    Tf32,
    ProfileStart,
    ProfileFinish,
    Columns,
    ColumnsBackward,
    Resize,
    ResizeBackward,
    MaskLoss,
    L1Loss,
    Reshape,
}

impl Call {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Conv2dBackward => "convolution's backward",
            Self::Graphs => "graphs of kernels",
            Self::LayerNorm => "layer normalisation",
            Self::LayerNormBackward => "layer normalisation's backward",
            Self::Attention => "attention",
            Self::AttentionBackward => "attention's backward",
            Self::AttentionBranch => "an attention branch",
            Self::AttentionBranchBackward => "an attention branch's backward",
            Self::FeedForwardBranch => "a feed-forward branch",
            Self::FeedForwardBranchBackward => "a feed-forward branch's backward",
            Self::AdamW => "a step of adamw",
            Self::LoadCuda => "the loading of its part for GPUs",
            Self::Copies => "copies between tensors and a flat buffer",
            Self::Squares => "sums of squares",
            Self::HostBuffer => "a buffer of the host",
            Self::Deterministic => "the choice of deterministic algorithms",
            Self::Memory => "the count of the device's memory",
            Self::Limit => "a limit of the device's memory",
            Self::Resize => "resizing",
            Self::ResizeBackward => "resizing's backward",
            Self::MaskLoss => "a loss of a mask",
            Self::L1Loss => "the L1 loss of an image",
            Self::Reshape => "another shape",
            Self::Columns => "shifted copies",
            Self::ColumnsBackward => "the sum of shifted copies",
            Self::ProfileStart => "the start of a profile",
            Self::ProfileFinish => "the end of a profile",
            Self::Tf32 => "the choice of how matrix products round",
        }
    }

    /// Refuses another number of something than the call takes.
    ///
    /// # Errors
    /// [`Error::Count`].
    pub(crate) fn check(self, what: &'static str, expected: i64, got: i64) -> Result<()> {
        match expected == got {
            true => Ok(()),
            false => Err(Error::Count {
                call: self.name(),
                what,
                expected: expected.max(0) as usize,
                got: got.max(0) as usize,
            }),
        }
    }

    /// Calls C++ with a place for the text of an exception.
    fn run(self, call: impl FnOnce(Message) -> c_int) -> Result<()> {
        let mut message = ptr::null_mut();
        let status = call(&raw mut message);
        let text = owned_text(message);
        match status {
            0 => Ok(()),
            _ => Err(Error::Exception {
                call: self.name(),
                text: text.unwrap_or_default().trim_end().to_owned(),
            }),
        }
    }
}

/// Takes over a text that C++ made with `strdup`; `None` for null.
fn owned_text(text: *mut c_char) -> Option<String> {
    (!text.is_null()).then(|| {
        // SAFETY: not null, so `strdup` made it: a text with an end, which nobody else has.
        let copy = unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned();
        // SAFETY: as above, and freed once, since the pointer is not used again.
        unsafe { terrashard_free_text(text) };
        copy
    })
}

/// Room for the tensors that a call gives. They are freed with it if nobody takes them.
#[derive(Debug)]
pub(crate) struct Outputs<const N: usize> {
    call: Call,
    tensors: [Option<Tensor>; N],
}

impl<const N: usize> Outputs<N> {
    pub(crate) fn new(call: Call) -> Self {
        Self {
            call,
            tensors: [const { None }; N],
        }
    }

    /// Tensor number `index`, which the call cannot have left out.
    pub(crate) fn tensor(&mut self, index: usize) -> Result<Tensor> {
        let tensor = self.tensors.get_mut(index).and_then(Option::take);
        tensor.ok_or(Error::NoTensor {
            call: self.call.name(),
            index,
        })
    }

    pub(crate) fn take(self) -> [Option<Tensor>; N] {
        self.tensors
    }

    /// Calls C++ and takes over what it gives.
    fn fill(&mut self, call: impl FnOnce(Message, Out) -> c_int) -> Result<()> {
        let mut handles = [ptr::null_mut::<Handle>(); N];
        let result = self.call.run(|message| call(message, handles.as_mut_ptr()));
        self.tensors = handles.map(|handle| {
            (!handle.is_null()).then(|| {
                // SAFETY: not null, so `shim.cc` made it with `new at::Tensor` and keeps no pointer to it.
                unsafe { Tensor::from_ptr(handle.cast()) }
            })
        });
        result
    }
}

/// Where a tensor lies; good as long as it is borrowed.
fn handle(tensor: &Tensor) -> In {
    tensor.as_ptr().cast()
}

pub(crate) fn conv2d_backward(
    gradient: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    [stride, padding, groups]: [i64; 3],
    wanted: [bool; 3],
    out: &mut Outputs<3>,
) -> Result<()> {
    let [gradient, x, weight] = [gradient, x, weight].map(handle);
    out.fill(|message, out| {
        // SAFETY: the tensors are borrowed until the call returns; `wanted` and `out` have the three places it uses.
        unsafe {
            terrashard_conv2d_backward(
                message,
                gradient,
                x,
                weight,
                stride,
                padding,
                groups,
                wanted.as_ptr(),
                out,
            )
        }
    })
}

pub(crate) fn attention(inputs: [&Tensor; 3], scale: f64, out: &mut Outputs<4>) -> Result<()> {
    let [q, k, v] = inputs.map(handle);
    // SAFETY: the tensors are borrowed until the call returns; `out` has the four places it uses.
    out.fill(|message, out| unsafe { terrashard_attention(message, q, k, v, scale, out) })
}

pub(crate) fn attention_backward(
    gradient: &Tensor,
    inputs: [&Tensor; 3],
    output: &Tensor,
    others: [Option<&Tensor>; 3],
    scale: f64,
    out: &mut Outputs<3>,
) -> Result<()> {
    let gradient = handle(gradient);
    let [q, k, v] = inputs.map(handle);
    let [sums, seed, offset] = others.map(|tensor| tensor.map_or(ptr::null(), handle));
    let saved = [handle(output), sums, seed, offset];
    out.fill(|message, out| {
        // SAFETY: the tensors are borrowed until the call returns; of the four in `saved` the first is not null, and the
        // others may be; `out` has the three places it uses.
        unsafe {
            terrashard_attention_backward(message, gradient, q, k, v, saved.as_ptr(), scale, out)
        }
    })
}

/// Where a tensor lies that a call changes; good as long as it is borrowed.
fn changed(tensor: &mut Tensor) -> *mut Handle {
    tensor.as_mut_ptr().cast()
}

/// Offsets and lengths, of each of `tensors` tensors one.
fn places(pieces: &Pieces, tensors: usize) -> Result<[Vec<i64>; 2]> {
    let numbers = [&pieces.offsets, &pieces.lengths];
    if numbers.iter().any(|numbers| numbers.len() != tensors) {
        return Err(Error::Exception {
            call: Call::Copies.name(),
            text: format!("{tensors} tensors have not as many places"),
        });
    }
    Ok(numbers.map(|numbers| numbers.iter().map(|number| *number as i64).collect()))
}

pub(crate) fn pack(
    pieces: &Pieces,
    tensors: &[Option<&Tensor>],
    buffer: &mut Tensor,
) -> Result<()> {
    let [offsets, lengths] = places(pieces, tensors.len())?;
    let given = |tensor: &Option<&Tensor>| tensor.map_or(ptr::null(), handle);
    let handles: Vec<In> = tensors.iter().map(given).collect();
    let buffer = changed(buffer);
    Call::Copies.run(|message| {
        // SAFETY: the tensors are borrowed until the call returns, the buffer mutably; each of the three arrays has as many
        // elements as there are tensors.
        unsafe {
            terrashard_pack(
                message,
                handles.as_ptr(),
                handles.len() as i64,
                buffer,
                pieces.rows as i64,
                pieces.columns as i64,
                offsets.as_ptr(),
                lengths.as_ptr(),
            )
        }
    })
}

pub(crate) fn unpack(pieces: &Pieces, buffer: &Tensor, tensors: &mut [Tensor]) -> Result<()> {
    let [offsets, lengths] = places(pieces, tensors.len())?;
    let handles: Vec<*mut Handle> = tensors.iter_mut().map(changed).collect();
    Call::Copies.run(|message| {
        // SAFETY: the tensors are borrowed until the call returns, those that it changes mutably; each of the three arrays has
        // as many elements as there are tensors.
        unsafe {
            terrashard_unpack(
                message,
                handle(buffer),
                handles.as_ptr(),
                handles.len() as i64,
                pieces.rows as i64,
                pieces.columns as i64,
                offsets.as_ptr(),
                lengths.as_ptr(),
            )
        }
    })
}

pub(crate) fn sums_of_squares(tensors: &[&Tensor]) -> Result<Tensor> {
    let handles: Vec<In> = tensors.iter().map(|tensor| handle(tensor)).collect();
    let mut out = Outputs::<1>::new(Call::Squares);
    out.fill(|message, out| {
        // SAFETY: the tensors are borrowed until the call returns, and there are as many handles as is said; `out` has the one
        // place it uses.
        unsafe { terrashard_sums_of_squares(message, handles.as_ptr(), handles.len() as i64, out) }
    })?;
    out.tensor(0)
}

pub(crate) fn version() -> String {
    // SAFETY: takes nothing and returns a literal.
    let text = unsafe { CStr::from_ptr(terrashard_torch_version()) };
    text.to_string_lossy().into_owned()
}

pub(crate) fn is_deterministic() -> bool {
    // SAFETY: takes nothing and reads a flag.
    unsafe { terrashard_is_deterministic() == 1 }
}

pub(crate) fn load_cuda() -> Result<()> {
    // SAFETY: takes nothing; LibTorch's constructors may run in any process.
    Call::LoadCuda.run(|message| unsafe { terrashard_load_cuda(message) })
}

pub(crate) fn set_deterministic(on: bool) -> Result<()> {
    Call::Deterministic.run(|message| {
        // SAFETY: takes nothing but the flag.
        unsafe { terrashard_set_deterministic(message, c_int::from(on)) }
    })
}

pub(crate) fn memory(device: usize) -> Result<[i64; 4]> {
    let mut bytes = [0; 4];
    Call::Memory.run(|message| {
        // SAFETY: `bytes` has the four places it uses.
        unsafe { terrashard_memory(message, device as i64, bytes.as_mut_ptr()) }
    })?;
    Ok(bytes)
}

pub(crate) fn reset_peak(device: usize) -> Result<()> {
    // SAFETY: takes nothing but the device's index, which LibTorch checks.
    Call::Memory.run(|message| unsafe { terrashard_reset_peak(message, device as i64) })
}

pub(crate) fn first_memory(device: usize) -> Result<()> {
    // SAFETY: takes nothing but the device's index, which LibTorch checks.
    Call::Memory.run(|message| unsafe { terrashard_first_memory(message, device as i64) })
}

pub(crate) fn limit_memory(device: usize, bytes: u64) -> Result<()> {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    Call::Limit.run(|message| {
        // SAFETY: takes nothing but numbers, and LibTorch checks the device's.
        unsafe { terrashard_limit_memory(message, device as i64, bytes) }
    })
}

pub(crate) fn count_cpu() -> Result<()> {
    // SAFETY: takes nothing; what it puts in place is the thread's own.
    Call::Memory.run(|message| unsafe { terrashard_count_cpu(message) })
}

pub(crate) fn counted_cpu() -> Result<i64> {
    let mut bytes = 0;
    // SAFETY: `bytes` is the one place it uses.
    Call::Memory.run(|message| unsafe { terrashard_counted_cpu(message, &raw mut bytes) })?;
    Ok(bytes)
}

pub(crate) fn set_tf32(on: bool) -> Result<()> {
    Call::Tf32.run(|message| {
        // SAFETY: takes nothing but the flag.
        unsafe { terrashard_set_tf32(message, c_int::from(on)) }
    })
}

pub(crate) fn empty_cache() -> Result<()> {
    // SAFETY: takes nothing; memory that a tensor holds is not touched.
    Call::Memory.run(|message| unsafe { terrashard_empty_cache(message) })
}
