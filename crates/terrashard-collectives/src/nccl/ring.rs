//! The last calls of one rank in one group, and what they tell about ranks that wait for each other.

use std::collections::VecDeque;
use std::time::Instant;

use crate::header::{Header, Words};
use crate::{Call, Error, Verb};

/// Calls that are remembered.
const REMEMBERED: usize = 128;

/// Calls that a rank tells the others.
const TOLD: usize = 32;

/// The last calls of a rank.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// The last of those that were made, the oldest first.
    calls: VecDeque<Made>,
    /// How many were made, and how many of them are complete.
    made: u64,
    done: u64,
}

/// A call that was made.
#[derive(Debug, Clone, Copy)]
struct Made {
    call: Call,
    at: Instant,
}

impl Ring {
    /// Remembers a call. Returns its number.
    pub(super) fn begin(&mut self, call: Call) -> u64 {
        if self.calls.len() == REMEMBERED {
            self.calls.pop_front();
        }
        self.calls.push_back(Made {
            call,
            at: Instant::now(),
        });
        self.made += 1;
        self.made - 1
    }

    /// All calls up to `sequence` are complete.
    pub(super) fn complete(&mut self, sequence: u64) {
        self.done = self.done.max(sequence + 1);
    }

    /// The oldest call that is not complete and remembered still: its number, what it is, and when it was made.
    pub(super) fn oldest(&self) -> Option<(u64, Call, Instant)> {
        let first = self.made - self.calls.len() as u64;
        let sequence = self.done.max(first);
        let made = self.calls.get(usize::try_from(sequence - first).ok()?)?;
        Some((sequence, made.call, made.at))
    }

    /// What the others are told. `has_left`: no call will follow.
    pub(super) fn report(&self, has_left: bool) -> Report {
        let told = self.calls.len().min(TOLD);
        let calls = self.calls.iter().skip(self.calls.len() - told);
        Report {
            made: self.made,
            done: self.done,
            has_left,
            calls: calls.map(|made| made.call).collect(),
        }
    }

    /// One line for each of the last calls.
    pub(super) fn lines(&self, group: &str, last: usize) -> Vec<String> {
        let skipped = self.calls.len().saturating_sub(last);
        let first = self.made - self.calls.len() as u64;
        let line = |(at, made): (usize, &Made)| {
            let sequence = first + at as u64;
            let state = if sequence < self.done {
                "done"
            } else {
                "under way"
            };
            let bytes = made.call.len * burn::tensor::DType::from(made.call.dtype).size();
            format!(
                "group {group}, call {sequence}: {}, {bytes} bytes, {state}, made {:.1} s ago",
                made.call,
                made.at.elapsed().as_secs_f64()
            )
        };
        self.calls
            .iter()
            .enumerate()
            .skip(skipped)
            .map(line)
            .collect()
    }
}

/// What a rank tells of its calls in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    /// How many it has made, and how many of them are complete.
    pub(super) made: u64,
    pub(super) done: u64,
    /// Whether it will make no more.
    pub(super) has_left: bool,
    /// The last ones.
    pub(super) calls: Vec<Call>,
}

impl Report {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.made, self.done, u64::from(self.has_left)];
        for call in &self.calls {
            let header = match call.verb {
                // Colors differ, and have to.
                Verb::Split => Header::Split { color: 0, tag: 0 },
                _ => Header::Call(*call),
            };
            words.extend(header.encode());
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The report, unless something else stands there.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [made, done, has_left, calls @ ..] = words.as_slice() else {
            return None;
        };
        let (calls, more) = calls.as_chunks::<4>();
        let call = |words: &Words| Header::decode(*words)?.call();
        let calls: Option<Vec<Call>> = calls.iter().map(call).collect();
        let calls = calls?;
        let fits = rest.is_empty() && more.is_empty() && calls.len() as u64 <= *made;
        fits.then_some(Self {
            made: *made,
            done: *done,
            has_left: *has_left != 0,
            calls,
        })
    }

    /// The call of this number, if it is told.
    fn call(&self, sequence: u64) -> Option<Call> {
        let first = self.made - self.calls.len() as u64;
        let at = usize::try_from(sequence.checked_sub(first)?).ok()?;
        self.calls.get(at).copied()
    }
}

