//! Two-dimensional convolution with a weight gradient that is a matrix product.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::Tensor;
use burn::tensor::module::unfold4d;
use burn::tensor::ops::{ConvOptions, UnfoldOptions};

/// Stride, zero padding and groups, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Pixels from one output position to the next.
    pub stride: usize,
    /// Zeros on each side.
    pub padding: usize,
    /// Groups of channels; `groups = channels` is a depthwise convolution.
    pub groups: usize,
}

impl ConvShape {
    /// A 3x3 convolution that keeps height and width.
    pub const SAME_3X3: Self = Self {
        stride: 1,
        padding: 1,
        groups: 1,
    };

    /// A convolution of single pixels.
    pub const POINTWISE: Self = Self {
        stride: 1,
        padding: 0,
        groups: 1,
    };

    /// Height or width of the result where those of the input are `extent`.
    pub fn output(self, extent: usize, kernel: usize) -> usize {
        (extent + 2 * self.padding - kernel) / self.stride + 1
    }

    /// Whether an odd kernel of this size leaves height and width as they are.
    pub(crate) fn keeps_size(self, kernel: usize) -> bool {
        self.stride == 1 && kernel == 2 * self.padding + 1
    }

    pub(crate) fn options(self) -> ConvOptions<2> {
        ConvOptions::new([self.stride; 2], [self.padding; 2], [1; 2], self.groups)
    }
}

/// A convolution with a square kernel.
///
/// # Shapes
/// x `[N, in, H, W]`, weight `[out, in / groups, kernel, kernel]`, bias `[out]`; result
/// `[N, out, (H + 2 padding - kernel) / stride + 1, ..]`.
pub fn conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    shape: ConvShape,
) -> Tensor<4> {
    let mut inputs = vec![x.into_dispatch(), weight.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    operate(inputs, Operation::Conv2d(shape))
}

/// The gradient of the weight: output gradients times the unfolded input, one product a group.
pub(crate) fn weight_gradient(
    gradient: Tensor<4>,
    x: Tensor<4>,
    kernel: usize,
    shape: ConvShape,
) -> Tensor<4> {
    let [n, out, h, w] = gradient.dims();
    let [_, inputs, ..] = x.dims();
    let groups = shape.groups;
    let unfold = UnfoldOptions::new([shape.stride; 2], [shape.padding; 2], [1; 2]);
    let columns = unfold4d(x, [kernel; 2], unfold);
    let columns = columns.reshape([n, groups, inputs / groups * kernel * kernel, h * w]);
    let gradient = gradient.reshape([n, groups, out / groups, h * w]);
    let product = gradient.matmul(columns.transpose());
    product
        .sum_dim(0)
        .reshape([out, inputs / groups, kernel, kernel])
}

pub(crate) fn bias_gradient(gradient: Tensor<4>) -> Tensor<1> {
    let [_, channels, ..] = gradient.dims();
    gradient.sum_dims(&[0, 2, 3]).reshape([channels])
}
