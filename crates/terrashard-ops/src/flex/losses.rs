//! Losses over maps of one to four channels, channels first. Nothing of a map's size exists beside the gradient.

use super::real::{Real, sigmoid_and_log};
use super::{Flat, fill, flat, partial, values};
use crate::IGNORE;
use crate::focal::Focal;
use crate::overlap::{Dice, SoftBce};
use burn::backend::TensorMetadata;

/// Adds `f` over all pixels, in `f64` from piece to piece.
fn total<T: Real>(count: usize, f: impl Fn(usize) -> T + Sync) -> f64 {
    const LANES: usize = 16;
    let parts = partial(count, 1, |range| {
        let mut sums = [T::ZERO; LANES];
        let whole = range.len() / LANES * LANES;
        for block in (range.start..range.start + whole).step_by(LANES) {
            for (lane, sum) in sums.iter_mut().enumerate() {
                *sum += f(block + lane);
            }
        }
        let rest = (range.start + whole..range.end)
            .map(&f)
            .map(Real::wide)
            .sum::<f64>();
        sums.into_iter().map(Real::wide).sum::<f64>() + rest
    });
    parts.into_iter().sum()
}

/// One value.
fn scalar<T: Real>(value: f64) -> Flat {
    flat(vec![T::real(value)], [1])
}

/// The one value of the gradient of a loss.
fn upstream<T: Real>(gradient: &Flat) -> f64 {
    values::<T>(&gradient.to_contiguous())[0].wide()
}

/// A map of `f` over pixels, like `logits`.
fn slopes<T: Real>(logits: &Flat, f: impl Fn(usize) -> T + Sync) -> Flat {
    let shape = logits.shape();
    let mut out = vec![T::ZERO; shape.num_elements()];
    fill(&mut out, 1, |start, piece| {
        for (i, out) in piece.iter_mut().enumerate() {
            *out = f(start + i);
        }
    });
    flat(out, shape)
}

/// `base^gamma` where gamma is nearly always 2.
#[inline(always)]
fn modulation<T: Real>(base: T, gamma: f64) -> T {
    if gamma == 2.0 {
        base * base
    } else {
        base.power(gamma)
    }
}

/// The logit turned so that the right class is positive, and its weight: 0 where ignored.
#[inline(always)]
fn oriented<T: Real>(logit: T, label: u8, focal: &Focal) -> (T, T) {
    let (positive, negative) = (T::real(focal.alpha), T::real(1.0 - focal.alpha));
    let weight = if label == 0 { negative } else { positive };
    let z = if label == 0 { -logit } else { logit };
    if label == IGNORE {
        (T::ZERO, T::ZERO)
    } else {
        (z, weight)
    }
}

pub(super) fn focal<T: Real>(logits: &Flat, labels: &Flat, focal: Focal) -> Flat {
    let logits = logits.to_contiguous();
    let data: &[T] = values(&logits);
    let labels = &labels.bytes()[..data.len()];
    let sum = total(data.len(), |i| {
        let (z, weight) = oriented(data[i], labels[i], &focal);
        let (p, log) = sigmoid_and_log(z);
        let entropy = log - z.lesser(T::ZERO);
        weight * modulation(T::ONE - p, focal.gamma) * entropy
    });
    scalar::<T>(sum / focal.divisor)
}

pub(super) fn focal_backward<T: Real>(
    gradient: &Flat,
    logits: &Flat,
    labels: &Flat,
    focal: Focal,
) -> Flat {
    let logits = logits.to_contiguous();
    let data: &[T] = values(&logits);
    let labels = &labels.bytes()[..data.len()];
    let scale = T::real(upstream::<T>(gradient) / focal.divisor);
    let gamma = T::real(focal.gamma);
    slopes(&logits, |i| {
        let (z, weight) = oriented(data[i], labels[i], &focal);
        let (p, log) = sigmoid_and_log(z);
        let entropy = log - z.lesser(T::ZERO);
        let miss = T::ONE - p;
        let slope =
            -(weight * modulation(miss, focal.gamma) * (gamma * p * entropy + miss)) * scale;
        if labels[i] == 0 { -slope } else { slope }
    })
}

