//! Gradients of convolution and layer normalisation by LibTorch's own kernels.

use tch::Tensor;

use crate::shim::{Call, Outputs};
use crate::{Result, shim};

/// Gradients of x, weight and bias of a convolution, those that are `wanted`.
///
/// `[stride, padding, groups]` hold in both directions.
///
/// # Shapes
/// gradient `[N, out, h, w]`, x `[N, in, H, W]`, weight `[out, in / groups, kernel, kernel]`; results like x, like weight, and `[out]`.
///
/// # Errors
/// [`Error::Exception`](crate::Error) if shapes, types or devices do not fit together, or memory is used up.
pub fn conv2d_backward(
    gradient: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    [stride, padding, groups]: [usize; 3],
    wanted: [bool; 3],
) -> Result<[Option<Tensor>; 3]> {
    let mut out = Outputs::new(Call::Conv2dBackward);
    let numbers = [stride, padding, groups].map(|number| number as i64);
    shim::conv2d_backward(gradient, x, weight, numbers, wanted, &mut out)?;
    Ok(out.take())
}

/// Layer normalisation over the last dimension: the result, and for each row the mean and the inverse deviation, which
/// [`layer_norm_backward`] takes.
///
/// On NVIDIA GPUs by kernels of our own where a row's length suits them, elsewhere by LibTorch's. Types of 16 bits are summed in
/// 32.
///
/// # Shapes
/// x `[.., channels]`, weight and bias `[channels]`; results like x, `[.., 1]`, `[.., 1]`.
///
/// # Errors
/// [`Error::Exception`](crate::Error) as for [`conv2d_backward`].
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<[Tensor; 3]> {
    let mut out = Outputs::new(Call::LayerNorm);
    shim::norm::layer_norm([x, weight, bias], epsilon, &mut out)?;
    Ok([out.tensor(0)?, out.tensor(1)?, out.tensor(2)?])
}

/// Gradients of x, weight and bias of a layer normalisation over the last dimension, those that are `wanted`.
///
/// Mean and inverse deviation are what [`layer_norm`] gave beside its result.
///
/// # Shapes
/// gradient and x `[.., channels]`, mean and inverse `[.., 1]`, weight `[channels]`; results like x, like weight, like weight.
///
/// # Errors
/// [`Error::Exception`](crate::Error) as for [`conv2d_backward`].
pub fn layer_norm_backward(
    gradient: &Tensor,
    x: &Tensor,
    [mean, inverse]: [&Tensor; 2],
    weight: &Tensor,
    wanted: [bool; 3],
) -> Result<[Option<Tensor>; 3]> {
    let mut out = Outputs::new(Call::LayerNormBackward);
    shim::norm::layer_norm_backward(gradient, x, [mean, inverse], weight, wanted, &mut out)?;
    Ok(out.take())
}
