//! The two element types that the kernels are written for, and functions of them that compile to vector instructions.

use burn::backend::Element;
use bytemuck::Pod;
use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// `f32` or `f64`.
pub(super) trait Real:
    Element
    + Pod
    + Default
    + PartialOrd
    + Debug
    + Send
    + Sync
    + Sum
    + AddAssign
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;

    /// The nearest value of this type.
    fn real(value: f64) -> Self;
    fn wide(self) -> f64;
    fn root(self) -> Self;
    fn magnitude(self) -> Self;
    /// e to this power.
    fn exponential(self) -> Self;
    /// `ln(1 + self)` for values from 0 to 1.
    fn log1p_of_unit(self) -> Self;
    fn power(self, exponent: f64) -> Self;

    #[inline(always)]
    #[expect(
        clippy::eq_op,
        reason = "NaN alone differs from itself, and generic code has no other word for it"
    )]
    fn is_no_number(self) -> bool {
        self != self
    }

    /// The greater of two values; the second if either is no number.
    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    #[inline(always)]
    fn lesser(self, other: Self) -> Self {
        if self < other { self } else { other }
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    #[inline(always)]
    fn real(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }

    #[inline(always)]
    fn magnitude(self) -> Self {
        self.abs()
    }

    #[inline(always)]
    fn exponential(self) -> Self {
        self.exp()
    }

    #[inline(always)]
    fn log1p_of_unit(self) -> Self {
        self.ln_1p()
    }

    #[inline(always)]
    fn power(self, exponent: f64) -> Self {
        self.powf(exponent)
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    #[inline(always)]
    fn real(value: f64) -> Self {
        value as Self
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self.into()
    }

    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }

    #[inline(always)]
    fn magnitude(self) -> Self {
        self.abs()
    }

    /// By powers of two and a polynomial (the coefficients of Cephes' `expf`), within 2 units in the last place; values beyond
    /// +-87 are taken for +-87.
    #[inline(always)]
    fn exponential(self) -> Self {
        // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
        const ROUND: f32 = 12_582_912.0;
        // What is no number passes: a limit takes its place only where it compares.
        let x = 87f32.lesser((-87f32).greater(self));
        let n = x * std::f32::consts::LOG2_E + ROUND;
        let power = f32::from_bits((n.to_bits() << 23).wrapping_add(0x3f80_0000));
        let n = n - ROUND;
        let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
        let p = 1.987_569_1e-4;
        let p = p * r + 1.398_199_9e-3;
        let p = p * r + 8.333_452e-3;
        let p = p * r + 4.166_579_6e-2;
        let p = p * r + 1.666_666_5e-1;
        let p = p * r + 0.5;
        (p * r * r + r + 1.0) * power
    }

    /// `2 atanh(x / (2 + x))` by its series.
    #[inline(always)]
    fn log1p_of_unit(self) -> Self {
        let s = self / (2.0 + self);
        let t = s * s;
        let p = 1.0 / 15.0;
        let p = p * t + 1.0 / 13.0;
        let p = p * t + 1.0 / 11.0;
        let p = p * t + 1.0 / 9.0;
        let p = p * t + 1.0 / 7.0;
        let p = p * t + 1.0 / 5.0;
        let p = p * t + 1.0 / 3.0;
        let p = p * t + 1.0;
        2.0 * s * p
    }

    #[inline(always)]
    fn power(self, exponent: f64) -> Self {
        self.powf(exponent as Self)
    }
}

/// The error function in `f32` as a rational function (the coefficients of Eigen's), within some units in the last place.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let x = 4f32.lesser((-4f32).greater(x));
    let t = x * x;
    let p = -2.726_142_3e-10;
    let p = p * t + 2.770_681_4e-8;
    let p = p * t + -2.101_024e-6;
    let p = p * t + -5.692_506_6e-5;
    let p = p * t + -7.349_906_4e-4;
    let p = p * t + -2.954_6e-3;
    let p = p * t + -1.609_603_4e-2;
    let q = -1.456_607_2e-5;
    let q = q * t + -2.133_740_6e-4;
    let q = q * t + -1.682_827e-3;
    let q = q * t + -7.373_329_3e-3;
    let q = q * t + -1.426_473_9e-2;
    x * p / q
}

/// Logistic function without overflow: `(sigmoid(x), ln(1 + e^-|x|))`.
#[inline(always)]
pub(super) fn sigmoid_and_log<T: Real>(x: T) -> (T, T) {
    let e = (-x.magnitude()).exponential();
    let small = e / (T::ONE + e);
    let sigmoid = if x < T::ZERO { small } else { T::ONE - small };
    (sigmoid, e.log1p_of_unit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error of `f` against `reference`, relative or absolute below 1e-30.
    #[track_caller]
    fn check(
        f: fn(f32) -> f32,
        reference: fn(f64) -> f64,
        range: std::ops::Range<f64>,
        allowed: f64,
    ) {
        let worst = (0..200_000)
            .map(|i| {
                let x = (range.start + (range.end - range.start) * f64::from(i) / 200_000.0) as f32;
                let (got, expected) = (f64::from(f(x)), reference(f64::from(x)));
                (got - expected).abs() / expected.abs().max(1e-30)
            })
            .fold(0.0, f64::max);
        assert!(worst < allowed, "{worst:e}");
    }

    #[test]
    fn exponential_is_accurate() {
        check(f32::exponential, f64::exp, -69.0..87.0, 3e-7);
        assert_eq!(0f32.exponential(), 1.0);
        assert!((-1e4f32).exponential() < 1e-37);
        assert!(f32::NAN.exponential().is_nan());
    }

    #[test]
    fn logarithm_is_accurate() {
        check(f32::log1p_of_unit, f64::ln_1p, 0.0..1.0, 3e-7);
    }

    #[test]
    fn error_function_has_its_values() {
        // Abramowitz and Stegun, table 7.1.
        for (x, value) in [
            (0.1, 0.112_462_916),
            (0.5, 0.520_499_878),
            (1.0, 0.842_700_793),
            (2.0, 0.995_322_265),
        ] {
            assert!(
                (f64::from(erf(x)) - value).abs() < 2e-7,
                "erf({x}) = {}",
                erf(x)
            );
            assert_eq!(erf(-x), -erf(x));
        }
        assert!((erf(9.0) - 1.0).abs() < 2e-7);
    }
}
