//! The border to `resize.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_int;

use tch::Tensor;

use super::{In, Message, Out, Outputs, handle};
use crate::Result;

// SAFETY: the signatures are those of `resize.cc`. Tensors are `at::Tensor` by address.
unsafe extern "C" {
    fn terrashard_resize(message: Message, x: In, height: i64, width: i64, out: Out) -> c_int;
    fn terrashard_resize_backward(
        message: Message,
        gradient: In,
        h: i64,
        w: i64,
        out: Out,
    ) -> c_int;
}

pub(crate) fn resize(x: &Tensor, [height, width]: [i64; 2], out: &mut Outputs<1>) -> Result<()> {
    let x = handle(x);
    // SAFETY: the tensor is borrowed until the call returns and has four dimensions; `out` has the place it uses.
    out.fill(|message, out| unsafe { terrashard_resize(message, x, height, width, out) })
}

pub(crate) fn resize_backward(
    gradient: &Tensor,
    [h, w]: [i64; 2],
    out: &mut Outputs<1>,
) -> Result<()> {
    let gradient = handle(gradient);
    // SAFETY: as above.
    out.fill(|message, out| unsafe { terrashard_resize_backward(message, gradient, h, w, out) })
}
