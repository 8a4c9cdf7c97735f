//! The one thing that an operation may need from other ranks: a sum.

use std::fmt::Debug;

/// Adds vectors over ranks, element by element.
///
/// Batch statistics and the Dice ratio are not sums of independent shares, so they need this inside forward and backward. A
/// communicator fills it; [`Alone`] is the identity. Every rank calls it equally often and with vectors of equal length.
///
/// Forward and backward cannot return an error, so an implementation that fails leaves the values as they are and keeps its
/// error for whoever ends the step.
pub trait SumOverRanks: Send + Sync + Debug {
    /// Replaces `values` by their sums over all ranks, the same on every rank.
    fn sum(&self, values: &mut [f64]);
}

/// One rank by itself: sums are what they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl SumOverRanks for Alone {
    fn sum(&self, _values: &mut [f64]) {}
}
