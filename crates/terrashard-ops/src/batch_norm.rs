//! Batch normalisation over `[N, C, H, W]` as one operation, with statistics that may span ranks.

use crate::SumOverRanks;
use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::{DType, Tensor, TensorData};
use std::sync::Arc;

/// What a batch is normalised by.
#[derive(Debug, Clone)]
pub struct BatchStatistics {
    /// Mean of each channel.
    pub mean: Vec<f64>,
    /// Biased variance of each channel.
    pub variance: Vec<f64>,
    /// Values a channel, over all ranks. 0 when the statistics do not come from the batch.
    pub count: f64,
    epsilon: f64,
    /// Set when the statistics depend on the input, so that backward has to follow them.
    ranks: Option<Arc<dyn SumOverRanks>>,
}

impl BatchStatistics {
    /// Statistics from [`batch_sums`] after they were added over ranks; zeros where no rank has a value.
    pub fn from_sums(sums: &[f64], epsilon: f64, ranks: Arc<dyn SumOverRanks>) -> Self {
        let (&count, sums) = sums.split_first().expect("batch sums begin with the count");
        let (first, second) = sums.split_at(sums.len() / 2);
        // The sums of no values are zeros, whatever they are divided by.
        let divisor = if count == 0.0 { 1.0 } else { count };
        let mean: Vec<f64> = first.iter().map(|sum| sum / divisor).collect();
        let variance = second
            .iter()
            .zip(&mean)
            .map(|(sum, mean)| (sum / divisor - mean * mean).max(0.0))
            .collect();
        Self {
            mean,
            variance,
            count,
            epsilon,
            ranks: Some(ranks),
        }
    }

    /// Statistics that do not depend on the batch.
    pub fn fixed(mean: Vec<f64>, variance: Vec<f64>, epsilon: f64) -> Self {
        Self {
            mean,
            variance,
            count: 0.0,
            epsilon,
            ranks: None,
        }
    }

    /// 1 / deviation of each channel.
    pub(crate) fn inverse(&self) -> Vec<f64> {
        self.variance
            .iter()
            .map(|variance| 1.0 / (variance + self.epsilon).sqrt())
            .collect()
    }

    /// What the gradient loses through the statistics: for each channel its mean, then its part along the normalised values,
    /// from the sums of both over this rank. Zeros if the statistics do not depend on the batch.
    pub(crate) fn gradient_means(&self, sums: &[f64]) -> Vec<f64> {
        let Some(ranks) = &self.ranks else {
            return vec![0.0; sums.len()];
        };
        let mut sums = sums.to_vec();
        ranks.sum(&mut sums);
        sums.iter().map(|sum| sum / self.count.max(1.0)).collect()
    }
}

/// The sums from which batch statistics follow, ready to be added over ranks: the number of values a channel, then the sum of
/// each channel, then the sum of squares of each. Zeros for a batch without a sample, such as a rank has that waits for others.
///
/// # Shapes
/// `[N, C, H, W]` to `1 + 2 C` values.
pub fn batch_sums(x: Tensor<4>) -> Vec<f64> {
    let [_, channels, ..] = x.dims();
    if x.shape().num_elements() == 0 {
        return vec![0.0; 1 + 2 * channels];
    }
    let sums: Tensor<1> = operate(vec![x.inner().into_dispatch()], Operation::BatchSums);
    let mut sums = host(sums);
    // Squares were taken around the mean, and are moved in f64, so that nothing cancels in a narrower type.
    let half = sums.len().div_ceil(2);
    let (head, squares) = sums.split_at_mut(half);
    let (count, means) = head
        .split_first_mut()
        .expect("batch sums begin with the count");
    for (mean, square) in means.iter_mut().zip(squares) {
        *square += *count * *mean * *mean;
        *mean *= *count;
    }
    sums
}

/// See [`Kernels::batch_sums`](crate::kernels::Kernels::batch_sums).
pub(crate) fn sums(x: Tensor<4>) -> Tensor<1> {
    let [n, channels, h, w] = x.dims();
    let x = if matches!(x.dtype(), DType::F32 | DType::F64) {
        x
    } else {
        x.cast(DType::F32)
    };
    let count = (n * h * w) as f64;
    let mean = x.clone().sum_dims(&[0, 2, 3]) / count;
    let squares = (x - mean.clone())
        .powi_scalar(2)
        .sum_dims(&[0, 2, 3])
        .reshape([channels]);
    let count = Tensor::from_data(
        TensorData::from([count]),
        (&squares.device(), squares.dtype()),
    );
    Tensor::cat(vec![count, mean.reshape([channels]), squares], 0)
}

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias` for each channel.
///
/// # Shapes
/// x `[N, C, H, W]`, weight and bias `[C]`; result like x.
pub fn batch_norm(
    x: Tensor<4>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    statistics: BatchStatistics,
) -> Tensor<4> {
    operate(
        vec![
            x.into_dispatch(),
            weight.into_dispatch(),
            bias.into_dispatch(),
        ],
        Operation::BatchNorm(statistics),
    )
}

fn host(x: Tensor<1>) -> Vec<f64> {
    x.into_data().iter::<f64>().collect()
}

/// Values for each channel, to be broadcast over `like`.
fn channels(values: &[f64], like: &Tensor<4>) -> Tensor<4> {
    let data = TensorData::new(values.to_vec(), [1, values.len(), 1, 1]);
    Tensor::from_data(data, (&like.device(), like.dtype()))
}

fn normalise(x: Tensor<4>, statistics: &BatchStatistics) -> Tensor<4> {
    let mean = channels(&statistics.mean, &x);
    let inverse = channels(&statistics.inverse(), &x);
    (x - mean) * inverse
}

pub(crate) fn forward(
    x: Tensor<4>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    statistics: &BatchStatistics,
) -> Tensor<4> {
    let wide = [1, statistics.mean.len(), 1, 1];
    normalise(x, statistics) * weight.reshape(wide) + bias.reshape(wide)
}

pub(crate) fn backward(
    gradient: Tensor<4>,
    x: Tensor<4>,
    weight: Tensor<1>,
    statistics: &BatchStatistics,
) -> (Tensor<4>, Tensor<1>, Tensor<1>) {
    let count = statistics.mean.len();
    let normal = normalise(x, statistics);
    let gw = (gradient.clone() * normal.clone())
        .sum_dims(&[0, 2, 3])
        .reshape([count]);
    let gb = gradient.clone().sum_dims(&[0, 2, 3]).reshape([count]);
    let sums: Vec<f64> = host(gb.clone())
        .into_iter()
        .chain(host(gw.clone()))
        .collect();
    let means = statistics.gradient_means(&sums);
    let (mean, along) = means.split_at(count);
    let (mean, along) = (channels(mean, &gradient), channels(along, &gradient));
    let inner = gradient - mean - normal * along;
    let scale = channels(&statistics.inverse(), &inner) * weight.reshape([1, count, 1, 1]);
    (inner * scale, gw, gb)
}
