//! The nine shifted copies of maps that a 3 x 3 convolution multiplies.

use tch::Tensor;

use crate::Result;
use crate::shim::{Call, Outputs, columns as border};

/// The nine copies of each map, shifted by one pixel each way and 0 beyond the border, as `im2col` has them.
///
/// On NVIDIA GPUs by a kernel of our own where rows are whole multiples of 16 bytes, elsewhere by LibTorch's.
///
/// # Shapes
/// x `[n, c, h, w]`; result `[n, 9 c, h w]`.
///
/// # Errors
/// [`Error::Count`](crate::Error) for another number of dimensions. [`Error::Exception`](crate::Error) if memory is used up.
pub fn columns(x: &Tensor) -> Result<Tensor> {
    Call::Columns.check("dimensions of maps", 4, x.dim() as i64)?;
    let mut out = Outputs::new(Call::Columns);
    border::columns(x, &mut out)?;
    out.tensor(0)
}

/// The opposite: the copies added up where they came from, `[h, w]` pixels a map. Types of 16 bits are summed in 32 on GPUs.
///
/// # Shapes
/// columns `[n, 9 c, h w]`; result `[n, c, h, w]`.
///
/// # Errors
/// [`Error::Count`](crate::Error) for another number of dimensions, channels that are no multiple of 9, or another number of pixels.
/// [`Error::Exception`](crate::Error) if memory is used up.
pub fn columns_backward(columns: &Tensor, [h, w]: [i64; 2]) -> Result<Tensor> {
    Call::Columns.check("dimensions of columns", 3, columns.dim() as i64)?;
    let size = columns.size();
    let call = Call::ColumnsBackward;
    call.check("channels", size[1] / 9 * 9, size[1])?;
    call.check("pixels", h * w, size[2])?;
    let mut out = Outputs::new(Call::ColumnsBackward);
    border::columns_backward(columns, [h, w], &mut out)?;
    out.tensor(0)
}
