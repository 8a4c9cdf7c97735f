//! Many tensors and one flat buffer: copies between them, and sums over several buffers, in a few kernels whatever the number of
//! tensors is.

use tch::Tensor;

use crate::{Result, shim};

/// How pieces of tensors lie in a flat buffer of `rows` rows of `columns` elements.
///
/// Tensor `i`, flat, is cut into `rows` pieces of `lengths[i]` elements; piece `r` begins in row `r` at column `offsets[i]`. The
/// last pieces may be shorter than that, or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pieces {
    /// Rows of the buffer.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// For each tensor, the column of its pieces.
    pub offsets: Vec<usize>,
    /// For each tensor, the elements of its pieces.
    pub lengths: Vec<usize>,
}

impl Pieces {
    /// Copies tensors into the buffer, in its element type; what is left of their pieces becomes zero, all of it where there
    /// is no tensor.
    ///
    /// # Shapes
    /// buffer `[rows columns]`, contiguous; tensors of any shape, with `rows lengths[i]` elements at most.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if the buffer does not hold the pieces, devices do not fit together, or memory is
    /// used up.
    pub fn pack(&self, tensors: &[Option<&Tensor>], buffer: &mut Tensor) -> Result<()> {
        shim::pack(self, tensors, buffer)
    }

    /// Copies the buffer into tensors, each in its own element type: the opposite of [`pack`](Self::pack).
    ///
    /// # Shapes
    /// As those of [`pack`](Self::pack); the tensors contiguous.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) as for [`pack`](Self::pack).
    pub fn unpack(&self, buffer: &Tensor, tensors: &mut [Tensor]) -> Result<()> {
        shim::unpack(self, buffer, tensors)
    }
}

/// The sum of squares of each tensor, in double precision; 16 bits are added up in 32.
///
/// # Shapes
/// Tensors of any shape, at least one; result `[tensors]`.
///
/// # Errors
/// [`Error::Exception`](crate::Error) if devices do not fit together, or memory is used up.
pub fn sums_of_squares(tensors: &[&Tensor]) -> Result<Tensor> {
    shim::sums_of_squares(tensors)
}
