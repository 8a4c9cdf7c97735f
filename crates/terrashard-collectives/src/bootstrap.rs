//! How processes that a launcher has started find each other: who they are, and a small store to tell each other things.
//!
//! [`Launched`] is what `torchrun`, SLURM or `terrashard launch` have told a process in its environment. [`Store`] is a
//! table of short values that rank 0 holds and all ranks read and write over TCP: addresses, colors, the state of a run.
//! [`Launcher`] starts the processes of a run on one host. Nothing of it knows what the ranks compute with.
//!
//! ```
//! use std::time::Duration;
//! use terrashard_collectives::Error;
//! use terrashard_collectives::bootstrap::{Launched, Store};
//!
//! // A process that no launcher has started is alone.
//! let launched = Launched::from_environment()?.unwrap_or_else(Launched::alone);
//! let store = Store::join(&launched, Duration::from_secs(60))?;
//! store.set("greeting", b"hello")?;
//! assert_eq!(store.get("greeting", Duration::from_secs(1))?, b"hello");
//! # Ok::<(), Error>(())
//! ```
//!
//! # The store
//!
//! Rank 0 listens, the others connect, and each says who it is. Whoever connects is held to limits: keys of 128 bytes,
//! values of 64 KiB, 64 MiB in all, as many connections as the run's ranks may need, and five seconds to say a first word
//! that only a rank of this run knows. A rank that ends without a farewell is noticed when its connection
//! breaks, and [`Store::gone`] names it. The store is for a private network, as its ranks are: it does not encrypt.

mod environment;
mod frame;
mod launcher;
mod server;
mod store;

pub use environment::Launched;
pub use launcher::{Launcher, Output, RESTARTS};
pub use store::Store;
