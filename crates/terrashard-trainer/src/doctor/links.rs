//! How fast ranks exchange bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::{self, DType, Tensor};
use serde::Serialize;
use terrashard_collectives::{Communicator, Pending};

use super::DoctorOptions;
use super::host::gibibytes;
use super::pairs::{self, PairBandwidth};
use crate::config::{Arithmetic, Device};
use crate::error::Result;
use crate::training::Crew;

/// The smallest buffer; each next one is four times as large.
const SMALLEST: u64 = 1 << 20;

/// How long one row is measured, unless a single call takes longer.
const LONG: Duration = Duration::from_millis(200);

/// Calls after which nothing new is learned.
const CALLS: u32 = 20;

/// Seconds of a call after which no larger buffer is tried.
const TOO_LONG: f64 = 1.0;

/// One verb with one size of buffer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bandwidth {
    /// What was called.
    pub verb: &'static str,
    /// Bytes of the whole buffer.
    pub bytes: u64,
    /// Ranks.
    pub ranks: usize,
    /// Seconds of a call.
    pub seconds: f64,
    /// Bytes that a rank sends, by the time, in 10^9 a second.
    #[serde(rename = "GB_s")]
    pub gb_s: f64,
}

pub(super) type Call =
    fn(&dyn Communicator, Tensor<1>, usize) -> terrashard_collectives::Result<Pending>;

/// The verbs, each with the part of its buffer that a rank gives, and how often that is sent.
pub(super) const VERBS: [(&str, Call, f64); 3] = [
    (
        "all-reduce",
        |ranks, buffer, _| ranks.all_reduce(buffer),
        2.0,
    ),
    (
        "reduce-scatter",
        |ranks, buffer, _| ranks.reduce_scatter(buffer),
        1.0,
    ),
    (
        "all-gather",
        |ranks, buffer, part| ranks.all_gather(buffer.narrow(0, 0, part)),
        1.0,
    ),
];

/// What was measured of ranks, by pairs and all together.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Links {
    pub(super) pairs: Vec<PairBandwidth>,
    pub(super) all: Vec<Bandwidth>,
}

/// The tables, on the rank that tells them. The pairs come first: what hangs between two would hang between all.
pub(super) fn measure(options: &DoctorOptions) -> Result<Option<Links>> {
    let crew = Crew::gather_within(options.device, Some(pairs::LIMIT))?;
    // Threads share the processor; GPUs have a process each, and a device that is not there has none.
    let ranks = match (crew.processes(), options.device) {
        (Some(processes), _) => processes,
        (None, Device::Cuda) => 1,
        (None, device) if device.check().is_err() => 1,
        (None, Device::Cpu | Device::CpuLibTorch) => options.ranks,
    };
    let gpu = crew.gpu();
    let rows = crew.run_within(ranks, Some(pairs::LIMIT), |communicator| {
        let gpu = gpu.unwrap_or(communicator.rank());
        let device = match communicator.ranks() {
            1 => return Ok((communicator.rank() == 0).then(Links::default)),
            ranks => options.device.of_rank(gpu, ranks, Arithmetic::default())?,
        };
        let links = Links {
            pairs: pairs::rows(&communicator, &device, options.largest)?,
            all: rows(&communicator, &device, options.largest)?,
        };
        Ok((communicator.rank() == 0).then_some(links))
    })?;
    Ok(rows.into_iter().flatten().next())
}

