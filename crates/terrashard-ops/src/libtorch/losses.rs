//! Losses over enlarged maps with their gradients, in one pass over the targets.
//!
//! A map comes by classes of pixels or, which is the same with a factor of 1, by pixels. The loss of a mask needs of the
//! labels only how many pixels of each class are positive and how many are valid. Everything is computed for a piece of the batch at a
//! time, so that beside the gradient no temporary is as large as the map. The gradient comes with the value, unscaled, in the map's type; what
//! it is multiplied by is known in backward.

use super::blocks::{areas, columns, kinds, pieces, size4, spans, sum_classes};
use super::computed;
use super::enlarge::wide;
use crate::IGNORE;
use crate::focal::Focal;
use crate::overlap::SoftBce;
use terrashard_torch::tch::{Kind, Tensor};
use terrashard_torch::{LossAndSlope, MaskLoss, Numbers, l1_loss, mask_loss};

/// Labels `[N, H, W]`, one byte a pixel.
pub(super) struct Mask<'a> {
    pub(super) labels: &'a Tensor,
    /// Whether any pixel is ignored.
    pub(super) complete: bool,
}

/// A loss `[1]` and its gradient, both without the factor that the caller knows.
pub(super) struct Loss {
    pub(super) value: Tensor,
    /// Like the map, if it was asked for.
    pub(super) slope: Option<Tensor>,
}

impl Loss {
    /// Of a map of this type.
    fn of(fused: LossAndSlope, map: &Tensor) -> Self {
        Self {
            value: fused.value.to_kind(wide(map.kind())),
            slope: fused.slope,
        }
    }
}

/// The loss in one pass, where a device has it.
fn in_one_pass(map: &Tensor, mask: &Mask<'_>, loss: MaskLoss, slopes: bool) -> Option<Loss> {
    let map = map.contiguous();
    let factor = mask.labels.size()[1] / map.size()[2].max(1);
    let fused = computed(mask_loss(&map, mask.labels, factor, loss, slopes));
    fused.map(|fused| Loss::of(fused, &map))
}

/// What is done with one piece of the batch: the sum of its loss, and its gradient into the second tensor.
pub(super) type Piece<'a> = dyn Fn(&Tensor, (i64, i64), Option<&Tensor>) -> Tensor + 'a;

/// Runs a loss over the pieces of a batch; a sample needs temporaries of so many elements.
pub(super) fn by_pieces(map: &Tensor, elements: i64, slopes: bool, body: &Piece<'_>) -> Loss {
    let map = map.contiguous();
    let slope = slopes.then(|| map.empty_like());
    let mut value = Tensor::zeros([1], (Kind::Double, map.device()));
    for (start, count) in pieces(&map, elements) {
        let own = slope.as_ref().map(|slope| slope.narrow(0, start, count));
        value += body(&map.narrow(0, start, count), (start, count), own.as_ref());
    }
    let value = value.to_kind(wide(map.kind()));
    Loss { value, slope }
}

/// The sum of all values, by rows first: adding a whole map value by value costs digits in `f32`.
pub(super) fn total(map: &Tensor) -> Tensor {
    map.sum_dim_intlist([-1].as_slice(), false, map.kind())
        .sum(Kind::Double)
}

/// How many pixels of each class of a piece are positive, and how many are negative: like the map's piece, in its wide type.
fn counts(mask: &Mask<'_>, map: &Tensor, (start, count): (i64, i64)) -> [Tensor; 2] {
    let [n, _, h, w] = size4(map);
    let labels = mask.labels.narrow(0, start, count);
    let factor = labels.size()[1] / h;
    let kind = wide(map.kind());
    let k = kinds(factor);
    // A byte counts to 255.
    let counter = if factor <= 17 { Kind::Uint8 } else { Kind::Int };
    let count = |which: Tensor| {
        if factor == 1 {
            return which.view([n, 1, h, w]).to_kind(kind);
        }
        let sums = Tensor::empty([n, k * k, h, w], (counter, map.device()));
        let which = which.view_dtype(Kind::Uint8).to_kind(counter);
        sum_classes(&which.view([n, 1, h * factor, w * factor]), &sums, factor);
        sums.to_kind(kind)
    };
    let positive = labels.ne(0);
    if mask.complete {
        let positive = count(positive);
        let all = areas(map, kind, factor).view([1, k * k, 1, 1]);
        let negative = all - &positive;
        return [positive, negative];
    }
    let valid = labels.ne(i64::from(IGNORE));
    let negative = count(labels.eq(0));
    [count(positive.logical_and(&valid)), negative]
}

