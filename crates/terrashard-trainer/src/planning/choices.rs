//! Every stage with each recomputation and with micro-batches of several sizes.

use serde::Serialize;
use terrashard_layout::{Offload, Stage};

use super::dry_run::Starts;
use super::{Laid, Planned, fits};
use crate::config::{Device, Recompute, RecomputeChoice};

/// Sizes of micro-batches that are shown.
const SHOWN: usize = 6;

/// The largest micro-batch that is looked for.
const LARGEST: usize = 4096;

/// One way to train, and what it takes on each rank by the size of the micro-batch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// The stage.
    pub stage: Stage,
    /// What is kept in host memory.
    pub offload: Offload,
    /// What becomes of activations between forward and backward.
    pub recompute: RecomputeChoice,
    /// Bytes that a rank sends in one step.
    pub wire: u64,
    /// Some sizes, the configured one among them.
    pub micro_batches: Vec<MicroBatch>,
    /// The largest micro-batch, up to 4096, that fits into the memory that was asked about; none where not even one sample does,
    /// or where nobody asked.
    pub largest: Option<usize>,
}

/// What a way to train takes with micro-batches of one size, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MicroBatch {
    /// Samples.
    pub samples: usize,
    /// What lives from forward to backward.
    pub activations: u64,
    /// What operations need when most is held.
    pub workspace: u64,
    /// What is kept in host memory.
    pub host: u64,
    /// The most that the device holds at once.
    pub total: u64,
    /// Whether that is at most the memory that was asked about.
    pub fits: Option<bool>,
}

impl Choice {
    /// What it takes with so many samples, where that is shown.
    pub(super) fn of(&self, samples: usize) -> Option<&MicroBatch> {
        self.micro_batches.iter().find(|it| it.samples == samples)
    }
}

impl Planned<'_> {
    pub(super) fn choices(&self, memory: Option<u64>) -> Vec<Choice> {
        let sizes = sizes(self.batch.micro);
        let mut choices = Vec::new();
        for recompute in self.recomputations() {
            for laid in &self.laid {
                choices.push(self.choice(laid, &recompute, &sizes, memory));
            }
        }
        choices
    }

    /// What can become of activations, with the configuration's own table where it has one.
    fn recomputations(&self) -> Vec<RecomputeChoice> {
        let all = match self.device {
            Device::Cuda => &[Recompute::Keep, Recompute::Recompute, Recompute::Offload][..],
            // There is no other memory to offload to.
            Device::Cpu | Device::CpuLibTorch => &[Recompute::Keep, Recompute::Recompute],
        };
        let mut all: Vec<_> = all.iter().map(|one| RecomputeChoice::All(*one)).collect();
        let own = &self.config.zero.recompute;
        if let RecomputeChoice::ByBlock(_) = own {
            all.insert(1, own.clone());
        }
        all
    }

    fn choice(
        &self,
        laid: &Laid,
        recompute: &RecomputeChoice,
        sizes: &[usize],
        memory: Option<u64>,
    ) -> Choice {
        let side = self.config.data.chip;
        let micro_batches = sizes.iter().map(|&samples| {
            let step = self.footprint(laid, recompute, side, samples, Starts::Alone);
            MicroBatch {
                samples,
                activations: step.activations,
                workspace: step.at_peak.workspace,
                host: laid.held.bytes.host + step.host,
                total: step.peak,
                fits: memory.map(|memory| fits(step.peak, memory)),
            }
        });
        Choice {
            stage: laid.stage,
            offload: laid.offload,
            recompute: recompute.clone(),
            wire: laid.wire.total(),
            micro_batches: micro_batches.collect(),
            largest: memory.and_then(|memory| {
                let with = |samples| {
                    let step = self.footprint(laid, recompute, side, samples, Starts::Alone);
                    fits(step.peak, memory)
                };
                largest(LARGEST, with)
            }),
        }
    }

    /// The largest height and width of a sample of which one fits, below the configured one.
    pub(super) fn largest_chip(
        &self,
        laid: &Laid,
        recompute: &RecomputeChoice,
        memory: u64,
    ) -> Option<usize> {
        let multiple = self.config.model.multiple();
        let most = (self.config.data.chip.saturating_sub(1)) / multiple;
        let with = |times| {
            let step = self.footprint(laid, recompute, times * multiple, 1, Starts::Alone);
            fits(step.peak, memory)
        };
        largest(most, with).map(|times| times * multiple)
    }
}

/// The largest number from 1 to `most` that fits, where all below one that fits do.
pub(super) fn largest(most: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if most == 0 || !fits(1) {
        return None;
    }
    let mut good = 1;
    let mut bad = most + 1;
    // Doubling first: what is large takes longest to try.
    while bad - good > 1 {
        let next = match bad > most {
            true => (2 * good).min(most),
            false => good + (bad - good) / 2,
        };
        match fits(next) {
            true if next == most => return Some(most),
            true => good = next,
            false => bad = next,
        }
    }
    Some(good)
}

/// Powers of two up to four times the configured size, and that itself.
fn sizes(own: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..usize::BITS)
        .map_while(|power| 1usize.checked_shl(power))
        .take_while(|size| *size <= own.saturating_mul(4))
        .collect();
    sizes.push(own);
    sizes.sort_unstable();
    sizes.dedup();
    sizes.split_off(sizes.len().saturating_sub(SHOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found() {
        for most in [1, 2, 5, 4096] {
            for limit in [1, 2, 3, 4, 5, 1000, 4095, 4096, 5000] {
                let found = largest(most, |size| size <= limit);
                assert_eq!(found, Some(limit.min(most)), "{limit} of {most}");
            }
        }
        assert_eq!(largest(9, |_| false), None);
        assert_eq!(largest(0, |_| true), None);
    }

    /// What fitted on a GPU of 16 GiB, and what did not, of XL with 43, 44, 154 and 156 blocks and of B5 with 31 and 32 samples.
    #[test]
    fn what_was_seen_to_fit_fits() {
        let gib = |number: f64| (number * f64::from(1 << 30)) as u64;
        for (foretold, did) in [
            (15.691, true),
            (15.967, false),
            (15.767, true),
            (15.962, false),
            (15.891, true),
            (16.367, false),
        ] {
            assert_eq!(fits(gib(foretold), gib(16.0)), did, "{foretold} GiB");
        }
    }

    #[test]
    fn sizes_are_around_the_configured_one() {
        assert_eq!(sizes(1), [1, 2, 4]);
        assert_eq!(sizes(8), [1, 2, 4, 8, 16, 32]);
        assert_eq!(sizes(24), [4, 8, 16, 24, 32, 64]);
    }
}
