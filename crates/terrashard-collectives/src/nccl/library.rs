//! NCCL itself: the functions of the copy that LibTorch has loaded.

#![expect(unsafe_code, reason = "opens a shared library and calls into it")]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::sync::OnceLock;

use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use libloading::os::unix::{Library as Shared, RTLD_LOCAL, RTLD_NOW};

use crate::{Error, Result};

/// The name under which NCCL's second version is linked, by LibTorch, too.
const NAME: &str = "libnccl.so.2";

/// Of `dlopen`, on Linux: only if it is loaded already.
const RTLD_NOLOAD: c_int = 4;

/// The first version with all that is called here.
const OLDEST: c_int = 21_800;

/// The bytes by which the ranks of a group find each other.
pub(super) const ID_BYTES: usize = 128;

/// The type of a function of NCCL: its arguments, and what it returns.
macro_rules! c_function {
    ($($argument:ty),* => $result:ty) => {
        // SAFETY: who calls one sees to it that the arguments are what NCCL's documentation asks for.
        unsafe extern "C" fn($($argument),*) -> $result
    };
}

/// The functions of NCCL that are called. Each is what NCCL's header of the same name declares.
#[derive(Debug)]
pub(super) struct Library {
    version: c_int,
    get_unique_id: c_function!(*mut ncclUniqueId => ncclResult_t),
    get_last_error: c_function!(ncclComm_t => *const c_char),
    get_error_string: c_function!(ncclResult_t => *const c_char),
    pub(super) comm_init_rank: c_function!(*mut ncclComm_t, c_int, ncclUniqueId, c_int => ncclResult_t),
    pub(super) comm_destroy: c_function!(ncclComm_t => ncclResult_t),
    pub(super) comm_abort: c_function!(ncclComm_t => ncclResult_t),
    pub(super) comm_get_async_error: c_function!(ncclComm_t, *mut ncclResult_t => ncclResult_t),
    pub(super) all_reduce: Reduce,
    pub(super) reduce_scatter: Reduce,
    pub(super) all_gather: c_function!(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t => ncclResult_t),
    pub(super) broadcast: c_function!(*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t => ncclResult_t),
}

/// A verb that sums.
pub(super) type Reduce = c_function!(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t => ncclResult_t);

