//! The resident size of this process, and the time that it computed.

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

/// Seconds that all threads of this process together have computed so far: what a busy machine does not lengthen. `None`
/// where the system does not tell.
pub fn cpu_seconds() -> Option<f64> {
    // Fields 14 and 15 of proc(5), counted behind the name, which may hold spaces; Linux tells them in hundredths.
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_computed_is_counted() {
        let Some(before) = cpu_seconds() else {
            return;
        };
        let began = std::time::Instant::now();
        let mut sum = 0u64;
        let after = loop {
            sum = (0..1_000_000).fold(sum, |sum, i| std::hint::black_box(sum ^ i));
            let now = cpu_seconds().expect("told before");
            if now > before + 0.05 {
                break now;
            }
        };
        // Other tests of this process compute too, on as many threads as there are.
        let threads = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        assert!(after - before <= threads * (began.elapsed().as_secs_f64() + 0.1));
    }

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
