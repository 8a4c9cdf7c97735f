//! Labels as they are stored: one byte a pixel.

use crate::IGNORE;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// Labels of a batch, one `u8` a pixel: the class (0 or 1 for a binary task), or [`IGNORE`].
#[derive(Debug, Clone)]
pub struct Labels {
    values: Tensor<3, Int>,
    valid: u64,
    positive: u64,
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
        let valid = values.iter().filter(|label| **label != IGNORE).count() as u64;
        let positive = values
            .iter()
            .filter(|label| **label != IGNORE && **label != 0)
            .count() as u64;
        let data = TensorData::new(values, shape);
        // Labels are never differentiated, so they stay on the plain device.
        let values = Tensor::from_data(data, (&device.clone().inner(), DType::U8));
        Self {
            values,
            valid,
            positive,
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
        self.valid
    }

    /// How many pixels are of another class than 0.
    pub fn positive(&self) -> u64 {
        self.positive
    }
}