fn rows(
    communicator: &Arc<dyn Communicator>,
    device: &tensor::Device,
    largest: u64,
) -> Result<Vec<Bandwidth>> {
    let ranks = communicator.ranks();
    let mut rows = Vec::new();
    let mut bytes = SMALLEST;
    while bytes <= largest {
        let part = bytes as usize / size_of::<f32>() / ranks;
        let buffer = Tensor::<1>::ones([part * ranks], (device, DType::F32));
        let mut slowest = 0.0f64;
        for (verb, call, times) in VERBS {
            let seconds = call_seconds(communicator.as_ref(), device, LONG, || {
                call(communicator.as_ref(), buffer.clone(), part)
            })?;
            slowest = slowest.max(seconds);
            let sent = times * bytes as f64 * (ranks - 1) as f64 / ranks as f64;
            rows.push(Bandwidth {
                verb,
                bytes,
                ranks,
                seconds,
                gb_s: sent / seconds / 1e9,
            });
        }
        if slowest > TOO_LONG {
            break;
        }
        bytes *= 4;
    }
    Ok(rows)
}

/// Seconds of one call, the same on every rank, of as many as take `long` together.
pub(super) fn call_seconds(
    communicator: &dyn Communicator,
    device: &tensor::Device,
    long: Duration,
    call: impl Fn() -> terrashard_collectives::Result<Pending>,
) -> Result<f64> {
    let idle = || {
        // What a device did not do is told by the next call.
        let _ = device.sync();
    };
    let timed = |calls: u32| -> Result<f64> {
        communicator.barrier()?;
        idle();
        let began = Instant::now();
        for _ in 0..calls {
            drop(call()?.wait()?);
        }
        idle();
        let own = began.elapsed().as_secs_f64() / f64::from(calls);
        let own = Tensor::<1>::from_data([own], (device, DType::F64));
        let sum = communicator.all_reduce(own)?.wait()?;
        Ok(sum.into_scalar::<f64>() / communicator.ranks() as f64)
    };
    // The first call makes connections.
    timed(1)?;
    let once = timed(1)?;
    let calls = (long.as_secs_f64() / once.max(1e-9)) as u32;
    match calls.min(CALLS) {
        0 | 1 => Ok(once),
        calls => timed(calls),
    }
}

/// The table for people, lines of text.
pub(super) fn table(rows: &[Bandwidth]) -> Vec<String> {
    let Some(first) = rows.first() else {
        return Vec::new();
    };
    let mut lines = vec![format!(
        "what each of {} ranks sends, GB/s (milliseconds of a call), by bytes of the buffer:",
        first.ranks
    )];
    lines.push(format!(
        "{:>10}{}",
        "",
        VERBS.map(|(verb, ..)| format!("{verb:>24}")).concat()
    ));
    for row in rows.chunks(VERBS.len()) {
        let cells: Vec<String> = row
            .iter()
            .map(|it| {
                let cell = format!("{:.2} ({:.3})", it.gb_s, it.seconds * 1e3);
                format!("{cell:>24}")
            })
            .collect();
        lines.push(format!("{:>10}{}", gibibytes(row[0].bytes), cells.concat()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h10_threads_exchange_bytes_by_each_verb() {
        let options = |ranks| DoctorOptions {
            device: Device::Cpu,
            folder: ".".into(),
            ranks,
            largest: 4 << 20,
        };
        let links = measure(&options(2))
            .expect("threads can talk")
            .expect("rank 0 tells");
        // From 1 KiB to 4 MiB.
        assert_eq!(links.pairs.len(), 7 * VERBS.len());
        let rows = links.all;
        assert_eq!(rows.len() % VERBS.len(), 0);
        let first: Vec<_> = rows
            .iter()
            .take(3)
            .map(|row| (row.verb, row.bytes, row.ranks))
            .collect();
        assert_eq!(
            first,
            [
                ("all-reduce", 1 << 20, 2),
                ("reduce-scatter", 1 << 20, 2),
                ("all-gather", 1 << 20, 2)
            ]
        );
        for row in &rows {
            let sent = if row.verb == "all-reduce" {
                row.bytes
            } else {
                row.bytes / 2
            };
            let expected = sent as f64 / row.seconds / 1e9;
            assert!((row.gb_s / expected - 1.0).abs() < 1e-9, "{row:?}");
        }
        assert_eq!(
            measure(&options(1)).expect("nothing to do"),
            Some(Links::default())
        );
    }
}
