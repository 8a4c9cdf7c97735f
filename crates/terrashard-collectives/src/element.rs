//! The element types that are exchanged, as types of Rust.

use burn::tensor::{DType, FloatDType, TensorData};

use crate::sum::Summand;
use crate::{Error, Result};

/// Calls a generic function for the element type that `$dtype` names.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            ::burn::tensor::FloatDType::F32 => {
                type $element = f32;
                $body
            }
            ::burn::tensor::FloatDType::F64 => {
                type $element = f64;
                $body
            }
            ::burn::tensor::FloatDType::BF16 => {
                type $element = half::bf16;
                $body
            }
            ::burn::tensor::FloatDType::F16 => {
                type $element = half::f16;
                $body
            }
            other => unreachable!("{other:?} was refused before it was published"),
        }
    };
}
pub(crate) use with_element;

/// The type in which elements of `dtype` are exchanged, which is the same.
///
/// # Errors
///
/// [`Error::UnsupportedType`] unless it is f32, f64, bf16 or f16.
pub(crate) fn element_type(dtype: DType) -> Result<FloatDType> {
    match dtype {
        DType::F32 => Ok(FloatDType::F32),
        DType::F64 => Ok(FloatDType::F64),
        DType::BF16 => Ok(FloatDType::BF16),
        DType::F16 => Ok(FloatDType::F16),
        dtype => Err(Error::UnsupportedType { dtype }),
    }
}

/// The elements of `data`, which is of element type `E`.
pub(crate) fn elements<E: Summand>(data: &TensorData) -> &[E] {
    data.as_slice()
        .expect("host data of the element type that was checked when it was published")
}
