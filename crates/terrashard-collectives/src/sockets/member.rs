//! The side of a rank that is not 0.

use std::collections::{HashMap, HashSet};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;

use super::failed;
use super::wire::{Answer, Outcome, Request, flat};
use crate::header::Header;
use crate::local::{GRACE, Patience};
use crate::traffic::Meter;
use crate::{Call, Communicator, Error, Pending, Result, Traffic, Verb};

/// How much longer than rank 0 this rank waits, which may be what does not come.
const LONGER: Duration = Duration::from_secs(2);

/// The connection to rank 0.
#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    /// Held while a request is numbered and sent.
    sending: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
    patience: Patience,
}

#[derive(Debug, Default)]
struct State {
    /// Answers that nobody has waited for yet, by group and number.
    answers: HashMap<(u64, u64), Outcome>,
    /// Calls whose results nobody wants.
    unwanted: HashSet<(u64, u64)>,
    lost: Option<Error>,
    /// Whether this rank has said farewell.
    has_left: bool,
}

impl Line {
    /// Takes answers in from now on.
    pub(super) fn start(stream: TcpStream, patience: Patience) -> Result<Arc<Self>> {
        let broken = |error: std::io::Error| failed(format!("rank 0 is not heard: {error}"));
        let reader = stream.try_clone().map_err(broken)?;
        let line = Arc::new(Self {
            stream,
            sending: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            patience,
        });
        let own = Arc::downgrade(&line);
        let hear = move || {
            while let Ok(answer) = Answer::read(&reader) {
                let Some(line) = own.upgrade() else { return };
                line.take(answer);
            }
            if let Some(line) = own.upgrade() {
                line.give_up(Error::Poisoned {
                    rank: 0,
                    reason: "its process has ended without a word; its own output may say why"
                        .to_owned(),
                });
            }
        };
        let thread = thread::Builder::new().name("answers".to_owned());
        thread.spawn(hear).map_err(broken)?;
        Ok(line)
    }

    fn take(&self, answer: Answer) {
        let Answer {
            group,
            sequence,
            outcome,
        } = answer;
        if let Outcome::Overdue(rank, reason) = outcome {
            self.give_up(Error::Poisoned { rank, reason });
            return;
        }
        let mut state = self.state();
        if !state.unwanted.remove(&(group, sequence)) {
            state.answers.insert((group, sequence), outcome);
        }
        self.changed.notify_all();
    }

    /// All calls that are not answered fail. Where this rank does not come to see that, it is told of.
    fn give_up(&self, error: Error) {
        self.state().lost.get_or_insert(error.clone());
        self.changed.notify_all();
        // Whoever waits has the time to tell.
        thread::sleep(GRACE);
        if !self.state().has_left {
            (self.patience.abandoned)(&error, &error.to_string());
        }
    }

    /// Sends a request.
    fn send(&self, request: &Request) -> Result<()> {
        request.write(&self.stream).map_err(|error| {
            let lost = self.state().lost.clone();
            lost.unwrap_or_else(|| failed(format!("rank 0 is not reached any more: {error}")))
        })
    }

