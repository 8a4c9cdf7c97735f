//! Folded enlargement and convolution as matrix products at the small size.
//!
//! The few channels of these convolutions suit neither cuDNN's nor oneDNN's kernels: cuDNN's gradient of the weight took most of a step.
//! As products of the folded weight with the nine shifted copies of the input they run at the speed of memory, piece by piece of the batch, so
//! that the shifted copies of the whole batch never exist.

use super::blocks::{fold, kinds, pieces, size4, unfold};
use super::computed;
use terrashard_torch::tch::{Kind, Tensor};

/// The type in which sums over pixels are added up.
pub(super) fn wide(kind: Kind) -> Kind {
    match kind {
        Kind::Double => Kind::Double,
        _ => Kind::Float,
    }
}

/// `[n, in, h, w]` to `[n, in * 9, h * w]`.
fn shifted(x: &Tensor) -> Tensor {
    computed(terrashard_torch::columns(x))
}

/// `[N, in, h, w]` to `[N, out * classes^2, h, w]`.
pub(super) fn forward(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, factor: i64) -> Tensor {
    let [n, inputs, h, w] = size4(x);
    let classes = kinds(factor) * kinds(factor);
    let folded = fold(weight, factor);
    let out = folded.size()[0];
    let bias = bias.map(|bias| {
        let bias = bias.view([-1, 1]).expand([-1, classes], false);
        bias.reshape([1, out, 1])
    });
    let low = Tensor::empty([n, out, h, w], (x.kind(), x.device()));
    for (start, count) in pieces(x, inputs * 9 * h * w) {
        let columns = shifted(&x.narrow(0, start, count));
        let folded = folded.unsqueeze(0).expand([count, -1, -1], false);
        let mut part = low.narrow(0, start, count).view([count, out, h * w]);
        match &bias {
            Some(bias) => {
                part.copy_(bias);
                let _ = part.baddbmm_(&folded, &columns);
            }
            None => {
                let _ = folded.bmm_out(&part, &columns);
            }
        }
    }
    low
}

/// Gradients of x, weight and bias, those that are wanted, for the gradient of [`forward`]'s result.
pub(super) fn backward(
    gradient: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    factor: i64,
    wanted: [bool; 3],
) -> [Option<Tensor>; 3] {
    let [n, inputs, h, w] = size4(x);
    let [channels, ..] = size4(weight);
    let turned = fold(weight, factor).tr();
    let out = turned.size()[1];
    let kind = x.kind();
    let gx = wanted[0].then(|| Tensor::empty([n, inputs, h, w], (kind, x.device())));
    let mut gw = wanted[1].then(|| Tensor::zeros([out, inputs * 9], (wide(kind), x.device())));
    for (start, count) in pieces(x, inputs * 9 * h * w) {
        let own = gradient.narrow(0, start, count).contiguous();
        if let Some(gw) = &mut gw {
            let columns = shifted(&x.narrow(0, start, count));
            weight_gradient(gw, &own, &columns.view([count, inputs * 9, h, w]));
        }
        if let Some(gx) = &gx {
            let turned = turned.unsqueeze(0).expand([count, -1, -1], false);
            let columns = turned.bmm(&own.view([count, out, h * w]));
            let sum = computed(terrashard_torch::columns_backward(&columns, [h, w]));
            gx.narrow(0, start, count).copy_(&sum);
        }
    }
    let gb = wanted[2].then(|| {
        let sums = gradient.reshape([n, channels, out / channels * h * w]);
        let sums = sums.sum_dim_intlist([2].as_slice(), false, wide(kind));
        sums.sum_dim_intlist([0].as_slice(), false, wide(kind))
            .to_kind(kind)
    });
    let gw = gw.map(|gw| unfold(&gw, [channels, inputs], factor).to_kind(kind));
    [gx, gw, gb]
}

/// Adds the product of `gradient` `[n, out, h, w]` with `columns` `[n, in * 9, h, w]` over all pixels.
fn weight_gradient(gw: &mut Tensor, gradient: &Tensor, columns: &Tensor) {
    let samples = gradient.size()[0];
    if !gradient.device().is_cuda() {
        let product = gradient
            .flatten(2, 3)
            .bmm(&columns.flatten(2, 3).transpose(1, 2));
        *gw += product.sum_dim_intlist([0].as_slice(), false, gw.kind());
        return;
    }
    // One product over all pixels of a sample would keep few processors busy: one for each row, then the sum of these.
    for sample in 0..samples {
        let rows = gradient.select(0, sample).transpose(0, 1);
        let columns = columns.select(0, sample).permute([1, 2, 0]);
        let products = rows.bmm(&columns);
        *gw += products.sum_dim_intlist([0].as_slice(), false, gw.kind());
    }
}
