//! The thread that executes the calls of one group on one rank.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use ::mpi::datatype::Equivalence;
use burn::tensor::TensorData;

use super::exchange::{Awaiting, Exchange};
use super::process::Process;
use super::wire::Wire;
use crate::element::{elements, with_element};
use crate::header::{Header, Words};
use crate::{Call, Error, Result, Verb};

/// The highest tag that every MPI library offers.
const HIGHEST_TAG: usize = 32_767;

/// Bytes of the reason that a rank gives when it leaves; a longer one is cut.
const REASON: usize = 512;

/// What a rank asks of the thread.
pub(super) enum Job {
    Call {
        call: Call,
        input: TensorData,
        reply: Sender<Result<TensorData>>,
    },
    /// Asks for the members of the rank's new group, and its tag.
    Split {
        color: usize,
        reply: Sender<Result<(Arc<[usize]>, usize)>>,
    },
    /// Leave the group: the rank has dropped it, or the run is lost.
    Leave,
}

type Fail = Box<dyn FnOnce(Error)>;

/// The call that a rank waits for.
struct Now {
    call: Call,
    /// Gives the rank an error, once, before the thread is done with the call.
    fail: Cell<Option<Fail>>,
}

impl Now {
    fn new<T: 'static>(call: Call, reply: &Sender<Result<T>>) -> Self {
        let reply = reply.clone();
        // Nobody may wait for a reply any more. Of two replies, the first is heard.
        let fail = move |error| drop(reply.send(Err(error)));
        Self {
            call,
            fail: Cell::new(Some(Box::new(fail))),
        }
    }
}

pub(super) struct Worker {
    process: Arc<Process>,
    exchange: Exchange,
    /// The ranks of the run that belong to the group.
    members: Vec<usize>,
    /// This rank in the group.
    rank: usize,
    /// The number of the next call.
    sequence: u64,
    /// None once the rank has left.
    now: Option<Now>,
}

impl Worker {
    pub(super) fn new(process: Arc<Process>, members: &[usize], tag: usize) -> Self {
        let rank = members
            .iter()
            .position(|&member| member == process.rank())
            .expect("a rank joins only groups that it belongs to");
        Self {
            process,
            exchange: Exchange::new(members, tag),
            members: members.to_vec(),
            rank,
            sequence: 0,
            now: None,
        }
    }

