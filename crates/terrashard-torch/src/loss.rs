//! Losses of enlarged maps and their gradients in one pass over the targets, on NVIDIA GPUs.
//!
//! A map comes by classes of pixels: of the `factor x factor` pixels that one of the small map was enlarged to, those of the first row, of the
//! last row and of the rows between have the same values, and so have those of columns: `classes = min(factor, 3)` squared, rows first.

use tch::{Kind, Tensor};

use crate::Result;
use crate::shim::{Call, Outputs, loss as border};

/// A loss of logits beside a mask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MaskLoss {
    /// The focal loss of Lin et al. 2017, summed over pixels.
    Focal {
        /// Weight of positive pixels; negative ones have `1 - alpha`.
        alpha: f64,
        /// Exponent of `1 - p` of the right class.
        gamma: f64,
    },
    /// Binary cross-entropy on labels `softening` and `1 - softening`, summed over pixels.
    SoftBce {
        /// What a negative pixel's label is.
        softening: f64,
    },
    /// The probabilities' sums over positive and over valid pixels, of which Dice is made. No gradient.
    DiceSums,
    /// The gradient for known derivatives by the probability of a pixel. No value.
    DiceSlope {
        /// That of a negative pixel.
        of_negative: f64,
        /// That of a positive one.
        of_positive: f64,
    },
}

impl MaskLoss {
    /// As `LOSS` and its two numbers in `loss_kernels.h`.
    fn numbers(self) -> (i64, [f64; 2]) {
        match self {
            Self::Focal { alpha, gamma } => (0, [alpha, gamma]),
            Self::SoftBce { softening } => (1, [softening, 0.0]),
            Self::DiceSums => (2, [0.0; 2]),
            Self::DiceSlope {
                of_negative,
                of_positive,
            } => (3, [of_negative, of_positive]),
        }
    }
}

/// A loss and its gradient by the map.
#[derive(Debug)]
pub struct LossAndSlope {
    /// `[1]` in 64 bits, or of [`MaskLoss::DiceSums`] `[2]`.
    pub value: Tensor,
    /// Like the map, if it was asked for.
    pub slope: Option<Tensor>,
}

/// A loss of logits beside a mask of bytes, in which 0 is negative, 255 ignored and all else positive. What the map holds where all
/// pixels of a class are ignored does not matter.
///
/// `None` where there is no kernel: the map or the labels not contiguous, not on an NVIDIA GPU or of other types than 32- or 16-bit floats and
/// bytes, or a factor above 16.
///
/// # Shapes
/// map `[N, classes, h, w]`, labels `[N, factor h, factor w]`.
///
/// # Errors
/// [`Error::Count`](crate::Error) for other shapes. [`Error::Exception`](crate::Error) if memory is used up.
pub fn mask_loss(
    map: &Tensor,
    labels: &Tensor,
    factor: i64,
    loss: MaskLoss,
    slopes: bool,
) -> Result<Option<LossAndSlope>> {
    let call = Call::MaskLoss;
    let size = dimensions(call, map)?;
    let classes = factor.min(3);
    call.check("classes of pixels", classes * classes, size[1])?;
    let pixels = [size[0], factor * size[2], factor * size[3]];
    same(call, &pixels, &labels.size())?;
    let mut out = Outputs::new(call);
    border::mask_loss([map, labels], factor, loss.numbers(), slopes, &mut out)?;
    let values = match loss {
        MaskLoss::DiceSums => 2,
        _ => 1,
    };
    Ok(given(out, values))
}

/// What the digital numbers of an image stand for: `(number + offset) * scale`, in single precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Numbers {
    /// Added to the number.
    pub offset: f32,
    /// What one is worth.
    pub scale: f32,
    /// The number that is missing.
    pub missing: u16,
}

/// The sum of `|map - target|` over pixels, and its gradient. The target is of floats, of which NaN is missing, or of digital numbers from 0
/// to 65535 in the bits of 16-bit integers; what is missing counts for nothing.
///
/// `None` where there is no kernel: as for [`mask_loss`], or the target not of 32-bit floats, or with numbers not of 16-bit integers.
///
/// # Shapes
/// map `[N, C classes, h, w]`, target `[N, C, factor h, factor w]`.
///
/// # Errors
/// As of [`mask_loss`].
pub fn l1_loss(
    map: &Tensor,
    target: &Tensor,
    numbers: Option<Numbers>,
    factor: i64,
    slopes: bool,
) -> Result<Option<LossAndSlope>> {
    let call = Call::L1Loss;
    let [n, channels, h, w] = dimensions(call, map)?;
    let classes = factor.min(3);
    let planes = channels / (classes * classes).max(1);
    call.check("channels", planes * classes * classes, channels)?;
    same(call, &[n, planes, factor * h, factor * w], &target.size())?;
    let mut out = Outputs::new(call);
    border::l1_loss([map, target], numbers, factor, slopes, &mut out)?;
    Ok(given(out, 1))
}

fn given(out: Outputs<2>, values: i64) -> Option<LossAndSlope> {
    let [value, slope] = out.take();
    value.map(|value| LossAndSlope {
        value: value.narrow(0, 0, values).to_kind(Kind::Double),
        slope,
    })
}

/// The sizes of a map's four dimensions.
fn dimensions(call: Call, map: &Tensor) -> Result<[i64; 4]> {
    call.check("dimensions of maps", 4, map.dim() as i64)?;
    let size = map.size();
    Ok([size[0], size[1], size[2], size[3]])
}

fn same(call: Call, expected: &[i64], got: &[i64]) -> Result<()> {
    let dimensions = expected.len() as i64;
    call.check("dimensions of targets", dimensions, got.len() as i64)?;
    let pairs = expected.iter().zip(got);
    pairs
        .into_iter()
        .try_for_each(|(expected, got)| call.check("pixels of targets", *expected, *got))
}
