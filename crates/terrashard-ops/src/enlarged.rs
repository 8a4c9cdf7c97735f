//! A map that a folded enlargement made, laid out by pixels or by the classes of pixels that it was computed by.
//!
//! Nearest-neighbour enlargement followed by a 3x3 convolution gives at most nine different values in each block of
//! `factor x factor` pixels (see [`upsample_conv2d`](crate::upsample_conv2d)). A loss is a sum over pixels, so it can be taken class by
//! class, each weighed by the pixels that it stands for: with a factor of 5 a map of nine values a block is a third of one of 25, and so is
//! its gradient, which the convolution's backward takes as it is.

use crate::graph::operate;
use crate::operation::Operation;
use burn::tensor::Tensor;

/// A map of logits or of an image, as the backend's [`enlarge_conv2d`] leaves it.
#[derive(Debug, Clone)]
pub struct Enlarged {
    values: Tensor<4>,
    factor: usize,
}

impl Enlarged {
    /// What [`enlarge_conv2d`] returned for an input of `from` rows and columns and this factor.
    ///
    /// # Panics
    /// If it is not the result for such an input.
    pub fn new(values: Tensor<4>, from: [usize; 2], factor: usize) -> Self {
        let [_, _, h, w] = values.dims();
        let factor = if [h, w] == from.map(|extent| extent * factor) {
            1
        } else {
            assert_eq!([h, w], from, "blocks are as many as pixels were");
            factor
        };
        Self { values, factor }
    }

    /// Pixels along one side of a block: 1 where values are pixels.
    pub fn factor(&self) -> usize {
        self.factor
    }

    /// The values as they lie: `[N, C, H, W]` pixels, or `[N, classes C, H / factor, W / factor]`.
    pub fn values(&self) -> &Tensor<4> {
        &self.values
    }

    /// The values as they lie.
    pub fn into_values(self) -> Tensor<4> {
        self.values
    }

    /// The same map with other values of the same kind, such as a part of its rows and columns of blocks.
    #[must_use]
    pub fn map(self, change: impl FnOnce(Tensor<4>) -> Tensor<4>) -> Self {
        Self {
            values: change(self.values),
            factor: self.factor,
        }
    }

    /// `[N, C, H, W]` in pixels.
    pub fn dims(&self) -> [usize; 4] {
        let [n, c, h, w] = self.values.dims();
        let classes = crate::upsample::classes(self.factor);
        let [h, w] = [h, w].map(|extent| extent * self.factor);
        [n, c / (classes * classes), h, w]
    }

    /// The map by pixels, `[N, C, H, W]`: laid out where it is not yet.
    pub fn pixels(self) -> Tensor<4> {
        if self.factor == 1 {
            return self.values;
        }
        operate(
            vec![self.values.into_dispatch()],
            Operation::Pixels(self.factor),
        )
    }
}

impl From<Tensor<4>> for Enlarged {
    /// Pixels.
    fn from(values: Tensor<4>) -> Self {
        Self { values, factor: 1 }
    }
}

/// [`upsample_conv2d`](crate::upsample_conv2d) in whichever layout the backend computes losses of: to be wrapped in
/// [`Enlarged`].
///
/// # Shapes
/// x `[N, in, H, W]`, weight `[out, in, 3, 3]`, bias `[out]`; result `[N, out, factor H, factor W]`, or by blocks
/// `[N, classes out, H, W]`.
pub fn enlarge_conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    factor: usize,
) -> Tensor<4> {
    assert!(factor >= 1, "enlarging by an integer factor of at least 1");
    let mut inputs = vec![x.into_dispatch(), weight.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    operate(inputs, Operation::EnlargeConv2d(factor))
}
