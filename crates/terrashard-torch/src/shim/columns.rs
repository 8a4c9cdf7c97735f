//! The border to `columns.cc`.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::c_int;

use tch::Tensor;

use super::{In, Message, Out, Outputs, handle};
use crate::Result;

// SAFETY: the signatures are those of `columns.cc`. Tensors are `at::Tensor` by address.
unsafe extern "C" {
    fn terrashard_columns(message: Message, x: In, out: Out) -> c_int;
    fn terrashard_columns_backward(
        message: Message,
        columns: In,
        height: i64,
        width: i64,
        out: Out,
    ) -> c_int;
}

pub(crate) fn columns(x: &Tensor, out: &mut Outputs<1>) -> Result<()> {
    let x = handle(x);
    // SAFETY: the tensor is borrowed until the call returns and has four dimensions; `out` has the place it uses.
    out.fill(|message, out| unsafe { terrashard_columns(message, x, out) })
}

pub(crate) fn columns_backward(
    columns: &Tensor,
    [height, width]: [i64; 2],
    out: &mut Outputs<1>,
) -> Result<()> {
    let columns = handle(columns);
    out.fill(|message, out| {
        // SAFETY: the tensor is borrowed until the call returns and has nine times its channels of `height * width` pixels;
        // `out` has the place it uses.
        unsafe { terrashard_columns_backward(message, columns, height, width, out) }
    })
}
