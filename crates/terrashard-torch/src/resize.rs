//! Bilinear enlargement of maps.

use tch::Tensor;

use crate::Result;
use crate::shim::{Call, Outputs, resize as border};

/// Resizes maps to `size` pixels by bilinear interpolation, corners not aligned.
///
/// On NVIDIA GPUs, where maps are enlarged and their channels lie side by side in whole multiples of 16 bytes, by a kernel of our
/// own; elsewhere by LibTorch's.
///
/// # Shapes
/// x `[N, C, h, w]`; result `[N, C, height, width]`, its channels side by side where those of x are.
///
/// # Errors
/// [`Error::Count`](crate::Error) for another number of dimensions. [`Error::Exception`](crate::Error) for sizes of 0, or if memory is used up.
pub fn resize_bilinear(x: &Tensor, size: [i64; 2]) -> Result<Tensor> {
    check(Call::Resize, x)?;
    let mut out = Outputs::new(Call::Resize);
    border::resize(x, size, &mut out)?;
    out.tensor(0)
}

/// The gradient of maps of `size` pixels that [`resize_bilinear`] has resized to those of `gradient`.
///
/// # Shapes
/// gradient `[N, C, height, width]`; result `[N, C, h, w]`.
///
/// # Errors
/// As of [`resize_bilinear`].
pub fn resize_bilinear_backward(gradient: &Tensor, size: [i64; 2]) -> Result<Tensor> {
    check(Call::ResizeBackward, gradient)?;
    let mut out = Outputs::new(Call::ResizeBackward);
    border::resize_backward(gradient, size, &mut out)?;
    out.tensor(0)
}

fn check(call: Call, maps: &Tensor) -> Result<()> {
    call.check("dimensions of maps", 4, maps.dim() as i64)
}
