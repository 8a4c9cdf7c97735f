//! The portable body of a feed-forward branch, made of the backend's kernels for its parts.

use super::{Backward, Branch, Collected, Results, Saved, as_map, as_tokens};
use crate::kernels::Kernels;
use crate::{Activation, ConvShape};
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;

/// Where the weight of each layer stands among the parameters; the bias is the next one.
const NORM: usize = 0;
const FC1: usize = 2;
const DW: usize = 4;
const FC2: usize = 6;

fn depthwise(channels: usize) -> ConvShape {
    ConvShape {
        stride: 1,
        padding: 1,
        groups: channels,
    }
}

/// The result before dropping and the residual, and what is kept: what goes into the convolution, and what comes out of it.
pub(super) fn forward<B: Kernels>(
    branch: &Branch,
    activation: Activation,
    x: FloatTensor<B>,
    parameters: &[FloatTensor<B>],
) -> (FloatTensor<B>, Saved<B>) {
    let p = |index: usize| parameters[index].clone();
    let normed = B::layer_norm_forward(x, p(NORM), p(NORM + 1), branch.epsilon);
    let hidden = B::linear_forward(normed, p(FC1), p(FC1 + 1));
    let shape = depthwise(hidden.shape()[2]);
    let map = as_map::<B>(hidden.clone(), branch.grid);
    let convolved = as_tokens::<B>(B::conv2d_forward(map, p(DW), Some(p(DW + 1)), shape));
    let activated = B::activate_forward(convolved.clone(), activation);
    let y = B::linear_forward(activated, p(FC2), p(FC2 + 1));
    (y, vec![Some(hidden), Some(convolved)])
}

/// Gradients of x and of the parameters.
pub(super) fn backward<B: Kernels>(
    branch: &Branch,
    activation: Activation,
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

    let convolved = kept(1);
    let activated = B::activate_forward(convolved.clone(), activation);
    let gactivated = B::linear_backward(gradient, activated, p(FC2), &results.of(FC2));
    let gactivated = results.take(FC2, gactivated);
    let gconvolved = B::activate_backward(gactivated, convolved, activation);
    let hidden = kept(0);
    let shape = depthwise(hidden.shape()[2]);
    let gmap = B::conv2d_backward(
        as_map::<B>(gconvolved, branch.grid),
        as_map::<B>(hidden, branch.grid),
        p(DW),
        shape,
        &results.of(DW),
    );
    let ghidden = as_tokens::<B>(results.take(DW, gmap));
    let normed = B::layer_norm_forward(x.clone(), p(NORM), p(NORM + 1), branch.epsilon);
    let gnormed = B::linear_backward(ghidden, normed, p(FC1), &results.of(FC1));
    let gnormed = results.take(FC1, gnormed);
    let gradients = B::layer_norm_backward(gnormed, x, p(NORM), branch.epsilon);
    let gx = results.take(NORM, gradients);
    results.with_input(gx)
}
