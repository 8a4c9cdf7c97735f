//! Nearest-neighbour enlargement followed by a 3x3 convolution, computed at the small size.
//!
//! Inside a block of `factor x factor` equal pixels all taps read the same value, so only the first and the last row and column
//! of a block differ from its middle: at most three classes of rows times three of columns. Each class is a 3x3 convolution
//! of the *small* input whose weights are sums of the given ones, and the large map is those results laid out. This is exact.
//!
//! Enlarged by 2.5, pixels become blocks of three and of two rows (columns) by turns. The classes of a factor of 2 are the first and
//! the last of a factor of 3, so that this is the enlargement by 3 without the middle of every second block.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData};

/// By how much nearest neighbour enlarges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factor {
    /// Every pixel becomes a block of so many rows and columns.
    Whole(usize),
    /// By 2.5: row (column) `i` of the result is row `floor(i / 2.5)`, so pixels become three and two by turns.
    FiveHalves,
}

impl Factor {
    /// Height or width of the result where those of the input are `extent`.
    pub fn output(self, extent: usize) -> usize {
        match self {
            Self::Whole(factor) => extent * factor,
            Self::FiveHalves => extent * 5 / 2,
        }
    }
}

impl From<usize> for Factor {
    fn from(factor: usize) -> Self {
        Self::Whole(factor)
    }
}

/// `conv2d(nearest(x, factor), weight, bias)` with kernel 3 and padding 1.
///
/// # Shapes
/// x `[N, in, H, W]`, weight `[out, in, 3, 3]`, bias `[out]`; result `[N, out, factor H, factor W]`.
///
/// # Panics
/// If a whole factor is 0.
pub fn upsample_conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    factor: impl Into<Factor>,
) -> Tensor<4> {
    let factor = factor.into();
    assert!(
        factor != Factor::Whole(0),
        "enlarging by a factor of at least 1"
    );
    let mut inputs = vec![x.into_dispatch(), weight.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    operate(inputs, Operation::UpsampleConv2d(factor))
}

/// How many classes of rows (and of columns) a block has.
pub(crate) fn classes(factor: usize) -> usize {
    factor.min(3)
}

/// The class of a row of a block: first, middle, last.
fn class(row: usize, factor: usize) -> usize {
    if row == 0 {
        0
    } else if row == factor - 1 {
        classes(factor) - 1
    } else {
        1
    }
}

/// Which tap of the small kernel the tap `tap` of the large one falls on, in a row of this class.
pub(crate) fn folded_tap(class: usize, tap: usize, factor: usize) -> usize {
    let row = if class == 0 {
        0
    } else if class == classes(factor) - 1 {
        factor - 1
    } else {
        1
    };
    (row + tap).div_ceil(factor)
}

/// `[9, classes^2 * 9]`: row = tap of the large kernel, column = class and tap of the small kernel.
fn fold_matrix(factor: usize, like: &Tensor<4>) -> Tensor<2> {
    let k = classes(factor);
    let mut values = vec![0f32; 9 * k * k * 9];
    for (cy, cx) in pairs(k) {
        for (dy, dx) in pairs(3) {
            let (oy, ox) = (folded_tap(cy, dy, factor), folded_tap(cx, dx, factor));
            values[(dy * 3 + dx) * k * k * 9 + (cy * k + cx) * 9 + oy * 3 + ox] = 1.0;
        }
    }
    Tensor::from_data(
        TensorData::new(values, [9, k * k * 9]),
        (&like.device(), like.dtype()),
    )
}

fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n * n).map(move |i| (i / n, i % n))
}

/// `[out, in, 3, 3]` to `[out * classes^2, in, 3, 3]`.
pub(crate) fn fold_weight(weight: Tensor<4>, factor: usize) -> Tensor<4> {
    let [out, inputs, ..] = weight.dims();
    let k = classes(factor);
    let matrix = fold_matrix(factor, &weight);
    let folded = weight
        .reshape([out * inputs, 9])
        .matmul(matrix)
        .reshape([out, inputs, k * k, 9]);
    folded.swap_dims(1, 2).reshape([out * k * k, inputs, 3, 3])
}

/// The gradient of the weight from that of the folded one.
pub(crate) fn fold_weight_backward(
    gradient: Tensor<4>,
    [out, inputs]: [usize; 2],
    factor: usize,
) -> Tensor<4> {
    let k = classes(factor);
    let matrix = fold_matrix(factor, &gradient);
    let gradient = gradient
        .reshape([out, k * k, inputs, 9])
        .swap_dims(1, 2)
        .reshape([out * inputs, k * k * 9]);
    gradient
        .matmul(matrix.transpose())
        .reshape([out, inputs, 3, 3])
}

