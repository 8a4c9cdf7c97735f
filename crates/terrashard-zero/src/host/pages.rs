//! Host memory on large pages.
//!
//! An update walks through four streams at once. On pages of 4 KiB the processor looks up a translation for each of them
//! every thousand elements, and the system makes each page on its own when it is first touched; pages of 2 MiB need
//! neither, where the system has them.

use bytemuck::{Zeroable, zeroed_vec};

/// Less than this is not worth advice: a range holds a whole large page only from twice its size on.
const WORTH_ADVICE: usize = 4 << 20;

/// `len` zeros in memory of their own, on large pages where the system has them and they are worth it.
pub fn zeroed<T: Zeroable>(len: usize) -> Vec<T> {
    let mut values = zeroed_vec(len);
    if size_of_val(values.as_slice()) >= WORTH_ADVICE {
        advise(values.as_mut_slice());
    }
    values
}

/// Asks for large pages under `values`. It is advice: where it is not taken, nothing changes but the speed.
#[cfg(target_os = "linux")]
fn advise<T>(values: &mut [T]) {
    const PAGE: usize = 4096;
    let start = values.as_mut_ptr().cast::<u8>();
    // The system wants whole pages; what lies before and behind them stays as it is.
    let before = start.align_offset(PAGE);
    let inside = size_of_val(values).saturating_sub(before) / PAGE * PAGE;
    // SAFETY: the range lies within `values`, which are borrowed for the call, and this advice changes neither what is in
    // memory nor which memory is mapped.
    #[expect(unsafe_code, reason = "a system call on a range of memory")]
    let advised = unsafe {
        rustix::mm::madvise(
            start.wrapping_add(before).cast(),
            inside,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
    // A system without large pages refuses.
    let _ = advised;
}

#[cfg(not(target_os = "linux"))]
fn advise<T>(_: &mut [T]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_are_zeros_that_can_be_written() {
        for len in [
            0,
            1,
            1000,
            (WORTH_ADVICE >> 2) - 1,
            WORTH_ADVICE >> 2,
            3_000_001,
        ] {
            let mut values = zeroed::<f32>(len);
            assert_eq!(values.len(), len);
            assert!(values.iter().all(|x| x.to_bits() == 0), "{len}");
            values.fill(1.5);
            assert_eq!(values.iter().filter(|x| **x == 1.5).count(), len);
        }
    }

    /// Where the system takes the advice, it says so in the process's map of memory.
    #[cfg(target_os = "linux")]
    #[test]
    fn large_arrays_are_marked_for_large_pages() {
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if !enabled.is_ok_and(|text| text.contains("[madvise]") || text.contains("[always]")) {
            return;
        }
        let values = zeroed::<u64>(4 << 20);
        let middle = values.as_ptr().addr() + (16 << 20);
        let map = std::fs::read_to_string("/proc/self/smaps").expect("Linux has it");
        let mut inside = false;
        let flags = map.lines().find_map(|line| {
            let range = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'));
            if let Some((start, end)) = range {
                let bound = |text| usize::from_str_radix(text, 16).unwrap_or(0);
                inside = (bound(start)..bound(end)).contains(&middle);
            }
            line.strip_prefix("VmFlags:").filter(|_| inside)
        });
        let flags = flags.expect("the middle of the array is mapped");
        assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
    }
}
