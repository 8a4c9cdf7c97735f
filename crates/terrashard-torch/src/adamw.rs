//! AdamW in one pass over parameter, gradient and moments.

use tch::Tensor;

use crate::{Result, shim};

/// The settings of one step of [AdamW](https://arxiv.org/abs/1711.05101).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// The learning rate.
    pub lr: f64,
    /// How much of each moment is kept.
    pub betas: [f64; 2],
    /// Added to the root of the variance.
    pub epsilon: f64,
    /// How much of the parameter is taken away, times the learning rate.
    pub weight_decay: f64,
    /// What the gradient is multiplied with first.
    pub gradient_factor: f64,
}

impl AdamW {
    /// Takes step number `step`, from 1: changes parameter, momentum and variance in place, and the gradient where its factor
    /// is not 1.
    ///
    /// With a gate the device decides whether and how: it may be told of the step before the host knows.
    ///
    /// # Errors
    /// [`Error::Exception`](crate::Error) if the four differ in shape, type or device.
    pub fn step(
        &self,
        step: u64,
        parameter: &mut Tensor,
        gradient: &mut Tensor,
        [momentum, variance]: [&mut Tensor; 2],
        gate: Option<&Gate>,
    ) -> Result<()> {
        shim::adamw::step(self, step, parameter, gradient, [momentum, variance], gate)
    }
}

/// What the device knows of a step, in place of [`AdamW::gradient_factor`].
///
/// # Shapes
/// `[1]` each, of 32 bits, on the device of the tensors that are stepped.
#[derive(Debug)]
pub struct Gate {
    /// By what the gradient is divided.
    pub divisor: Tensor,
    /// Where this is not 0, nothing changes.
    pub failed: Tensor,
}
