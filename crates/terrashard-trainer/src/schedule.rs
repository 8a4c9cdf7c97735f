//! The learning rate of each step.

use crate::config::{Schedule, TrainSection};

/// The learning rate of the `applied`-th step that changes the parameters, counted from 1, of a run of `steps` steps.
///
/// It rises in a straight line over `warmup_steps` to `train.lr` and then falls to `train.min_lr` as the schedule says, so that
/// the step after the last would have that rate (unless it is constant). A step that is skipped because of a number that is
/// not finite does not count: the next one has the rate that it would have had.
pub fn learning_rate(train: &TrainSection, steps: u64, applied: u64) -> f64 {
    let (warmup, index) = (train.warmup_steps, applied - 1);
    if index < warmup {
        return train.lr * applied as f64 / warmup as f64;
    }
    let done = (index - warmup) as f64 / (steps - warmup) as f64;
    let left = match train.schedule {
        Schedule::Constant => return train.lr,
        Schedule::Poly => (1.0 - done).powf(train.power.unwrap_or(1.0)),
        Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
    };
    train.min_lr + (train.lr - train.min_lr) * left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(train: TrainSection, expected: [f64; 4]) {
        let train = TrainSection { lr: 8.0, ..train };
        for (step, expected) in (1..=4).zip(expected) {
            let rate = learning_rate(&train, 4, step);
            assert!(
                (rate - expected).abs() < 1e-12,
                "step {step}: {rate}, expected {expected}"
            );
        }
    }

    fn schedule(schedule: Schedule) -> TrainSection {
        TrainSection {
            schedule,
            ..TrainSection::default()
        }
    }

    #[test]
    fn rates_by_step() {
        check(schedule(Schedule::Constant), [8.0, 8.0, 8.0, 8.0]);
        check(schedule(Schedule::Poly), [8.0, 6.0, 4.0, 2.0]);
        let root = 0.5f64.sqrt();
        check(
            schedule(Schedule::Cosine),
            [8.0, 4.0 * (1.0 + root), 4.0, 4.0 * (1.0 - root)],
        );
    }

    #[test]
    fn a_warm_up_comes_first() {
        let warmed = TrainSection {
            warmup_steps: 2,
            ..schedule(Schedule::Poly)
        };
        check(warmed, [4.0, 8.0, 8.0, 4.0]);
    }

    #[test]
    fn powers_and_lowest_rates() {
        let square = TrainSection {
            power: Some(2.0),
            ..schedule(Schedule::Poly)
        };
        check(square, [8.0, 4.5, 2.0, 0.5]);
        let lifted = TrainSection {
            min_lr: 4.0,
            ..schedule(Schedule::Poly)
        };
        check(lifted, [8.0, 7.0, 6.0, 5.0]);
    }
}
