//! The AdamW update as a pure function over flat tensors.

use burn::tensor::Tensor;

use crate::config::AdamW;

/// The moments of a flat piece of parameters.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    /// First moment, `[n]`.
    pub(crate) m: Tensor<1>,
    /// Second moment, `[n]`.
    pub(crate) v: Tensor<1>,
}

/// The numbers of one update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    pub(crate) rule: AdamW,
    /// Learning rate of the group.
    pub(crate) lr: f64,
    /// Weight decay of the group.
    pub(crate) weight_decay: f64,
    /// The step being taken, counted from 1: for the bias corrections.
    pub(crate) step: u64,
    /// Factor on the gradient: clipping and averaging.
    pub(crate) gradient_factor: f64,
}

impl Update {
    /// Parameters and moments after the update.
    ///
    /// Element-wise only, so the result of an element does not depend on how the buckets are cut: that makes stages
    /// equal bit by bit. Padding, where everything is zero, stays zero.
    ///
    /// # Shapes
    /// All `[n]`.
    pub(crate) fn apply(
        &self,
        parameter: Tensor<1>,
        gradient: Tensor<1>,
        moments: Moments,
    ) -> (Tensor<1>, Moments) {
        let AdamW {
            beta1,
            beta2,
            epsilon,
            ..
        } = self.rule;
        let gradient = match self.gradient_factor {
            1.0 => gradient,
            factor => gradient.mul_scalar(factor),
        };
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        let correction1 = 1.0 - beta1.powi(step);
        let correction2 = 1.0 - beta2.powi(step);
        let m = moments.m.mul_scalar(beta1) + gradient.clone().mul_scalar(1.0 - beta1);
        let v = moments.v.mul_scalar(beta2) + (gradient.clone() * gradient).mul_scalar(1.0 - beta2);
        let denominator = v
            .clone()
            .sqrt()
            .div_scalar(correction2.sqrt())
            .add_scalar(epsilon);
        let direction = (m.clone() / denominator).mul_scalar(self.lr / correction1);
        let parameter = parameter.mul_scalar(1.0 - self.lr * self.weight_decay) - direction;
        (parameter, Moments { m, v })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, Tensor, TensorData};

    use super::*;

    #[test]
    fn two_steps_equal_hand_computed_values() {
        let device = Device::flex();
        let tensor = |values: [f64; 2]| {
            Tensor::<1>::from_data(TensorData::from(values), (&device, DType::F64))
        };
        let rule = AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
        };
        let update = |step| Update {
            rule,
            lr: 0.1,
            weight_decay: 0.5,
            step,
            gradient_factor: 0.5,
        };
        let zero = Moments {
            m: tensor([0.0; 2]),
            v: tensor([0.0; 2]),
        };
        // Halved gradients 1 and -2. In the first step m / (1 - b1) = g and v / (1 - b2) = g^2: a move of lr against
        // the sign of g, after a decay by 1 - 0.1 * 0.5.
        let (p, moments) = update(1).apply(tensor([1.0, 2.0]), tensor([2.0, -4.0]), zero);
        let first = p.clone().into_data().try_to_vec::<f64>().unwrap();
        assert!((first[0] - 0.85).abs() < 1e-8, "{first:?}");
        assert!((first[1] - 2.0).abs() < 1e-8, "{first:?}");
        // Second step with gradients 0: m = 0.09 * g, v = 0.999 * 0.001 * g^2.
        let (p, _) = update(2).apply(p, tensor([0.0, 0.0]), moments);
        let second = p.into_data().try_to_vec::<f64>().unwrap();
        let expected = |p: f64, g: f64| {
            let m = 0.09 * g / (1.0 - 0.81);
            let v: f64 = 0.999 * 0.001 * g * g / (1.0 - 0.999 * 0.999);
            p * 0.95 - 0.1 * m / (v.sqrt() + 1e-8)
        };
        assert!(
            (second[0] - expected(first[0], 1.0)).abs() < 1e-8,
            "{second:?}"
        );
        assert!(
            (second[1] - expected(first[1], -2.0)).abs() < 1e-8,
            "{second:?}"
        );
    }
}
