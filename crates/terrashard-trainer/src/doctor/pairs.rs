//! Whether each pair of ranks exchanges bytes, and how fast: a job of many ranks is as slow as its worst link, and hangs with one that
//! does not work.

use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{self, DType, Tensor, TensorData};
use serde::Serialize;
use terrashard_collectives::Communicator;

use super::Check;
use super::host::gibibytes;
use super::links::{VERBS, call_seconds};
use crate::error::{Error, Result};

/// How long a pair may take for a call, where `TERRASHARD_TIMEOUT` does not say.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The smallest buffer; each next one is four times as large, up to the largest.
const SMALLEST: u64 = 1 << 10;
const LARGEST: u64 = 64 << 20;

/// How long one row is measured, unless a single call takes longer.
const LONG: Duration = Duration::from_millis(10);

/// A pair that is slower than the median pair by this factor is told.
const SLOW: f64 = 2.0;

/// One verb between two ranks with one size of buffer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairBandwidth {
    /// The two, the lower first.
    pub ranks: [usize; 2],
    /// What was called.
    pub verb: &'static str,
    /// Bytes of the whole buffer.
    pub bytes: u64,
    /// Seconds of a call.
    pub seconds: f64,
    /// Bytes that a rank sends, by the time, in 10^9 a second.
    #[serde(rename = "GB_s")]
    pub gb_s: f64,
}

/// The sizes of buffers that are tried.
fn sizes(largest: u64) -> Vec<u64> {
    let sizes = std::iter::successors(Some(SMALLEST), |bytes| Some(bytes * 4));
    sizes
        .take_while(|bytes| *bytes <= LARGEST.min(largest))
        .collect()
}

/// Whom `rank` meets in a round, if anybody: all pairs meet once in as many rounds as there are ranks, each rank in one pair at a
/// time.
fn partner(rank: usize, round: usize, ranks: usize) -> Option<usize> {
    let partner = (round + ranks - rank % ranks) % ranks;
    (partner != rank).then_some(partner)
}

/// Tries every pair with every verb and size. Every rank has all rows. Collective.
///
/// # Errors
/// [`Error::Link`] on the ranks of a pair that cannot; [`Error::Collective`].
pub(super) fn rows(
    world: &Arc<dyn Communicator>,
    device: &tensor::Device,
    largest: u64,
) -> Result<Vec<PairBandwidth>> {
    let (rank, ranks) = (world.rank(), world.ranks());
    let sizes = sizes(largest);
    let mut rows = Vec::new();
    for round in 0..ranks {
        let partner = partner(rank, round, ranks);
        let pair = [
            rank.min(partner.unwrap_or(rank)),
            rank.max(partner.unwrap_or(rank)),
        ];
        let group = world.split(pair[0])?;
        let mut seconds = vec![0.0; sizes.len() * VERBS.len()];
        if partner.is_some() {
            seconds = measured(&group, device, &sizes, pair)?;
        }
        let own =
            Tensor::<1>::from_data(TensorData::from(seconds.as_slice()), (device, DType::F64));
        let all = world.all_gather(own)?.wait()?.into_data();
        let all: Vec<f64> = all.iter::<f64>().collect();
        for (lower, seconds) in all.chunks(seconds.len().max(1)).enumerate() {
            let Some(higher) = self::partner(lower, round, ranks).filter(|other| *other > lower)
            else {
                continue;
            };
            let calls = sizes
                .iter()
                .flat_map(|bytes| VERBS.map(|verb| (*bytes, verb)));
            rows.extend(
                calls
                    .zip(seconds)
                    .map(|((bytes, (verb, _, times)), seconds)| PairBandwidth {
                        ranks: [lower, higher],
                        verb,
                        bytes,
                        seconds: *seconds,
                        gb_s: times * bytes as f64 / 2.0 / seconds / 1e9,
                    }),
            );
        }
    }
    rows.sort_by_key(|row| row.ranks);
    Ok(rows)
}

/// Seconds of a call of each verb with each size, between the two of `group`.
fn measured(
    group: &Arc<dyn Communicator>,
    device: &tensor::Device,
    sizes: &[u64],
    pair: [usize; 2],
) -> Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for &bytes in sizes {
        let part = bytes as usize / size_of::<f32>() / 2;
        let buffer = Tensor::<1>::ones([2 * part], (device, DType::F32));
        for (verb, call, _) in VERBS {
            let tried = call_seconds(group.as_ref(), device, LONG, || {
                call(group.as_ref(), buffer.clone(), part)
            });
            seconds.push(tried.map_err(|error| named(error, pair, verb, bytes))?);
        }
    }
    Ok(seconds)
}

/// A failure between two ranks by their names; one of others stays theirs.
fn named(error: Error, pair: [usize; 2], verb: &'static str, bytes: u64) -> Error {
    match error {
        Error::Collective(source)
            if !matches!(source, terrashard_collectives::Error::Poisoned { .. }) =>
        {
            Error::Link {
                first: pair[0],
                second: pair[1],
                verb,
                bytes,
                source: source.into(),
            }
        }
        other => other,
    }
}

