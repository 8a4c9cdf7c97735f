//! Convolutions of single pixels as matrix products of whichever layout the map has.
//!
//! As products they run in full speed on every device, and never in one of cuDNN's slower kernels for gradients of weights.

use super::blocks::size4;
use super::enlarge::wide;
use crate::convolution::ConvShape;
use terrashard_torch::tch::Tensor;

/// Whether a convolution is one of single pixels.
pub(super) fn is_pointwise(weight: &Tensor, shape: ConvShape) -> bool {
    shape == ConvShape::POINTWISE && weight.size()[2..] == [1, 1]
}

/// Whether a map lies channels last, which makes it a matrix of one row a pixel.
fn rows(map: &Tensor) -> Option<Tensor> {
    let last = map.permute([0, 2, 3, 1]);
    last.is_contiguous().then(|| {
        let [n, channels, h, w] = size4(map);
        last.view([n * h * w, channels])
    })
}

pub(super) fn forward(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let [n, inputs, h, w] = size4(x);
    let out = weight.size()[0];
    let matrix = weight.reshape([out, inputs]);
    match rows(x) {
        Some(rows) => {
            let y = rows.linear(&matrix, bias);
            y.view([n, h, w, out]).permute([0, 3, 1, 2])
        }
        None => {
            let matrix = matrix.unsqueeze(0).expand([n, -1, -1], false);
            let y = matrix
                .bmm(&x.reshape([n, inputs, h * w]))
                .view([n, out, h, w]);
            match bias {
                Some(bias) => y + bias.view([1, out, 1, 1]),
                None => y,
            }
        }
    }
}

/// Gradients of x, weight and bias, those that are wanted.
pub(super) fn backward(
    gradient: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    wanted: [bool; 3],
) -> [Option<Tensor>; 3] {
    let [n, inputs, h, w] = size4(x);
    let out = weight.size()[0];
    let matrix = weight.reshape([out, inputs]);
    let kind = x.kind();
    let (gx, gw) = match rows(x) {
        Some(rows) => {
            let gradient = gradient.permute([0, 2, 3, 1]).reshape([n * h * w, out]);
            let gx = wanted[0].then(|| gradient.mm(&matrix).view([n, h, w, inputs]));
            let gw = wanted[1].then(|| gradient.tr().mm(&rows));
            (gx.map(|gx| gx.permute([0, 3, 1, 2])), gw)
        }
        None => {
            let gradient = gradient.reshape([n, out, h * w]);
            let gx = wanted[0].then(|| {
                let turned = matrix.tr().unsqueeze(0).expand([n, -1, -1], false);
                turned.bmm(&gradient).view([n, inputs, h, w])
            });
            let gw = wanted[1].then(|| {
                let products = gradient.bmm(&x.reshape([n, inputs, h * w]).transpose(1, 2));
                products
                    .sum_dim_intlist([0].as_slice(), false, wide(kind))
                    .to_kind(kind)
            });
            (gx, gw)
        }
    };
    let gb = wanted[2].then(|| {
        let sums = gradient.sum_dim_intlist([0, 2, 3].as_slice(), false, wide(kind));
        sums.to_kind(kind)
    });
    [gx, gw.map(|gw| gw.view([out, inputs, 1, 1])), gb]
}
