//! A two-dimensional convolution.

use crate::{ConvShape, Factor, Initial, conv2d, enlarge_conv2d, parameter, upsample_conv2d};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

/// A convolution with a square kernel and the same stride and zero padding in both directions.
#[derive(Module, Debug)]
pub struct Conv2d {
    /// `[out, in / groups, kernel, kernel]`.
    pub weight: Param<Tensor<4>>,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
    stride: usize,
    padding: usize,
    groups: usize,
}

impl Conv2d {
    /// A convolution from `inputs` to `outputs` channels with a bias.
    pub fn new(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        shape: ConvShape,
        device: &Device,
    ) -> Self {
        let fan_out = kernel * kernel * outputs / shape.groups;
        let deviation = (2.0 / fan_out as f64).sqrt();
        Self {
            weight: parameter::lazy(
                [outputs, inputs / shape.groups, kernel, kernel],
                Initial::Normal { deviation },
                device,
            ),
            bias: Some(parameter::lazy([outputs], Initial::Zeros, device)),
            stride: shape.stride,
            padding: shape.padding,
            groups: shape.groups,
        }
    }

    /// The same convolution without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// Stride, padding and groups.
    pub fn shape(&self) -> ConvShape {
        ConvShape {
            stride: self.stride,
            padding: self.padding,
            groups: self.groups,
        }
    }

    fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }

    /// Applies the convolution.
    ///
    /// # Shapes
    /// `[N, in, H, W]` to `[N, out, (H + 2 padding - kernel) / stride + 1, ..]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        conv2d(x, self.weight.val(), self.bias(), self.shape())
    }

    /// Enlarges by nearest neighbour and convolves, without ever making the enlarged input. Kernel 3, padding 1 and
    /// stride 1 only.
    ///
    /// # Shapes
    /// `[N, in, H, W]` to `[N, out, factor H, factor W]`.
    pub fn forward_upsampled(&self, x: Tensor<4>, factor: impl Into<Factor>) -> Tensor<4> {
        upsample_conv2d(x, self.weight.val(), self.bias(), factor)
    }

    /// As [`forward_upsampled`](Self::forward_upsampled), in the layout that losses are computed of: the values of an
    /// [`Enlarged`](crate::Enlarged).
    ///
    /// # Shapes
    /// See [`enlarge_conv2d`].
    pub fn forward_enlarged(&self, x: Tensor<4>, factor: usize) -> Tensor<4> {
        enlarge_conv2d(x, self.weight.val(), self.bias(), factor)
    }
}