/// What the pairs are like together: nothing without one.
pub(super) fn check(rows: &[PairBandwidth]) -> Option<Check> {
    let bytes = rows.iter().map(|row| row.bytes).max()?;
    let mut largest: Vec<&PairBandwidth> = rows
        .iter()
        .filter(|row| row.bytes == bytes && row.verb == VERBS[0].0)
        .collect();
    largest.sort_by(|a, b| a.gb_s.total_cmp(&b.gb_s));
    let (slowest, median) = (largest.first()?, largest[largest.len() / 2]);
    let [first, second] = slowest.ranks;
    let found = format!(
        "{} exchange up to {} by every verb; the slowest, ranks {first} and {second}, {:.2} GB/s by {}",
        match largest.len() {
            1 => "1 pair of ranks can".to_owned(),
            pairs => format!("{pairs} pairs of ranks can"),
        },
        gibibytes(bytes),
        slowest.gb_s,
        slowest.verb,
    );
    Some(match slowest.gb_s * SLOW < median.gb_s {
        false => Check::good("links", found),
        true => Check::warning(
            "links",
            format!("{found}, where the median pair has {:.2}", median.gb_s),
            "look at how the two are connected (`nvidia-smi topo -m`); NCCL_P2P_DISABLE=1 goes around a direct path that is broken, \
             NCCL_SOCKET_IFNAME names the network interface",
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use terrashard_collectives::local::Patience;

    use super::*;
    use crate::training::run_ranks_within;

    #[test]
    fn each_pair_meets_once_and_no_rank_is_in_two() {
        for ranks in 2..=9 {
            let mut met = std::collections::BTreeSet::new();
            for round in 0..ranks {
                for rank in 0..ranks {
                    let Some(other) = partner(rank, round, ranks) else {
                        continue;
                    };
                    assert_eq!(partner(other, round, ranks), Some(rank));
                    if rank < other {
                        assert!(met.insert((rank, other)), "{ranks} ranks");
                    }
                }
            }
            assert_eq!(met.len(), ranks * (ranks - 1) / 2);
        }
    }

    #[test]
    fn h10_every_pair_is_tried_by_each_verb_from_1_kib_on() {
        let device = tensor::Device::flex();
        assert_eq!(sizes(u64::MAX).first(), Some(&1024));
        assert_eq!(sizes(u64::MAX).last(), Some(&LARGEST));
        let all = run_ranks_within(3, None, |own| {
            let world: Arc<dyn Communicator> = Arc::new(own);
            rows(&world, &device, 16 << 10)
        });
        for rows in all.unwrap() {
            let tried: Vec<_> = rows
                .iter()
                .map(|row| (row.ranks, row.bytes, row.verb))
                .collect();
            let mut expected = Vec::new();
            for ranks in [[0, 1], [0, 2], [1, 2]] {
                for bytes in [1 << 10, 4 << 10, 16 << 10] {
                    expected.extend(VERBS.map(|(verb, ..)| (ranks, bytes, verb)));
                }
            }
            assert_eq!(tried, expected);
            for row in rows {
                let times = if row.verb == "all-reduce" { 2.0 } else { 1.0 };
                let sent = times * row.bytes as f64 / 2.0;
                assert!(row.seconds > 0.0);
                assert!(
                    (row.gb_s * row.seconds * 1e9 / sent - 1.0).abs() < 1e-9,
                    "{row:?}"
                );
            }
        }
    }

    #[test]
    fn h10_a_pair_that_hangs_is_named_within_the_limit() {
        let device = tensor::Device::flex();
        let patience = Patience {
            timeout: Duration::from_millis(300),
            abandoned: |_, _| {},
        };
        // Rank 2 comes to the third round, in which it meets rank 0, and makes no call there.
        let (ended, hangs) = channel::<()>();
        let (ended, hangs) = (Mutex::new(Some(ended)), Mutex::new(hangs));
        let failed = run_ranks_within(3, Some(patience), |own| {
            let rank = own.rank();
            let world: Arc<dyn Communicator> = Arc::new(own);
            if rank < 2 {
                let tried = rows(&world, &device, 1 << 10);
                if rank == 0 {
                    ended.lock().unwrap().take();
                }
                return tried.map(drop);
            }
            for round in 0..3 {
                let partner = partner(rank, round, 3).unwrap_or(rank);
                let group = world.split(rank.min(partner))?;
                if partner == 1 {
                    measured(&group, &device, &[1 << 10], [1, 2])?;
                }
                if partner == 0 {
                    let _ = hangs.lock().unwrap().recv();
                    break;
                }
                let own = Tensor::<1>::zeros([VERBS.len()], (&device, DType::F64));
                world.all_gather(own)?.wait()?;
            }
            Ok(())
        });
        let told = failed.unwrap_err().to_string();
        assert!(
            told.contains("ranks 0 and 2") && told.contains("all-reduce of 1024 bytes"),
            "{told}"
        );
    }

    #[test]
    fn h10_a_slow_pair_is_named_with_its_remedy() {
        let row = |ranks, gb_s| PairBandwidth {
            ranks,
            verb: "all-reduce",
            bytes: 1 << 26,
            seconds: 1.0,
            gb_s,
        };
        let check = |rows: &[PairBandwidth]| super::check(rows).unwrap();
        let even = [row([0, 1], 9.0), row([0, 2], 10.0), row([1, 2], 11.0)];
        assert_eq!(check(&even).remedy, None);
        let slow = check(&[row([0, 1], 10.0), row([0, 2], 10.0), row([1, 2], 1.5)]);
        assert!(
            slow.found.contains("the slowest, ranks 1 and 2, 1.50 GB/s")
                && slow.found.contains("the median pair has 10.00"),
            "{slow:?}"
        );
        assert!(slow.remedy.unwrap().contains("NCCL_P2P_DISABLE=1"));
        assert_eq!(super::check(&[]), None);
    }
}
