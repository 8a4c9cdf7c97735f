//! Stochastic gradient descent in host memory.

use super::element::Element;
use super::piece::Piece;
use super::sweep::{Rule, sweep};

/// One step of stochastic gradient descent with momentum, as `torch.optim.SGD` without dampening computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdUpdate {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the momentum; 0 for none.
    pub momentum: f64,
    /// Coupled weight decay: this times the parameter is added to the gradient.
    pub weight_decay: f64,
    /// Whether the step looks ahead by the momentum just computed (Sutskever et al.,
    /// <https://proceedings.mlr.press/v28/sutskever13.html>).
    pub nesterov: bool,
    /// Factor on the gradient: clipping, averaging and the inverse of a loss scale.
    pub gradient_factor: f64,
}

impl SgdUpdate {
    /// Updates parameters and momentum in place. `momentum` is zero before the first step, which makes that step
    /// PyTorch's, where the momentum begins as the gradient.
    ///
    /// # Shapes
    /// All `[n]`.
    ///
    /// # Panics
    /// If parts differ in length, or if there is a `momentum` exactly where the rule has none.
    pub fn apply<T: Element>(&self, piece: Piece<'_, T>, momentum: Option<&mut [T]>) {
        let has_momentum = self.momentum != 0.0;
        assert_eq!(
            momentum.is_some(),
            has_momentum,
            "a state if the rule has one"
        );
        let rule = self.rule::<T>();
        match (momentum, self.nesterov) {
            (None, _) => sweep(&rule, piece, []),
            (Some(state), false) => sweep(&rule, piece, [state]),
            (Some(state), true) => sweep(&Nesterov(rule), piece, [state]),
        }
    }

    /// What is the same for all elements, rounded once.
    pub(super) fn rule<T: Element>(&self) -> SgdRule<T> {
        SgdRule {
            gradient_factor: T::of(self.gradient_factor),
            weight_decay: T::of(self.weight_decay),
            decay: T::of(self.momentum),
            rate: T::of(self.lr),
        }
    }
}

/// Along the gradient without a state, along the momentum with one.
pub(super) struct SgdRule<T> {
    gradient_factor: T,
    weight_decay: T,
    decay: T,
    rate: T,
}

impl<T: Element> SgdRule<T> {
    #[inline(always)]
    fn direction(&self, parameter: T, gradient: T) -> T {
        gradient * self.gradient_factor + parameter * self.weight_decay
    }
}

impl<T: Element> Rule<T, 0> for SgdRule<T> {
    #[inline(always)]
    fn element(&self, parameter: T, gradient: T, _: [T; 0]) -> (T, [T; 0]) {
        let direction = self.direction(parameter, gradient);
        (parameter - direction * self.rate, [])
    }
}

impl<T: Element> Rule<T, 1> for SgdRule<T> {
    #[inline(always)]
    fn element(&self, parameter: T, gradient: T, [momentum]: [T; 1]) -> (T, [T; 1]) {
        let momentum = momentum * self.decay + self.direction(parameter, gradient);
        (parameter - momentum * self.rate, [momentum])
    }
}

/// Along the gradient and the momentum that follows from it.
pub(super) struct Nesterov<T>(pub(super) SgdRule<T>);

impl<T: Element> Rule<T, 1> for Nesterov<T> {
    #[inline(always)]
    fn element(&self, parameter: T, gradient: T, [momentum]: [T; 1]) -> (T, [T; 1]) {
        let Self(rule) = self;
        let direction = rule.direction(parameter, gradient);
        let momentum = momentum * rule.decay + direction;
        let ahead = direction + momentum * rule.decay;
        (parameter - ahead * rule.rate, [momentum])
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::super::piece::Gradient;
    use super::*;

    /// Three steps from 1 with gradients 2, 1 and -4, halved.
    fn steps<T: Element + Into<f64>>(rule: SgdUpdate) -> [f64; 3] {
        let (mut p, mut state) = ([T::of(1.0)], [T::ZERO]);
        [2.0, 1.0, -4.0].map(|gradient| {
            let gradient = [f16::from_f64(gradient)];
            let piece = Piece::new(&mut p, Gradient::F16(&gradient));
            rule.apply(piece, (rule.momentum != 0.0).then_some(&mut state));
            p[0].into()
        })
    }

    fn check(momentum: f64, nesterov: bool, expected: [f64; 3]) {
        let rule = SgdUpdate {
            lr: 0.1,
            momentum,
            weight_decay: 0.5,
            nesterov,
            gradient_factor: 0.5,
        };
        for (step, expected) in expected.into_iter().enumerate() {
            let (f64, f32) = (steps::<f64>(rule)[step], steps::<f32>(rule)[step]);
            assert!(
                (f64 - expected).abs() < 1e-15,
                "{step}: {f64} for {expected}"
            );
            assert!(
                (f32 - expected).abs() < 1e-7,
                "{step}: {f32} for {expected}"
            );
        }
    }

    #[test]
    fn without_momentum_equals_hand_computed_values() {
        // Directions 1 + 0.5 * 1 = 1.5; 0.5 + 0.5 * 0.85 = 0.925; -2 + 0.5 * 0.7575 = -1.62125.
        check(0.0, false, [0.85, 0.7575, 0.919625]);
    }

    #[test]
    fn with_momentum_equals_hand_computed_values() {
        // Momentum 1.5; 0.5 * 1.5 + 0.925 = 1.675; with p = 0.6825, 0.5 * 1.675 - 2 + 0.34125 = -0.82125.
        check(0.5, false, [0.85, 0.6825, 0.764625]);
    }

    #[test]
    fn nesterov_equals_hand_computed_values() {
        // Momentum 1.5, ahead 1.5 + 0.75 = 2.25, p = 0.775. Direction 0.5 + 0.3875 = 0.8875, momentum 1.6375, ahead
        // 0.8875 + 0.81875 = 1.70625, p = 0.604375. Direction -2 + 0.3021875 = -1.6978125, momentum -0.8790625, ahead
        // -1.6978125 - 0.43953125 = -2.13734375.
        check(0.5, true, [0.775, 0.604375, 0.818109375]);
    }

    #[test]
    #[should_panic(expected = "a state if the rule has one")]
    fn a_rule_with_momentum_needs_its_state() {
        let rule = SgdUpdate {
            lr: 0.1,
            momentum: 0.9,
            weight_decay: 0.0,
            nesterov: false,
            gradient_factor: 1.0,
        };
        rule.apply(Piece::new(&mut [1f32], Gradient::Full(&[2.0])), None);
    }
}
