//! Running a block twice with one sum over ranks: the first run records, the second replays.

use crate::SumOverRanks;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Sums over ranks, and keeps every result for a second run of the same block.
#[derive(Debug)]
pub struct Recorder {
    live: Arc<dyn SumOverRanks>,
    sums: Mutex<Vec<Vec<f64>>>,
}

impl Recorder {
    /// A recorder of what `live` sums.
    pub fn new(live: Arc<dyn SumOverRanks>) -> Self {
        Self {
            live,
            sums: Mutex::default(),
        }
    }

    /// The sums so far, in order. Taken right after a block's forward, they are what [`Replay`] needs.
    pub fn recorded(&self) -> Vec<Vec<f64>> {
        let sums = self.sums.lock();
        // Nothing is half done while the lock is held.
        sums.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl SumOverRanks for Recorder {
    fn sum(&self, values: &mut [f64]) {
        self.live.sum(values);
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.push(values.to_vec());
    }
}

/// Gives back the sums of a first run, in order. When they are used up, which is when the second run's forward is over, it
/// sums over ranks again: the sums of backward are taken for the first time.
#[derive(Debug)]
pub struct Replay {
    recorded: Mutex<VecDeque<Vec<f64>>>,
    live: Arc<dyn SumOverRanks>,
}

impl Replay {
    /// A replay of [`Recorder::recorded`], then `live`.
    pub fn new(recorded: Vec<Vec<f64>>, live: Arc<dyn SumOverRanks>) -> Self {
        Self {
            recorded: Mutex::new(recorded.into()),
            live,
        }
    }
}

impl SumOverRanks for Replay {
    /// # Panics
    /// If a recorded sum is of another length: then the second run is not that of the same block.
    fn sum(&self, values: &mut [f64]) {
        let next = {
            let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            recorded.pop_front()
        };
        match next {
            Some(sums) => {
                assert_eq!(
                    sums.len(),
                    values.len(),
                    "a block asks for the same sums when it is run again"
                );
                values.copy_from_slice(&sums);
            }
            None => self.live.sum(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds one to every value, so that each sum that is taken shows.
    #[derive(Debug)]
    struct Increment;

    impl SumOverRanks for Increment {
        fn sum(&self, values: &mut [f64]) {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
    }

    #[test]
    fn recorded_sums_come_back_in_order_and_later_ones_are_live() {
        let recorder = Recorder::new(Arc::new(Increment));
        recorder.sum(&mut [1.0, 2.0]);
        recorder.sum(&mut [5.0]);
        assert_eq!(recorder.recorded(), [vec![2.0, 3.0], vec![6.0]]);

        let replay = Replay::new(recorder.recorded(), Arc::new(Increment));
        let sum = |mut values: Vec<f64>| {
            replay.sum(&mut values);
            values
        };
        assert_eq!(sum(vec![0.0; 2]), [2.0, 3.0]);
        assert_eq!(sum(vec![0.0]), [6.0]);
        assert_eq!(sum(vec![0.0; 3]), [1.0; 3]);
    }

    #[test]
    #[should_panic(expected = "asks for the same sums")]
    fn a_sum_of_another_length_is_another_block() {
        Replay::new(vec![vec![1.0]], Arc::new(Increment)).sum(&mut [0.0; 2]);
    }
}
