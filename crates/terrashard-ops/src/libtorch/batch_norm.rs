//! Batch normalisation by LibTorch's own kernels for GPUs, which read a map once for its statistics and once for each result.

use crate::batch_norm::BatchStatistics;
use crate::kernels::Gradients;
use terrashard_torch::tch::{Kind, Tensor};
use terrashard_torch::{LibTorch, Primitive as Torch, inner, outer};

/// Whether these kernels take the map: on a GPU, with values, of at most 32 bits.
pub(super) fn takes(x: &Torch) -> bool {
    let x = inner(x);
    x.device().is_cuda() && x.kind() != Kind::Double && x.numel() > 0
}

/// See [`Kernels::batch_sums`](crate::kernels::Kernels::batch_sums).
pub(super) fn sums(x: &Torch) -> Torch {
    let x = inner(x);
    let count = (x.numel() as i64 / x.size()[1]) as f64;
    let (mean, inverse) = x.batch_norm_stats(0.0);
    // Without an epsilon, 1 / deviation is infinite where there is no deviation.
    let squares = inverse.pow_tensor_scalar(-2) * count;
    let count = Tensor::full([1], count, (mean.kind(), mean.device()));
    outer(Tensor::cat(&[count, mean, squares], 0))
}

/// Vectors of one value a channel, in `f32`, by one copy to the device.
fn to_device<const N: usize>(vectors: [&[f64]; N], like: &Tensor) -> [Tensor; N] {
    let channels = like.size()[1];
    let values: Vec<f32> = vectors
        .concat()
        .into_iter()
        .map(|value| value as f32)
        .collect();
    let values = Tensor::from_slice(&values).to_device(like.device());
    std::array::from_fn(|i| values.narrow(0, i as i64 * channels, channels))
}

pub(super) fn forward(
    x: &Torch,
    weight: &Torch,
    bias: &Torch,
    statistics: &BatchStatistics,
) -> Torch {
    let x = inner(x);
    let [mean, inverse] = to_device([&statistics.mean, &statistics.inverse()], x);
    let (weight, bias) = (Some(inner(weight)), Some(inner(bias)));
    outer(x.batch_norm_elemt(weight, bias, &mean, &inverse, 0.0))
}

/// Gradients of x, weight and bias.
pub(super) fn backward(
    gradient: &Torch,
    x: &Torch,
    weight: &Torch,
    statistics: &BatchStatistics,
) -> Gradients<LibTorch> {
    let (gradient, x, weight) = (inner(gradient), inner(x), Some(inner(weight)));
    let inverses = statistics.inverse();
    let [mean, inverse] = to_device([&statistics.mean, &inverses], x);
    let (sums, products, gw, gb) =
        x.batch_norm_backward_reduce(gradient, &mean, &inverse, weight, true, true, true);
    // The sums of the gradient and of its products with the normalised values, here and over ranks.
    let own = Tensor::cat(&[sums, products * &inverse], 0).to_kind(Kind::Double);
    let own: Vec<f64> = Vec::try_from(own).expect("a vector of this type");
    let means = statistics.gradient_means(&own);
    let (of_gradient, along) = means.split_at(inverses.len());
    // The kernel multiplies by the inverse once more and divides by a count, which has been done.
    let along: Vec<f64> = along
        .iter()
        .zip(&inverses)
        .map(|(along, inverse)| along / inverse)
        .collect();
    let [of_gradient, along] = to_device([of_gradient, &along], x);
    let once = Tensor::ones([1], (Kind::Int, x.device()));
    let gx = x.batch_norm_backward_elemt(
        gradient,
        &mean,
        &inverse,
        weight,
        &of_gradient,
        &along,
        &once,
    );
    vec![Some(outer(gx)), Some(outer(gw)), Some(outer(gb))]
}
