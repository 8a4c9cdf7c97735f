//! Signals that ask a run to save and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use crate::error::{Error, Result};

/// Signals with their names: that of Ctrl-C, that of whoever ends processes, and that which schedulers of clusters send before they do.
const SIGNALS: [(i32, &str); 3] = [
    (SIGINT, "Ctrl-C"),
    (SIGTERM, "SIGTERM"),
    (SIGUSR1, "SIGUSR1"),
];

/// What a shell says of a program that Ctrl-C has ended.
const ENDED_BY_CTRL_C: i32 = 128 + SIGINT;

/// Whether somebody asked a run to save and end. All clones are one request; by default nobody ever asks.
#[derive(Debug, Clone, Default)]
pub struct StopRequest(Arc<AtomicUsize>);

impl StopRequest {
    /// One that Ctrl-C, SIGTERM and SIGUSR1 make, none of which ends the process by itself any more; but a second Ctrl-C does. A process
    /// with a launcher gets each from the terminal and from that, and is ended by it.
    ///
    /// # Errors
    /// [`Error::Signals`] if the system refuses.
    pub fn on_signals() -> Result<Self> {
        let request = Self::default();
        if std::env::var_os("RANK").is_none() {
            let is_second = Arc::new(AtomicBool::new(false));
            // In this order, the first one finds it unset.
            flag::register_conditional_shutdown(SIGINT, ENDED_BY_CTRL_C, is_second.clone())
                .and_then(|_| flag::register(SIGINT, is_second))
                .map_err(|source| Error::Signals { source })?;
        }
        for (signal, _) in SIGNALS {
            // No signal has the number 0.
            flag::register_usize(signal, request.0.clone(), signal as usize)
                .map_err(|source| Error::Signals { source })?;
        }
        Ok(request)
    }

    /// The name of the signal that came, if one did.
    pub(super) fn signal(&self) -> Option<&'static str> {
        let came = self.0.load(Ordering::Relaxed);
        let (_, name) = SIGNALS
            .iter()
            .find(|(signal, _)| *signal as usize == came)?;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_request_of_its_name() {
        assert_eq!(StopRequest::default().signal(), None);
        let request = StopRequest::on_signals().unwrap();
        let clone = request.clone();
        assert_eq!(request.signal(), None);
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert_eq!(clone.signal(), Some("SIGUSR1"));
    }
}