    fn wait(&self, key: (u64, u64), call: Call) -> Result<Outcome> {
        let limit = self.patience.timeout + LONGER;
        let began = Instant::now();
        let mut state = self.state();
        loop {
            match state.answers.remove(&key) {
                Some(Outcome::Failed(rank, reason)) => {
                    return Err(Error::Poisoned { rank, reason });
                }
                Some(outcome) => return Ok(outcome),
                None => {}
            }
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(Error::Poisoned {
                    rank: 0,
                    reason: format!("does not answer call {}: {call}", key.1),
                });
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Says farewell, and hears nothing any more.
    pub(super) fn leave(&self) {
        let farewell = Request {
            group: 0,
            header: Header::Left,
            bytes: Vec::new(),
        };
        let turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        // Rank 0 may have ended before.
        let _ = self.send(&farewell);
        drop(turn);
        self.state().has_left = true;
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank of a group, over the line to rank 0.
#[derive(Debug)]
pub(super) struct Member {
    rank: usize,
    ranks: usize,
    group: u64,
    next: AtomicU64,
    line: Arc<Line>,
    meter: Meter,
}

/// The right to an answer. Dropped before it is there, it is not kept.
struct Ticket {
    line: Arc<Line>,
    /// Until it is waited for.
    key: Option<(u64, u64)>,
    call: Call,
}

impl Ticket {
    fn wait(mut self) -> Result<Outcome> {
        let key = self.key.take().expect("it is waited for once");
        self.line.wait(key, self.call)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let mut state = self.line.state();
        if state.answers.remove(&key).is_none() && state.lost.is_none() {
            state.unwanted.insert(key);
        }
    }
}

impl Member {
    /// The rank in the group of all.
    pub(super) fn new(rank: usize, ranks: usize, line: Arc<Line>) -> Self {
        Self::of(0, rank, ranks, line)
    }

    fn of(group: u64, rank: usize, ranks: usize, line: Arc<Line>) -> Self {
        Self {
            rank,
            ranks,
            group,
            next: AtomicU64::new(0),
            line,
            meter: Meter::default(),
        }
    }

    fn ask(&self, header: Header, call: Call, bytes: Vec<u8>) -> Result<Ticket> {
        let turn = self
            .line
            .sending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(lost) = &self.line.state().lost {
            return Err(lost.clone());
        }
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        self.line.send(&Request {
            group: self.group,
            header,
            bytes,
        })?;
        drop(turn);
        Ok(Ticket {
            line: self.line.clone(),
            key: Some((self.group, sequence)),
            call,
        })
    }

    fn start(&self, verb: Verb, input: Tensor<1>) -> Result<Pending> {
        let call = Call::new(verb, &input, self.ranks)?;
        let device = input.device();
        let bytes = call.read(input, self.rank)?.as_bytes().to_vec();
        let ticket = self.ask(Header::Call(call), call, bytes)?;
        self.meter.count(&call, self.rank, self.ranks);
        Ok(Pending::new(move || match ticket.wait()? {
            Outcome::Elements(bytes) => {
                let data = flat(&bytes, call.dtype);
                let dtype = data.dtype();
                Ok(Tensor::from_data(data, (&device, dtype)))
            }
            _ => Err(failed("rank 0 answers another call")),
        }))
    }
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_reduce(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::AllReduce, input)
    }

    fn reduce_scatter(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::ReduceScatter, input)
    }

    fn all_gather(&self, input: Tensor<1>) -> Result<Pending> {
        self.start(Verb::AllGather, input)
    }

    fn broadcast(&self, input: Tensor<1>, root: usize) -> Result<Pending> {
        self.start(Verb::Broadcast { root }, input)
    }

    fn barrier(&self) -> Result<()> {
        let call = Call::without_elements(Verb::Barrier);
        self.ask(Header::Call(call), call, Vec::new())?.wait()?;
        self.meter.count(&call, self.rank, self.ranks);
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        let call = Call::without_elements(Verb::Split);
        let header = Header::Split { color, tag: 0 };
        match self.ask(header, call, Vec::new())?.wait()? {
            Outcome::Group([group, rank, ranks]) => {
                let line = self.line.clone();
                Ok(Arc::new(Self::of(
                    group,
                    rank as usize,
                    ranks as usize,
                    line,
                )))
            }
            _ => Err(failed("rank 0 answers another call")),
        }
    }

    fn abort(&self, reason: &str) {
        // Without a word it would be a farewell.
        let reason = if reason.is_empty() { "gave up" } else { reason };
        let _turn = self
            .line
            .sending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Where rank 0 is gone, all know already.
        let _ = self.line.send(&Request {
            group: self.group,
            header: Header::Left,
            bytes: reason.as_bytes().to_vec(),
        });
    }

    fn traffic(&self) -> Traffic {
        self.meter.read()
    }
}
