//! Enlargement by 2.5 and a convolution: that by 3, folded as for all whole factors, of which some rows and columns are taken.

use super::blocks::{expand, pieces, size4, sum_classes};
use super::enlarge;
use crate::upsample::five_halves;
use std::sync::{Mutex, PoisonError};
use terrashard_torch::tch::{Device, Tensor};

/// Which rows of a map that is enlarged by 3 are those of one enlarged by 2.5. Made once for each device and size: copying it there would
/// wait for all that the device has to do.
fn within_threefold(extent: i64, device: Device) -> Tensor {
    static MADE: Mutex<Vec<(i64, Device, Tensor)>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = made
        .iter()
        .find(|(of, on, _)| (*of, *on) == (extent, device));
    if let Some((.., rows)) = known {
        return rows.shallow_clone();
    }
    let rows: Vec<i64> = five_halves(extent as usize)
        .into_iter()
        .map(|(pixel, class)| (3 * pixel + class) as i64)
        .collect();
    let rows = Tensor::from_slice(&rows).to_device(device);
    made.push((extent, device, rows.shallow_clone()));
    rows
}

/// `[N, in, h, w]` to `[N, out, 2.5 h, 2.5 w]`, halves cut off.
pub(super) fn forward(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let low = enlarge::forward(x, weight, bias, 3);
    let [n, channels, h, w] = size4(&low);
    let [rows, columns] = [h, w].map(|extent| within_threefold(extent, x.device()));
    let shape = [n, channels / 9, rows.size()[0], columns.size()[0]];
    let map = Tensor::empty(shape, (x.kind(), x.device()));
    for (start, count) in pieces(x, channels * h * w) {
        let threefold = expand(&low.narrow(0, start, count), 3);
        let part = threefold.index_select(2, &rows).index_select(3, &columns);
        map.narrow(0, start, count).copy_(&part);
    }
    map
}

/// Gradients of x, weight and bias, those that are wanted, for the gradient of [`forward`]'s result.
pub(super) fn backward(
    gradient: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    wanted: [bool; 3],
) -> [Option<Tensor>; 3] {
    let [n, _, h, w] = size4(x);
    let channels = size4(gradient)[1];
    let [rows, columns] = [h, w].map(|extent| within_threefold(extent, x.device()));
    let like = (x.kind(), x.device());
    let low = Tensor::empty([n, 9 * channels, h, w], like);
    for (start, count) in pieces(x, 9 * channels * h * w) {
        let own = gradient.narrow(0, start, count);
        let width = own.size()[3];
        let mut tall = Tensor::zeros([count, channels, 3 * h, width], like);
        let _ = tall.index_copy_(2, &rows, &own);
        let mut threefold = Tensor::zeros([count, channels, 3 * h, 3 * w], like);
        let _ = threefold.index_copy_(3, &columns, &tall);
        sum_classes(&threefold, &low.narrow(0, start, count), 3);
    }
    enlarge::backward(&low, x, weight, 3, wanted)
}