impl Library {
    /// The copy that LibTorch has loaded, or the first that the system finds if LibTorch has none.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if there is none, if it is too old, or if the process has loaded two.
    pub(super) fn get() -> Result<&'static Self> {
        static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| {
            let library = Self::open()?;
            let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
            one_copy(&loaded(&maps))?;
            Ok(library)
        });
        library.as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self> {
        let names = [(NAME, RTLD_NOLOAD), (NAME, 0), ("libnccl.so", 0)];
        let open = |(name, how): (&str, c_int)| {
            // SAFETY: NCCL's constructors may run in any process at any time; LibTorch runs them, too.
            unsafe { Shared::open(Some(name), RTLD_NOW | RTLD_LOCAL | how) }
        };
        let mut opened = names.into_iter().map(open);
        let shared = opened.find_map(std::result::Result::ok).ok_or_else(|| Error::Transport {
            reason: format!(
                "{NAME} is not found: put the folder of LibTorch's copy (nvidia/nccl/lib beside the folder torch) on LD_LIBRARY_PATH"
            ),
        })?;
        let library = Self::of(&shared)?;
        // The functions live as long as the process.
        std::mem::forget(shared);
        if library.version < OLDEST {
            return Err(Error::Transport {
                reason: format!(
                    "NCCL {} is too old: use {} or newer",
                    dotted(library.version),
                    dotted(OLDEST)
                ),
            });
        }
        Ok(library)
    }

    fn of(shared: &Shared) -> Result<Self> {
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type is that of the function of this name in NCCL's header, the same in all versions 2.
                match unsafe { shared.get($name) } {
                    Ok(function) => *function,
                    Err(error) => {
                        return Err(Error::Transport {
                            reason: format!("what was loaded as {NAME} is no NCCL: {error}"),
                        });
                    }
                }
            };
        }
        let get_version: c_function!(*mut c_int => ncclResult_t) = function!("ncclGetVersion");
        let mut version = 0;
        // SAFETY: the pointer is to an integer of this function.
        unsafe { get_version(&raw mut version) };
        Ok(Self {
            version,
            get_unique_id: function!("ncclGetUniqueId"),
            get_last_error: function!("ncclGetLastError"),
            get_error_string: function!("ncclGetErrorString"),
            comm_init_rank: function!("ncclCommInitRank"),
            comm_destroy: function!("ncclCommDestroy"),
            comm_abort: function!("ncclCommAbort"),
            comm_get_async_error: function!("ncclCommGetAsyncError"),
            all_reduce: function!("ncclAllReduce"),
            reduce_scatter: function!("ncclReduceScatter"),
            all_gather: function!("ncclAllGather"),
            broadcast: function!("ncclBroadcast"),
        })
    }

    /// As NCCL counts versions: 22807 is 2.28.7.
    pub(super) fn version(&self) -> String {
        dotted(self.version)
    }

    /// New bytes for a group.
    pub(super) fn unique_id(&self) -> Result<[u8; ID_BYTES]> {
        let mut id = ncclUniqueId {
            internal: [0; ID_BYTES],
        };
        // SAFETY: the pointer is to a value of this function.
        let result = unsafe { (self.get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", result)?;
        Ok(id.internal.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// An error unless NCCL's function `call` has done what it was asked for.
    pub(super) fn check(&self, call: &str, result: ncclResult_t) -> Result<()> {
        match result {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
            result => Err(Error::Transport {
                reason: format!("{call}: {}", self.words(result)),
            }),
        }
    }

    /// What NCCL says of an error.
    pub(super) fn words(&self, result: ncclResult_t) -> String {
        // SAFETY: NCCL returns texts that live as long as it does.
        let words = unsafe { text((self.get_error_string)(result)) };
        // SAFETY: as above; without a communicator it is the last error of this thread.
        let last = unsafe { text((self.get_last_error)(std::ptr::null_mut())) };
        match last.trim() {
            "" => words,
            last => format!("{words} ({last})"),
        }
    }
}

/// Ends the process at once. What libraries have registered for its exit does not run: while other threads still compute, or
/// wait for a GPU, it may crash or hang.
pub(super) fn exit_at_once(code: c_int) -> ! {
    // SAFETY: the C library's function of this name takes a number and may be called at any time.
    if let Ok(exit) = unsafe { Shared::this().get::<c_function!(c_int => ())>("_exit") } {
        // SAFETY: as above.
        unsafe { exit(code) };
    }
    std::process::exit(code)
}

/// # Safety
///
/// Null, or a C string that nobody changes meanwhile.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: as this function demands.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_string_lossy().replace('\n', " ")
}

fn dotted(version: c_int) -> String {
    let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
    format!("{major}.{minor}.{patch}")
}

/// The files of NCCL that a process has loaded, from its `/proc/self/maps`: device, inode and path of each.
fn loaded(maps: &str) -> BTreeSet<(String, String, String)> {
    let file = |line: &str| {
        let mut words = line.split_whitespace().skip(3);
        let (device, inode) = (words.next()?, words.next()?);
        let path = words.collect::<Vec<_>>().join(" ");
        let name = path.rsplit('/').next()?;
        let is_nccl = name == "libnccl.so" || name.starts_with("libnccl.so.");
        is_nccl.then(|| (device.to_owned(), inode.to_owned(), path.clone()))
    };
    maps.lines().filter_map(file).collect()
}

/// An error if these are two copies.
fn one_copy(files: &BTreeSet<(String, String, String)>) -> Result<()> {
    if files.len() <= 1 {
        return Ok(());
    }
    let paths: Vec<&str> = files.iter().map(|(.., path)| path.as_str()).collect();
    Err(Error::Transport {
        reason: format!(
            "this process has loaded two copies of NCCL, {}: put the folder of the one that LibTorch uses first on LD_LIBRARY_PATH, \
             with a link libnccl.so to it, and leave the other out",
            paths.join(" and ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0200000 r-xp 00000000 fe:01 1311 /opt/a b/terrashard
7f10a0000000-7f10b0000000 r--p 00000000 fe:01 4242 /opt/torch/nvidia/nccl/lib/libnccl.so.2
7f10b0000000-7f10c0000000 r-xp 10000000 fe:01 4242 /opt/torch/nvidia/nccl/lib/libnccl.so.2
7f10d0000000-7f10d0001000 r-xp 00000000 fe:01 77 /usr/lib/libnccl-net.so
7f10e0000000-7f10e0001000 rw-p 00000000 00:00 0
";

    #[test]
    fn one_copy_is_fine() {
        let files = loaded(MAPS);
        let paths: Vec<_> = files.iter().map(|(.., path)| path.as_str()).collect();
        assert_eq!(paths, ["/opt/torch/nvidia/nccl/lib/libnccl.so.2"]);
        one_copy(&files).unwrap();
        one_copy(&loaded("")).unwrap();
    }

    #[test]
    fn two_copies_are_named() {
        let maps = format!("{MAPS}7f20-7f30 r-xp 0 fe:01 99 /usr/lib/x86_64/libnccl.so.2.27.3\n");
        let text = one_copy(&loaded(&maps)).unwrap_err().to_string();
        for part in [
            "/opt/torch/nvidia/nccl/lib/libnccl.so.2",
            "libnccl.so.2.27.3",
            "LD_LIBRARY_PATH",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn versions_are_told_in_parts() {
        assert_eq!(dotted(22_807), "2.28.7");
        assert_eq!(dotted(OLDEST), "2.18.0");
    }
}
