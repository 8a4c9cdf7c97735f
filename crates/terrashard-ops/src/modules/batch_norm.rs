//! Normalisation over the batch, with running statistics that are no parameters.

use crate::{BatchStatistics, Initial, Mode, Pass, batch_norm, batch_sums, parameter};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The running statistics of a [`BatchNorm`].
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// `[channels]`; zeros at first.
    pub mean: Vec<f64>,
    /// `[channels]`, unbiased; ones at first.
    pub variance: Vec<f64>,
}

/// Batch normalisation of `[N, C, H, W]` ([Ioffe and Szegedy 2015](https://arxiv.org/abs/1502.03167)).
///
/// Clones share the running statistics, so a clone whose parameters were fetched for a forward pass moves those of the model.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// `[channels]`.
    pub weight: Param<Tensor<1>>,
    /// `[channels]`.
    pub bias: Param<Tensor<1>>,
    epsilon: f64,
    momentum: f64,
    #[module(skip)]
    running: Arc<Mutex<Running>>,
}

impl BatchNorm {
    /// Epsilon 1e-5, momentum 0.1, as everywhere.
    pub fn new(channels: usize, device: &Device) -> Self {
        Self {
            weight: parameter::lazy([channels], Initial::Ones, device),
            bias: parameter::lazy([channels], Initial::Zeros, device),
            epsilon: 1e-5,
            momentum: 0.1,
            running: Arc::new(Mutex::new(Running {
                mean: vec![0.0; channels],
                variance: vec![1.0; channels],
            })),
        }
    }

    /// A copy of the running statistics.
    pub fn running(&self) -> Running {
        self.lock().clone()
    }

    /// Replaces the running statistics. The lengths are those of [`BatchNorm::running`].
    pub fn set_running(&self, running: Running) {
        let mut own = self.lock();
        assert_eq!(
            own.mean.len(),
            running.mean.len(),
            "running mean of another number of channels"
        );
        assert_eq!(
            own.variance.len(),
            running.variance.len(),
            "running variance of another number of channels"
        );
        *own = running;
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        // A panic elsewhere cannot leave the two vectors half written: they are replaced as a whole.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the normalisation. In training the statistics are those of the batch, added over the pass's ranks by their
    /// counts; where no rank has a value, nothing moves.
    ///
    /// # Shapes
    /// `[N, channels, H, W]`, kept.
    pub fn forward(&self, x: Tensor<4>, pass: &Pass) -> Tensor<4> {
        let statistics = match pass.mode {
            Mode::Training => {
                let statistics = self.of_batch(&x, pass);
                self.follow(&statistics);
                statistics
            }
            Mode::Recomputing => self.of_batch(&x, pass),
            Mode::Inference => {
                let Running { mean, variance } = self.running();
                BatchStatistics::fixed(mean, variance, self.epsilon)
            }
        };
        batch_norm(x, self.weight.val(), self.bias.val(), statistics)
    }

    fn of_batch(&self, x: &Tensor<4>, pass: &Pass) -> BatchStatistics {
        let mut sums = batch_sums(x.clone());
        pass.ranks.sum(&mut sums);
        BatchStatistics::from_sums(&sums, self.epsilon, pass.ranks.clone())
    }

    /// Moves the running statistics towards those of a batch.
    fn follow(&self, batch: &BatchStatistics) {
        if batch.count == 0.0 {
            return;
        }
        let unbiased = batch.count / (batch.count - 1.0).max(1.0);
        let moved = |old: &[f64], new: &mut dyn Iterator<Item = f64>| {
            old.iter()
                .zip(new)
                .map(|(old, new)| old + self.momentum * (new - old))
                .collect()
        };
        let mut running = self.lock();
        *running = Running {
            mean: moved(&running.mean, &mut batch.mean.iter().copied()),
            variance: moved(
                &running.variance,
                &mut batch.variance.iter().map(|v| v * unbiased),
            ),
        };
    }
}
