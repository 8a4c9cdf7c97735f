//! What the ranks of one run share: the calls that are open, who has left, and why the run is lost.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use burn::tensor::TensorData;

use super::work::Work;
use crate::{Call, Error, Result};

/// The ranks of one run.
#[derive(Debug)]
pub(super) struct Group {
    ranks: usize,
    state: Mutex<State>,
    /// Told whenever a call becomes complete, a sum is finished, or a rank ends.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Calls that some ranks have made and others have not, oldest first.
    open: VecDeque<Open>,
    /// The number of the first open call.
    first_open: u64,
    members: Vec<Member>,
    lost: Option<Lost>,
}

/// A call that waits for ranks.
#[derive(Debug)]
struct Open {
    slot: Arc<Slot>,
    first: usize,
    inputs: Vec<Option<TensorData>>,
    missing: usize,
}

/// A call from the side of those who wait for it.
#[derive(Debug)]
pub(super) struct Slot {
    sequence: u64,
    call: Call,
    /// Set when all ranks have published.
    work: OnceLock<Work>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    /// The number of its next call.
    next: u64,
    presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Here,
    Ended,
}

/// Why no further call can complete: the first reason, which all ranks are given.
#[derive(Debug)]
struct Lost {
    culprit: usize,
    error: Error,
}

impl Group {
    pub(super) fn new(ranks: usize) -> Self {
        let members = vec![
            Member {
                next: 0,
                presence: Presence::Here
            };
            ranks
        ];
        let state = State {
            open: VecDeque::new(),
            first_open: 0,
            members,
            lost: None,
        };
        Self {
            ranks,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    /// The rank that the run failed for, if it failed for one.
    pub(super) fn culprit(&self) -> Option<usize> {
        self.lock().lost.as_ref().map(|lost| lost.culprit)
    }

    /// Hands `rank`'s input for its next call to the group. Never waits for another rank.
    pub(super) fn publish(&self, rank: usize, call: Call, input: TensorData) -> Result<Arc<Slot>> {
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.error.clone());
        }
        let sequence = state.members[rank].next;
        if state.members[rank].presence == Presence::Ended {
            return Err(Error::Left {
                rank,
                waiting: rank,
                sequence,
                call,
            });
        }
        let index = usize::try_from(sequence - state.first_open).expect("open calls are in memory");
        if index == state.open.len() {
            let slot = Arc::new(Slot {
                sequence,
                call,
                work: OnceLock::new(),
            });
            let inputs = (0..self.ranks).map(|_| None).collect();
            state.open.push_back(Open {
                slot,
                first: rank,
                inputs,
                missing: self.ranks,
            });
        }
        let open = &mut state.open[index];
        if open.slot.call != call {
            let error = Error::Mismatch {
                sequence,
                first: open.first,
                first_call: open.slot.call,
                second: rank,
                second_call: call,
            };
            self.lose(&mut state, rank, error.clone());
            return Err(error);
        }
        let slot = Arc::clone(&open.slot);
        open.inputs[rank] = Some(input);
        open.missing -= 1;
        state.members[rank].next += 1;
        // A rank publishes its calls in order, so the oldest open call completes first.
        if let Some(complete) = state.open.pop_front_if(|open| open.missing == 0) {
            state.first_open += 1;
            let inputs = complete.inputs.into_iter().flatten().collect();
            let first_time = complete.slot.work.set(Work::new(call, inputs)).is_ok();
            debug_assert!(first_time, "a call completes once");
            self.changed.notify_all();
        }
        Ok(slot)
    }

    /// Waits until all ranks have made the call, does this rank's share of the work and returns its result.
    pub(super) fn finish(&self, rank: usize, slot: &Slot) -> Result<TensorData> {
        let work = self.complete(rank, slot)?;
        work.share(rank, || {
            // Under the lock, so that no rank can miss it between looking and falling asleep.
            let _state = self.lock();
            self.changed.notify_all();
        });
        let mut state = self.lock();
        while !work.is_done() {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        work.result(rank)
    }

    /// Waits until all ranks have made the call. A call that all have made completes, whatever happened since.
    fn complete<'a>(&self, rank: usize, slot: &'a Slot) -> Result<&'a Work> {
        let mut state = self.lock();
        loop {
            if let Some(work) = slot.work.get() {
                return Ok(work);
            }
            if let Some(lost) = &state.lost {
                return Err(lost.error.clone());
            }
            let absent = |member: &Member| {
                member.presence == Presence::Ended && member.next <= slot.sequence
            };
            if let Some(ended) = state.members.iter().position(absent) {
                let error = Error::Left {
                    rank: ended,
                    waiting: rank,
                    sequence: slot.sequence,
                    call: slot.call,
                };
                self.lose(&mut state, rank, error.clone());
                return Err(error);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that `rank` has returned normally.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.members[rank].presence = Presence::Ended;
        self.changed.notify_all();
    }

    /// Notes that `rank` cannot go on, so that the group cannot.
    pub(super) fn fail(&self, rank: usize, reason: &str) {
        let mut state = self.lock();
        self.lose(
            &mut state,
            rank,
            Error::Poisoned {
                rank,
                reason: reason.to_owned(),
            },
        );
    }

    fn lose(&self, state: &mut State, culprit: usize, error: Error) {
        if state.lost.is_none() {
            state.lost = Some(Lost { culprit, error });
            // Inputs that nobody will add up any more.
            state.open.clear();
            self.changed.notify_all();
        }
    }

    /// The state. No code panics while it holds the lock, so a poisoned lock still guards a valid state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