/// Two ranks of the group that make different calls of the same number, or one that has left while others wait: no more
/// can come of these. `reports` are those of `members`, where they are known.
pub(super) fn contradiction(members: &[usize], reports: &[Option<Report>]) -> Option<Error> {
    let known: Vec<(usize, &Report)> = members
        .iter()
        .zip(reports)
        .filter_map(|(member, report)| Some((*member, report.as_ref()?)))
        .collect();
    let (&(first, most), others) = known.split_first()?;
    let oldest = most.made - most.calls.len() as u64;
    for sequence in oldest..most.made {
        let Some(first_call) = most.call(sequence) else {
            continue;
        };
        let differs = others.iter().find_map(|(rank, report)| {
            let call = report.call(sequence)?;
            (call != first_call).then_some((*rank, call))
        });
        if let Some((second, second_call)) = differs {
            return Some(Error::Mismatch {
                sequence,
                first,
                first_call,
                second,
                second_call,
            });
        }
    }
    let left = known
        .iter()
        .filter(|(_, report)| report.has_left)
        .min_by_key(|(_, report)| report.made);
    let (rank, sequence) = left.map(|(rank, report)| (*rank, report.made))?;
    known.iter().find_map(|(waiting, report)| {
        let call = report.call(sequence)?;
        Some(Error::Left {
            rank,
            waiting: *waiting,
            sequence,
            call,
        })
    })
}

