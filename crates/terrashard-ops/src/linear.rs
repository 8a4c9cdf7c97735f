//! The fully connected layer as one operation.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::Tensor;

/// `x weight^T + bias` over the last dimension.
///
/// # Shapes
/// x `[.., in]`, weight `[out, in]`, bias `[out]`; result `[.., out]`.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Tensor<1>) -> Tensor<D> {
    operate(
        vec![
            x.into_dispatch(),
            weight.into_dispatch(),
            bias.into_dispatch(),
        ],
        Operation::Linear,
    )
}

pub(crate) fn forward(x: Tensor<2>, weight: Tensor<2>, bias: Tensor<1>) -> Tensor<2> {
    x.matmul(weight.transpose()) + bias.unsqueeze()
}

pub(crate) fn input_gradient(gradient: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    gradient.matmul(weight)
}

pub(crate) fn weight_gradient(gradient: Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    gradient.transpose().matmul(x)
}

pub(crate) fn bias_gradient(gradient: Tensor<2>) -> Tensor<1> {
    gradient.sum_dim(0).squeeze_dim(0)
}
