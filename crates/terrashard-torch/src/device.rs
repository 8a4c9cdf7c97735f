//! What a device holds and how LibTorch computes on it.

use crate::{Result, shim};

/// Bytes in the memory of a GPU, as LibTorch's caching allocator counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Held by tensors now.
    pub allocated: u64,
    /// Held by tensors at most since the last [`reset_peak`](Self::reset_peak).
    pub allocated_peak: u64,
    /// Taken from the device now, in use or kept for later.
    pub reserved: u64,
    /// Taken from the device at most since the last [`reset_peak`](Self::reset_peak).
    pub reserved_peak: u64,
}

impl Memory {
    /// Of the GPU with this index.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if LibTorch was built for the CPU alone or there is no such GPU.
    pub fn of(device: usize) -> Result<Self> {
        let [allocated, allocated_peak, reserved, reserved_peak] =
            shim::memory(device)?.map(|bytes| u64::try_from(bytes).unwrap_or(0));
        Ok(Self {
            allocated,
            allocated_peak,
            reserved,
            reserved_peak,
        })
    }

    /// From here on the peaks count anew.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) as for [`of`](Self::of).
    pub fn reset_peak(device: usize) -> Result<()> {
        shim::reset_peak(device)
    }
}

/// Lets this process take no more than so many bytes of a GPU's memory, and of other GPUs the same share: what is above that is an
/// error, as if there were no more. Comes before the first tensor on a GPU.
///
/// # Errors
/// [`Error::Exception`](crate::Error) if LibTorch was built for the CPU alone, there is no such GPU, or tensors have been there.
pub fn limit_memory(device: usize, bytes: u64) -> Result<()> {
    shim::limit_memory(device, bytes)
}

/// Runs `body` and counts the bytes that LibTorch takes of the CPU's memory in this thread meanwhile: the most there are at a
/// time above what there was before.
///
/// # Errors
/// [`Error::Exception`](crate::Error) if LibTorch's profiler is at work in this thread.
pub fn cpu_peak<R>(body: impl FnOnce() -> R) -> Result<(R, u64)> {
    /// Ends the count when `body` panics, too.
    struct Count;

    impl Drop for Count {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let _ = shim::counted_cpu();
            }
        }
    }

    shim::count_cpu()?;
    let count = Count;
    let result = body();
    drop(count);
    let peak = u64::try_from(shim::counted_cpu()?).unwrap_or(0);
    Ok((result, peak))
}

/// Loads LibTorch's part for GPUs, `libtorch_cuda.so`, unless it is loaded. A program that was built beside a LibTorch for
/// the CPU alone runs on GPUs beside one that has this part. Comes before anything that names a GPU.
///
/// # Errors
/// [`Error::Exception`](crate::Error) if it is not found: the folder of its libraries belongs on `LD_LIBRARY_PATH`.
pub fn load_cuda() -> Result<()> {
    shim::load_cuda()
}

/// Whether LibTorch is held to algorithms that give the same bits each time.
pub fn is_deterministic() -> bool {
    shim::is_deterministic()
}

/// Holds LibTorch to algorithms that give the same bits each time, or no longer. For the whole process; an operation that
/// has no such algorithm is an error from then on.
///
/// # Errors
/// [`Error::Exception`](crate::Error) if LibTorch refuses.
pub fn set_deterministic(on: bool) -> Result<()> {
    shim::set_deterministic(on)
}

/// Lets GPUs round the factors of 32-bit matrix products and convolutions to 19 bits, or no longer. For the whole process.
///
/// # Errors
/// [`Error::Exception`](crate::Error) if LibTorch refuses.
pub fn set_tf32(on: bool) -> Result<()> {
    shim::set_tf32(on)
}

/// Gives memory that the GPU's caching allocator keeps for later back to the device.
///
/// # Errors
/// [`Error::Exception`](crate::Error) if LibTorch was built for the CPU alone.
pub fn empty_cache() -> Result<()> {
    shim::empty_cache()
}

/// The version of LibTorch that this was built against.
pub fn version() -> String {
    shim::version()
}
