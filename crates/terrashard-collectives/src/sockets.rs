//! Ranks that are processes and talk over TCP: no library, no GPU, one host or several.
//!
//! Rank 0 keeps a [`local`] group with a member for each rank. A thread of it stands for each other process: it makes
//! the calls that come in from there and sends back what they yield. So sums, their order and all errors are those of `local`, and
//! what ranks need of each other passes through rank 0: right for tests, recovery and small models, not for bandwidth.
//!
//! ```
//! use std::time::Duration;
//! use terrashard_collectives::bootstrap::Launched;
//! use terrashard_collectives::local::Patience;
//! use terrashard_collectives::sockets::World;
//! use terrashard_collectives::Error;
//!
//! let patience = Patience {
//!     timeout: Duration::from_secs(60),
//!     abandoned: |_, words| {
//!         eprintln!("{words}");
//!         std::process::exit(1);
//!     },
//! };
//! // A process that no launcher has started is alone.
//! let launched = Launched::from_environment()?.unwrap_or_else(Launched::alone);
//! let world = World::join(&launched, patience)?;
//! assert_eq!(world.communicator().ranks(), launched.ranks);
//! # Ok::<(), Error>(())
//! ```
//!
//! A rank whose connection breaks without a farewell is lost to all, and each call that waits for it fails; so does each that takes
//! longer than the timeout. A process whose thread does not come back to see that is ended by [`Patience::abandoned`].
//! Connections begin with a word that only ranks of the run know, from the store; they are for a private network and not encrypted.

mod hub;
mod member;
mod wire;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::bootstrap::{Launched, Store};
use crate::local::{self, LocalCommunicator, Patience};
use crate::{Communicator, Error, Result};
use hub::Hub;
use member::{Line, Member};

/// Where rank 0 tells the port that it listens on, and the word.
const KEY: &str = "sockets";

/// How long a connection may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);

/// Between two looks whether somebody has connected.
const LOOK: Duration = Duration::from_millis(5);

/// A rank's part in a run of processes. Dropping it is the rank's farewell, which waits for those whose calls are not answered yet.
#[derive(Debug)]
pub struct World {
    communicator: Arc<dyn Communicator>,
    part: Part,
    /// The meeting place, which ends with rank 0.
    store: Store,
    patience: Patience,
}

#[derive(Debug)]
enum Part {
    /// That of rank 0.
    Hub(Hub),
    Member(Arc<Line>),
}

impl World {
    /// Returns when all ranks have come.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] and [`Error::Transport`] if they do not find each other within the timeout.
    pub fn join(launched: &Launched, patience: Patience) -> Result<Self> {
        let store = Store::join(launched, patience.timeout)?;
        let launched = store.launched().clone();
        let (communicator, part): (Arc<dyn Communicator>, Part) = match launched.rank {
            0 => {
                let mut members = local::members(launched.ranks, patience.timeout).into_iter();
                let own = members.next().ok_or_else(|| failed("a run has no rank"))?;
                let streams = gather(&store, &launched, patience.timeout)?;
                let own = Arc::new(own);
                let hub = Hub::start(own.clone(), members.zip(streams).collect(), patience)?;
                (own, Part::Hub(hub))
            }
            rank => {
                let line = Line::start(connect(&store, &launched, patience.timeout)?, patience)?;
                let member = Member::new(rank, launched.ranks, line.clone());
                (Arc::new(member), Part::Member(line))
            }
        };
        Ok(Self {
            communicator,
            part,
            store,
            patience,
        })
    }

    /// The communicator of all ranks.
    pub fn communicator(&self) -> Arc<dyn Communicator> {
        self.communicator.clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let limit = self.patience.timeout;
        if thread::panicking() {
            self.communicator.abort("panicked");
        }
        match &mut self.part {
            Part::Hub(hub) => hub.leave(limit),
            Part::Member(line) => line.leave(),
        }
        // Who cannot say farewell is missed, and that is all there is to it.
        let _ = self.store.leave(LOOK);
    }
}

fn failed(reason: impl Into<String>) -> Error {
    Error::Transport {
        reason: reason.into(),
    }
}

/// The connections of the other ranks, in rank order.
fn gather(store: &Store, launched: &Launched, within: Duration) -> Result<Vec<TcpStream>> {
    let none = |error: std::io::Error| failed(format!("rank 0 cannot listen: {error}"));
    let listener = TcpListener::bind(("0.0.0.0", 0)).map_err(none)?;
    listener.set_nonblocking(true).map_err(none)?;
    let port = listener.local_addr().map_err(none)?.port();
    // Two numbers that nobody can guess, as the standard library's maps are keyed with.
    let word = [0, 1].map(|_| RandomState::new().build_hasher().finish());
    let mut told = port.to_le_bytes().to_vec();
    told.extend(word.iter().flat_map(|half| half.to_le_bytes()));
    store.set(KEY, &told)?;

    let end = Instant::now() + within;
    let mut streams: Vec<Option<TcpStream>> = (1..launched.ranks).map(|_| None).collect();
    while streams.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Some(rank) = wire::greeted(&stream, &told[2..], HELLO)
                    && let Some(place) = rank.checked_sub(1).and_then(|at| streams.get_mut(at))
                {
                    *place = Some(stream);
                }
            }
            Err(_) if Instant::now() < end => thread::sleep(LOOK),
            Err(_) => {
                let rank = streams
                    .iter()
                    .position(Option::is_none)
                    .map_or(0, |at| at + 1);
                let seconds = within.as_secs();
                return Err(failed(format!(
                    "rank {rank} has not come within {seconds} s"
                )));
            }
        }
    }
    Ok(streams.into_iter().flatten().collect())
}

/// The connection to rank 0.
fn connect(store: &Store, launched: &Launched, within: Duration) -> Result<TcpStream> {
    let told = store.get(KEY, within)?;
    let (port, word) = told
        .split_at_checked(2)
        .ok_or_else(|| failed("rank 0 tells no port"))?;
    let port = u16::from_le_bytes([port[0], port[1]]);
    let address = (launched.address.as_str(), port);
    let stream = TcpStream::connect(address)
        .and_then(|stream| wire::greet(&stream, word, launched.rank).map(|()| stream));
    stream.map_err(|error| {
        failed(format!(
            "rank 0 is not reached at {}:{port}: {error}",
            launched.address
        ))
    })
}

/// Members of one group, each for a thread of its own.
type Places = Vec<(LocalCommunicator, TcpStream)>;
