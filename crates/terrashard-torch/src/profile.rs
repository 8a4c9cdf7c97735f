//! Where a stretch of work spends its time.

use crate::{Result, shim};

/// A profile being taken, by LibTorch's own profiler: its operations on this thread, and all that GPUs of this process do.
///
/// One at a time in a process. Dropped without [`finish`](Self::finish), it goes on until the next one.
#[derive(Debug)]
#[must_use = "a profile tells nothing before it is finished"]
pub struct Profile(());

/// The calls of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileRow {
    /// An operation of LibTorch, a call of the driver, or a kernel.
    pub name: String,
    /// Whether it ran on the device: a kernel, a copy or a fill.
    pub on_device: bool,
    /// How often.
    pub calls: u64,
    /// All calls together, seconds. On the host, what an operation calls counts for both.
    pub seconds: f64,
}

impl Profile {
    /// Begins. `device`: also what GPUs do.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if one is being taken already.
    pub fn start(device: bool) -> Result<Self> {
        shim::profile::start(device).map(|()| Self(()))
    }

    /// Ends. The caller has waited for the device before.
    ///
    /// Rows of the device first, each by falling time.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if LibTorch has lost it.
    pub fn finish(self) -> Result<Vec<ProfileRow>> {
        let text = shim::profile::finish()?;
        let mut rows: Vec<_> = text.lines().filter_map(row).collect();
        rows.sort_by(|a, b| {
            let device = b.on_device.cmp(&a.on_device);
            device.then(b.seconds.total_cmp(&a.seconds))
        });
        Ok(rows)
    }
}

fn row(line: &str) -> Option<ProfileRow> {
    let mut fields = line.splitn(4, '\t');
    let on_device = fields.next()? == "d";
    let calls = fields.next()?.parse().ok()?;
    let nanoseconds: f64 = fields.next()?.parse().ok()?;
    Some(ProfileRow {
        name: fields.next()?.to_owned(),
        on_device,
        calls,
        seconds: nanoseconds / 1e9,
    })
}
