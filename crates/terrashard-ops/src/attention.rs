//! Scaled dot-product attention with keys and values side by side, as one operation; backward computes the probabilities again.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::Tensor;
use burn::tensor::activation::softmax;

/// `softmax(q k^T / sqrt(dim / heads)) v` for each head.
///
/// # Shapes
/// q `[N, queries, dim]`; kv `[N, keys, 2 dim]`, keys in the first half of the columns and values in the second; head `h` has
/// columns `h dim / heads` onwards of each. Result like q.
pub fn attention(q: Tensor<3>, kv: Tensor<3>, heads: usize) -> Tensor<3> {
    operate(
        vec![q.into_dispatch(), kv.into_dispatch()],
        Operation::Attention(heads),
    )
}

/// `[N, rows, parts dim]` to `parts` of `[N, heads, rows, dim / heads]`.
fn split(x: Tensor<3>, parts: usize, heads: usize) -> Vec<Tensor<4>> {
    let [n, rows, width] = x.dims();
    let dim = width / parts;
    let x = x
        .reshape([n, rows, parts, heads, dim / heads])
        .permute([2, 0, 3, 1, 4]);
    (0..parts)
        .map(|part| x.clone().narrow(0, part, 1).squeeze_dim(0))
        .collect()
}

/// The opposite of [`split`].
fn join(parts: Vec<Tensor<4>>) -> Tensor<3> {
    let count = parts.len();
    let [n, heads, rows, width] = parts[0].dims();
    let x: Tensor<5> = Tensor::stack(parts, 0);
    x.permute([1, 3, 0, 2, 4])
        .reshape([n, rows, count * heads * width])
}

fn probabilities(q: Tensor<4>, k: Tensor<4>) -> (Tensor<4>, f64) {
    let [.., width] = q.dims();
    let scale = 1.0 / (width as f64).sqrt();
    (softmax(q.matmul(k.transpose()) * scale, 3), scale)
}

pub(crate) fn forward(q: Tensor<3>, kv: Tensor<3>, heads: usize) -> Tensor<3> {
    let (q, kv) = (split(q, 1, heads).remove(0), split(kv, 2, heads));
    let (p, _) = probabilities(q, kv[0].clone());
    join(vec![p.matmul(kv[1].clone())])
}

pub(crate) fn backward(
    gradient: Tensor<3>,
    q: Tensor<3>,
    kv: Tensor<3>,
    heads: usize,
) -> (Tensor<3>, Tensor<3>) {
    let (gradient, q) = (
        split(gradient, 1, heads).remove(0),
        split(q, 1, heads).remove(0),
    );
    let kv = split(kv, 2, heads);
    let (k, v) = (kv[0].clone(), kv[1].clone());
    let (p, scale) = probabilities(q.clone(), k.clone());
    let gv = p.clone().transpose().matmul(gradient.clone());
    let gp = gradient.matmul(v.transpose());
    let along = (gp.clone() * p.clone()).sum_dim(3);
    let gs = (gp - along) * p * scale;
    (
        join(vec![gs.clone().matmul(k)]),
        join(vec![gs.transpose().matmul(q), gv]),
    )
}
