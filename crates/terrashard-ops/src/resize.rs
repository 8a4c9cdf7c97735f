//! Bilinear resizing.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::Tensor;
use burn::tensor::ops::{InterpolateMode, InterpolateOptions};

/// Resizes by bilinear interpolation between pixel centres (`align_corners = false`).
///
/// # Shapes
/// `[N, C, h, w]` to `[N, C, size[0], size[1]]`.
pub fn resize_bilinear(x: Tensor<4>, size: [usize; 2]) -> Tensor<4> {
    let [_, _, h, w] = x.dims();
    if [h, w] == size {
        return x;
    }
    operate(vec![x.into_dispatch()], Operation::Resize([h, w], size))
}

pub(crate) fn options() -> InterpolateOptions {
    InterpolateOptions::new(InterpolateMode::Bilinear).with_align_corners(false)
}
