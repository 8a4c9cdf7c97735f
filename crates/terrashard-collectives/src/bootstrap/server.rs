//! The side of the store that rank 0 holds.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{Answer, Request};

/// Values at most, and bytes of keys and values together.
const VALUES: usize = 1 << 16;
const BYTES: usize = 64 << 20;

/// How long a connection may take for its first word.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// Under this key stands the first rank that has ended without a farewell.
pub(super) const GONE: &str = "gone";

/// Answers the ranks of one run until it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    table: Arc<Table>,
    address: std::net::SocketAddr,
}

/// What the connections share.
#[derive(Debug)]
struct Table {
    ranks: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    values: HashMap<String, Vec<u8>>,
    bytes: usize,
    connections: usize,
    /// How many of them each rank has that has come.
    present: HashMap<u32, usize>,
    /// How each rank has ended that has.
    ended: HashMap<u32, End>,
    is_closed: bool,
}

/// How a rank has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Farewell,
    Gone,
}

impl Server {
    /// Answers on `listener`.
    pub(super) fn start(listener: TcpListener, ranks: u32) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let table = Arc::new(Table {
            ranks,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&table);
        thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || accepting.accept(&listener))?;
        Ok(Self { table, address })
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.table.lock().is_closed = true;
        self.table.changed.notify_all();
        // Wakes the thread that accepts. It may have ended.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

impl Table {
    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each rank may hold a few connections, and strangers some for a moment.
    fn most_connections(&self) -> usize {
        4 * self.ranks as usize + 16
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            let mut state = self.lock();
            if state.is_closed {
                return;
            }
            let Ok((stream, _)) = accepted else {
                drop(state);
                // The system is short of something that others may give back.
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            if state.connections >= self.most_connections() {
                continue;
            }
            state.connections += 1;
            drop(state);
            let table = Arc::clone(self);
            let serve = move || {
                table.serve(&stream);
                let _ = stream.shutdown(Shutdown::Both);
                table.lock().connections -= 1;
            };
            if thread::Builder::new().spawn(serve).is_err() {
                self.lock().connections -= 1;
            }
        }
    }

    /// Answers one connection until it ends.
    fn serve(&self, stream: &TcpStream) {
        let mut stream = stream;
        let prepared = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(FIRST_WORD)));
        let Ok(Request::Hello { rank, ranks }) = prepared.and_then(|()| Request::read(&mut stream))
        else {
            return;
        };
        if rank >= self.ranks || ranks != self.ranks {
            let reason = format!(
                "rank {rank} of {ranks} has come to a run of {}: start all ranks with the same number",
                self.ranks
            );
            let _ = Answer::Refused(reason).write(&mut stream);
            return;
        }
        *self.lock().present.entry(rank).or_default() += 1;
        let mut said = stream
            .set_read_timeout(None)
            .and_then(|()| Answer::Done(Vec::new()).write(&mut stream));
        while said.is_ok() {
            said = Request::read(&mut stream).and_then(|request| {
                let answer = self.answer(rank, request);
                answer.write(&mut stream)
            });
        }
        let mut state = self.lock();
        let left = state.present.entry(rank).or_default();
        *left = left.saturating_sub(1);
        if *left == 0 && !state.ended.contains_key(&rank) {
            state.ended.insert(rank, End::Gone);
            let name = rank.to_string().into_bytes();
            state.values.entry(GONE.to_owned()).or_insert(name);
            drop(state);
            self.changed.notify_all();
        }
    }

    fn answer(&self, rank: u32, request: Request) -> Answer {
        let mut state = self.lock();
        match request {
            Request::Hello { .. } => Answer::Refused("a rank introduces itself once".to_owned()),
            Request::Set { key, value } => match state.put(key, value) {
                Ok(()) => {
                    self.changed.notify_all();
                    Answer::Done(Vec::new())
                }
                Err(reason) => Answer::Refused(reason),
            },
            Request::Propose { key, value } => {
                if let Some(holds) = state.values.get(&key) {
                    return Answer::Done(holds.clone());
                }
                match state.put(key, value.clone()) {
                    Ok(()) => {
                        self.changed.notify_all();
                        Answer::Done(value)
                    }
                    Err(reason) => Answer::Refused(reason),
                }
            }
            Request::Get { key, within } => {
                let end = Instant::now() + Duration::from_millis(within.into());
                loop {
                    if let Some(value) = state.values.get(&key) {
                        return Answer::Done(value.clone());
                    }
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() || state.is_closed {
                        return Answer::Absent;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
            Request::Remove { key } => {
                if let Some(value) = state.values.remove(&key) {
                    state.bytes -= key.len() + value.len();
                }
                Answer::Done(Vec::new())
            }
            Request::Farewell => {
                state.ended.entry(rank).or_insert(End::Farewell);
                Answer::Done(Vec::new())
            }
            Request::Ended => {
                let count = state.ended.len() as u32;
                Answer::Done(count.to_le_bytes().to_vec())
            }
        }
    }
}

impl State {
    fn put(&mut self, key: String, value: Vec<u8>) -> Result<(), String> {
        let added = key.len() + value.len();
        let (len, freed) = (
            self.values.len(),
            self.values.get(&key).map(|old| key.len() + old.len()),
        );
        if freed.is_none() && len >= VALUES {
            return Err(format!("it holds {len} values already"));
        }
        let bytes = self.bytes - freed.unwrap_or(0) + added;
        if bytes > BYTES {
            return Err(format!("it holds {} bytes already", self.bytes));
        }
        self.bytes = bytes;
        self.values.insert(key, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_holds_is_bounded() {
        let mut state = State::default();
        let value = vec![0; 60_000];
        let fits = BYTES / (value.len() + 4);
        for at in 0..fits {
            state.put(format!("{at:04}"), value.clone()).unwrap();
        }
        let text = state.put("more".into(), value.clone()).unwrap_err();
        assert!(text.contains("bytes"), "{text}");
        // In place of an old one it fits.
        state.put("0007".into(), value).unwrap();
        state.put("0007".into(), vec![]).unwrap();
        state.put("more".into(), vec![0; 60_000]).unwrap();

        let mut state = State::default();
        for at in 0..VALUES {
            state.put(at.to_string(), vec![]).unwrap();
        }
        assert!(state.put("more".into(), vec![]).is_err());
        state.put("7".into(), vec![1]).unwrap();
    }
}
