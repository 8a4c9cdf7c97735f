//! Feature affinity: how alike two maps see pairs of positions.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::Tensor;

/// Vectors shorter than this are divided by it instead of by their length.
pub(crate) const SHORTEST: f64 = 1e-8;

/// Rows of the similarity matrices that exist at a time.
const TILE: usize = 256;

/// The sum over samples and pairs of positions of `|S_a - S_b|`, divided by `divisor`. S are the cosines between the vectors
/// at every `every`-th row and column of a map ([Wang et al. 2020](https://arxiv.org/abs/2004.05343)).
///
/// # Shapes
/// a and b `[N, C, H, W]`; result `[1]`. For a mean, `divisor` is the window's samples times the square of the number of
/// sampled positions.
pub fn affinity(a: Tensor<4>, b: Tensor<4>, every: usize, divisor: f64) -> Tensor<1> {
    operate(
        vec![a.into_dispatch(), b.into_dispatch()],
        Operation::Affinity(every, divisor),
    )
}

/// The cosines between the vectors at every `every`-th row and column of a map: what [`affinity`] compares.
///
/// # Shapes
/// `[N, C, H, W]` to `[N, positions, positions]`.
pub fn similarity(map: Tensor<4>, every: usize) -> Tensor<3> {
    let (unit, _) = unit_vectors(map, every);
    unit.clone().matmul(unit.transpose())
}

/// Sampled vectors `[N, positions, C]` of length 1, and the lengths `[N, positions, 1]` that they were divided by.
fn unit_vectors(x: Tensor<4>, every: usize) -> (Tensor<3>, Tensor<3>) {
    let [n, c, h, w] = x.dims();
    let step = every as isize;
    let x = x.slice(burn::tensor::s![.., .., ..;step, ..;step]);
    let x = x
        .reshape([n, c, h.div_ceil(every) * w.div_ceil(every)])
        .swap_dims(1, 2);
    let length = (x.clone() * x.clone())
        .sum_dim(2)
        .sqrt()
        .clamp_min(SHORTEST);
    (x / length.clone(), length)
}

/// Where each tile of rows begins and how long it is.
pub(crate) fn tiles(positions: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..positions)
        .step_by(TILE)
        .map(move |start| (start, TILE.min(positions - start)))
}

/// A tile of `S_a - S_b`.
fn difference(a: &Tensor<3>, b: &Tensor<3>, start: usize, rows: usize) -> Tensor<3> {
    let product = |f: &Tensor<3>| {
        f.clone()
            .narrow(1, start, rows)
            .matmul(f.clone().transpose())
    };
    product(a) - product(b)
}

pub(crate) fn forward(a: Tensor<4>, b: Tensor<4>, every: usize, divisor: f64) -> Tensor<1> {
    let (a, b) = (unit_vectors(a, every).0, unit_vectors(b, every).0);
    let [_, positions, _] = a.dims();
    tiles(positions)
        .map(|(start, rows)| difference(&a, &b, start, rows).abs().sum_dim(2).sum())
        .reduce(|sum, tile| sum + tile)
        .expect("a map has at least one position")
        / divisor
}

pub(crate) fn backward(
    gradient: Tensor<1>,
    a: Tensor<4>,
    b: Tensor<4>,
    every: usize,
    divisor: f64,
) -> (Tensor<4>, Tensor<4>) {
    let shapes = [a.dims(), b.dims()];
    let ((a, a_length), (b, b_length)) = (unit_vectors(a, every), unit_vectors(b, every));
    let [_, positions, _] = a.dims();
    // S and with it the matrix of signs are symmetric, so each row of signs serves both factors: hence the 2.
    let (ga, gb): (Vec<_>, Vec<_>) = tiles(positions)
        .map(|(start, rows)| {
            let sign = difference(&a, &b, start, rows).sign();
            (sign.clone().matmul(a.clone()), sign.matmul(b.clone()))
        })
        .unzip();
    let scale = (gradient * (2.0 / divisor)).unsqueeze::<3>();
    let ga = Tensor::cat(ga, 1) * scale.clone();
    let gb = Tensor::cat(gb, 1) * scale.neg();
    let spread = |g: Tensor<3>, f: Tensor<3>, length: Tensor<3>, [n, c, h, w]: [usize; 4]| {
        let along = (g.clone() * f.clone())
            .sum_dim(2)
            .mask_fill(length.clone().lower_equal_elem(SHORTEST), 0.0);
        let g = ((g - f * along) / length).swap_dims(1, 2).reshape([
            n,
            c,
            h.div_ceil(every),
            w.div_ceil(every),
        ]);
        let step = every as isize;
        let zeros = Tensor::zeros([n, c, h, w], (&g.device(), g.dtype()));
        zeros.slice_assign(burn::tensor::s![.., .., ..;step, ..;step], g)
    };
    (
        spread(ga, a, a_length, shapes[0]),
        spread(gb, b, b_length, shapes[1]),
    )
}
