//! The trait that every transport implements.

use std::fmt::{self, Debug};
use std::sync::Arc;

use burn::tensor::Tensor;

use crate::{Result, Traffic};

/// One rank's connection to its group.
///
/// All ranks make the same calls in the same order, with tensors of the same length and element type; results
/// may be waited for in any order, and a rank that never waits holds up nobody. Tensors are flat and on a plain
/// device: nothing here is recorded for autodiff. In a group of one rank every verb is the identity.
///
/// # Errors
///
/// Of every verb: [`crate::Error::Mismatch`] if ranks make different calls, [`crate::Error::Poisoned`] and
/// [`crate::Error::Left`] if a rank cannot come, [`crate::Error::UnsupportedType`], [`crate::Error::Read`].
pub trait Communicator: Send + Sync + Debug {
    /// This rank, in `0..ranks`.
    fn rank(&self) -> usize;

    /// Ranks in the group, at least 1.
    fn ranks(&self) -> usize;

    /// The sum over ranks, for every rank.
    ///
    /// # Shapes
    ///
    /// `[L]` to `[L]`.
    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending>;

    /// This rank's part of the sum over ranks.
    ///
    /// # Shapes
    ///
    /// `[ranks * n]` to `[n]`: elements `rank * n..(rank + 1) * n` of the sum.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Indivisible`] if the length is no multiple of the number of ranks.
    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending>;

    /// The inputs of all ranks one after another, for every rank.
    ///
    /// # Shapes
    ///
    /// `[n]` to `[ranks * n]`.
    fn all_gather(&self, input: Tensor<1>) -> Result<Pending>;

    /// The root's input, for every rank. The others' inputs say only which length and element type they expect.
    ///
    /// # Shapes
    ///
    /// `[L]` to `[L]`.
    ///
    /// # Errors
    ///
    /// [`crate::Error::RootOutOfRange`] if there is no rank `root`.
    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending>;

    /// Returns when every rank has called it.
    fn barrier(&self) -> Result<()>;

    /// A group of the ranks that give the same `color`, in rank order, with traffic of its own. A call of this
    /// group like the others, which returns when every rank has made it.
    ///
    /// The new group and this one stay tied: a rank that fails, panics, aborts or leaves is missed in both, and an
    /// error in one of them ends all groups of the run. Errors name ranks as the run counts them, before any split,
    /// and calls as their group does. Calls of several groups may be under way together; two ranks that *wait* in two
    /// groups, each for a call that the other has not made yet, wait for ever, as with two locks.
    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>>;

    /// Gives up for the whole run: calls that not all ranks have made yet fail on every rank, in every group, with
    /// [`crate::Error::Poisoned`], which carries this rank and `reason`.
    fn abort(&self, reason: &str);

    /// What this rank has sent so far.
    fn traffic(&self) -> Traffic;
}

/// Groups that come from a split are communicators of any kind.
impl Communicator for Arc<dyn Communicator> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn ranks(&self) -> usize {
        (**self).ranks()
    }

    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending> {
        (**self).all_reduce(input)
    }

    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending> {
        (**self).reduce_scatter(input)
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        (**self).all_gather(input)
    }

    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending> {
        (**self).broadcast(input, root)
    }

    fn barrier(&self) -> Result<()> {
        (**self).barrier()
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        (**self).split(color)
    }

    fn abort(&self, reason: &str) {
        (**self).abort(reason);
    }

    fn traffic(&self) -> Traffic {
        (**self).traffic()
    }
}

/// A collective operation on its way. It owns the buffers; the result is there once it is waited for.
///
/// Dropping it gives up the result of this rank alone.
#[must_use = "a collective operation yields its result only when it is waited for"]
pub struct Pending(Box<dyn FnOnce() -> Result<Tensor<1>> + Send>);

impl Pending {
    /// An operation that `wait` completes.
    pub fn new(wait: impl FnOnce() -> Result<Tensor<1>> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// An operation that is complete, with its result.
    pub fn ready(result: Tensor<1>) -> Self {
        Self::new(move || Ok(result))
    }

    /// Blocks until the operation is complete and returns its result, on the device and with the element type of
    /// the input.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Mismatch`], [`crate::Error::Poisoned`] or [`crate::Error::Left`] if a rank does not make
    /// the same call.
    pub fn wait(self) -> Result<Tensor<1>> {
        (self.0)()
    }
}

impl Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
