//! Matrix products and what goes with them: linear layers and single-pixel convolutions.

use super::real::Real;
use super::{Flat, add_up, fill, flat, narrowed, partial, sum_rows, values};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};

/// `a b` of two matrices with any strides.
pub(super) fn product(a: Flat, b: Flat) -> Flat {
    Flex::float_matmul(a, b)
}

/// The tensor as a contiguous matrix whose width is that of the last dimension.
pub(super) fn rows(x: &Flat) -> Flat {
    let shape = x.shape();
    let last = shape[shape.num_dims() - 1];
    x.to_contiguous()
        .reshape([shape.num_elements() / last.max(1), last].into())
}

/// Adds a row to every row of a matrix that nothing else holds.
pub(super) fn add_row<T: Real>(mut matrix: Flat, row: &Flat) -> Flat {
    let row = row.to_contiguous();
    let row: &[T] = values(&row);
    fill(matrix.storage_mut::<T>(), row.len(), |_, piece| {
        for out in piece.chunks_exact_mut(row.len()) {
            for (out, value) in out.iter_mut().zip(row) {
                *out += *value;
            }
        }
    });
    matrix
}

/// The sum of all rows of a contiguous matrix.
pub(super) fn column_sums<T: Real>(matrix: &Flat) -> Flat {
    let [count, width] = [0, 1].map(|i| matrix.shape()[i]);
    let data: &[T] = values(matrix);
    let parts = partial(count, width, |rows| {
        sum_rows::<T>(rows, width, |sums, row| {
            for (sum, value) in sums.iter_mut().zip(&data[row * width..][..width]) {
                *sum += *value;
            }
        })
    });
    flat(narrowed::<T>(&add_up(parts, width)), [width])
}

pub(super) fn linear<T: Real>(x: &Flat, weight: &Flat, bias: &Flat) -> Flat {
    let mut shape = x.shape();
    let last = shape.num_dims() - 1;
    shape[last] = weight.shape()[0];
    let y = product(rows(x), weight.transpose(0, 1));
    add_row::<T>(y, bias).reshape(shape)
}

pub(super) fn linear_backward<T: Real>(
    gradient: &Flat,
    x: &Flat,
    weight: &Flat,
    wanted: &[bool],
) -> Vec<Option<Flat>> {
    let (rows_of_gradient, rows_of_x) = (rows(gradient), rows(x));
    vec![
        wanted[0].then(|| product(rows_of_gradient.clone(), weight.clone()).reshape(x.shape())),
        wanted[1].then(|| product(rows_of_gradient.transpose(0, 1), rows_of_x)),
        wanted[2].then(|| column_sums::<T>(&rows_of_gradient)),
    ]
}
