//! The portable body of a branch with attention, made of the backend's kernels for its parts.

use super::{Backward, Branch, Collected, Reduction, Results, Saved, as_map, as_tokens};
use crate::kernels::Kernels;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;

/// Where the weight of each layer stands among the parameters; the bias is the next one.
const NORM: usize = 0;
const Q: usize = 2;
const KV: usize = 4;
const PROJ: usize = 6;
const REDUCTION: usize = 8;
const REDUCED_NORM: usize = 10;

/// The result before dropping and the residual, and what is kept: queries, keys with values, the result of attention, and the
/// reduced map before its norm.
pub(super) fn forward<B: Kernels>(
    branch: &Branch,
    heads: usize,
    reduction: Option<Reduction>,
    x: FloatTensor<B>,
    parameters: &[FloatTensor<B>],
) -> (FloatTensor<B>, Saved<B>) {
    let p = |index: usize| parameters[index].clone();
    let normed = B::layer_norm_forward(x, p(NORM), p(NORM + 1), branch.epsilon);
    let q = B::linear_forward(normed.clone(), p(Q), p(Q + 1));
    let (source, reduced) = match reduction {
        None => (normed, None),
        Some(Reduction { shape, epsilon }) => {
            let map = as_map::<B>(normed, branch.grid);
            let map = B::conv2d_forward(map, p(REDUCTION), Some(p(REDUCTION + 1)), shape);
            let reduced = as_tokens::<B>(map);
            let (weight, bias) = (p(REDUCED_NORM), p(REDUCED_NORM + 1));
            let source = B::layer_norm_forward(reduced.clone(), weight, bias, epsilon);
            (source, Some(reduced))
        }
    };
    let kv = B::linear_forward(source, p(KV), p(KV + 1));
    let mixed = B::attention_forward(q.clone(), kv.clone(), heads);
    let y = B::linear_forward(mixed.clone(), p(PROJ), p(PROJ + 1));
    (y, vec![Some(q), Some(kv), Some(mixed), reduced])
}

/// Gradients of x and of the parameters.
pub(super) fn backward<B: Kernels>(
    branch: &Branch,
    heads: usize,
    reduction: Option<Reduction>,
    given: Backward<B>,
) -> Results<B> {
    let Backward {
        gradient,
        x,
        parameters,
        mut saved,
        wanted,
    } = given;
    let p = |index: usize| parameters[index].clone();
    let mut kept = |index: usize| saved[index].take().expect("forward kept it");
    let mut results = Collected::<B>::new(wanted);

    let mixed = kept(2);
    let gmixed = B::linear_backward(gradient, mixed, p(PROJ), &results.of(PROJ));
    let gmixed = results.take(PROJ, gmixed);
    let (q, kv) = (kept(0), kept(1));
    let mut gradients = B::attention_backward(gmixed, q, kv, heads).into_iter();
    let mut next = || {
        gradients
            .next()
            .flatten()
            .expect("attention has two gradients")
    };
    let (gq, gkv) = (next(), next());
    let normed = B::layer_norm_forward(x.clone(), p(NORM), p(NORM + 1), branch.epsilon);
    let from_q = {
        let gradients = B::linear_backward(gq, normed.clone(), p(Q), &results.of(Q));
        results.take(Q, gradients)
    };
    let from_kv = match reduction {
        None => {
            let gradients = B::linear_backward(gkv, normed, p(KV), &results.of(KV));
            results.take(KV, gradients)
        }
        Some(Reduction { shape, epsilon }) => {
            let reduced = kept(3);
            let (weight, bias) = (p(REDUCED_NORM), p(REDUCED_NORM + 1));
            let source = B::layer_norm_forward(reduced.clone(), weight, bias, epsilon);
            let gsource = {
                let gradients = B::linear_backward(gkv, source, p(KV), &results.of(KV));
                results.take(KV, gradients)
            };
            let greduced = B::layer_norm_backward(gsource, reduced, p(REDUCED_NORM), epsilon);
            let greduced = results.take(REDUCED_NORM, greduced);
            let [height, width] = branch.grid;
            let kernel = p(REDUCTION).shape()[2];
            let grid = [height, width].map(|extent| shape.output(extent, kernel));
            let gmap = B::conv2d_backward(
                as_map::<B>(greduced, grid),
                as_map::<B>(normed, branch.grid),
                p(REDUCTION),
                shape,
                &results.of(REDUCTION),
            );
            as_tokens::<B>(results.take(REDUCTION, gmap))
        }
    };
    let gnormed = B::float_add(from_q, from_kv);
    let gradients = B::layer_norm_backward(gnormed, x, p(NORM), branch.epsilon);
    let gx = results.take(NORM, gradients);
    results.with_input(gx)
}