    /// Executes jobs until the rank leaves or the group is lost.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        // Nobody may wait for a reply any more; the call is made nevertheless, for the others.
        while let Ok(job) = jobs.recv() {
            let done = match job {
                Job::Call { call, input, reply } => {
                    self.now = Some(Now::new(call, &reply));
                    let outcome = self.call(call, input);
                    let done = outcome.as_ref().map(drop).map_err(Clone::clone);
                    let _ = reply.send(outcome);
                    done
                }
                Job::Split { color, reply } => {
                    let call = Call::without_elements(Verb::Split);
                    self.now = Some(Now::new(call, &reply));
                    let outcome = self.split(color);
                    let done = outcome.as_ref().map(drop).map_err(Clone::clone);
                    let _ = reply.send(outcome);
                    done
                }
                Job::Leave => break,
            };
            self.sequence += 1;
            if let Err(error) = done {
                // All ranks of the group have seen the same headers, so none waits here any more.
                self.process.lose(error);
                return;
            }
        }
        self.now = None;
        self.leave();
    }

    /// As [`Exchange::exchange`], with an end to all waiting.
    fn exchange<'a, T: Equivalence + 'a>(
        &self,
        sends: impl IntoIterator<Item = (usize, &'a [T])>,
        receives: impl IntoIterator<Item = (usize, &'a mut [T])>,
        awaiting: Awaiting,
    ) {
        let awaited = |since, other| self.awaited(since, self.members[other]);
        self.exchange.exchange(sends, receives, awaiting, awaited);
    }

    /// Gives the run up where the rank `other` has been waited for too long.
    fn awaited(&self, since: Duration, other: usize) {
        let timeout = self.process.timeout();
        if since < timeout {
            return;
        }
        let (waiting, sequence, seconds) = (self.process.rank(), self.sequence, timeout.as_secs());
        let error = || match &self.now {
            Some(Now { call, .. }) => Error::Stalled {
                rank: other,
                waiting,
                sequence,
                call: *call,
                seconds,
            },
            None => Error::Transport {
                reason: format!(
                    "rank {other} has neither ended nor made a call for {seconds} s after rank {waiting} has ended; \
                     TERRASHARD_TIMEOUT sets how long"
                ),
            },
        };
        let error = self.process.give_up(error);
        if let Some(fail) = self.now.as_ref().and_then(|now| now.fail.take()) {
            fail(error);
        }
    }

    fn call(&self, call: Call, input: TensorData) -> Result<TensorData> {
        self.agree(Header::Call(call))?;
        Ok(with_element!(call.dtype, E => self.carry::<E>(call, input)))
    }

    fn split(&self, color: usize) -> Result<(Arc<[usize]>, usize)> {
        let tag = self.process.propose_tag();
        let headers = self.agree(Header::Split { color, tag })?;
        let parts = headers.iter().map(|header| match *header {
            Header::Split { color, tag } => (color, tag),
            _ => unreachable!("all ranks make the same call"),
        });
        let parts: Vec<_> = parts.collect();
        // Groups of one split share no ranks, so one tag serves them all.
        let (_, tag) = parts[0];
        if tag > HIGHEST_TAG {
            let most = self.process.most_tags(HIGHEST_TAG);
            return Err(Error::Transport {
                reason: format!("with this number of ranks, a rank may take part in {most} splits"),
            });
        }
        let same = |(&member, &(theirs, _)): (&usize, &(usize, usize))| {
            (theirs == color).then_some(member)
        };
        Ok((
            self.members.iter().zip(&parts).filter_map(same).collect(),
            tag,
        ))
    }

    /// The other ranks, as the group counts them.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.members.len()).filter(move |&other| other != rank)
    }

    /// Tells the others what this rank does next, and returns what each rank does, if it is the same call.
    fn agree(&self, mine: Header) -> Result<Vec<Header>> {
        let own = mine.call().expect("a call, not a farewell");
        let headers = self.headers(mine)?;
        let gone = self.farewells(&headers, "");
        let sequence = self.sequence;
        if let Some((rank, reason)) = gone {
            return Err(match reason {
                Some(reason) => Error::Poisoned { rank, reason },
                None => Error::Left {
                    rank,
                    waiting: self.process.rank(),
                    sequence,
                    call: own,
                },
            });
        }
        let calls: Vec<Call> = headers.iter().filter_map(Header::call).collect();
        match calls.iter().position(|call| *call != calls[0]) {
            None => Ok(headers),
            Some(second) => Err(Error::Mismatch {
                sequence,
                first: self.members[0],
                first_call: calls[0],
                second: self.members[second],
                second_call: calls[second],
            }),
        }
    }

    /// Tells the others that this rank makes no further call, and why, if the run is lost. Returns when all of them
    /// have made their next step.
    fn leave(&self) {
        let reason = self.process.lost().map(|error| error.to_string());
        // A rank that sends something else is not one that could be told.
        let Ok(headers) = self.headers(Header::Left) else {
            return;
        };
        self.farewells(&headers, reason.as_deref().unwrap_or_default());
        let call = |(rank, header): (usize, &Header)| Some((self.members[rank], header.call()?));
        if let Some((waiting, call)) = headers.iter().enumerate().find_map(call) {
            self.process.lose(Error::Left {
                rank: self.process.rank(),
                waiting,
                sequence: self.sequence,
                call,
            });
        }
    }

    /// The next step of every rank.
    fn headers(&self, mine: Header) -> Result<Vec<Header>> {
        let own = mine.encode();
        let mut words: Vec<Words> = vec![own; self.members.len()];
        let sends = self.others().map(|other| (other, own.as_slice()));
        let receives = words
            .iter_mut()
            .map(|words| words.as_mut_slice())
            .enumerate();
        let receives = receives.filter(|(other, _)| *other != self.rank);
        self.exchange(sends, receives, Awaiting::Ranks);
        let read = |(other, words): (usize, Words)| {
            Header::decode(words).ok_or_else(|| Error::Transport {
                reason: format!(
                    "rank {} sends what no rank of this version does: run the same program everywhere",
                    self.members[other]
                ),
            })
        };
        words.into_iter().enumerate().map(read).collect()
    }

    /// Exchanges reasons where ranks leave. Returns one that has left, if there is one, and preferably one with a
    /// reason.
    fn farewells(&self, headers: &[Header], reason: &str) -> Option<(usize, Option<String>)> {
        let leaves = |rank: usize| headers[rank] == Header::Left;
        if !(0..headers.len()).any(leaves) {
            return None;
        }
        let mut own = [0_u8; REASON];
        let len = reason.floor_char_boundary(REASON);
        own[..len].copy_from_slice(&reason.as_bytes()[..len]);
        let mut texts = vec![[0_u8; REASON]; headers.len()];
        let sends = self.others().filter(|_| leaves(self.rank));
        let receives = texts.iter_mut().enumerate();
        let receives = receives.filter(|&(other, _)| other != self.rank && leaves(other));
        self.exchange(
            sends.map(|other| (other, own.as_slice())),
            receives.map(|(other, text)| (other, text.as_mut_slice())),
            Awaiting::Elements,
        );
        let gone = |rank: usize| {
            let text = String::from_utf8_lossy(&texts[rank]);
            let text = text.trim_end_matches('\0');
            let reason = (!text.is_empty()).then(|| text.to_owned());
            (self.members[rank], reason)
        };
        let mut gone: Vec<_> = self
            .others()
            .filter(|&rank| leaves(rank))
            .map(gone)
            .collect();
        gone.sort_by_key(|(_, reason)| reason.is_none());
        gone.into_iter().next()
    }

    /// Does what all ranks have agreed on.
    fn carry<E: Wire>(&self, call: Call, input: TensorData) -> TensorData {
        let (ranks, len) = (self.members.len(), call.len);
        match call.verb {
            Verb::AllReduce => {
                let piece = len.div_ceil(ranks);
                let bounds = |rank: usize| (rank * piece).min(len)..((rank + 1) * piece).min(len);
                let mine = self.sum::<E>(input, bounds);
                self.gather(&mine, bounds, len)
            }
            Verb::ReduceScatter => {
                let piece = len / ranks;
                flat(self.sum::<E>(input, |rank| rank * piece..(rank + 1) * piece))
            }
            Verb::AllGather => {
                let bounds = |rank: usize| rank * len..(rank + 1) * len;
                self.gather(elements::<E>(&input), bounds, ranks * len)
            }
            Verb::Broadcast { root } if root == self.rank => {
                let elements = E::raw(elements::<E>(&input));
                let sends = self.others().map(|other| (other, elements));
                self.exchange(sends, [], Awaiting::Elements);
                input
            }
            Verb::Broadcast { root } => {
                let mut received = vec![E::default(); len];
                let receive = (root, E::raw_mut(&mut received));
                self.exchange([], [receive], Awaiting::Elements);
                flat(received)
            }
            Verb::Barrier | Verb::Split => input,
        }
    }

    /// The sum over ranks of the part within this rank's bounds: everybody sends everybody the piece to add.
    fn sum<E: Wire>(&self, input: TensorData, bounds: impl Fn(usize) -> Range<usize>) -> Vec<E> {
        let own = elements::<E>(&input);
        let mine = bounds(self.rank);
        let mut received = vec![E::default(); mine.len() * (self.members.len() - 1)];
        // Chunks have at least one element; there are none where the piece is empty.
        let width = mine.len().max(1);
        let receives = received.chunks_exact_mut(width).map(E::raw_mut);
        self.exchange(
            self.others()
                .map(|other| (other, E::raw(&own[bounds(other)]))),
            self.others().zip(receives),
            Awaiting::Elements,
        );
        let mut terms: Vec<&[E]> = received.chunks_exact(width).collect();
        terms.insert(self.rank.min(terms.len()), &own[mine.clone()]);
        let mut sum = Vec::with_capacity(mine.len());
        E::append_sum(&mut sum, &terms);
        sum
    }

    /// Everybody's piece, each within its bounds of `0..len`, which follow one another.
    fn gather<E: Wire>(
        &self,
        mine: &[E],
        bounds: impl Fn(usize) -> Range<usize>,
        len: usize,
    ) -> TensorData {
        let mut result = vec![E::default(); len];
        result[bounds(self.rank)].copy_from_slice(mine);
        let mut rest = result.as_mut_slice();
        let mut receives = Vec::with_capacity(self.members.len());
        for rank in 0..self.members.len() {
            let (piece, after) = rest.split_at_mut(bounds(rank).len());
            rest = after;
            if rank != self.rank {
                receives.push((rank, E::raw_mut(piece)));
            }
        }
        let sends = self.others().map(|other| (other, E::raw(mine)));
        self.exchange(sends, receives, Awaiting::Elements);
        flat(result)
    }
}

fn flat<E: Wire>(elements: Vec<E>) -> TensorData {
    let len = elements.len();
    TensorData::new(elements, [len])
}
