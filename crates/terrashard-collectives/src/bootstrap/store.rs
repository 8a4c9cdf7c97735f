//! A rank's connection to the store.

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::environment::Launched;
use super::frame::{Answer, KEY, Request, VALUE};
use super::server::{GONE, Server};
use crate::{Error, Result};

/// How long the store may take for an answer that it need not wait for.
const ANSWER: Duration = Duration::from_secs(30);

/// Between two tries to reach a rank 0 that does not listen yet.
const RETRY: Duration = Duration::from_millis(100);

/// Between two questions whether all ranks have ended.
const LOOK: Duration = Duration::from_millis(10);

/// A table of short values that rank 0 holds and all ranks of a run read and write.
///
/// Calls of one connection wait for each other; [`connect`](Self::connect) makes another. A rank that drops all its
/// connections without [`leave`](Self::leave) is [`gone`](Self::gone).
#[derive(Debug)]
pub struct Store {
    launched: Launched,
    stream: Mutex<TcpStream>,
    /// On rank 0.
    server: Option<Server>,
}

impl Store {
    /// Connects this rank; rank 0 listens first. Ranks may come in any order.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if rank 0 cannot listen, or if it is not reached `within` the time.
    pub fn join(launched: &Launched, within: Duration) -> Result<Self> {
        let mut launched = launched.clone();
        let server = match launched.rank {
            0 => {
                let host = if launched.ranks == 1 {
                    "127.0.0.1"
                } else {
                    "0.0.0.0"
                };
                let server = TcpListener::bind((host, launched.port))
                    .and_then(|listener| Server::start(listener, ranks(&launched)));
                let server = server.map_err(|error| {
                    let reason =
                        format!("rank 0 cannot listen there: {error}; choose another MASTER_PORT");
                    failed(&launched, reason)
                })?;
                launched.port = server.port();
                Some(server)
            }
            _ => None,
        };
        let stream = introduce(&launched, server.is_some(), within)?;
        Ok(Self {
            launched,
            stream: Mutex::new(stream),
            server,
        })
    }

    /// Another connection of this rank, for another thread. It ends with the first one's store.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store is not reached any more.
    pub fn connect(&self) -> Result<Self> {
        Ok(Self {
            launched: self.launched.clone(),
            stream: Mutex::new(introduce(&self.launched, self.server.is_some(), ANSWER)?),
            server: None,
        })
    }

    /// This rank's place, with the port that is used.
    pub fn launched(&self) -> &Launched {
        &self.launched
    }

