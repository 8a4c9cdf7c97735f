//! Counts of pixels by their true class and the one that was predicted.

use crate::{Confusion, IGNORE};

/// How many pixels of each class were taken for each class. Whole numbers, so parts and ranks add up exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfusionMatrix {
    classes: usize,
    /// `[truth, predicted]`.
    counts: Vec<u64>,
}

impl ConfusionMatrix {
    /// Of this many classes, nothing counted.
    pub fn new(classes: usize) -> Self {
        Self {
            classes,
            counts: vec![0; classes * classes],
        }
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Counts the pixels that neither mask ignores.
    ///
    /// # Panics
    /// Where the lengths differ or a value is neither a class nor [`IGNORE`].
    pub fn add_masks(&mut self, predicted: &[u8], mask: &[u8]) {
        assert_eq!(
            predicted.len(),
            mask.len(),
            "a predicted pixel for each mask pixel"
        );
        for (&p, &truth) in predicted.iter().zip(mask) {
            if p != IGNORE && truth != IGNORE {
                let (p, truth) = (usize::from(p), usize::from(truth));
                assert!(
                    p < self.classes && truth < self.classes,
                    "classes below {}",
                    self.classes
                );
                self.counts[truth * self.classes + p] += 1;
            }
        }
    }

    /// Counts pixels of one class that were taken for one class.
    ///
    /// # Panics
    /// Where there are fewer classes.
    pub fn add_pixels(&mut self, truth: usize, predicted: usize, pixels: u64) {
        assert!(
            truth.max(predicted) < self.classes,
            "classes below {}",
            self.classes
        );
        self.counts[truth * self.classes + predicted] += pixels;
    }

    /// Adds the counts of another part.
    ///
    /// # Panics
    /// Where it has other classes.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.classes, other.classes, "the same classes");
        self.counts
            .iter_mut()
            .zip(&other.counts)
            .for_each(|(sum, count)| *sum += count);
    }

    /// Pixels of one class that were taken for one class.
    pub fn count(&self, truth: usize, predicted: usize) -> u64 {
        self.counts[truth * self.classes + predicted]
    }

    /// All counted pixels.
    pub fn pixels(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// One class against all others.
    pub fn of_class(&self, class: usize) -> Confusion {
        let true_positive = self.count(class, class);
        let truth: u64 = (0..self.classes).map(|p| self.count(class, p)).sum();
        let predicted: u64 = (0..self.classes).map(|t| self.count(t, class)).sum();
        Confusion {
            true_positive,
            false_positive: predicted - true_positive,
            false_negative: truth - true_positive,
            true_negative: self.pixels() + true_positive - truth - predicted,
        }
    }

    /// The mean over classes of a ratio, over those that have one; `None` where no class has.
    ///
    /// `mean(Confusion::iou)` is the mean IoU over the classes that are in the mask or in the prediction.
    pub fn mean(&self, ratio: impl Fn(&Confusion) -> Option<f64>) -> Option<f64> {
        let ratios: Vec<f64> = (0..self.classes)
            .filter_map(|class| ratio(&self.of_class(class)))
            .collect();
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_counted_by_hand() {
        let mut matrix = ConfusionMatrix::new(4);
        // Truth 0: 3 right, 1 taken for 1. Truth 1: 1 right. Truth 2: taken for 0 and 1. Class 3 is nowhere.
        let truth = [0, 0, 0, 0, 1, 2, 2, IGNORE, 0];
        let predicted = [0, 0, 0, 1, 1, 0, 1, 2, IGNORE];
        matrix.add_masks(&predicted, &truth);
        assert_eq!(matrix.pixels(), 7);
        assert_eq!((matrix.count(0, 1), matrix.count(1, 0)), (1, 0));
        let of = |class| {
            let c = matrix.of_class(class);
            [
                c.true_positive,
                c.false_positive,
                c.false_negative,
                c.true_negative,
            ]
        };
        assert_eq!(of(0), [3, 1, 1, 2]);
        assert_eq!(of(1), [1, 2, 0, 4]);
        assert_eq!(of(2), [0, 0, 2, 5]);
        assert_eq!(of(3), [0, 0, 0, 7]);
        // 3/5, 1/3 and 0; the class that is nowhere has none.
        let mean = matrix.mean(Confusion::iou).expect("three classes");
        assert!((mean - (0.6 + 1.0 / 3.0) / 3.0).abs() < 1e-15);
        assert_eq!(matrix.of_class(3).iou(), None);
        let mut twice = matrix.clone();
        twice.merge(&matrix);
        assert_eq!(twice.pixels(), 14);
        assert_eq!(twice.mean(Confusion::iou), Some(mean));
    }

    #[test]
    fn of_two_classes_it_is_the_binary_count() {
        let mask: Vec<u8> = (0..200).map(|i| [0, 1, 1, IGNORE][i % 4]).collect();
        let predicted: Vec<u8> = (0..200).map(|i| u8::from(i % 3 == 0)).collect();
        let mut matrix = ConfusionMatrix::new(2);
        matrix.add_masks(&predicted, &mask);
        let mut binary = Confusion::default();
        binary.add_masks(&predicted, &mask, 1, None);
        assert_eq!(matrix.of_class(1), binary);
    }

    #[test]
    fn nothing_has_no_mean() {
        assert_eq!(ConfusionMatrix::new(3).mean(Confusion::iou), None);
    }
}
