//! Mean absolute difference.

use crate::enlarged::Enlarged;
use crate::focal::total;
use crate::graph::operate;
use crate::image::Image;
use crate::operation::Operation;
use burn::tensor::Tensor;

/// The sum of `|x - target|` divided by `divisor`: the number of values that the targets of the whole window have.
///
/// Where the target is missing, loss and gradient are exactly zero, whatever `x` is there.
///
/// # Shapes
/// x `[N, C, H, W]` in any layout, the target by pixels; result `[1]`. The target is never differentiated, may be of another float type,
/// and is read as it is stored.
pub fn l1(x: impl Into<Enlarged>, target: impl Into<Image>, divisor: f64) -> Tensor<1> {
    let (x, target) = (x.into(), target.into());
    assert_eq!(
        x.dims(),
        target.dims(),
        "prediction and target cover the same values"
    );
    operate(
        vec![x.into_values().into_dispatch()],
        Operation::L1(target.inner(), divisor),
    )
}

pub(crate) fn forward(x: Tensor<4>, target: &Image, divisor: f64) -> Tensor<1> {
    let target = target.reflectance().cast(x.dtype());
    let missing = target.clone().is_nan();
    total((x - target).abs().mask_fill(missing, 0.0)) / divisor
}

pub(crate) fn backward(
    gradient: Tensor<1>,
    x: Tensor<4>,
    target: &Image,
    divisor: f64,
) -> Tensor<4> {
    let target = target.reflectance().cast(x.dtype());
    let missing = target.clone().is_nan();
    (x - target).sign().mask_fill(missing, 0.0) * (gradient / divisor).unsqueeze()
}
