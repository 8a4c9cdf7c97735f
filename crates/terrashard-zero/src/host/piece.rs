//! A flat piece of parameters, with what comes in and goes out beside its states.

use std::ops::Range;

use half::{bf16, f16};

use super::average::Average;
use super::element::Element;

/// A flat piece of parameters to be updated in place.
#[derive(Debug)]
pub struct Piece<'a, T> {
    /// The parameters, `[n]`.
    pub master: &'a mut [T],
    /// Their gradient, `[n]`.
    pub gradient: Gradient<'a, T>,
    /// Where the updated parameters go in the compute type, `[n]`.
    pub copy: ComputeCopy<'a, T>,
    /// A moving average that follows them, `[n]`.
    pub average: Option<Average<'a, T>>,
}

/// A gradient in the type in which it was reduced.
#[derive(Clone, Copy, Debug)]
pub enum Gradient<'a, T> {
    /// In the type of the parameters.
    Full(&'a [T]),
    /// In bf16.
    Bf16(&'a [bf16]),
    /// In f16.
    F16(&'a [f16]),
}

/// A copy of the updated parameters in the type that the model computes in, rounded to nearest, ties to even.
#[derive(Debug)]
pub enum ComputeCopy<'a, T> {
    /// None is wanted: the model computes with the parameters themselves.
    None,
    /// In the type of the parameters.
    Full(&'a mut [T]),
    /// In bf16.
    Bf16(&'a mut [bf16]),
    /// In f16; what is beyond 65504 becomes infinite.
    F16(&'a mut [f16]),
}

impl<'a, T: Element> Piece<'a, T> {
    /// `master` with its `gradient`, without copy and average.
    ///
    /// # Shapes
    /// Both `[n]`.
    pub fn new(master: &'a mut [T], gradient: Gradient<'a, T>) -> Self {
        Self {
            master,
            gradient,
            copy: ComputeCopy::None,
            average: None,
        }
    }

    /// All parts are as long as the parameters.
    ///
    /// # Panics
    /// If one is not: the caller cut them by the same range.
    pub(super) fn check(&self) {
        let n = self.master.len();
        let gradient = self.gradient.len();
        assert_eq!(gradient, n, "a gradient is as long as its parameters");
        let copy = self.copy.len().unwrap_or(n);
        assert_eq!(copy, n, "a compute copy is as long as its parameters");
        let average = self.average.as_ref().map_or(n, |it| it.values.len());
        assert_eq!(average, n, "a moving average is as long as its parameters");
    }

    /// The two parts on either side of `at`.
    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        let (master, master_right) = self.master.split_at_mut(at);
        let (gradient, gradient_right) = self.gradient.split_at(at);
        let (copy, copy_right) = self.copy.split_at(at);
        let (average, average_right) = self.average.map(|it| it.split_at(at)).unzip();
        let left = Self {
            master,
            gradient,
            copy,
            average,
        };
        let right = Self {
            master: master_right,
            gradient: gradient_right,
            copy: copy_right,
            average: average_right,
        };
        (left, right)
    }
}

impl<'a, T: Element> Gradient<'a, T> {
    fn len(&self) -> usize {
        match self {
            Self::Full(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::Full(values) => both(values.split_at(at), Self::Full),
            Self::Bf16(values) => both(values.split_at(at), Self::Bf16),
            Self::F16(values) => both(values.split_at(at), Self::F16),
        }
    }

    /// The elements of `range` in the type of the parameters: at the head of `room` if they are of another type.
    #[inline(always)]
    pub(super) fn read<'b>(&'b self, range: Range<usize>, room: &'b mut [T]) -> &'b [T] {
        let len = range.len();
        match self {
            Self::Full(values) => return &values[range],
            Self::Bf16(values) => convert(&values[range], &mut room[..len], T::of_bf16),
            Self::F16(values) => convert(&values[range], &mut room[..len], T::of_f16),
        }
        &room[..len]
    }
}

impl<T: Element> ComputeCopy<'_, T> {
    fn len(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Full(values) => Some(values.len()),
            Self::Bf16(values) => Some(values.len()),
            Self::F16(values) => Some(values.len()),
        }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::None => (Self::None, Self::None),
            Self::Full(values) => both(values.split_at_mut(at), Self::Full),
            Self::Bf16(values) => both(values.split_at_mut(at), Self::Bf16),
            Self::F16(values) => both(values.split_at_mut(at), Self::F16),
        }
    }

    /// Writes `parameters` to the elements from `at` on.
    #[inline(always)]
    pub(super) fn write(&mut self, at: usize, parameters: &[T]) {
        let range = at..at + parameters.len();
        match self {
            Self::None => {}
            Self::Full(values) => values[range].copy_from_slice(parameters),
            Self::Bf16(values) => convert(parameters, &mut values[range], T::to_bf16),
            Self::F16(values) => convert(parameters, &mut values[range], T::to_f16),
        }
    }
}

fn both<S, P>((left, right): (S, S), part: impl Fn(S) -> P) -> (P, P) {
    (part(left), part(right))
}

#[inline(always)]
fn convert<A: Copy, B>(from: &[A], to: &mut [B], each: impl Fn(A) -> B) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = each(*from);
    }
}
