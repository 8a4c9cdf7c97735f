//! Saving beside the work that goes on.

use std::borrow::Cow;
use std::thread::{self, JoinHandle};

use crate::durable::io;
use crate::{Keep, Result, Saver, Slot, State, prune};

/// A part of a save that a thread of its own is at. Where it is dropped, the thread goes on to its end.
#[derive(Debug)]
#[must_use = "whether it went well is known only once it is waited for"]
pub struct Background(JoinHandle<Result<()>>);

impl Background {
    /// Whether [`Self::wait`] returns at once.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// Those of the part.
    ///
    /// # Panics
    /// If the thread did.
    pub fn wait(self) -> Result<()> {
        let joined = self.0.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Saver {
    /// [`Saver::write`] on a thread of its own, of slots with their little-endian bytes, which are kept until they are written.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if the system has no thread.
    pub fn write_beside<B>(&self, slots: Vec<(Slot, B)>) -> Result<Background>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        self.start(move |saver| {
            let (slots, bytes): (Vec<Slot>, Vec<B>) = slots.into_iter().unzip();
            saver.write_slots(&slots, |index| Ok(Cow::Borrowed(bytes[index].as_ref())))
        })
    }

    /// [`Saver::publish`] on a thread of its own, and [`prune`] after it. For rank 0: on others there is nothing to do.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if the system has no thread.
    pub fn publish_beside(&self, state: State, keep: Keep) -> Result<Background> {
        self.start(move |saver| {
            saver.publish(&state)?;
            prune(saver.root(), keep).map(|_| ())
        })
    }

    fn start(
        &self,
        work: impl FnOnce(&Saver) -> Result<()> + Send + 'static,
    ) -> Result<Background> {
        let saver = self.clone();
        let thread = thread::Builder::new().name("save".into());
        let thread = thread.spawn(move || work(&saver));
        thread
            .map(Background)
            .map_err(io("start a thread for", self.root()))
    }
}
