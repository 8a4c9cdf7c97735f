//! Layer normalisation as one operation; backward computes the statistics again.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::Tensor;

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias` over the last dimension, with the biased variance.
///
/// # Shapes
/// x `[.., channels]`, weight and bias `[channels]`; result like x.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    operate(
        vec![
            x.into_dispatch(),
            weight.into_dispatch(),
            bias.into_dispatch(),
        ],
        Operation::LayerNorm(epsilon),
    )
}

/// Normalised rows and 1 / deviation.
fn normalise(x: Tensor<2>, epsilon: f64) -> (Tensor<2>, Tensor<2>) {
    let centred = x.clone() - x.mean_dim(1);
    let variance = (centred.clone() * centred.clone()).mean_dim(1);
    let inverse = (variance + epsilon).sqrt().recip();
    (centred * inverse.clone(), inverse)
}

pub(crate) fn forward(x: Tensor<2>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f64) -> Tensor<2> {
    let (normal, _) = normalise(x, epsilon);
    normal * weight.unsqueeze() + bias.unsqueeze()
}

pub(crate) fn backward(
    gradient: Tensor<2>,
    x: Tensor<2>,
    weight: Tensor<1>,
    epsilon: f64,
) -> (Tensor<2>, Tensor<1>, Tensor<1>) {
    let (normal, inverse) = normalise(x, epsilon);
    let gw = (gradient.clone() * normal.clone())
        .sum_dim(0)
        .squeeze_dim(0);
    let gb = gradient.clone().sum_dim(0).squeeze_dim(0);
    let scaled = gradient * weight.unsqueeze();
    let mean = scaled.clone().mean_dim(1);
    let along = (scaled.clone() * normal.clone()).mean_dim(1);
    ((scaled - mean - normal * along) * inverse, gw, gb)
}
