//! Dropout and stochastic depth, by masks that anyone can draw again.

use crate::graph::operate;
use crate::kernels::Kernels;
use crate::operation::Operation;
use crate::{Masks, Mode, Pass, random};
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Tensor, TensorData};
use std::sync::Arc;

/// What is dropped as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Element,
    Sample,
}

/// Which values of a batch are dropped. It is drawn where it is used, in forward and again in backward, and kept nowhere.
#[derive(Debug, Clone)]
pub(crate) struct Mask {
    rate: f64,
    unit: Unit,
    /// One for each sample of the batch.
    keys: Arc<[u64]>,
}

impl Mask {
    fn new(rate: f64, unit: Unit, layer: &str, masks: &Masks) -> Self {
        let layer = random::part(random::stream(layer, masks.seed), masks.step);
        let samples = masks.samples.iter();
        Self {
            rate,
            unit,
            keys: samples.map(|id| random::part(layer, *id)).collect(),
        }
    }

    /// 0, or what makes up for the values that are dropped: for each sample and each of its `elements`, or for each sample.
    pub(crate) fn factors(&self, elements: usize) -> TensorData {
        let columns = match self.unit {
            Unit::Element => elements,
            Unit::Sample => 1,
        };
        let kept = (1.0 / (1.0 - self.rate)) as f32;
        let factor = |bits| {
            if random::uniform(bits) < self.rate {
                0.0
            } else {
                kept
            }
        };
        let rows = self.keys.iter().flat_map(|key| {
            (0..columns as u64).map(move |index| factor(random::part(*key, index)))
        });
        TensorData::new(rows.collect::<Vec<f32>>(), [self.keys.len(), columns])
    }
}

/// Sets each value to 0 with probability `rate` and divides the others by `1 - rate`, in a training pass with
/// [`Masks`](crate::Masks); else the input as it is.
///
/// Whether a value is dropped follows from the masks' seed and step, the sample, `layer`, and the value's index in its sample,
/// channels last.
///
/// # Shapes
/// `[N, ..]`, kept; maps are `[N, C, H, W]`.
///
/// # Panics
/// If the masks are of another number of samples, or `rate` is not in 0..1.
pub fn dropout<const D: usize>(x: Tensor<D>, rate: f64, layer: &str, pass: &Pass) -> Tensor<D> {
    masked(x, rate, Unit::Element, layer, pass)
}

/// Stochastic depth ([Huang et al. 2016](https://arxiv.org/abs/1603.09382)): as [`dropout`], of whole samples.
///
/// # Shapes
/// `[N, ..]`, kept.
///
/// # Panics
/// As [`dropout`].
pub fn drop_path<const D: usize>(x: Tensor<D>, rate: f64, layer: &str, pass: &Pass) -> Tensor<D> {
    masked(x, rate, Unit::Sample, layer, pass)
}

fn masked<const D: usize>(
    x: Tensor<D>,
    rate: f64,
    unit: Unit,
    layer: &str,
    pass: &Pass,
) -> Tensor<D> {
    match mask(x.dims()[0], rate, unit, layer, pass) {
        Some(mask) => operate(vec![x.into_dispatch()], Operation::Drop(mask)),
        None => x,
    }
}

/// The mask of [`drop_path`] for a batch of so many samples, if any can be dropped.
pub(crate) fn path_mask(samples: usize, rate: f64, layer: &str, pass: &Pass) -> Option<Mask> {
    mask(samples, rate, Unit::Sample, layer, pass)
}

fn mask(samples: usize, rate: f64, unit: Unit, layer: &str, pass: &Pass) -> Option<Mask> {
    assert!((0.0..1.0).contains(&rate), "a rate of dropout is in 0..1");
    let masks = pass.masks.as_ref()?;
    if rate == 0.0 || pass.mode == Mode::Inference {
        return None;
    }
    assert_eq!(
        samples,
        masks.samples.len(),
        "masks name every sample of the batch"
    );
    Some(Mask::new(rate, unit, layer, masks))
}

/// The values times the factors of the mask: what forward does to the input, and backward to the gradient.
pub(crate) fn apply<B: Kernels>(x: FloatTensor<B>, mask: &Mask) -> FloatTensor<B> {
    let map = x.shape().num_dims() == 4;
    // Channels last is how maps lie in memory.
    let x = if map {
        B::float_permute(x, &[0, 2, 3, 1])
    } else {
        x
    };
    let shape = x.shape();
    let elements = shape.iter().skip(1).product();
    let rows: Tensor<2> = B::lift(B::float_reshape(x, [shape[0], elements].into()));
    let factors = Tensor::from_data(mask.factors(elements), (&rows.device(), rows.dtype()));
    let y = B::float_reshape(B::lower(rows * factors), shape);
    if map {
        B::float_permute(y, &[0, 3, 1, 2])
    } else {
        y
    }
}
