//! The learning rate of each step.

use crate::config::{Schedule, TrainSection};

/// The learning rate of `step`, counted from 1 to `train.steps`.
///
/// It rises in a straight line over `warmup_steps` to `train.lr` and then falls as the schedule says, so that the
/// step after the last would have rate 0 (unless it is constant).
pub fn learning_rate(train: &TrainSection, step: u64) -> f64 {
    let (warmup, index) = (train.warmup_steps, step - 1);
    if index < warmup {
        return train.lr * step as f64 / warmup as f64;
    }
    let done = (index - warmup) as f64 / (train.steps - warmup) as f64;
    let factor = match train.schedule {
        Schedule::Constant => 1.0,
        Schedule::Poly => 1.0 - done,
        Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
    };
    train.lr * factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schedule: Schedule, warmup_steps: u64, expected: [f64; 4]) {
        let train = TrainSection {
            steps: 4,
            lr: 8.0,
            schedule,
            warmup_steps,
            ..TrainSection::default()
        };
        for (step, expected) in (1..=4).zip(expected) {
            let rate = learning_rate(&train, step);
            assert!(
                (rate - expected).abs() < 1e-12,
                "step {step}: {rate}, expected {expected}"
            );
        }
    }

    #[test]
    fn rates_by_step() {
        check(Schedule::Constant, 0, [8.0, 8.0, 8.0, 8.0]);
        check(Schedule::Poly, 0, [8.0, 6.0, 4.0, 2.0]);
        check(Schedule::Poly, 2, [4.0, 8.0, 8.0, 4.0]);
        check(
            Schedule::Cosine,
            0,
            [
                8.0,
                4.0 * (1.0 + 0.5f64.sqrt()),
                4.0,
                4.0 * (1.0 - 0.5f64.sqrt()),
            ],
        );
    }
}
