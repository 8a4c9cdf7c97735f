//! The types that parameters and states are kept in.

use std::ops::{Add, Div, Mul, Sub};

use half::{bf16, f16};

use super::halves;

/// A type that parameters and states are kept in: f32 or f64.
pub trait Element: Arithmetic {}

impl Element for f32 {}
impl Element for f64 {}

/// What the rules need of an element. Others cannot name it, which seals [`Element`].
pub trait Arithmetic:
    Copy
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// Zero.
    const ZERO: Self;

    /// `value`, rounded to nearest.
    fn of(value: f64) -> Self;
    /// Correctly rounded square root.
    fn sqrt(self) -> Self;
    /// The value of a bf16, exactly.
    fn of_bf16(half: bf16) -> Self;
    /// The value of an f16, exactly.
    fn of_f16(half: f16) -> Self;
    /// Rounded to the nearest bf16, ties to even.
    fn to_bf16(self) -> bf16;
    /// Rounded to the nearest f16, ties to even.
    fn to_f16(self) -> f16;
}

impl Arithmetic for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn of_bf16(half: bf16) -> Self {
        halves::of_bf16(half)
    }

    #[inline(always)]
    fn of_f16(half: f16) -> Self {
        halves::of_f16(half)
    }

    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        halves::to_bf16(self)
    }

    #[inline(always)]
    fn to_f16(self) -> f16 {
        halves::to_f16(self)
    }
}

impl Arithmetic for f64 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }

    #[inline(always)]
    fn of_bf16(half: bf16) -> Self {
        halves::of_bf16(half).into()
    }

    #[inline(always)]
    fn of_f16(half: f16) -> Self {
        halves::of_f16(half).into()
    }

    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        halves::to_bf16(halves::to_f32_odd(self))
    }

    #[inline(always)]
    fn to_f16(self) -> f16 {
        halves::to_f16(halves::to_f32_odd(self))
    }
}
