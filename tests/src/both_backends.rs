//! One operation on both backends: the same inputs, results and gradients side by side.

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_ops::{IGNORE, Labels};

use crate::backend::Backend;

/// Values between -1 and 1 without pattern.
pub fn noise<const D: usize>(seed: u64, shape: [usize; D]) -> TensorData {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| next()).collect();
    TensorData::new(values, shape)
}

/// Inputs of one operation: the same values on both backends.
#[derive(Debug)]
pub struct Inputs {
    /// Where they are, on the side that remembers gradients.
    pub device: Device,
    /// Their type.
    pub dtype: DType,
    leaves: Vec<Tensor<1>>,
}

impl Inputs {
    /// A tracked tensor; each one has other values.
    pub fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let flat = noise(self.leaves.len() as u64 + 1, [shape.iter().product()]);
        let leaf = Tensor::from_data(flat, (&self.device, self.dtype)).require_grad();
        self.leaves.push(leaf.clone());
        leaf.reshape(shape)
    }

    /// One label in seven is ignored.
    pub fn labels(&self, shape: [usize; 3]) -> Labels {
        let count = shape.iter().product();
        let label = |index: usize| match index % 7 {
            3 => IGNORE,
            rest => (rest > 3) as u8,
        };
        Labels::new((0..count).map(label).collect(), shape, &self.device)
    }
}

/// The values on the host.
pub fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The result and the gradients of all inputs.
pub fn run<const D: usize>(
    backend: Backend,
    dtype: DType,
    operation: &impl Fn(&mut Inputs) -> Tensor<D>,
) -> Vec<Vec<f64>> {
    let mut inputs = Inputs {
        device: backend.device().autodiff(),
        dtype,
        leaves: Vec::new(),
    };
    let y = operation(&mut inputs);
    let weights = Tensor::from_data(noise(99, y.dims()), (&inputs.device, y.dtype()));
    let gradients = (y.clone() * weights).sum().backward();
    let leaves = inputs.leaves.iter().map(|leaf| {
        let gradient = leaf.grad(&gradients);
        host(gradient.expect("every input is part of the graph"))
    });
    [host(y)].into_iter().chain(leaves).collect()
}

/// Both backends, in both types.
#[track_caller]
pub fn check<const D: usize>(operation: impl Fn(&mut Inputs) -> Tensor<D>) {
    for (dtype, bound) in [(DType::F64, 1e-11), (DType::F32, 2e-5)] {
        let expected = run(Backend::Flex, dtype, &operation);
        let got = run(Backend::Tch, dtype, &operation);
        assert_eq!(got.len(), expected.len());
        for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got.len(), expected.len());
            let pairs = || got.iter().zip(expected);
            let difference: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
            let norm: f64 = expected.iter().map(|value| value * value).sum();
            let rel = (difference / norm).sqrt();
            assert!(norm > 0.0, "{dtype:?}, tensor {index} is zero");
            assert!(rel < bound, "{dtype:?}, tensor {index}: {rel:e}");
        }
    }
}

/// In both types of 16 bits, against values that are computed in `f32` and rounded once. The inputs are the same.
#[track_caller]
pub fn check_narrow<const D: usize>(operation: impl Fn(&mut Inputs) -> Tensor<D>) {
    for (dtype, bound) in [(DType::BF16, 1.0 / 128.0), (DType::F16, 1.0 / 1024.0)] {
        let expected = run(Backend::Flex, dtype, &operation);
        let got = run(Backend::Tch, dtype, &operation);
        assert_eq!(got.len(), expected.len());
        for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let pairs = || got.iter().zip(expected);
            let difference: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
            let norm: f64 = expected.iter().map(|value| value * value).sum();
            let rel = (difference / norm).sqrt();
            assert!(rel < bound, "{dtype:?}, tensor {index}: {rel:e}");
        }
    }
}
