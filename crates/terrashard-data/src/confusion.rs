//! Counts of right and wrong pixels, and what is told from them.

use serde::{Deserialize, Serialize};

use crate::IGNORE;

/// Right and wrong pixels of one class against all others.
///
/// Counts are whole numbers, so parts of a scene, or of several ranks, add up exactly. A ratio of nothing is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusion {
    /// Foreground, found.
    pub true_positive: u64,
    /// Background, taken for foreground.
    pub false_positive: u64,
    /// Foreground, missed.
    pub false_negative: u64,
    /// Background, left alone.
    pub true_negative: u64,
}

impl Confusion {
    /// Counts one pixel.
    pub const fn add(&mut self, predicted: bool, truth: bool) {
        match (predicted, truth) {
            (true, true) => self.true_positive += 1,
            (true, false) => self.false_positive += 1,
            (false, true) => self.false_negative += 1,
            (false, false) => self.true_negative += 1,
        }
    }

    /// Counts the pixels of a mask that are not ignored: foreground is predicted where the probability is above the
    /// threshold, and true where the mask is `class`.
    ///
    /// # Panics
    /// Where the lengths differ.
    pub fn add_probabilities(
        &mut self,
        probabilities: &[f32],
        mask: &[u8],
        class: u8,
        threshold: f32,
    ) {
        assert_eq!(
            probabilities.len(),
            mask.len(),
            "a probability for each mask pixel"
        );
        for (&p, &truth) in probabilities
            .iter()
            .zip(mask)
            .filter(|(_, truth)| **truth != IGNORE)
        {
            self.add(p > threshold, truth == class);
        }
    }

    /// Counts the pixels that neither mask ignores and that `zone`, if given, holds.
    ///
    /// # Panics
    /// Where the lengths differ.
    pub fn add_masks(&mut self, predicted: &[u8], mask: &[u8], class: u8, zone: Option<&[bool]>) {
        assert_eq!(
            predicted.len(),
            mask.len(),
            "a predicted pixel for each mask pixel"
        );
        assert!(
            zone.is_none_or(|zone| zone.len() == mask.len()),
            "a zone of the mask's size"
        );
        for (at, (&p, &truth)) in predicted.iter().zip(mask).enumerate() {
            if p != IGNORE && truth != IGNORE && zone.is_none_or(|zone| zone[at]) {
                self.add(p == class, truth == class);
            }
        }
    }

    /// Adds the counts of another part.
    pub const fn merge(&mut self, other: &Self) {
        self.true_positive += other.true_positive;
        self.false_positive += other.false_positive;
        self.false_negative += other.false_negative;
        self.true_negative += other.true_negative;
    }

    /// All counted pixels.
    pub const fn pixels(&self) -> u64 {
        self.true_positive + self.false_positive + self.false_negative + self.true_negative
    }

    /// Foreground intersection over union: TP / (TP + FP + FN).
    pub fn iou(&self) -> Option<f64> {
        ratio(
            self.true_positive,
            self.true_positive + self.false_positive + self.false_negative,
        )
    }

    /// 2 TP / (2 TP + FP + FN), which is 2 IoU / (1 + IoU).
    pub fn f1(&self) -> Option<f64> {
        ratio(
            2 * self.true_positive,
            2 * self.true_positive + self.false_positive + self.false_negative,
        )
    }

    /// Of the pixels found, those that are foreground: TP / (TP + FP).
    pub fn precision(&self) -> Option<f64> {
        ratio(self.true_positive, self.true_positive + self.false_positive)
    }

    /// Of the foreground, the pixels found: TP / (TP + FN).
    pub fn recall(&self) -> Option<f64> {
        ratio(self.true_positive, self.true_positive + self.false_negative)
    }

    /// Share of foreground among all pixels: (TP + FN) / all.
    pub fn prevalence(&self) -> Option<f64> {
        ratio(self.true_positive + self.false_negative, self.pixels())
    }

    /// TP, FP, FN, TN as doubles, exact up to 2^53: what ranks sum.
    pub const fn to_sums(&self) -> [f64; 4] {
        [
            self.true_positive as f64,
            self.false_positive as f64,
            self.false_negative as f64,
            self.true_negative as f64,
        ]
    }

    /// From the sums of [`Confusion::to_sums`].
    pub const fn from_sums(sums: [f64; 4]) -> Self {
        Self {
            true_positive: sums[0] as u64,
            false_positive: sums[1] as u64,
            false_negative: sums[2] as u64,
            true_negative: sums[3] as u64,
        }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geo_43_tells_ratios_by_hand() {
        let mut counts = Confusion::default();
        counts.add_probabilities(
            &[0.9, 0.9, 0.9, 0.5, 0.1, 0.2, 0.99],
            &[1, 1, 0, 1, 0, 0, 255],
            1,
            0.5,
        );
        let expected = Confusion {
            true_positive: 2,
            false_positive: 1,
            false_negative: 1,
            true_negative: 2,
        };
        assert_eq!(counts, expected);
        assert_eq!((counts.iou(), counts.prevalence()), (Some(0.5), Some(0.5)));
        let (iou, f1) = (
            counts.iou().expect("counted"),
            counts.f1().expect("counted"),
        );
        assert!((f1 - 2.0 * iou / (1.0 + iou)).abs() < 1e-15);
        assert_eq!(
            (counts.precision(), counts.recall()),
            (Some(2.0 / 3.0), Some(2.0 / 3.0))
        );
        assert_eq!(Confusion::from_sums(counts.to_sums()), counts);
        counts.merge(&expected);
        assert_eq!(counts.pixels(), 12);
    }

    /// User problem: an all-background prediction scored 0.99 through the background's part.
    #[test]
    fn geo_42_an_empty_prediction_scores_nothing() {
        let mut counts = Confusion::default();
        let mask: Vec<u8> = (0..1000).map(|i| u8::from(i < 10)).collect();
        counts.add_masks(&vec![0; 1000], &mask, 1, None);
        assert_eq!(
            (counts.iou(), counts.f1(), counts.precision()),
            (Some(0.0), Some(0.0), None)
        );
        assert_eq!(counts.prevalence(), Some(0.01));
        let none = Confusion::default();
        assert_eq!(
            (none.iou(), none.f1(), none.recall(), none.prevalence()),
            (None, None, None, None)
        );
    }

    #[test]
    fn a_zone_and_both_ignores_hold() {
        let mut counts = Confusion::default();
        counts.add_masks(
            &[1, 255, 1, 0],
            &[1, 1, 255, 1],
            1,
            Some(&[true, true, true, false]),
        );
        assert_eq!(
            counts,
            Confusion {
                true_positive: 1,
                ..Confusion::default()
            }
        );
    }
}
