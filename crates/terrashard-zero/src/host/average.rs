//! The exponential moving average of the weights.

use super::element::Element;

/// A moving average that follows the parameters: `decay * average + (1 - decay) * parameter`, after the update.
#[derive(Debug)]
pub struct Average<'a, T> {
    /// The average, `[n]`.
    pub values: &'a mut [T],
    /// What is kept of it in one step, in `0..1`.
    pub decay: f64,
}

impl<'a, T: Element> Average<'a, T> {
    /// The two parts on either side of `at`.
    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        let decay = self.decay;
        let (left, right) = self.values.split_at_mut(at);
        let part = |values| Average { values, decay };
        (part(left), part(right))
    }

    /// Lets the elements from `at` on follow `parameters`.
    #[inline(always)]
    pub(super) fn follow(&mut self, at: usize, parameters: &[T]) {
        let (keep, take) = (T::of(self.decay), T::of(1.0 - self.decay));
        let values = &mut self.values[at..at + parameters.len()];
        for (value, parameter) in values.iter_mut().zip(parameters) {
            *value = keep * *value + take * *parameter;
        }
    }
}
