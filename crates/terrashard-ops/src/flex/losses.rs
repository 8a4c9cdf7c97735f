//! Losses over maps of one to four channels, channels first. Nothing of a map's size exists beside the gradient.

use super::pixel::{Pixel, apply, total};
use super::real::{Real, sigmoid_and_log};
use super::{Flat, flat, values};
use crate::IGNORE;
use crate::focal::Focal;
use crate::image::Coding;
use crate::overlap::{Dice, SoftBce};
use burn::backend::TensorMetadata;

/// One value.
fn scalar<T: Real>(value: f64) -> Flat {
    flat(vec![T::real(value)], [1])
}

/// The one value of the gradient of a loss.
fn upstream<T: Real>(gradient: &Flat) -> f64 {
    values::<T>(&gradient.to_contiguous())[0].wide()
}

/// A sum over the pixels of a labelled map.
fn labelled_sum<T: Real>(logits: &Flat, labels: &Flat, pixel: &impl Pixel<T, u8>) -> f64 {
    let logits = logits.to_contiguous();
    let data: &[T] = values(&logits);
    total(
        pixel,
        data,
        &labels.bytes()[..data.len()],
        (T::ZERO, IGNORE),
    )
}

/// The gradient of a labelled map.
fn labelled_map<T: Real>(logits: &Flat, labels: &Flat, pixel: &impl Pixel<T, u8>) -> Flat {
    let logits = logits.to_contiguous();
    let data: &[T] = values(&logits);
    flat(
        apply(pixel, data, &labels.bytes()[..data.len()]),
        logits.shape(),
    )
}

/// `SQUARE` is the common case of gamma = 2.
struct FocalPixel<T, const SQUARE: bool> {
    positive: T,
    negative: T,
    gamma: f64,
    /// The factor of the gradient.
    scale: T,
}

impl<T: Real, const SQUARE: bool> FocalPixel<T, SQUARE> {
    fn new(focal: Focal, scale: f64) -> Self {
        Self {
            positive: T::real(focal.alpha),
            negative: T::real(1.0 - focal.alpha),
            gamma: focal.gamma,
            scale: T::real(scale),
        }
    }

    /// The logit turned so that the right class is positive, and its weight: 0 where ignored.
    #[inline(always)]
    fn oriented(&self, logit: T, label: u8) -> (T, T) {
        let z = if label == 0 { -logit } else { logit };
        let weight = if label == 0 {
            self.negative
        } else {
            self.positive
        };
        // An ignored pixel may hold anything, even NaN.
        (
            if label == IGNORE { T::ZERO } else { z },
            if label == IGNORE { T::ZERO } else { weight },
        )
    }

    #[inline(always)]
    fn modulation(&self, miss: T) -> T {
        if SQUARE {
            miss * miss
        } else {
            miss.power(self.gamma)
        }
    }
}

struct FocalValue<T, const SQUARE: bool>(FocalPixel<T, SQUARE>);

impl<T: Real, const SQUARE: bool> Pixel<T, u8> for FocalValue<T, SQUARE> {
    #[inline(always)]
    fn at(&self, x: T, label: u8) -> T {
        let (z, weight) = self.0.oriented(x, label);
        let (p, log) = sigmoid_and_log(z);
        weight * self.0.modulation(T::ONE - p) * (log - z.lesser(T::ZERO))
    }
}

struct FocalSlope<T, const SQUARE: bool>(FocalPixel<T, SQUARE>);

impl<T: Real, const SQUARE: bool> Pixel<T, u8> for FocalSlope<T, SQUARE> {
    #[inline(always)]
    fn at(&self, x: T, label: u8) -> T {
        let (z, weight) = self.0.oriented(x, label);
        let (p, log) = sigmoid_and_log(z);
        let (miss, entropy) = (T::ONE - p, log - z.lesser(T::ZERO));
        let slope = weight
            * self.0.modulation(miss)
            * (T::real(self.0.gamma) * p * entropy + miss)
            * self.0.scale;
        if label == 0 { slope } else { -slope }
    }
}