    /// Writes a value of at most 64 KiB, in place of the one that was there.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store is not reached, or has no room.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let (key, value) = self.checked(key, value)?;
        self.ask(&Request::Set { key, value }, Duration::ZERO)
            .map(drop)
    }

    /// Writes a value unless there is one. Returns the one that is there then, the same for every rank.
    ///
    /// # Errors
    ///
    /// As of [`set`](Self::set).
    pub fn propose(&self, key: &str, value: &[u8]) -> Result<Vec<u8>> {
        let (name, value) = self.checked(key, value)?;
        let holds = self.ask(&Request::Propose { key: name, value }, Duration::ZERO)?;
        holds.ok_or_else(|| self.absent(key, Duration::ZERO))
    }

    /// Reads a value, and waits for it `within` the time.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if no rank writes it in time, or the store is not reached.
    pub fn get(&self, key: &str, within: Duration) -> Result<Vec<u8>> {
        self.read(key, within)?
            .ok_or_else(|| self.absent(key, within))
    }

    /// Reads a value if there is one now.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store is not reached.
    pub fn look(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.read(key, Duration::ZERO)
    }

    /// Forgets a value.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store is not reached.
    pub fn remove(&self, key: &str) -> Result<()> {
        let (key, _) = self.checked(key, &[])?;
        self.ask(&Request::Remove { key }, Duration::ZERO).map(drop)
    }

    /// The first rank that has ended without a farewell.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store is not reached.
    pub fn gone(&self) -> Result<Option<usize>> {
        let name = self.look(GONE)?;
        Ok(name.and_then(|name| std::str::from_utf8(&name).ok()?.parse().ok()))
    }

    /// Says that this rank will end, and waits `within` the time until all ranks have: the store ends with rank 0. Returns
    /// whether all have.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store is not reached any more.
    pub fn leave(&self, within: Duration) -> Result<bool> {
        self.ask(&Request::Farewell, Duration::ZERO)?;
        let end = Instant::now() + within;
        loop {
            match self.ask(&Request::Ended, Duration::ZERO) {
                Ok(Some(count)) if count == ranks(&self.launched).to_le_bytes() => return Ok(true),
                // Rank 0 ends when it knows that all have.
                Err(_) if self.launched.rank != 0 => return Ok(true),
                answer => drop(answer?),
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            thread::sleep(LOOK.min(left));
        }
    }

    fn read(&self, key: &str, within: Duration) -> Result<Option<Vec<u8>>> {
        let (key, _) = self.checked(key, &[])?;
        let millis = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let request = Request::Get {
            key,
            within: millis,
        };
        self.ask(&request, Duration::from_millis(millis.into()))
    }

    fn checked(&self, key: &str, value: &[u8]) -> Result<(String, Vec<u8>)> {
        if key.len() > KEY || value.len() > VALUE {
            let (key_len, len) = (key.len(), value.len());
            let reason = format!(
                "a key of {key_len} and a value of {len} bytes are beyond {KEY} and {VALUE}"
            );
            return Err(failed(&self.launched, reason));
        }
        Ok((key.to_owned(), value.to_vec()))
    }

    /// One request. The store may wait for `within` before it answers.
    fn ask(&self, request: &Request, within: Duration) -> Result<Option<Vec<u8>>> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = &*stream;
        let answer = stream
            .set_read_timeout(Some(within.saturating_add(ANSWER)))
            .and_then(|()| request.write(&mut stream))
            .and_then(|()| Answer::read(&mut stream));
        match answer {
            Ok(Answer::Done(value)) => Ok(Some(value)),
            Ok(Answer::Absent) => Ok(None),
            Ok(Answer::Refused(reason)) => Err(failed(&self.launched, reason)),
            Err(error) => Err(failed(
                &self.launched,
                format!("rank 0 does not answer: {error}"),
            )),
        }
    }

    fn absent(&self, key: &str, within: Duration) -> Error {
        let gone = match self.gone() {
            Ok(Some(rank)) => format!("; rank {rank} has ended without a word"),
            _ => String::new(),
        };
        let seconds = within.as_secs_f64();
        let reason = format!("no rank has written `{key}` within {seconds} s{gone}");
        failed(&self.launched, reason)
    }
}

fn ranks(launched: &Launched) -> u32 {
    u32::try_from(launched.ranks).unwrap_or(u32::MAX)
}

fn failed(launched: &Launched, reason: String) -> Error {
    Error::Store {
        address: format!("{}:{}", launched.address, launched.port),
        reason,
    }
}