/// Softened label and whether the pixel counts, as 1 or 0.
#[inline(always)]
fn softened<T: Real>(label: u8, softening: f64) -> (T, T) {
    let target = if label == 0 {
        T::real(softening)
    } else {
        T::real(1.0 - softening)
    };
    (target, if label == IGNORE { T::ZERO } else { T::ONE })
}

pub(super) fn soft_bce<T: Real>(logits: &Flat, labels: &Flat, bce: SoftBce) -> Flat {
    let logits = logits.to_contiguous();
    let data: &[T] = values(&logits);
    let labels = &labels.bytes()[..data.len()];
    let sum = total(data.len(), |i| {
        let (target, valid) = softened::<T>(labels[i], bce.softening);
        let x = if labels[i] == IGNORE {
            T::ZERO
        } else {
            data[i]
        };
        let (_, log) = sigmoid_and_log(x);
        (log + x.greater(T::ZERO) - x * target) * valid
    });
    scalar::<T>(sum / bce.divisor)
}

pub(super) fn soft_bce_backward<T: Real>(
    gradient: &Flat,
    logits: &Flat,
    labels: &Flat,
    bce: SoftBce,
) -> Flat {
    let logits = logits.to_contiguous();
    let data: &[T] = values(&logits);
    let labels = &labels.bytes()[..data.len()];
    let scale = T::real(upstream::<T>(gradient) / bce.divisor);
    slopes(&logits, |i| {
        let (target, _) = softened::<T>(labels[i], bce.softening);
        let slope = (sigmoid_and_log(data[i]).0 - target) * scale;
        if labels[i] == IGNORE { T::ZERO } else { slope }
    })
}

/// The sums of `p y` and of `p` over valid pixels.
pub(super) fn dice_sums<T: Real>(logits: &Flat, labels: &Flat) -> Flat {
    let logits = logits.to_contiguous();
    let data: &[T] = values(&logits);
    let labels = &labels.bytes()[..data.len()];
    let p = |i: usize| {
        if labels[i] == IGNORE {
            T::ZERO
        } else {
            sigmoid_and_log(data[i]).0
        }
    };
    let intersection = total(data.len(), |i| if labels[i] == 0 { T::ZERO } else { p(i) });
    flat(vec![intersection, total(data.len(), p)], [2])
}

pub(super) fn dice_backward<T: Real>(
    gradient: &Flat,
    logits: &Flat,
    labels: &Flat,
    dice: &Dice,
) -> Flat {
    let logits = logits.to_contiguous();
    let data: &[T] = values(&logits);
    let labels = &labels.bytes()[..data.len()];
    let upstream = upstream::<T>(gradient);
    let [negative, positive] = dice.slopes().map(|slope| T::real(slope * upstream));
    slopes(&logits, |i| {
        let p = sigmoid_and_log(data[i]).0;
        let slope = if labels[i] == 0 { negative } else { positive } * p * (T::ONE - p);
        if labels[i] == IGNORE { T::ZERO } else { slope }
    })
}

pub(super) fn l1<T: Real>(x: &Flat, target: &Flat, divisor: f64) -> Flat {
    let (x, target) = (x.to_contiguous(), target.to_contiguous());
    let (x, target): (&[T], &[T]) = (values(&x), values(&target));
    scalar::<T>(total(x.len(), |i| (x[i] - target[i]).magnitude()) / divisor)
}

pub(super) fn l1_backward<T: Real>(gradient: &Flat, x: &Flat, target: &Flat, divisor: f64) -> Flat {
    let (x, target) = (x.to_contiguous(), target.to_contiguous());
    let (data, target): (&[T], &[T]) = (values(&x), values(&target));
    let step = T::real(upstream::<T>(gradient) / divisor);
    slopes(&x, |i| {
        let up = if data[i] > target[i] { step } else { T::ZERO };
        if data[i] < target[i] { -step } else { up }
    })
}