pub(super) fn focal<T: Real>(logits: &Flat, labels: &Flat, focal: Focal) -> Flat {
    let sum = if focal.gamma == 2.0 {
        labelled_sum(
            logits,
            labels,
            &FocalValue(FocalPixel::<T, true>::new(focal, 1.0)),
        )
    } else {
        labelled_sum(
            logits,
            labels,
            &FocalValue(FocalPixel::<T, false>::new(focal, 1.0)),
        )
    };
    scalar::<T>(sum / focal.divisor)
}

pub(super) fn focal_backward<T: Real>(
    gradient: &Flat,
    logits: &Flat,
    labels: &Flat,
    focal: Focal,
) -> Flat {
    let scale = upstream::<T>(gradient) / focal.divisor;
    if focal.gamma == 2.0 {
        labelled_map(
            logits,
            labels,
            &FocalSlope(FocalPixel::<T, true>::new(focal, scale)),
        )
    } else {
        labelled_map(
            logits,
            labels,
            &FocalSlope(FocalPixel::<T, false>::new(focal, scale)),
        )
    }
}

/// Softened labels, and the factor of the gradient.
struct Softened<T> {
    negative: T,
    positive: T,
    scale: T,
}

impl<T: Real> Softened<T> {
    fn new(bce: SoftBce, scale: f64) -> Self {
        Self {
            negative: T::real(bce.softening),
            positive: T::real(1.0 - bce.softening),
            scale: T::real(scale),
        }
    }

    #[inline(always)]
    fn target(&self, label: u8) -> T {
        if label == 0 {
            self.negative
        } else {
            self.positive
        }
    }
}

struct BceValue<T>(Softened<T>);

impl<T: Real> Pixel<T, u8> for BceValue<T> {
    #[inline(always)]
    fn at(&self, x: T, label: u8) -> T {
        let entropy = sigmoid_and_log(x).1 + x.greater(T::ZERO) - x * self.0.target(label);
        if label == IGNORE { T::ZERO } else { entropy }
    }
}

struct BceSlope<T>(Softened<T>);

impl<T: Real> Pixel<T, u8> for BceSlope<T> {
    #[inline(always)]
    fn at(&self, x: T, label: u8) -> T {
        let slope = (sigmoid_and_log(x).0 - self.0.target(label)) * self.0.scale;
        if label == IGNORE { T::ZERO } else { slope }
    }
}

pub(super) fn soft_bce<T: Real>(logits: &Flat, labels: &Flat, bce: SoftBce) -> Flat {
    let sum = labelled_sum(logits, labels, &BceValue(Softened::<T>::new(bce, 1.0)));
    scalar::<T>(sum / bce.divisor)
}

pub(super) fn soft_bce_backward<T: Real>(
    gradient: &Flat,
    logits: &Flat,
    labels: &Flat,
    bce: SoftBce,
) -> Flat {
    let scale = upstream::<T>(gradient) / bce.divisor;
    labelled_map(logits, labels, &BceSlope(Softened::<T>::new(bce, scale)))
}

/// The probability of valid pixels times a factor for each label.
struct Probability<T>([T; 2]);

impl<T: Real> Pixel<T, u8> for Probability<T> {
    #[inline(always)]
    fn at(&self, x: T, label: u8) -> T {
        let p = sigmoid_and_log(x).0 * if label == 0 { self.0[0] } else { self.0[1] };
        if label == IGNORE { T::ZERO } else { p }
    }
}

/// The sums of `p y` and of `p` over valid pixels.
pub(super) fn dice_sums<T: Real>(logits: &Flat, labels: &Flat) -> Flat {
    let sum =
        |negative: f64| labelled_sum(logits, labels, &Probability([T::real(negative), T::ONE]));
    flat(vec![sum(0.0), sum(1.0)], [2])
}

