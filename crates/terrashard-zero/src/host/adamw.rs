//! AdamW in host memory.

use super::element::Element;
use super::piece::Piece;
use super::sweep::{Rule, sweep};

/// One step of AdamW (Loshchilov & Hutter, <https://arxiv.org/abs/1711.05101>), as PyTorch computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWUpdate {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Learning rate.
    pub lr: f64,
    /// Decoupled weight decay, a factor on `lr * parameter`.
    pub weight_decay: f64,
    /// The step being taken, counted from 1: for the bias corrections.
    pub step: u64,
    /// Factor on the gradient: clipping, averaging and the inverse of a loss scale.
    pub gradient_factor: f64,
}

/// The moments of a piece, both zero before the first step.
#[derive(Debug)]
pub struct MomentSlices<'a, T> {
    /// First moment, `[n]`.
    pub m: &'a mut [T],
    /// Second moment, `[n]`.
    pub v: &'a mut [T],
}

impl AdamWUpdate {
    /// Updates parameters and moments in place.
    ///
    /// # Shapes
    /// All `[n]`.
    ///
    /// # Panics
    /// If parts differ in length, or `step` is 0.
    pub fn apply<T: Element>(&self, piece: Piece<'_, T>, moments: MomentSlices<'_, T>) {
        assert!(self.step > 0, "steps count from 1");
        sweep(&self.rule::<T>(), piece, [moments.m, moments.v]);
    }

    /// What is the same for all elements, computed in f64 and rounded once.
    pub(super) fn rule<T: Element>(&self) -> AdamWRule<T> {
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        let correction1 = 1.0 - self.beta1.powi(step);
        let correction2 = 1.0 - self.beta2.powi(step);
        AdamWRule {
            gradient_factor: T::of(self.gradient_factor),
            keep: T::of(1.0 - self.lr * self.weight_decay),
            beta1: T::of(self.beta1),
            rest1: T::of(1.0 - self.beta1),
            beta2: T::of(self.beta2),
            rest2: T::of(1.0 - self.beta2),
            root_factor: T::of(correction2.sqrt().recip()),
            epsilon: T::of(self.epsilon),
            rate: T::of(self.lr / correction1),
        }
    }
}

pub(super) struct AdamWRule<T> {
    gradient_factor: T,
    keep: T,
    beta1: T,
    rest1: T,
    beta2: T,
    rest2: T,
    root_factor: T,
    epsilon: T,
    rate: T,
}

impl<T: Element> Rule<T, 2> for AdamWRule<T> {
    #[inline(always)]
    fn element(&self, parameter: T, gradient: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let gradient = gradient * self.gradient_factor;
        let m = m * self.beta1 + gradient * self.rest1;
        let v = v * self.beta2 + gradient * gradient * self.rest2;
        let denominator = v.sqrt() * self.root_factor + self.epsilon;
        let parameter = parameter * self.keep - m / denominator * self.rate;
        (parameter, [m, v])
    }
}

#[cfg(test)]
mod tests {
    use super::super::piece::Gradient;
    use super::*;

    const RULE: AdamWUpdate = AdamWUpdate {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        lr: 0.1,
        weight_decay: 0.5,
        step: 1,
        gradient_factor: 0.5,
    };

