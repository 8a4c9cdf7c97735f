//! Labels as they are stored: one byte a pixel.

use crate::IGNORE;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use std::sync::Arc;

/// Labels of a batch, one `u8` a pixel: the class (0 or 1 for a binary task), or [`IGNORE`].
#[derive(Debug, Clone)]
pub struct Labels {
    values: Tensor<3, Int>,
    /// Pixels of each label.
    counts: Arc<[u64; 256]>,
}

impl Labels {
    /// Labels in the order `[N, H, W]`.
    ///
    /// # Panics
    /// If the number of values is not that of the shape.
    pub fn new(values: Vec<u8>, shape: [usize; 3], device: &Device) -> Self {
        assert_eq!(
            values.len(),
            shape.iter().product::<usize>(),
            "one label for each pixel of {shape:?}"
        );
        let mut counts = [0; 256];
        values
            .iter()
            .for_each(|label| counts[usize::from(*label)] += 1);
        let data = TensorData::new(values, shape);
        // Labels are never differentiated, so they stay on the plain device.
        let values = Tensor::from_data(data, (&device.clone().inner(), DType::U8));
        Self {
            values,
            counts: Arc::new(counts),
        }
    }

    /// Labels that are on a device already, `[N, H, W]`, with how many pixels have each: nobody counts again.
    ///
    /// # Panics
    /// If the counts are not of as many pixels.
    pub fn counted(values: Tensor<3, Int>, counts: [u64; 256]) -> Self {
        assert_eq!(
            counts.iter().sum::<u64>(),
            values.shape().num_elements() as u64,
            "each pixel is counted once"
        );
        Self {
            values,
            counts: Arc::new(counts),
        }
    }

    /// The labels `[N, H, W]`, on the plain device.
    pub fn tensor(&self) -> &Tensor<3, Int> {
        &self.values
    }

    /// `[N, H, W]`.
    pub fn shape(&self) -> [usize; 3] {
        self.values.dims()
    }

    /// How many pixels are not ignored.
    pub fn valid(&self) -> u64 {
        self.counts.iter().sum::<u64>() - self.of(IGNORE)
    }

    /// How many pixels are of another class than 0.
    pub fn positive(&self) -> u64 {
        self.valid() - self.of(0)
    }

    /// How many pixels have this label.
    pub fn of(&self, label: u8) -> u64 {
        self.counts[usize::from(label)]
    }

    /// The largest label of a pixel that is not ignored.
    pub fn largest(&self) -> Option<u8> {
        (0..IGNORE).rev().find(|label| self.of(*label) > 0)
    }
}
