//! What the ranks of one run share: the calls that are open in each group, who has left, and why the run is lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use burn::tensor::TensorData;

use super::work::Work;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use crate::{Call, Error, Result, Verb};

/// Ranks that make calls together: all of a run, or those of one color.
#[derive(Debug)]
pub(super) struct Group {
    run: Arc<Run>,
    /// Which of the run's [`Calls`] are its own.
    index: usize,
    /// The ranks of the run that belong to it, ascending. Errors name ranks so.
    members: Vec<usize>,
}

/// What all groups of one run share, under one lock: a rank that cannot come is missed in all of them.
#[derive(Debug)]
struct Run {
    state: Mutex<State>,
    /// Told whenever a call becomes complete, a sum is finished, or a rank ends.
    changed: Condvar,
    /// How long a rank waits for another; for ever where `None`.
    timeout: Option<Duration>,
}

#[derive(Debug)]
struct State {
    /// One for each group.
    calls: Vec<Calls>,
    /// One for each rank of the run.
    presence: Vec<Presence>,
    lost: Option<Lost>,
}

/// The calls of one group.
#[derive(Debug)]
struct Calls {
    /// Calls that some ranks have made and others have not, oldest first.
    open: VecDeque<Open>,
    /// The number of the first open call.
    first_open: u64,
    /// The number of each member's next call.
    next: Vec<u64>,
}

/// A call that waits for ranks.
#[derive(Debug)]
struct Open {
    slot: Arc<Slot>,
    first: usize,
    inputs: Vec<Option<Input>>,
    missing: usize,
}

/// What a rank puts into a call.
#[derive(Debug)]
pub(super) enum Input {
    /// The elements of a tensor.
    Elements(TensorData),
    /// The color of a split.
    Color(usize),
}

/// A call from the side of those who wait for it.
#[derive(Debug)]
pub(super) struct Slot {
    sequence: u64,
    call: Call,
    /// Set when all ranks have published.
    outcome: OnceLock<Outcome>,
}

/// What is there once all ranks have published.
#[derive(Debug)]
enum Outcome {
    Work(Work),
    /// The new group of each rank of the group that was split, and its rank there.
    Groups(Vec<(usize, Arc<Group>)>),
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
    since: Instant,
    /// What the first rank that ended by it has said.
    words: Option<String>,
}

impl Calls {
    fn new(ranks: usize) -> Self {
        Self {
            open: VecDeque::new(),
            first_open: 0,
            next: vec![0; ranks],
        }
    }
}

