//! By what a rank knows, once a step has failed, that something of its own was not finite first.

use burn::tensor::{DType, Tensor};

use crate::error::Result;
use crate::reading::read_f64;

/// The first sign in a window that something of a rank itself is not finite. The least is the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spoilt {
    pub(crate) micro_batch: usize,
    pub(crate) sign: Sign,
}

/// By what it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sign {
    /// By what the rank gave to others inside a pass, counted: it came before anything that the others gave back.
    Given(usize),
    /// By its gradients of this bucket.
    Bucket(usize),
}

/// Those of the window so far.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// Sums over this rank's own gradients: where one is not finite, the gradient is not.
    checks: Vec<Check>,
    /// How often this rank gave numbers to others inside passes, sums of statistics and the like.
    given: usize,
    /// The first of these that was not finite.
    spoilt: Option<Spoilt>,
}

/// The sum over one bucket of one micro-batch of this rank.
#[derive(Debug)]
struct Check {
    micro_batch: usize,
    bucket: usize,
    sum: Tensor<1>,
}

impl Signs {
    /// This rank gave numbers to others.
    pub(crate) fn gave(&mut self, micro_batch: usize, finite: bool) {
        if !finite {
            self.spoilt.get_or_insert(Spoilt {
                micro_batch,
                sign: Sign::Given(self.given),
            });
        }
        self.given += 1;
    }

    /// These are its gradients of a bucket.
    pub(crate) fn sum(&mut self, micro_batch: usize, bucket: usize, gradients: &Tensor<1>) {
        self.checks.push(Check {
            micro_batch,
            bucket,
            sum: check_sum(gradients),
        });
    }

    /// The first sign of all. Ends the window's.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub(crate) fn first(&mut self) -> Result<Option<Spoilt>> {
        let Self {
            checks,
            spoilt: mut first,
            ..
        } = std::mem::take(self);
        for check in checks {
            if read_f64(check.sum)?.iter().all(|sum| sum.is_finite()) {
                continue;
            }
            let spoilt = Spoilt {
                micro_batch: check.micro_batch,
                sign: Sign::Bucket(check.bucket),
            };
            first = Some(first.map_or(spoilt, |first| first.min(spoilt)));
        }
        Ok(first)
    }

    /// The window was good, or is none.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// The sum over a buffer, in a type in which finite gradients do not overflow.
fn check_sum(buffer: &Tensor<1>) -> Tensor<1> {
    #[cfg(feature = "tch")]
    if let Some(sum) = crate::libtorch::wide_sum(buffer) {
        return sum;
    }
    match buffer.dtype() {
        DType::F16 | DType::BF16 => buffer.clone().cast(DType::F32).sum(),
        _ => buffer.clone().sum(),
    }
}
