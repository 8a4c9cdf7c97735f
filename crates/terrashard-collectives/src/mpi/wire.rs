//! Elements as MPI knows them.

use ::mpi::datatype::Equivalence;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::sum::Summand;

/// An element type that travels between processes.
pub(super) trait Wire: Summand + Default {
    /// A type of the same bits that MPI has a name for.
    type Raw: Equivalence;

    /// The same memory as elements that MPI knows.
    fn raw(elements: &[Self]) -> &[Self::Raw];

    /// The same memory as elements that MPI knows.
    fn raw_mut(elements: &mut [Self]) -> &mut [Self::Raw];
}

macro_rules! as_is {
    ($($element:ty),*) => {$(
        impl Wire for $element {
            type Raw = Self;

            fn raw(elements: &[Self]) -> &[Self] {
                elements
            }

            fn raw_mut(elements: &mut [Self]) -> &mut [Self] {
                elements
            }
        }
    )*};
}

/// MPI has no half types: their bits travel, and nobody computes with them on the way.
macro_rules! as_bits {
    ($($element:ty),*) => {$(
        impl Wire for $element {
            type Raw = u16;

            fn raw(elements: &[Self]) -> &[u16] {
                elements.reinterpret_cast()
            }

            fn raw_mut(elements: &mut [Self]) -> &mut [u16] {
                elements.reinterpret_cast_mut()
            }
        }
    )*};
}

as_is!(f32, f64);
as_bits!(bf16, f16);