impl Group {
    /// All ranks of a new run.
    pub(super) fn new(ranks: usize, timeout: Option<Duration>) -> Self {
        let state = State {
            calls: vec![Calls::new(ranks)],
            presence: vec![Presence::Here; ranks],
            lost: None,
        };
        let run = Run {
            state: Mutex::new(state),
            changed: Condvar::new(),
            timeout,
        };
        Self {
            run: Arc::new(run),
            index: 0,
            members: (0..ranks).collect(),
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.members.len()
    }

    /// The rank that the run failed for, if it failed for one.
    pub(super) fn culprit(&self) -> Option<usize> {
        self.lock().lost.as_ref().map(|lost| lost.culprit)
    }

    /// Why the run is lost, if it has been for longer than its timeout, or for `grace` after one.
    /// With the words of the first rank that ended by it.
    pub(super) fn overdue(&self, grace: Duration) -> Option<(Error, String)> {
        let state = self.lock();
        let Lost {
            error,
            since,
            words,
            ..
        } = state.lost.as_ref()?;
        let limit = match error {
            Error::Stalled { .. } => grace,
            _ => self.run.timeout?,
        };
        (since.elapsed() > limit).then(|| {
            let words = words.clone().unwrap_or_else(|| error.to_string());
            (error.clone(), words)
        })
    }

    /// Hands `rank`'s input for its next call to the group. Never waits for another rank.
    pub(super) fn publish(&self, rank: usize, call: Call, input: Input) -> Result<Arc<Slot>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(lost) = &state.lost {
            return Err(lost.error.clone());
        }
        let member = self.members[rank];
        let calls = &mut state.calls[self.index];
        let sequence = calls.next[rank];
        if state.presence[member] == Presence::Ended {
            return Err(Error::Left {
                rank: member,
                waiting: member,
                sequence,
                call,
            });
        }
        let index = usize::try_from(sequence - calls.first_open).expect("open calls are in memory");
        if index == calls.open.len() {
            let slot = Arc::new(Slot {
                sequence,
                call,
                outcome: OnceLock::new(),
            });
            calls.open.push_back(Open {
                slot,
                first: member,
                inputs: self.members.iter().map(|_| None).collect(),
                missing: self.ranks(),
            });
        }
        let open = &mut calls.open[index];
        if open.slot.call != call {
            let error = Error::Mismatch {
                sequence,
                first: open.first,
                first_call: open.slot.call,
                second: member,
                second_call: call,
            };
            self.run.lose(state, member, error.clone());
            return Err(error);
        }
        let slot = Arc::clone(&open.slot);
        open.inputs[rank] = Some(input);
        open.missing -= 1;
        calls.next[rank] += 1;
        // A rank publishes its calls in order, so the oldest open call completes first.
        if let Some(complete) = calls.open.pop_front_if(|open| open.missing == 0) {
            calls.first_open += 1;
            let inputs = complete.inputs.into_iter().flatten().collect();
            let outcome = self.outcome(state, call, inputs);
            let first_time = complete.slot.outcome.set(outcome).is_ok();
            debug_assert!(first_time, "a call completes once");
            self.run.changed.notify_all();
        }
        Ok(slot)
    }

    /// What is left to do once all ranks have published `inputs`: nothing more, where they split.
    fn outcome(&self, state: &mut State, call: Call, inputs: Vec<Input>) -> Outcome {
        let mut elements = Vec::new();
        let mut colors = Vec::new();
        for input in inputs {
            match input {
                Input::Elements(data) => elements.push(data),
                Input::Color(color) => colors.push(color),
            }
        }
        if call.verb != Verb::Split {
            return Outcome::Work(Work::new(call, elements));
        }
        let mut groups: BTreeMap<usize, Arc<Self>> = BTreeMap::new();
        let places = (0..self.ranks()).map(|rank| {
            let color = colors[rank];
            let group = groups.entry(color).or_insert_with(|| {
                let same =
                    |(member, theirs): (&usize, &usize)| (*theirs == color).then_some(*member);
                let members: Vec<usize> =
                    self.members.iter().zip(&colors).filter_map(same).collect();
                state.calls.push(Calls::new(members.len()));
                Arc::new(Self {
                    run: Arc::clone(&self.run),
                    index: state.calls.len() - 1,
                    members,
                })
            });
            let place = colors[..rank]
                .iter()
                .filter(|&&theirs| theirs == color)
                .count();
            (place, Arc::clone(group))
        });
        Outcome::Groups(places.collect())
    }

    /// Waits until all ranks have made the call, does this rank's share of the work and returns its result.
    pub(super) fn finish(&self, rank: usize, slot: &Slot) -> Result<TensorData> {
        let Outcome::Work(work) = self.complete(rank, slot)? else {
            unreachable!("a split is finished by `split`")
        };
        work.share(self.members[rank], || {
            // Under the lock, so that no rank can miss it between looking and falling asleep.
            let _state = self.lock();
            self.run.changed.notify_all();
        });
        let mut state = self.lock();
        while !work.is_done() {
            state = self.run.sleep(state);
        }
        drop(state);
        work.result(rank)
    }

    /// Waits until all ranks have split and returns the group of `rank` and its rank there.
    pub(super) fn split(&self, rank: usize, color: usize) -> Result<(usize, Arc<Self>)> {
        let slot = self.publish(
            rank,
            Call::without_elements(Verb::Split),
            Input::Color(color),
        )?;
        let Outcome::Groups(groups) = self.complete(rank, &slot)? else {
            unreachable!("a split leaves groups")
        };
        Ok(groups[rank].clone())
    }

