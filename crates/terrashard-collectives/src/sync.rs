//! What the ranks of `local` wait for each other by: the standard library's, or, in tests of the protocol (feature `shuttle`), what has
//! the same names under a scheduler that takes its own order of events.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, atomic,
};

#[cfg(feature = "shuttle")]
pub(crate) use scheduled::OnceLock;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, atomic,
};

#[cfg(feature = "shuttle")]
mod scheduled {
    use std::sync;

    use shuttle::sync::atomic::{AtomicBool, Ordering};

    /// Another thread may come here, as before each use of an atomic.
    fn interrupted() {
        AtomicBool::new(false).load(Ordering::SeqCst);
    }

    /// As [`sync::OnceLock`], with another thread's turn before each use.
    #[derive(Debug, Default)]
    pub(crate) struct OnceLock<T>(sync::OnceLock<T>);

    impl<T> OnceLock<T> {
        pub(crate) const fn new() -> Self {
            Self(sync::OnceLock::new())
        }

        pub(crate) fn get(&self) -> Option<&T> {
            interrupted();
            self.0.get()
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            interrupted();
            self.0.set(value)
        }

        pub(crate) fn get_or_init(&self, value: impl FnOnce() -> T) -> &T {
            interrupted();
            self.0.get_or_init(value)
        }
    }
}