    #[test]
    fn two_steps_equal_hand_computed_values() {
        let (mut p, mut m, mut v) = ([1.0f64, 2.0], [0.0; 2], [0.0; 2]);
        let mut step = |step, gradient: [f64; 2]| {
            let moments = MomentSlices {
                m: &mut m,
                v: &mut v,
            };
            AdamWUpdate { step, ..RULE }
                .apply(Piece::new(&mut p, Gradient::Full(&gradient)), moments);
            p
        };
        // Halved gradients 1 and -2. In the first step m / (1 - b1) = g and v / (1 - b2) = g^2: a move of lr against
        // the sign of g, after a decay by 1 - 0.1 * 0.5.
        let first = step(1, [2.0, -4.0]);
        assert!((first[0] - 0.85).abs() < 1e-8, "{first:?}");
        assert!((first[1] - 2.0).abs() < 1e-8, "{first:?}");
        // Second step with gradients 0: m = 0.09 * g, v = 0.999 * 0.001 * g^2.
        let second = step(2, [0.0; 2]);
        let expected = |p: f64, g: f64| {
            let m = 0.09 * g / (1.0 - 0.81);
            let v: f64 = 0.999 * 0.001 * g * g / (1.0 - 0.999 * 0.999);
            p * 0.95 - 0.1 * m / (v.sqrt() + 1e-8)
        };
        assert!(
            (second[0] - expected(first[0], 1.0)).abs() < 1e-12,
            "{second:?}"
        );
        assert!(
            (second[1] - expected(first[1], -2.0)).abs() < 1e-12,
            "{second:?}"
        );
        assert!(
            (m[0] - 0.09).abs() < 1e-15 && (m[1] + 0.18).abs() < 1e-15,
            "{m:?}"
        );
        assert!((v[0] - 9.99e-4).abs() < 1e-15, "{v:?}");
    }

    /// Twenty steps of algorithm 2 of the paper, written out for one parameter in f64 with everything divided where the
    /// paper divides.
    fn written_out(start: f64, gradient: impl Fn(u64) -> f64) -> f64 {
        let (mut p, mut m, mut v) = (start, 0.0, 0.0);
        for t in 1..=20 {
            let g = 0.5 * gradient(t);
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            let m_hat = m / (1.0 - 0.9f64.powi(t as i32));
            let v_hat: f64 = v / (1.0 - 0.999f64.powi(t as i32));
            p -= 0.1 * (m_hat / (v_hat.sqrt() + 1e-8) + 0.5 * p);
        }
        p
    }

    fn check<T: Element + Into<f64>>(tolerance: f64) {
        const N: usize = 37;
        let start = |i: usize| (i as f64 - 18.0) / 7.0;
        let gradient = |i: usize, t: u64| {
            ((i * 31) as f64 + 5.0 * t as f64).sin() * 2f64.powi(i as i32 % 9 - 4)
        };
        let mut p: Vec<T> = (0..N).map(|i| T::of(start(i))).collect();
        let (mut m, mut v) = (vec![T::ZERO; N], vec![T::ZERO; N]);
        for step in 1..=20 {
            let g: Vec<T> = (0..N).map(|i| T::of(gradient(i, step))).collect();
            let moments = MomentSlices {
                m: &mut m,
                v: &mut v,
            };
            AdamWUpdate { step, ..RULE }.apply(Piece::new(&mut p, Gradient::Full(&g)), moments);
        }
        for (i, p) in p.into_iter().enumerate() {
            let (p, expected) = (p.into(), written_out(start(i), |t| gradient(i, t)));
            assert!((p - expected).abs() < tolerance, "{i}: {p} for {expected}");
        }
    }

    #[test]
    fn twenty_steps_equal_the_paper() {
        check::<f64>(1e-13);
        check::<f32>(2e-6);
    }

    #[test]
    fn many_steps_leave_no_correction() {
        let (mut p, mut m, mut v) = ([1f32], [0.0], [0.0]);
        let late = AdamWUpdate {
            step: u64::MAX,
            weight_decay: 0.0,
            gradient_factor: 1.0,
            ..RULE
        };
        let moments = MomentSlices {
            m: &mut m,
            v: &mut v,
        };
        late.apply(Piece::new(&mut p, Gradient::Full(&[2.0])), moments);
        // m = 0.2, v = 0.004: a move of 0.1 * 0.2 / 0.0632456.
        assert!(
            (p[0] - (1.0 - 0.02 / 0.004f32.sqrt())).abs() < 1e-6,
            "{p:?}"
        );
    }

    #[test]
    #[should_panic(expected = "steps count from 1")]
    fn there_is_no_step_zero() {
        let moments = MomentSlices {
            m: &mut [0.0],
            v: &mut [0.0],
        };
        let update = AdamWUpdate { step: 0, ..RULE };
        update.apply(Piece::new(&mut [1f32], Gradient::Full(&[2.0])), moments);
    }
}