    /// Waits until all ranks have made the call. A call that all have made completes, whatever happened since.
    fn complete<'a>(&self, rank: usize, slot: &'a Slot) -> Result<&'a Outcome> {
        let began = Instant::now();
        let mut guard = self.lock();
        loop {
            if let Some(outcome) = slot.outcome.get() {
                return Ok(outcome);
            }
            let state = &mut *guard;
            if let Some(lost) = &state.lost {
                return Err(lost.error.clone());
            }
            if let Some(ended) = self.missing(state, slot, |presence| presence == Presence::Ended) {
                let error = Error::Left {
                    rank: ended,
                    waiting: self.members[rank],
                    sequence: slot.sequence,
                    call: slot.call,
                };
                self.run.lose(state, self.members[rank], error.clone());
                return Err(error);
            }
            let late = self.run.timeout.filter(|limit| began.elapsed() >= *limit);
            if let Some(limit) = late {
                let missing = self.missing(state, slot, |_| true);
                let missing = missing.expect("a call that is open lacks a rank");
                let error = Error::Stalled {
                    rank: missing,
                    waiting: self.members[rank],
                    sequence: slot.sequence,
                    call: slot.call,
                    seconds: limit.as_secs(),
                };
                self.run.lose(state, missing, error.clone());
                return Err(error);
            }
            guard = self.run.sleep_from(guard, began);
        }
    }

    /// The first rank that has not made the call and is present as told.
    fn missing(
        &self,
        state: &State,
        slot: &Slot,
        is_meant: impl Fn(Presence) -> bool,
    ) -> Option<usize> {
        let next = &state.calls[self.index].next;
        let is_missing = |&(member, next): &(&usize, &u64)| {
            is_meant(state.presence[*member]) && *next <= slot.sequence
        };
        let found = self.members.iter().zip(next).find(is_missing);
        found.map(|(member, _)| *member)
    }

    /// Whether [`Self::complete`] returns at once.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn is_settled(&self, slot: &Slot) -> bool {
        let state = self.lock();
        let has_ended = |presence| presence == Presence::Ended;
        slot.outcome.get().is_some()
            || state.lost.is_some()
            || self.missing(&state, slot, has_ended).is_some()
    }

    /// Notes that `rank` has returned normally.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.presence[self.members[rank]] = Presence::Ended;
        self.run.changed.notify_all();
    }

    /// Notes that `rank` cannot go on, so that no group of the run can.
    pub(super) fn fail(&self, rank: usize, reason: &str) {
        let rank = self.members[rank];
        let error = Error::Poisoned {
            rank,
            reason: reason.to_owned(),
        };
        let mut state = self.lock();
        if let Some(lost) = &mut state.lost {
            lost.words.get_or_insert_with(|| reason.to_owned());
        }
        self.run.lose(&mut state, rank, error);
    }

    /// The state. No code panics while it holds the lock, so a poisoned lock still guards a valid state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.run
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn lose(&self, state: &mut State, culprit: usize, error: Error) {
        if state.lost.is_none() {
            let since = Instant::now();
            state.lost = Some(Lost {
                culprit,
                error,
                since,
                words: None,
            });
            // Inputs that nobody will add up any more.
            for calls in &mut state.calls {
                calls.open.clear();
            }
            self.changed.notify_all();
        }
    }

    /// As [`Self::sleep`], and not beyond the timeout of who waits since `began`.
    fn sleep_from<'a>(
        &self,
        state: MutexGuard<'a, State>,
        began: Instant,
    ) -> MutexGuard<'a, State> {
        let Some(timeout) = self.timeout else {
            return self.sleep(state);
        };
        let left = timeout.saturating_sub(began.elapsed());
        let woken = self.changed.wait_timeout(state, left);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}