/// A connection on which this rank has said who it is.
fn introduce(launched: &Launched, is_here: bool, within: Duration) -> Result<TcpStream> {
    let end = Instant::now() + within;
    // The host's own name may lead around its loopback, where firewalls stand.
    let address = if is_here {
        "127.0.0.1"
    } else {
        &launched.address
    };
    let hello = Request::Hello {
        rank: u32::try_from(launched.rank).unwrap_or(u32::MAX),
        ranks: ranks(launched),
    };
    loop {
        let tried = reach(address, launched.port, end).and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER))?;
            hello.write(&mut &stream)?;
            let answer = Answer::read(&mut &stream)?;
            Ok((stream, answer))
        });
        match tried {
            Ok((stream, Answer::Done(_))) => return Ok(stream),
            Ok((_, Answer::Refused(reason))) => return Err(failed(launched, reason)),
            Ok((_, Answer::Absent)) => {
                let reason = "what listens there is no store".to_owned();
                return Err(failed(launched, reason));
            }
            Err(error) if Instant::now() + RETRY >= end => {
                let (rank, seconds) = (launched.rank, within.as_secs_f64());
                let reason =
                    format!("rank {rank} did not reach rank 0 within {seconds} s: {error}");
                return Err(failed(launched, reason));
            }
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// The first of the host's addresses that answers.
fn reach(host: &str, port: u16, end: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&address, left.max(RETRY)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// The stores of a run's ranks.
    fn run(ranks: usize) -> Vec<Store> {
        let first = Launched {
            ranks,
            ..Launched::alone()
        };
        let store = Store::join(&first, LONG).unwrap();
        let port = store.launched().port;
        let join = |rank| {
            let launched = Launched {
                rank,
                ranks,
                port,
                ..Launched::alone()
            };
            Store::join(&launched, LONG).unwrap()
        };
        let mut stores = vec![store];
        stores.extend((1..ranks).map(join));
        stores
    }

    #[test]
    fn what_one_writes_all_read() {
        let stores = run(3);
        assert_eq!(stores[1].look("id").unwrap(), None);
        stores[0].set("id", &[7; 128]).unwrap();
        for store in &stores {
            assert_eq!(store.get("id", Duration::ZERO).unwrap(), [7; 128]);
        }
        stores[2].set("id", b"").unwrap();
        assert_eq!(stores[1].look("id").unwrap(), Some(vec![]));
        assert_eq!(stores[1].propose("first", b"1").unwrap(), b"1");
        assert_eq!(stores[2].propose("first", b"2").unwrap(), b"1");
        stores[0].remove("first").unwrap();
        stores[0].remove("first").unwrap();
        assert_eq!(stores[2].propose("first", b"2").unwrap(), b"2");
    }

    #[test]
    fn a_value_is_waited_for() {
        let stores = run(2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| stores[1].get("late", LONG).unwrap());
            stores[0].set("early", b"x").unwrap();
            stores[0].set("late", b"y").unwrap();
            assert_eq!(waiting.join().unwrap(), b"y");
        });
        let text = stores[1]
            .get("never", Duration::from_millis(1))
            .unwrap_err();
        assert!(
            text.to_string().contains("no rank has written `never`"),
            "{text}"
        );
    }

    #[test]
    fn who_leaves_without_a_word_is_gone() {
        let mut stores = run(4);
        // One connection of several may end.
        let other = stores[2].connect().unwrap();
        other.set("x", b"").unwrap();
        drop(other);
        let third = stores.pop().expect("four");
        assert!(!third.leave(Duration::ZERO).unwrap());
        drop(third);
        assert_eq!(stores[1].gone().unwrap(), None);
        drop(stores.pop());
        assert_eq!(stores[1].get(GONE, LONG).unwrap(), b"2");
        assert_eq!(stores[1].gone().unwrap(), Some(2));
        let text = stores[1]
            .get("never", Duration::ZERO)
            .unwrap_err()
            .to_string();
        assert!(text.contains("rank 2 has ended without a word"), "{text}");
        assert!(!stores[1].leave(Duration::ZERO).unwrap());
        assert!(stores[0].leave(LONG).unwrap());
    }

    #[test]
    fn rank_0_outlives_the_others() {
        let stores = run(2);
        assert!(!stores[0].leave(Duration::ZERO).unwrap());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| stores[0].leave(LONG).unwrap());
            assert!(stores[1].leave(LONG).unwrap());
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn ranks_of_another_run_are_refused() {
        let stores = run(2);
        let port = stores[0].launched().port;
        let launched = Launched {
            rank: 2,
            ranks: 3,
            port,
            ..Launched::alone()
        };
        let text = Store::join(&launched, LONG).unwrap_err().to_string();
        assert!(
            text.contains("rank 2 of 3 has come to a run of 2"),
            "{text}"
        );
        // The run goes on, and nobody is missed.
        stores[1].set("x", b"1").unwrap();
        assert_eq!(stores[0].gone().unwrap(), None);
    }

    #[test]
    fn strangers_are_hung_up_on() {
        let stores = run(1);
        let port = stores[0].launched().port;
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // An end or a reset, but no answer.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty());
        stores[0].set("x", b"1").unwrap();
    }

    #[test]
    fn h14_what_cannot_be_is_told() {
        let stores = run(1);
        assert!(stores[0].set(&"k".repeat(KEY + 1), b"").is_err());
        assert!(stores[0].set("k", &vec![0; VALUE + 1]).is_err());
        let taken = stores[0].launched().clone();
        let text = Store::join(&taken, LONG).unwrap_err().to_string();
        assert!(
            text.contains("cannot listen") && text.contains("MASTER_PORT"),
            "{text}"
        );
        assert!(text.contains(&format!(":{}", taken.port)), "{text}");
        drop(stores);
        let late = Launched {
            rank: 1,
            ranks: 2,
            ..taken
        };
        let text = Store::join(&late, Duration::from_millis(1))
            .unwrap_err()
            .to_string();
        assert!(text.contains("rank 1 did not reach rank 0"), "{text}");
    }
}
