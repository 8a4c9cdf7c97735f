//! The border to layer normalisation in `shim.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_int;

use tch::Tensor;

use super::{In, Message, Out, Outputs, handle};
use crate::Result;

// SAFETY: the signatures are those of `shim.cc`. Tensors are `at::Tensor` by address, `bool` is one byte on both sides.
unsafe extern "C" {
    fn terrashard_layer_norm(
        message: Message,
        x: In,
        weight: In,
        bias: In,
        epsilon: f64,
        out: Out,
    ) -> c_int;
    fn terrashard_layer_norm_backward(
        message: Message,
        gradient: In,
        x: In,
        mean: In,
        inverse: In,
        weight: In,
        wanted: *const bool,
        out: Out,
    ) -> c_int;
}

pub(crate) fn layer_norm(
    [x, weight, bias]: [&Tensor; 3],
    epsilon: f64,
    out: &mut Outputs<3>,
) -> Result<()> {
    let [x, weight, bias] = [x, weight, bias].map(handle);
    out.fill(|message, out| {
        // SAFETY: the tensors are borrowed until the call returns; `out` has the three places it uses.
        unsafe { terrashard_layer_norm(message, x, weight, bias, epsilon, out) }
    })
}

pub(crate) fn layer_norm_backward(
    gradient: &Tensor,
    x: &Tensor,
    [mean, inverse]: [&Tensor; 2],
    weight: &Tensor,
    wanted: [bool; 3],
    out: &mut Outputs<3>,
) -> Result<()> {
    let [gradient, x, mean, inverse, weight] = [gradient, x, mean, inverse, weight].map(handle);
    out.fill(|message, out| {
        // SAFETY: the tensors are borrowed until the call returns; `wanted` and `out` have the three places it uses.
        unsafe {
            terrashard_layer_norm_backward(
                message,
                gradient,
                x,
                mean,
                inverse,
                weight,
                wanted.as_ptr(),
                out,
            )
        }
    })
}
