//! How much memory the program takes, as the system tells it.

use std::fs;

/// The most memory that the program has held so far, in bytes; none where the system does not tell.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    status("VmHWM:")
}

/// The memory that the program holds now, in bytes; none where the system does not tell.
pub(crate) fn resident_bytes() -> Option<u64> {
    status("VmRSS:")
}

fn status(key: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}
