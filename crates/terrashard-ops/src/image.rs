//! Images to compare with, as they are stored.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// What digital numbers stand for: reflectance `(number + offset) * scale`, in single precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coding {
    /// Added to the number.
    pub offset: f32,
    /// Reflectance of one.
    pub scale: f32,
    /// The number that stands for "no data", instead of for a reflectance.
    pub missing: u16,
}

/// An image `[N, C, H, W]` that is learned. It is never differentiated, and lives on the plain device.
#[derive(Debug, Clone)]
pub enum Image {
    /// Reflectance in any float type; NaN is missing.
    Reflectance(Tensor<4>),
    /// Digital numbers from 0 to 65535, which no backend has a type for: their bits as those of `i16`, so that 65535 is -1.
    Numbers(Tensor<4, Int>, Coding),
}

impl Image {
    /// Digital numbers in the order `[N, C, H, W]`.
    ///
    /// # Panics
    /// If the number of values is not that of the shape.
    pub fn numbers(values: Vec<u16>, shape: [usize; 4], coding: Coding, device: &Device) -> Self {
        let bits: Vec<i16> = bytemuck::cast_vec(values);
        let bits = TensorData::new(bits, shape);
        let device = device.clone().inner();
        Self::Numbers(Tensor::from_data(bits, (&device, DType::I16)), coding)
    }

    /// `[N, C, H, W]`.
    pub fn dims(&self) -> [usize; 4] {
        match self {
            Self::Reflectance(values) => values.dims(),
            Self::Numbers(bits, _) => bits.dims(),
        }
    }

    /// Some of its samples.
    #[must_use]
    pub fn samples(&self, start: usize, count: usize) -> Self {
        match self {
            Self::Reflectance(values) => Self::Reflectance(values.clone().narrow(0, start, count)),
            Self::Numbers(bits, coding) => {
                Self::Numbers(bits.clone().narrow(0, start, count), *coding)
            }
        }
    }

    /// Reflectance, of a float type as it is and of numbers in 32 bits; NaN is missing.
    pub fn reflectance(&self) -> Tensor<4> {
        match self {
            Self::Reflectance(values) => values.clone(),
            Self::Numbers(bits, coding) => {
                let missing = bits.clone().equal_elem(coding.bits_of_missing());
                let numbers = bits.clone().float().cast(DType::F32);
                let negative = numbers.clone().lower_elem(0.0);
                let wrapped = numbers.clone() + 65_536.0;
                let numbers = numbers.mask_where(negative, wrapped);
                ((numbers + coding.offset) * coding.scale).mask_fill(missing, f32::NAN)
            }
        }
    }

    /// How many values are missing. An image is larger than anything else that a step holds, so nothing of its size is made.
    pub fn missing(&self) -> u64 {
        if self.dims().contains(&0) {
            return 0;
        }
        let [samples, ..] = self.dims();
        let incomplete: Vec<usize> = match self {
            // A sample's sum tells whether any is missing.
            Self::Reflectance(values) => {
                let sums = values.clone().sum_dim(3).sum_dim(2).sum_dim(1).into_data();
                let sums = sums.iter::<f64>().enumerate();
                sums.filter(|(_, sum)| sum.is_nan())
                    .map(|(sample, _)| sample)
                    .collect()
            }
            Self::Numbers(..) => (0..samples).collect(),
        };
        let count = |sample| match self.samples(sample, 1) {
            Self::Reflectance(values) => values.is_nan().int().sum(),
            Self::Numbers(bits, coding) => {
                let missing = bits.equal_elem(coding.bits_of_missing());
                missing.int().sum()
            }
        };
        let counts: Vec<Tensor<1, Int>> = incomplete.into_iter().map(count).collect();
        match counts.is_empty() {
            true => 0,
            false => {
                let counts = Tensor::cat(counts, 0).into_data();
                counts.iter::<i64>().sum::<i64>() as u64
            }
        }
    }

    /// The image on the plain device.
    pub(crate) fn inner(self) -> Self {
        match self {
            Self::Reflectance(values) => Self::Reflectance(values.inner()),
            numbers @ Self::Numbers(..) => numbers,
        }
    }
}

impl From<Tensor<4>> for Image {
    /// Reflectance.
    fn from(values: Tensor<4>) -> Self {
        Self::Reflectance(values)
    }
}

impl Coding {
    /// The missing number as it stands in a tensor.
    pub(crate) fn bits_of_missing(self) -> i16 {
        self.missing.cast_signed()
    }
}
