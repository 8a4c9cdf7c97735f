//! The GPU as CUDA's driver shows it: its context, streams and events.
//!
//! LibTorch computes in the primary context of a device, on its legacy default stream. What is here uses the same
//! context, so events order both.

#![expect(unsafe_code, reason = "calls CUDA's driver")]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::result::{DriverError, device, event, primary_ctx, stream};
use cudarc::driver::sys;
use libloading::os::unix::Library as Shared;

use super::process::Completion;
use crate::{Error, Result};

/// The legacy default stream of the current context, which LibTorch computes on.
const LEGACY: sys::CUstream = ptr::null_mut();

fn check<T>(call: &str, result: std::result::Result<T, DriverError>) -> Result<T> {
    result.map_err(|DriverError(code)| {
        let words = DriverError(code);
        let words = words
            .error_string()
            .map(|text| text.to_string_lossy().into_owned());
        Error::Transport {
            reason: format!("CUDA: {call}: {} ({code:?})", words.unwrap_or_default()),
        }
    })
}

/// Initializes the driver once.
fn initialize() -> Result<()> {
    static DRIVER: OnceLock<Result<()>> = OnceLock::new();
    let initialized = DRIVER.get_or_init(|| {
        // SAFETY: the driver's constructors may run in any process.
        let found = ["libcuda.so.1", "libcuda.so"].map(|name| unsafe { Shared::new(name) });
        if let [Err(error), Err(_)] = found {
            return Err(Error::Transport {
                reason: format!("there is no driver of NVIDIA's GPUs on this machine: {error}"),
            });
        }
        check("cuInit", cudarc::driver::result::init())
    });
    initialized.clone()
}

/// GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` leaves them.
pub(super) fn count() -> Result<usize> {
    initialize()?;
    let count = check("cuDeviceGetCount", device::get_count())?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// One GPU, whose primary context lives as long as this.
#[derive(Debug)]
pub(super) struct Gpu {
    index: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be current on any number of threads, and the driver locks what it shares.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    pub(super) fn open(index: usize) -> Result<Arc<Self>> {
        let count = count()?;
        if index >= count {
            return Err(Error::Transport {
                reason: format!("there is no GPU {index}: this process may use {count}"),
            });
        }
        let ordinal = c_int::try_from(index).expect("below a count in 32 bits");
        let device = check("cuDeviceGet", device::get(ordinal))?;
        // SAFETY: the device comes from `device::get`.
        let context = check("cuDevicePrimaryCtxRetain", unsafe {
            primary_ctx::retain(device)
        })?;
        Ok(Arc::new(Self {
            index,
            device,
            context,
        }))
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Its name, and the number that no other GPU has.
    pub(super) fn identity(&self) -> Result<(String, [u8; 16])> {
        let name = check("cuDeviceGetName", device::get_name(self.device))?;
        let uuid = check("cuDeviceGetUuid", device::get_uuid(self.device))?;
        Ok((name, uuid.bytes.map(|byte| byte.to_ne_bytes()[0])))
    }

    /// Makes its context that of this thread until what it returns is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        // SAFETY: the context is retained as long as `self` lives.
        let pushed = unsafe { sys::cuCtxPushCurrent_v2(self.context) };
        check("cuCtxPushCurrent", pushed.result())?;
        Ok(Entered {
            _gpu: self,
            _this_thread: PhantomData,
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once, when it was made; streams and events hold the GPU and are gone.
        let _ = unsafe { primary_ctx::release(self.device) };
    }
}

/// While it lives, the GPU's context is the thread's.
pub(super) struct Entered<'a> {
    _gpu: &'a Gpu,
    _this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped: sys::CUcontext = ptr::null_mut();
        // SAFETY: pushed when this was made, on this thread, which it cannot leave.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

/// A stream that never waits for the legacy one unless it is told to.
#[derive(Debug)]
pub(super) struct Stream {
    gpu: Arc<Gpu>,
    raw: sys::CUstream,
}

// SAFETY: streams may be used from any thread; the driver locks them.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Of the highest priority: what others wait for goes first.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let _entered = gpu.enter()?;
        let (_, highest) = check("cuCtxGetStreamPriorityRange", stream::get_priority_range())?;
        let kind = stream::StreamKind::NonBlocking;
        let raw = check(
            "cuStreamCreate",
            stream::create_with_priority(kind, highest),
        )?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            raw,
        })
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// What comes next on this stream waits for all that LibTorch has been asked for until now. `fork` is used for it and
    /// free again afterwards.
    pub(super) fn wait_for_legacy(&self, fork: &Event) -> Result<()> {
        let _entered = self.gpu.enter()?;
        // SAFETY: event and streams belong to this context and live.
        check("cuEventRecord", unsafe { event::record(fork.raw, LEGACY) })?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        check("cuStreamWaitEvent", unsafe {
            stream::wait_event(self.raw, fork.raw, flags)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: created by this type, and destroyed once. What is under way on it still completes.
        let _ = unsafe { stream::destroy(self.raw) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(super) struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: events may be used from any thread; the driver locks them.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let _entered = gpu.enter()?;
        let raw = check(
            "cuEventCreate",
            event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING),
        )?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            raw,
        })
    }

    /// It stands for all that `stream` has been asked for until now.
    pub(super) fn record(&self, stream: &Stream) -> Result<()> {
        let _entered = self.gpu.enter()?;
        // SAFETY: both belong to the same context and live.
        check("cuEventRecord", unsafe {
            event::record(self.raw, stream.raw)
        })
    }

    /// What LibTorch is asked for next waits for it. The host does not.
    pub(super) fn hold_legacy(&self) -> Result<()> {
        let _entered = self.gpu.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event lives, and the legacy stream does as long as the context that was entered.
        check("cuStreamWaitEvent", unsafe {
            stream::wait_event(LEGACY, self.raw, flags)
        })
    }

    /// Blocks the host until the GPU has come to it.
    pub(super) fn block(&self) -> Result<()> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the event lives.
        check("cuEventSynchronize", unsafe {
            event::synchronize(self.raw)
        })
    }
}

impl Completion for Event {
    fn is_done(&self) -> Result<bool> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the event lives.
        match unsafe { event::query(self.raw) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: created by this type, and destroyed once; the driver waits for what uses it.
        let _ = unsafe { event::destroy(self.raw) };
    }
}