/// The piece in its wide type, 0 where all pixels are ignored: there it may hold anything, even NaN.
fn logits(map: &Tensor, mask: &Mask<'_>, [positive, negative]: &[Tensor; 2]) -> Tensor {
    let x = map.to_kind(wide(map.kind()));
    if mask.complete {
        x
    } else {
        x.masked_fill(&(positive + negative).eq(0), 0.0)
    }
}

/// x to a power, as cheaply as it can be.
fn power(x: &Tensor, exponent: f64) -> Tensor {
    if exponent == 2.0 {
        x * x
    } else {
        x.pow_tensor_scalar(exponent)
    }
}

pub(super) fn elements(map: &Tensor) -> i64 {
    let [_, c, h, w] = size4(map);
    c * h * w
}

/// See [`focal`](crate::focal), without its divisor.
pub(super) fn focal(map: &Tensor, mask: &Mask<'_>, focal: Focal, slopes: bool) -> Loss {
    let Focal { alpha, gamma, .. } = focal;
    if let Some(loss) = in_one_pass(map, mask, MaskLoss::Focal { alpha, gamma }, slopes) {
        return loss;
    }
    by_pieces(map, elements(map), slopes, &|map, piece, slope| {
        let counts = counts(mask, map, piece);
        let x = logits(map, mask, &counts);
        let [positive, negative] = counts;
        let flipped = x.neg();
        let (p, q) = (x.sigmoid(), flipped.sigmoid());
        let (log_p, log_q) = (x.log_sigmoid(), flipped.log_sigmoid());
        let positive = power(&q, focal.gamma) * positive * focal.alpha;
        let negative = power(&p, focal.gamma) * negative * (1.0 - focal.alpha);
        if let Some(slope) = slope {
            let rise = (&p * &log_p) * focal.gamma - &q;
            let fall = (&q * &log_q) * -focal.gamma + &p;
            let mut sum = rise * &positive;
            let _ = sum.addcmul_(&fall, &negative);
            slope.shallow_clone().copy_(&sum);
        }
        let mut value = positive * log_p;
        let _ = value.addcmul_(&negative, &log_q);
        total(&value).neg()
    })
}

/// See [`soft_bce`](crate::soft_bce), without its divisor.
pub(super) fn soft_bce(map: &Tensor, mask: &Mask<'_>, bce: SoftBce, slopes: bool) -> Loss {
    let softening = bce.softening;
    if let Some(loss) = in_one_pass(map, mask, MaskLoss::SoftBce { softening }, slopes) {
        return loss;
    }
    by_pieces(map, elements(map), slopes, &|map, piece, slope| {
        let counts = counts(mask, map, piece);
        let x = logits(map, mask, &counts);
        let [positive, negative] = counts;
        let valid = &positive + &negative;
        let target = positive * (1.0 - bce.softening) + negative * bce.softening;
        if let Some(slope) = slope {
            let _ = (x.sigmoid() * &valid).sub_out(slope, &target);
        }
        // -t log s(x) - (1 - t) log s(-x) = x (1 - t) - log s(x)
        let value = &x * (&valid - target) - x.log_sigmoid() * valid;
        total(&value)
    })
}

/// See [`dice_sums`](crate::kernels::Kernels::dice_sums): `[2]`.
pub(super) fn dice_sums(map: &Tensor, mask: &Mask<'_>) -> Tensor {
    if let Some(loss) = in_one_pass(map, mask, MaskLoss::DiceSums, false) {
        return loss.value;
    }
    let sum = |which: fn(&[Tensor; 2]) -> Tensor| {
        by_pieces(map, elements(map), false, &|map, piece, _| {
            let counts = counts(mask, map, piece);
            let p = logits(map, mask, &counts).sigmoid();
            total(&(p * which(&counts)))
        })
        .value
    };
    let sums = [
        sum(|[positive, _]| positive.shallow_clone()),
        sum(|[positive, negative]| positive + negative),
    ];
    Tensor::cat(&sums, 0)
}

