//! The segmentation enlarged step by step: nearest, a convolution, Mish; `tail.up`.
//!
//! A block begins with the activation of what the one before made, so that what stands between blocks are convolutions' outputs.

use crate::blocks::BlockInfo;
use crate::config::ModelConfig;
use crate::scope::{Scope, take};
use burn::tensor::{Device, Tensor};
use terrashard_ops::{Activation, Conv2d, ConvShape, Enlarged, Factor, activate};

/// Steps of x2 after which a map is at the input's resolution: the head works at a quarter of it.
const TO_INPUT: usize = 2;

/// The factors of the steps, four times the scale together: x2 as often as that can be halved, then what is left; of a rest of 5
/// another x2, and x2.5.
pub(crate) fn factors(scale: usize) -> Vec<Factor> {
    let whole = 4 * scale;
    let halvings = whole.trailing_zeros() as usize;
    let mut factors = vec![Factor::Whole(2); halvings];
    match whole >> halvings {
        1 => {}
        5 => factors.extend([Factor::Whole(2), Factor::FiveHalves]),
        rest => factors.push(Factor::Whole(rest)),
    }
    factors
}

/// One convolution a step. Channels halve, but never below 2 or the number of classes.
pub(crate) fn convolutions(config: &ModelConfig, steps: usize, device: &Device) -> Vec<Conv2d> {
    let channels = |step: usize| match step {
        0 => config.head_outputs,
        step if step == steps => config.classes,
        step => (config.head_outputs >> step).max(2).max(config.classes),
    };
    (0..steps)
        .map(|step| {
            let (inputs, outputs) = (channels(step), channels(step + 1));
            Conv2d::new(inputs, outputs, 3, ConvShape::SAME_3X3, device)
        })
        .collect()
}

fn name(step: usize) -> String {
    format!("tail.up.{step}")
}

/// The blocks in the order of [`forward`].
pub(crate) fn list(up: &[Conv2d]) -> impl Iterator<Item = BlockInfo> {
    let steps = up.iter().enumerate();
    steps.map(|(step, convolution)| BlockInfo::new(name(step), convolution))
}

/// The map at the input's resolution and the final one.
pub(crate) fn forward(
    up: &[Conv2d],
    factors: &[Factor],
    head: Tensor<4>,
    scope: &impl Scope,
) -> (Tensor<4>, Enlarged) {
    let (mut x, mut low) = (head, None);
    for (step, (convolution, factor)) in up.iter().zip(factors).enumerate() {
        let factor = *factor;
        x = scope.block(
            &name(step),
            convolution,
            vec![x],
            move |convolution, x, _| {
                let [x] = take(x);
                let x = match step {
                    0 => x,
                    _ => activate(x, Activation::Mish),
                };
                convolution.forward_upsampled(x, factor)
            },
        );
        if step + 1 == TO_INPUT {
            low = Some(x.clone());
        }
    }
    // Four times any scale can be halved twice.
    (low.unwrap_or_else(|| x.clone()), x.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_multiply_to_four_times_the_scale() {
        let two = Factor::Whole(2);
        assert_eq!(factors(5), [two, two, two, Factor::FiveHalves]);
        assert_eq!(factors(1), [two, two]);
        assert_eq!(factors(3), [two, two, Factor::Whole(3)]);
        for scale in 1..=64 {
            let size = factors(scale)
                .into_iter()
                .fold(8, |size, factor| factor.output(size));
            assert_eq!(size, 8 * 4 * scale);
        }
    }
}