struct DiceSlope<T>([T; 2]);

impl<T: Real> Pixel<T, u8> for DiceSlope<T> {
    #[inline(always)]
    fn at(&self, x: T, label: u8) -> T {
        let p = sigmoid_and_log(x).0;
        let slope = if label == 0 { self.0[0] } else { self.0[1] } * p * (T::ONE - p);
        if label == IGNORE { T::ZERO } else { slope }
    }
}

pub(super) fn dice_backward<T: Real>(
    gradient: &Flat,
    logits: &Flat,
    labels: &Flat,
    dice: &Dice,
) -> Flat {
    let upstream = upstream::<T>(gradient);
    labelled_map(
        logits,
        labels,
        &DiceSlope(dice.slopes().map(|slope| T::real(slope * upstream))),
    )
}

/// What a value of an image means, as it is stored.
trait Meaning<T, U>: Sync {
    /// Its reflectance; NaN where it is missing. Always inlined, as [`Pixel::at`] is.
    fn of(&self, stored: U) -> T;
}

/// Reflectance.
struct Itself;

impl<T: Real> Meaning<T, T> for Itself {
    #[inline(always)]
    fn of(&self, stored: T) -> T {
        stored
    }
}

/// The bits of a digital number.
impl<T: Real> Meaning<T, i16> for Coding {
    #[inline(always)]
    fn of(&self, stored: i16) -> T {
        let number = stored.cast_unsigned();
        let reflectance = (f32::from(number) + self.offset) * self.scale;
        let reflectance = if number == self.missing {
            f32::NAN
        } else {
            reflectance
        };
        T::real(f64::from(reflectance))
    }
}

struct Distance<M>(M);

impl<T: Real, U, M: Meaning<T, U>> Pixel<T, U> for Distance<M> {
    #[inline(always)]
    fn at(&self, x: T, target: U) -> T {
        let target = self.0.of(target);
        let distance = (x - target).magnitude();
        if target.is_no_number() {
            T::ZERO
        } else {
            distance
        }
    }
}

/// The gradient of [`Distance`] times this factor. A missing target is neither above nor below.
struct Direction<T, M>(T, M);

impl<T: Real, U, M: Meaning<T, U>> Pixel<T, U> for Direction<T, M> {
    #[inline(always)]
    fn at(&self, x: T, target: U) -> T {
        let target = self.1.of(target);
        let up = if x > target { self.0 } else { T::ZERO };
        if x < target { -self.0 } else { up }
    }
}

/// The target is contiguous, in the type of `x` or, with a coding, of digital numbers.
pub(super) fn l1<T: Real>(x: &Flat, target: &Flat, coding: Option<Coding>, divisor: f64) -> Flat {
    let x = x.to_contiguous();
    let x: &[T] = values(&x);
    let sum = match coding {
        None => total(&Distance(Itself), x, values(target), (T::ZERO, T::ZERO)),
        Some(coding) => {
            let neutral = (T::ZERO, coding.bits_of_missing());
            total(&Distance(coding), x, bits(target), neutral)
        }
    };
    scalar::<T>(sum / divisor)
}

pub(super) fn l1_backward<T: Real>(
    gradient: &Flat,
    x: &Flat,
    target: &Flat,
    coding: Option<Coding>,
    divisor: f64,
) -> Flat {
    let (shape, x) = (x.shape(), x.to_contiguous());
    let x: &[T] = values(&x);
    let factor = T::real(upstream::<T>(gradient) / divisor);
    let slope = match coding {
        None => apply(&Direction(factor, Itself), x, values(target)),
        Some(coding) => apply(&Direction(factor, coding), x, bits(target)),
    };
    flat(slope, shape)
}

fn bits(target: &Flat) -> &[i16] {
    target.as_slice().expect("numbers are contiguous i16")
}