/// Which rank the others wait for, in one line, where calls agree as far as they go.
pub(super) fn culprit(group: &str, members: &[usize], reports: &[Option<Report>]) -> String {
    if let Some(error) = contradiction(members, reports) {
        return error.to_string();
    }
    let silent = members
        .iter()
        .zip(reports)
        .find(|(_, report)| report.is_none());
    if let Some((rank, _)) = silent {
        return format!("rank {rank} has told nothing of its calls in group {group}");
    }
    let known = || {
        members
            .iter()
            .zip(reports)
            .filter_map(|(member, report)| Some((*member, report.as_ref()?)))
    };
    let behind = known().min_by_key(|(_, report)| report.made);
    let ahead = known().max_by_key(|(_, report)| report.made);
    let (Some((behind, least)), Some((ahead, most))) = (behind, ahead) else {
        return format!("group {group} has no ranks");
    };
    if least.made < most.made {
        let call = most
            .call(least.made)
            .map_or_else(String::new, |call| format!(", {call}"));
        return format!(
            "rank {behind} is behind: it has made {} calls in group {group}, rank {ahead} {}; it never came to call {}{call}",
            least.made, most.made, least.made
        );
    }
    let slow = known()
        .min_by_key(|(_, report)| report.done)
        .map_or(behind, |(rank, _)| rank);
    let call = least
        .calls
        .last()
        .map_or_else(String::new, |call| format!(", the last {call}"));
    format!(
        "all ranks have made {} calls in group {group}{call}, but the GPU of rank {slow} does not complete them",
        least.made
    )
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;

    fn call(len: usize) -> Call {
        Call {
            verb: Verb::AllReduce,
            len,
            dtype: FloatDType::BF16,
        }
    }

    /// A rank that has made calls of these lengths, of which `done` are complete.
    fn report(lens: &[usize], done: u64, has_left: bool) -> Option<Report> {
        let mut ring = Ring::default();
        for len in lens {
            ring.begin(call(*len));
        }
        if done > 0 {
            ring.complete(done - 1);
        }
        Some(ring.report(has_left))
    }

    #[test]
    fn what_is_told_is_read() {
        let mut ring = Ring::default();
        for sequence in 0..300 {
            assert_eq!(ring.begin(call(sequence)), sequence as u64);
        }
        ring.begin(Call::without_elements(Verb::Split));
        ring.complete(298);
        let report = ring.report(true);
        assert_eq!(
            (report.made, report.done, report.calls.len()),
            (301, 299, TOLD)
        );
        assert_eq!(report.call(299), Some(call(299)));
        assert_eq!(report.call(300), Some(Call::without_elements(Verb::Split)));
        assert_eq!((report.call(301), report.call(200)), (None, None));
        let bytes = report.encode();
        assert_eq!(Report::decode(&bytes), Some(report));
        assert_eq!(Report::decode(&bytes[1..]), None);
        assert_eq!(Report::decode(&bytes[..bytes.len() - 8]), None);
        assert_eq!(Report::decode(&[]), None);
        // More calls than were made.
        let mut lies = bytes;
        lies[..8].copy_from_slice(&3_u64.to_le_bytes());
        assert_eq!(Report::decode(&lies), None);
    }

    #[test]
    fn the_oldest_call_under_way() {
        let mut ring = Ring::default();
        assert!(ring.oldest().is_none());
        ring.begin(call(5));
        ring.begin(call(6));
        assert_eq!(
            ring.oldest().map(|(at, call, _)| (at, call)),
            Some((0, call(5)))
        );
        ring.complete(0);
        assert_eq!(
            ring.oldest().map(|(at, call, _)| (at, call)),
            Some((1, call(6)))
        );
        // What is complete stays so.
        ring.complete(1);
        ring.complete(0);
        assert!(ring.oldest().is_none());
        for len in 0..REMEMBERED + 9 {
            ring.begin(call(len));
        }
        let oldest = ring.oldest().map(|(at, call, _)| (at, call));
        assert_eq!(oldest, Some((11, call(9))), "the first that is remembered");
    }

    #[test]
    fn the_ring_is_told_in_lines() {
        let mut ring = Ring::default();
        ring.begin(call(5));
        ring.begin(call(6));
        ring.begin(call(7));
        ring.complete(1);
        let lines = ring.lines("world", 2);
        assert_eq!(lines.len(), 2);
        let starts = [
            "group world, call 1: all-reduce of 6 bf16, 12 bytes, done,",
            "group world, call 2: all-reduce of 7 bf16, 14 bytes, under way,",
        ];
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }

    #[test]
    fn ranks_that_agree_contradict_nobody() {
        let check = |reports: &[Option<Report>]| {
            let text = contradiction(&[0, 4, 5], reports).map(|error| error.to_string());
            assert_eq!(text, None);
        };
        check(&[
            report(&[1, 2], 1, false),
            report(&[1, 2, 3], 2, false),
            report(&[1], 0, false),
        ]);
        check(&[report(&[1, 2], 2, true), report(&[1, 2], 2, false), None]);
        check(&[None, None, None]);
    }

    #[test]
    fn different_calls_are_told_first() {
        let reports = [report(&[1, 2, 3], 1, false), None, report(&[1, 7], 1, true)];
        let expected = "ranks disagree on call 1: rank 0 makes all-reduce of 2 bf16, rank 5 makes all-reduce of 7 bf16";
        assert_eq!(culprit("world", &[0, 4, 5], &reports), expected);
    }

    #[test]
    fn who_has_left_is_told() {
        let reports = [report(&[1, 2, 3], 2, false), report(&[1, 2], 2, true)];
        let expected =
            "rank 7 has ended without making call 2, for which rank 3 waits: all-reduce of 3 bf16";
        assert_eq!(culprit("world", &[3, 7], &reports), expected);
    }

    #[test]
    fn who_is_behind_is_told() {
        let reports = [
            report(&[1, 2, 3, 4], 2, false),
            report(&[1, 2, 3, 4], 2, false),
            report(&[1, 2], 2, false),
        ];
        assert_eq!(
            culprit("0.1", &[0, 1, 2], &reports),
            "rank 2 is behind: it has made 2 calls in group 0.1, rank 1 4; it never came to call 2, all-reduce of 3 bf16"
        );
        let silent = [reports[0].clone(), None, reports[2].clone()];
        assert_eq!(
            culprit("world", &[0, 1, 2], &silent),
            "rank 1 has told nothing of its calls in group world"
        );
    }

    #[test]
    fn a_gpu_that_hangs_is_told() {
        let reports = [report(&[1, 2], 2, false), report(&[1, 2], 1, false)];
        assert_eq!(
            culprit("world", &[0, 1], &reports),
            "all ranks have made 2 calls in group world, the last all-reduce of 2 bf16, but the GPU of rank 1 does not complete them"
        );
    }
}
