//! What is left to do of a call once all ranks have published their inputs.

use std::ops::Range;

use burn::tensor::TensorData;

use crate::element::{elements, with_element};
use crate::sum::Summand;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};
use crate::{Call, Error, Result, Verb};

/// Elements of an all-reduce that one rank claims at a time.
#[cfg(not(feature = "shuttle"))]
const SEGMENT: usize = 1 << 16;
/// So few that ranks share the short sums that schedules are taken of.
#[cfg(feature = "shuttle")]
const SEGMENT: usize = 2;

/// The inputs of all ranks for one call, and the sum that they share.
#[derive(Debug)]
pub(super) struct Work {
    call: Call,
    /// One for each rank, in rank order. An all-reduce lets go of them as soon as it has the sum.
    inputs: RwLock<Vec<TensorData>>,
    /// The sum of an all-reduce, in segments; empty for other verbs, where no rank needs another's work.
    segments: Vec<OnceLock<Segment>>,
    claimed: AtomicUsize,
    done: AtomicUsize,
}

/// A part of a sum, or the rank that panicked over it.
type Segment = Result<TensorData, usize>;

impl Work {
    pub(super) fn new(call: Call, inputs: Vec<TensorData>) -> Self {
        let segments = if call.verb == Verb::AllReduce {
            call.len.div_ceil(SEGMENT)
        } else {
            0
        };
        let segments = (0..segments).map(|_| OnceLock::new()).collect();
        Self {
            call,
            inputs: RwLock::new(inputs),
            segments,
            claimed: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }
    }

    /// Adds segments that no other rank has claimed, until none is left, and calls `finished` after the last one.
    /// `rank` is what others name if it panics.
    pub(super) fn share(&self, rank: usize, finished: impl Fn()) {
        loop {
            let index = self.claimed.fetch_add(1, Ordering::Relaxed);
            if index >= self.segments.len() {
                return;
            }
            let claim = Claim {
                work: self,
                index,
                rank,
                finished: &finished,
            };
            let range = index * SEGMENT..((index + 1) * SEGMENT).min(self.call.len);
            let sum = with_element!(self.call.dtype, E => Self::sum::<E>(&self.inputs(), range));
            claim.work.segments[index]
                .set(Ok(sum))
                .expect("a segment is claimed once");
        }
    }

    /// Whether every segment is there.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.segments.len()
    }

    /// What `rank` gets. Every segment has to be there.
    pub(super) fn result(&self, rank: usize) -> Result<TensorData> {
        with_element!(self.call.dtype, E => self.collect::<E>(rank))
    }

    fn collect<E: Summand>(&self, rank: usize) -> Result<TensorData> {
        let inputs = self.inputs();
        let parts = match self.call.verb {
            Verb::ReduceScatter => {
                let len = self.call.len / inputs.len();
                return Ok(Self::sum::<E>(&inputs, rank * len..(rank + 1) * len));
            }
            Verb::AllGather => inputs.iter().map(elements::<E>).collect(),
            Verb::Broadcast { root } => vec![elements::<E>(&inputs[root])],
            Verb::Barrier | Verb::Split => Vec::new(),
            Verb::AllReduce => self
                .segments()
                .map(|part| part.map(elements::<E>))
                .collect::<Result<Vec<_>>>()?,
        };
        let joined = parts.concat();
        let len = joined.len();
        Ok(TensorData::new(joined, [len]))
    }

    fn inputs(&self) -> RwLockReadGuard<'_, Vec<TensorData>> {
        // Nothing panics that has the right to change them.
        self.inputs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn segments(&self) -> impl Iterator<Item = Result<&TensorData>> {
        self.segments.iter().map(|segment| {
            match segment.get().expect("waited for until all were there") {
                Ok(sum) => Ok(sum),
                Err(rank) => Err(Error::Poisoned {
                    rank: *rank,
                    reason: "panicked during a sum".to_owned(),
                }),
            }
        })
    }

    /// The sum over ranks of the elements in `range`.
    fn sum<E: Summand>(inputs: &[TensorData], range: Range<usize>) -> TensorData {
        let terms: Vec<&[E]> = inputs
            .iter()
            .map(|input| &elements(input)[range.clone()])
            .collect();
        let mut sum = Vec::with_capacity(range.len());
        E::append_sum(&mut sum, &terms);
        TensorData::new(sum, [range.len()])
    }
}

/// The right and the duty to add one segment. Dropped after the segment is set, or by a panic, which it reports in
/// the segment's place: nobody waits for a segment that does not come.
struct Claim<'a, F: Fn()> {
    work: &'a Work,
    index: usize,
    rank: usize,
    finished: &'a F,
}

impl<F: Fn()> Drop for Claim<'_, F> {
    fn drop(&mut self) {
        self.work.segments[self.index].get_or_init(|| Err(self.rank));
        if self.work.done.fetch_add(1, Ordering::AcqRel) + 1 == self.work.segments.len() {
            let mut inputs = self
                .work
                .inputs
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            inputs.clear();
            drop(inputs);
            (self.finished)();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use burn::tensor::FloatDType;

    fn work(verb: Verb, len: usize) -> Work {
        let dtype = FloatDType::F32;
        let input = |rank: usize| TensorData::new(vec![rank as f32; len], [len]);
        Work::new(Call { verb, len, dtype }, (0..3).map(input).collect())
    }

    #[test]
    fn an_all_reduce_lets_go_of_its_inputs() {
        let work = work(Verb::AllReduce, SEGMENT + 1);
        assert_eq!(work.inputs().len(), 3);
        // One rank adds everything up; the others have not looked yet.
        work.share(1, || ());
        assert!(work.is_done() && work.inputs().is_empty());
        for rank in 0..3 {
            let sum = work.result(rank).unwrap();
            assert_eq!(elements::<f32>(&sum), vec![3.0; SEGMENT + 1]);
        }
    }

    #[test]
    fn other_verbs_read_inputs_once_for_each_rank() {
        let work = work(Verb::ReduceScatter, 6);
        work.share(0, || panic!("there is nothing to add together"));
        assert!(work.is_done());
        for rank in 0..3 {
            assert_eq!(elements::<f32>(&work.result(rank).unwrap()), [3.0, 3.0]);
        }
    }
}
