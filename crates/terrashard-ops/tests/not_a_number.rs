//! What is no number stays one: an operation that turned it into a number would hide a diverged training.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_ops::{Activation, Focal, Labels, activate, attention, focal};

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], dtype: DType) -> Tensor<D> {
    let device = Device::flex().autodiff();
    Tensor::from_data(TensorData::new(values, shape), (&device, dtype)).require_grad()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor
        .into_data()
        .convert::<f64>()
        .try_to_vec::<f64>()
        .unwrap()
}

#[test]
fn in_a_loss_and_its_gradient() {
    for dtype in TYPES {
        let logits = tensor(vec![f32::NAN, 1.0, 2.0, 3.0], [1, 1, 2, 2], dtype);
        let labels = Labels::new(vec![0, 1, 0, 1], [1, 2, 2], &Device::flex());
        let settings = Focal {
            alpha: 0.25,
            gamma: 2.0,
            divisor: 4.0,
        };
        let loss = focal(logits.clone(), &labels, settings);
        assert!(loss.clone().into_scalar::<f64>().is_nan(), "{dtype:?}");
        let gradient = values(logits.grad(&loss.backward()).unwrap());
        assert!(gradient[0].is_nan(), "{dtype:?}: {gradient:?}");
        assert!(
            gradient[1..].iter().all(|x| x.is_finite()),
            "{dtype:?}: {gradient:?}"
        );
    }
}

#[test]
fn in_attention() {
    for dtype in TYPES {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut q = vec![0.1; 8];
            q[0] = bad;
            let kv = (0..24).map(|i| i as f32 * 0.1).collect();
            let output = attention(tensor(q, [1, 2, 4], dtype), tensor(kv, [1, 3, 8], dtype), 1);
            let output = values(output);
            assert!(
                output[..4].iter().all(|x| x.is_nan()),
                "{bad} {dtype:?}: {output:?}"
            );
            assert!(
                output[4..].iter().all(|x| x.is_finite()),
                "{bad} {dtype:?}: {output:?}"
            );
        }
    }
}

#[test]
fn in_activations() {
    for dtype in TYPES {
        for activation in [Activation::Gelu, Activation::Relu, Activation::Silu] {
            let x = tensor(vec![f32::NAN, 1.0], [1, 2], dtype);
            let output = activate(x.clone(), activation);
            let gradient = values(x.grad(&output.clone().sum().backward()).unwrap());
            let output = values(output);
            assert!(
                output[0].is_nan() && output[1].is_finite(),
                "{activation:?} {dtype:?}"
            );
            assert!(gradient[1].is_finite(), "{activation:?} {dtype:?}");
        }
    }
}
