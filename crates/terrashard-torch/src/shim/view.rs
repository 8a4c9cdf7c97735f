//! The border to `view.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_int;

use tch::Tensor;

use super::{In, Message, Out, Outputs, handle};
use crate::Result;

// SAFETY: the signature is that of `view.cc`. Tensors are `at::Tensor` by address.
unsafe extern "C" {
    fn terrashard_reshaped(
        message: Message,
        x: In,
        sizes: *const i64,
        count: i64,
        out: Out,
    ) -> c_int;
}

pub(crate) fn reshaped(x: &Tensor, sizes: &[i64], out: &mut Outputs<1>) -> Result<()> {
    let (x, count) = (handle(x), sizes.len() as i64);
    let sizes = sizes.as_ptr();
    // SAFETY: the tensor and the sizes, of which there are `count`, are borrowed until the call returns; `out` has the place it uses.
    out.fill(|message, out| unsafe { terrashard_reshaped(message, x, sizes, count, out) })
}
