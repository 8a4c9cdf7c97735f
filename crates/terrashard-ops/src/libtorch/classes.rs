//! Losses of several classes with their gradients, for a piece of the batch at a time: beside the gradient no temporary is as large as the
//! map. A class after the other, since a sum that scatters into classes would depend on timing.

use super::blocks::size4;
use super::enlarge::wide;
use super::losses::{Loss, Mask, by_pieces, elements, total};
use crate::IGNORE;
use terrashard_torch::tch::{Kind, Tensor};

/// A piece of a map by pixels beside its labels.
struct Pixels {
    /// `[n, classes, h, w]` in the wide type, 0 where pixels are ignored: there the map may hold anything, even NaN.
    logits: Tensor,
    /// `[n, h, w]`, one byte a pixel.
    labels: Tensor,
    /// 1 where a pixel counts, in the wide type.
    valid: Tensor,
}

impl Pixels {
    fn of(map: &Tensor, mask: &Mask<'_>, (start, count): (i64, i64)) -> Self {
        let labels = mask.labels.narrow(0, start, count);
        let kind = wide(map.kind());
        let ignored = labels.eq(i64::from(IGNORE));
        let logits = map.to_kind(kind);
        Self {
            logits: match mask.complete {
                true => logits,
                false => logits.masked_fill(&ignored.unsqueeze(1), 0.0),
            },
            valid: ignored.logical_not().to_kind(kind),
            labels,
        }
    }

    /// 1 where a pixel is of this class, in the wide type.
    fn of_class(&self, class: i64) -> Tensor {
        self.labels.eq(class).to_kind(self.logits.kind())
    }

    fn classes(&self) -> i64 {
        size4(&self.logits)[1]
    }
}

/// See [`cross_entropy`](crate::cross_entropy()), without its divisor.
pub(super) fn cross_entropy(map: &Tensor, mask: &Mask<'_>, slopes: bool) -> Loss {
    by_pieces(map, elements(map), slopes, &|map, piece, slope| {
        let pixels = Pixels::of(map, mask, piece);
        let log_p = pixels.logits.log_softmax(1, pixels.logits.kind());
        let mut value = Tensor::zeros([1], (Kind::Double, map.device()));
        for class in 0..pixels.classes() {
            let own = pixels.of_class(class);
            let log_p = log_p.select(1, class);
            value -= total(&(&log_p * &own));
            if let Some(slope) = slope {
                let difference = (log_p.exp() - own) * &pixels.valid;
                slope.select(1, class).copy_(&difference);
            }
        }
        value
    })
}

/// See [`Kernels::class_sums`](crate::kernels::Kernels::class_sums): `[2 classes]`.
pub(super) fn sums(map: &Tensor, mask: &Mask<'_>) -> Tensor {
    let classes = size4(map)[1];
    let sums = Tensor::zeros([2 * classes], (Kind::Double, map.device()));
    by_pieces(map, elements(map), false, &|map, piece, _| {
        let pixels = Pixels::of(map, mask, piece);
        let p = pixels.logits.softmax(1, pixels.logits.kind());
        for class in 0..classes {
            let p = p.select(1, class) * &pixels.valid;
            let own = total(&(&p * pixels.of_class(class)));
            let _ = sums.narrow(0, class, 1).g_add_(&own);
            let _ = sums.narrow(0, classes + class, 1).g_add_(&total(&p));
        }
        Tensor::zeros([1], (Kind::Double, map.device()))
    });
    sums.to_kind(wide(map.kind()))
}

/// The gradient of the logits for each class's derivatives by its probability in a pixel: of another class, and of this one.
pub(super) fn dice_slope(map: &Tensor, mask: &Mask<'_>, of_pixels: &[[f64; 2]]) -> Tensor {
    let loss = by_pieces(map, elements(map), true, &|map, piece, slope| {
        let pixels = Pixels::of(map, mask, piece);
        let p = pixels.logits.softmax(1, pixels.logits.kind());
        let rise = |class: usize| {
            let [other, own] = of_pixels[class];
            pixels.of_class(class as i64) * (own - other) + other
        };
        let mut along = pixels.valid.zeros_like();
        for class in 0..of_pixels.len() {
            let _ = along.addcmul_(&p.select(1, class as i64), &rise(class));
        }
        if let Some(slope) = slope {
            for class in 0..of_pixels.len() {
                let difference = (rise(class) - &along) * &pixels.valid;
                let plane = p.select(1, class as i64) * difference;
                slope.select(1, class as i64).copy_(&plane);
            }
        }
        Tensor::zeros([1], (Kind::Double, map.device()))
    });
    loss.slope.unwrap_or_else(|| map.zeros_like())
}
