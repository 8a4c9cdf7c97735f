//! The resident size of this process.

/// The largest resident size of this process so far in bytes; `None` where the system does not tell.
pub fn peak_resident() -> Option<u64> {
    status("VmHWM:")
}

/// The resident size of this process now in bytes; `None` where the system does not tell.
pub fn resident() -> Option<u64> {
    status("VmRSS:")
}

/// A line of `/proc/self/status` in kB (proc(5)).
fn status(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_that_is_touched_is_seen() {
        let (Some(before), Some(_)) = (peak_resident(), resident()) else {
            return;
        };
        let touched = vec![1u8; 64 << 20];
        assert!(std::hint::black_box(&touched).iter().all(|byte| *byte == 1));
        let after = peak_resident().expect("told before");
        assert!(after >= before + (32 << 20), "{before} to {after}");
    }
}
