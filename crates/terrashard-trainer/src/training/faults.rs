//! The points of a training at which a fault on demand can strike (feature `faults`); `terrashard_collectives::faults` says what a fault is.
//!
//! Beside the calls and waits of its communicators, a rank passes `step` before each step, `read` before its loader reads a
//! micro-batch, and `write` before each operation on its own file of a checkpoint; `publish` is each other operation of a save, counted for
//! rank 0 whichever rank makes it.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use terrashard_collectives::Communicator;
use terrashard_collectives::faults::{Faulty, Strike, is_armed, pass};
use terrashard_models::Losses;

use super::rank::Rank;
use super::saving::Urgency;
use crate::error::{Error, Result};

/// What is to become of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stricken {
    /// It is made.
    #[default]
    Not,
    /// This rank's gradients are no numbers in it.
    Gradient,
    /// It is not made, as if this rank had no more data.
    Left,
    /// This rank saves before it, alone.
    SavesAlone,
}

/// `communicator` with points, where this process may have a fault.
pub(super) fn around(communicator: Arc<dyn Communicator>) -> Arc<dyn Communicator> {
    if !is_armed() {
        return communicator;
    }
    terrashard_checkpoint::faults::before_each_operation(operation);
    terrashard_data::faults::before_each_batch(|rank| failure("read", rank));
    Arc::new(Faulty::new(communicator))
}

/// Passes the point of a step. Breaks where the rank has no more data.
///
/// # Errors
/// [`Error::Spawn`], as where the system has no memory for a thread; those of a save that this rank makes alone.
pub(super) fn strike(rank: &mut Rank<'_>, step: u64) -> Result<ControlFlow<()>> {
    rank.stricken = stricken(rank.optimizer.communicator().rank())?;
    match rank.stricken {
        Stricken::Left => return Ok(ControlFlow::Break(())),
        Stricken::SavesAlone => rank.save(step, Urgency::Now)?,
        Stricken::Not | Stricken::Gradient => {}
    }
    Ok(ControlFlow::Continue(()))
}

fn stricken(rank: usize) -> Result<Stricken> {
    Ok(match pass("step", rank) {
        None | Some(Strike::Length) => Stricken::Not,
        Some(Strike::Nan) => Stricken::Gradient,
        Some(Strike::Leave) => Stricken::Left,
        Some(Strike::Branch) => Stricken::SavesAlone,
        Some(strike @ Strike::Io(_)) => {
            return Err(Error::Spawn {
                who: "a thread of a step".into(),
                source: strike.error(),
            });
        }
    })
}

/// The losses, of whose total the gradients are computed.
pub(super) fn losses(stricken: Stricken, losses: Losses) -> Losses {
    match stricken {
        Stricken::Gradient => Losses {
            total: losses.total.mul_scalar(f64::NAN),
            ..losses
        },
        _ => losses,
    }
}

fn failure(point: &str, rank: usize) -> io::Result<()> {
    match pass(point, rank) {
        Some(strike @ Strike::Io(_)) => Err(strike.error()),
        _ => Ok(()),
    }
}

/// The rank whose file it is passes `write`; `publish` is counted for rank 0.
fn operation(path: &Path) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digits = name.trim_start_matches('.').strip_prefix("rank-");
    let digits = digits.map(|rest| {
        rest.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
    });
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(rank) => failure("write", rank),
        None => failure("publish", 0),
    }
}