/// The gradient of the logits for the derivatives by the probability of a negative and of a positive pixel.
pub(super) fn dice_slope(map: &Tensor, mask: &Mask<'_>, of_pixels: [f64; 2]) -> Tensor {
    let [of_negative, of_positive] = of_pixels;
    let fused = MaskLoss::DiceSlope {
        of_negative,
        of_positive,
    };
    if let Some(slope) = in_one_pass(map, mask, fused, true).and_then(|loss| loss.slope) {
        return slope;
    }
    let loss = by_pieces(map, elements(map), true, &|map, piece, slope| {
        let counts = counts(mask, map, piece);
        let x = logits(map, mask, &counts);
        let [positive, negative] = counts;
        let (p, q) = (x.sigmoid(), x.neg().sigmoid());
        if let Some(slope) = slope {
            let sum = positive * of_positive + negative * of_negative;
            let _ = (p * q).mul_out(slope, &sum);
        }
        Tensor::zeros([1], (Kind::Double, map.device()))
    });
    loss.slope.unwrap_or_else(|| map.zeros_like())
}

/// Reflectance of digital numbers in 32 bits, NaN where they are missing.
fn reflectance(bits: &Tensor, numbers: Numbers) -> Tensor {
    let Numbers {
        offset,
        scale,
        missing,
    } = numbers;
    // With its highest bit turned, a number is less by 32768 than it is.
    let mut values = bits.bitwise_xor(i64::from(i16::MIN)).to_kind(Kind::Float);
    values += 32_768.0;
    values += f64::from(offset);
    values *= f64::from(scale);
    let missing = bits.eq(i64::from(missing.cast_signed()));
    values.masked_fill_(&missing, f64::NAN)
}

/// See [`l1`](crate::l1), without its divisor. The target is `[N, C, H, W]`, as it is stored: floats, or numbers that mean something.
pub(super) fn l1(map: &Tensor, target: &Tensor, numbers: Option<Numbers>, slopes: bool) -> Loss {
    let [_, channels, height, width] = size4(target);
    let h = map.size()[2];
    let (factor, w) = (height / h, map.size()[3]);
    let target = target.contiguous();
    let fused = l1_loss(&map.contiguous(), &target, numbers, factor, slopes);
    if let Some(fused) = computed(fused) {
        return Loss::of(fused, map);
    }
    let kind = wide(map.kind());
    by_pieces(
        map,
        channels * height * width,
        slopes,
        &|map, (start, count), slope| {
            let x = columns(map, factor, kind);
            let shape = [count, channels, h, factor, width];
            let target = target.narrow(0, start, count).view(shape);
            let (target, mut difference) = match numbers {
                // What is made of numbers is overwritten.
                Some(numbers) => {
                    let own = reflectance(&target, numbers).to_kind(kind);
                    (own.shallow_clone(), own)
                }
                None => (target, Tensor::empty(shape, (kind, map.device()))),
            };
            for (class, first, rows) in spans(factor) {
                let to = difference.narrow(3, first, rows);
                let x = x.select(2, class).unsqueeze(3);
                let _ = x.sub_out(&to, &target.narrow(3, first, rows));
            }
            // A missing target is neither above nor below; what is no number in the map still shows in the loss.
            let _ = difference.nan_to_num_(0.0, f64::INFINITY, f64::NEG_INFINITY);
            let value = difference
                .norm_scalaropt_dim(1, [4].as_slice(), false)
                .sum(Kind::Double);
            if let Some(slope) = slope {
                let _ = difference.sign_();
                sum_classes(
                    &difference.view([count, channels, height, width]),
                    slope,
                    factor,
                );
            }
            value + total(&(map.view([count, -1, h, w]) * 0.0))
        },
    )
}