/// Lays the classes out: `[N, out * classes^2, H, W]` to `[N, out, factor H, factor W]`, bias added.
pub(crate) fn expand(
    low: Tensor<4>,
    bias: Option<Tensor<1>>,
    channels: usize,
    factor: usize,
) -> Tensor<4> {
    let [n, _, h, w] = low.dims();
    let k = classes(factor);
    let low = match bias {
        Some(bias) => low.reshape([n, channels, k * k * h, w]) + bias.reshape([1, channels, 1, 1]),
        None => low.reshape([n, channels, k * k * h, w]),
    };
    let low = low.reshape([n, channels, k, k, h, w]);
    let part = |row: usize, column: usize| {
        low.clone().slice([
            0..n,
            0..channels,
            class(row, factor)..class(row, factor) + 1,
            class(column, factor)..class(column, factor) + 1,
        ])
    };
    let rows = (0..factor)
        .map(|row| Tensor::cat((0..factor).map(|column| part(row, column)).collect(), 3))
        .collect();
    let blocks: Tensor<6> = Tensor::cat(rows, 2);
    blocks
        .permute([0, 1, 4, 2, 5, 3])
        .reshape([n, channels, h * factor, w * factor])
}

/// The adjoint of [`expand`]: sums the gradient over the pixels of each class.
pub(crate) fn expand_backward(gradient: Tensor<4>, factor: usize) -> Tensor<4> {
    let [n, channels, height, width] = gradient.dims();
    let (h, w) = (height / factor, width / factor);
    let k = classes(factor);
    let sums = sum_classes(gradient.reshape([n * channels * h, factor, width]), factor);
    let sums = sums.reshape([n * channels * h * k * w, factor, 1]);
    let sums = sum_classes(sums, factor).reshape([n, channels, h, k, w, k]);
    sums.permute([0, 1, 3, 5, 2, 4])
        .reshape([n, channels * k * k, h, w])
}

/// `[a, factor, b]` to `[a, classes, b]`.
fn sum_classes(x: Tensor<3>, factor: usize) -> Tensor<3> {
    if factor <= 3 {
        return x;
    }
    let first = x.clone().narrow(1, 0, 1);
    let middle = x.clone().narrow(1, 1, factor - 2).sum_dim(1);
    let last = x.narrow(1, factor - 1, 1);
    Tensor::cat(vec![first, middle, last], 1)
}

/// For each row (column) of a map enlarged by 2.5 the small one's row and its class among those of a factor of 3.
pub(crate) fn five_halves(extent: usize) -> Vec<(usize, usize)> {
    let places = (0..extent).flat_map(|pixel| {
        // The last of an odd number of pixels is cut to two.
        let three = pixel % 2 == 0 && pixel + 1 < extent;
        let classes: &[usize] = if three { &[0, 1, 2] } else { &[0, 2] };
        classes.iter().map(move |class| (pixel, *class))
    });
    places.collect()
}

/// Where those rows are in a map enlarged by 3.
fn within_threefold(extent: usize, like: &Tensor<4>) -> Tensor<1, Int> {
    let rows: Vec<i64> = five_halves(extent)
        .into_iter()
        .map(|(pixel, class)| (3 * pixel + class) as i64)
        .collect();
    let count = rows.len();
    Tensor::from_data(TensorData::new(rows, [count]), &like.device())
}

/// [`expand`] for the factor 2.5, of the classes of a factor of 3.
pub(crate) fn expand_five_halves(
    low: Tensor<4>,
    bias: Option<Tensor<1>>,
    channels: usize,
) -> Tensor<4> {
    let [_, _, h, w] = low.dims();
    let threefold = expand(low, bias, channels, 3);
    let rows = within_threefold(h, &threefold);
    let columns = within_threefold(w, &threefold);
    threefold.select(2, rows).select(3, columns)
}

/// The adjoint of [`expand_five_halves`] for a small map of this size.
pub(crate) fn expand_five_halves_backward(gradient: Tensor<4>, [h, w]: [usize; 2]) -> Tensor<4> {
    let [n, channels, height, _] = gradient.dims();
    let zeros =
        |shape: [usize; 4]| Tensor::<4>::zeros(shape, (&gradient.device(), gradient.dtype()));
    let (rows, columns) = (
        within_threefold(h, &gradient),
        within_threefold(w, &gradient),
    );
    let (wide, whole) = (
        zeros([n, channels, height, 3 * w]),
        zeros([n, channels, 3 * h, 3 * w]),
    );
    let wide = wide.select_assign(3, columns, gradient, IndexingUpdateOp::Add);
    let threefold = whole.select_assign(2, rows, wide, IndexingUpdateOp::Add);
    expand_backward(threefold, 3)
}
