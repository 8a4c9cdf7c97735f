//! Rank 0's side: a thread for each other rank, which makes its calls here.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::wire::{Answer, Outcome, Request, expected, flat};
use super::{Places, failed};
use crate::header::Header;
use crate::local::{Finish, GRACE, LOOK, LocalCommunicator, Patience};
use crate::{Communicator, Error, Result};

/// After those who have not noticed were told that the run is lost, and before this process ends by it.
const TELLING: Duration = Duration::from_millis(200);

/// The threads that stand for the other ranks, and one that looks after them all.
#[derive(Debug)]
pub(super) struct Hub {
    own: Arc<LocalCommunicator>,
    /// Each ends when its rank has left.
    places: Vec<JoinHandle<()>>,
    watch: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Hub {
    pub(super) fn start(
        own: Arc<LocalCommunicator>,
        places: Places,
        patience: Patience,
    ) -> Result<Self> {
        let broken =
            |error: std::io::Error| failed(format!("rank 0 cannot serve the others: {error}"));
        let mut threads = Vec::new();
        let mut writers = Vec::new();
        for (member, stream) in places {
            let writer = Arc::new(Mutex::new(stream.try_clone().map_err(broken)?));
            writers.push(writer.clone());
            let rank = member.rank();
            let place = Place {
                groups: HashMap::from([(0, Group::start(member, 0, rank, writer.clone())?)]),
                rank,
                made: 0,
                writer,
            };
            let thread = thread::Builder::new().name(format!("place of rank {rank}"));
            threads.push(thread.spawn(move || place.serve(&stream)).map_err(broken)?);
        }
        let (stop, stopped) = mpsc::channel();
        let watched = own.clone();
        let watch = thread::Builder::new().name("watch".to_owned());
        let watch = watch.spawn(move || watch_over(&watched, &writers, patience, &stopped));
        Ok(Self {
            own,
            places: threads,
            watch: Some((stop, watch.map_err(broken)?)),
        })
    }

    /// Rank 0 makes no further call. Returns when all others have left, or after the limit.
    pub(super) fn leave(&mut self, limit: Duration) {
        self.own.leave();
        let end = Instant::now() + limit;
        while self.places.iter().any(|place| !place.is_finished()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
        if let Some((stop, watch)) = self.watch.take() {
            drop(stop);
            // Whether it has panicked changes nothing any more.
            let _ = watch.join();
        }
    }
}

/// Tells ranks that do not notice that the run is lost, and ends this process if it does not either.
fn watch_over(
    own: &LocalCommunicator,
    writers: &[Arc<Mutex<TcpStream>>],
    patience: Patience,
    stopped: &Receiver<()>,
) {
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
        let Some((error, words)) = own.overdue(GRACE) else {
            continue;
        };
        for writer in writers {
            let answer = Answer {
                group: 0,
                sequence: u64::MAX,
                outcome: Outcome::Overdue(blamed(&error).0, words.clone()),
            };
            // One that has ended needs not be told.
            let _ = answer.write(&*writer.lock().unwrap_or_else(PoisonError::into_inner));
        }
        thread::sleep(TELLING);
        (patience.abandoned)(&error, &words);
    }
}

/// What stands for one rank.
struct Place {
    rank: usize,
    groups: HashMap<u64, Group>,
    /// Groups that were made by splits.
    made: u64,
    writer: Arc<Mutex<TcpStream>>,
}

/// One of its groups, whose calls are finished in their order by a thread of its own.
struct Group {
    member: LocalCommunicator,
    calls: Sender<Begun>,
    sequence: u64,
}

/// A call that was made, by its number.
type Begun = (u64, Result<Finish>);

impl Group {
    fn start(
        member: LocalCommunicator,
        number: u64,
        rank: usize,
        writer: Arc<Mutex<TcpStream>>,
    ) -> Result<Self> {
        let (calls, begun) = mpsc::channel::<Begun>();
        let finish = move || {
            for (sequence, call) in begun {
                let outcome = match call.and_then(|finish| finish()) {
                    Ok(data) => Outcome::Elements(data.as_bytes().to_vec()),
                    Err(error) => failure(&error),
                };
                tell(&writer, number, sequence, outcome);
            }
        };
        let thread = thread::Builder::new().name(format!("group {number} of rank {rank}"));
        let started = thread.spawn(finish);
        started.map_err(|error| failed(format!("the system refuses a thread: {error}")))?;
        Ok(Self {
            member,
            calls,
            sequence: 0,
        })
    }
}

impl Place {
    /// Makes the calls that come in, until the rank leaves.
    fn serve(mut self, stream: &TcpStream) {
        let left = loop {
            match Request::read(stream) {
                Ok(request) => match (&request.header, request.bytes.is_empty()) {
                    (Header::Left, true) => break true,
                    _ => self.take(request),
                },
                Err(_) => break false,
            }
        };
        if let Some(world) = self.groups.get(&0) {
            match left {
                true => world.member.leave(),
                false => world.member.abort("its process has ended without a word, or its connection broke; its own output may say why"),
            }
        }
        // Calls that all ranks have made are still answered, by the threads of the groups.
        self.groups.clear();
    }

    fn take(&mut self, request: Request) {
        let Request {
            group: number,
            header,
            bytes,
        } = request;
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        let sequence = group.sequence;
        match header {
            Header::Call(call) if bytes.len() != expected(&call, group.member.rank()) => {
                let got = bytes.len();
                group.member.abort(&format!("sends {got} bytes for {call}"));
            }
            Header::Call(call) => {
                group.sequence += 1;
                let call = call.check(group.member.ranks());
                let begun =
                    call.and_then(|call| group.member.begin(call, flat(&bytes, call.dtype)));
                // Its thread ends after this one.
                let _ = group.calls.send((sequence, begun));
            }
            Header::Split { color, .. } => {
                group.sequence += 1;
                // The rank waits for it, and makes no call here before; other ranks need not wait for that.
                let split = group.member.split_off(color);
                let outcome = split.and_then(|member| self.adopt(member));
                let outcome = outcome.unwrap_or_else(|error| failure(&error));
                tell(&self.writer, number, sequence, outcome);
            }
            Header::Left => {
                let reason = String::from_utf8_lossy(&bytes);
                group.member.abort(&reason);
            }
        }
    }

    fn adopt(&mut self, member: LocalCommunicator) -> Result<Outcome> {
        self.made += 1;
        let place = [self.made, member.rank() as u64, member.ranks() as u64];
        let group = Group::start(member, self.made, self.rank, self.writer.clone())?;
        self.groups.insert(self.made, group);
        Ok(Outcome::Group(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The last answers are written by then, or nobody reads them.
        if thread::panicking() {
            let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writer.shutdown(Shutdown::Both);
        }
    }
}

fn tell(writer: &Mutex<TcpStream>, group: u64, sequence: u64, outcome: Outcome) {
    let answer = Answer {
        group,
        sequence,
        outcome,
    };
    // A rank that is gone is missed by its thread.
    let _ = answer.write(&*writer.lock().unwrap_or_else(PoisonError::into_inner));
}

fn failure(error: &Error) -> Outcome {
    let (rank, reason) = blamed(error);
    Outcome::Failed(rank, reason)
}

/// Who is to blame for an error, and for what.
fn blamed(error: &Error) -> (usize, String) {
    match error {
        Error::Poisoned { rank, reason } => (*rank, reason.clone()),
        Error::Left { rank, .. } | Error::Stalled { rank, .. } => (*rank, error.to_string()),
        Error::Mismatch { second, .. } => (*second, error.to_string()),
        other => (0, other.to_string()),
    }
}
