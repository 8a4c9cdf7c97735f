//! Tensors of 16 bits: every operation gives what it gives for the same values in `f32`, rounded once at its border.

use burn::tensor::{DType, Device, Tensor, TensorData};
use std::sync::Arc;
use terrashard_ops::{
    Activation, Alone, BatchStatistics, ConvShape, Focal, IGNORE, Initial, Labels, LevelOrder,
    Masks, Mode, Pass, SoftBce, activate, affinity, attention, batch_norm, batch_sums, conv2d,
    dice, drop_path, dropout, focal, fuse_levels, l1, layer_norm, linear, resize_bilinear,
    soft_bce, upsample_conv2d,
};

const HALVES: [DType; 2] = [DType::BF16, DType::F16];

/// Values without pattern that the narrower type can hold.
fn noise(name: &str, count: usize, narrow: DType) -> TensorData {
    let values = Initial::Normal { deviation: 1.0 }.values(name, count, 0);
    let rounded = TensorData::new(values, [count]).convert_dtype(narrow);
    rounded.convert_dtype(DType::F32)
}

/// The result of `f` and the gradients of its inputs, all in this type, where those of the result are noise.
fn run(
    lengths: &[usize],
    [narrow, dtype]: [DType; 2],
    f: &dyn Fn(&[Tensor<1>]) -> Tensor<1>,
) -> Vec<TensorData> {
    let device = Device::flex().autodiff();
    let tensor = |name: &str, count: usize, dtype: DType| {
        Tensor::<1>::from_data(noise(name, count, narrow), (&device, dtype))
    };
    let inputs = lengths.iter().enumerate();
    let inputs: Vec<Tensor<1>> = inputs
        .map(|(i, count)| tensor(&format!("input {i}"), *count, dtype).require_grad())
        .collect();
    let y = f(&inputs);
    let weights = tensor("weights", y.dims()[0], DType::F32);
    let gradients = (y.clone().cast(DType::F32) * weights).sum().backward();
    let mut results = vec![y.into_data()];
    for input in &inputs {
        let gradient = input.grad(&gradients).expect("a gradient");
        results.push(gradient.into_data());
    }
    results
}

/// Compares both types of 16 bits with `f32`.
#[track_caller]
fn check(lengths: &[usize], loss: bool, f: impl Fn(&[Tensor<1>]) -> Tensor<1>) {
    for narrow in HALVES {
        let expected = run(lengths, [narrow, DType::F32], &f);
        let got = run(lengths, [narrow, narrow], &f);
        for (i, (got, expected)) in got.into_iter().zip(expected).enumerate() {
            let dtype = if loss && i == 0 { DType::F32 } else { narrow };
            assert_eq!(got.dtype(), dtype, "result {i}");
            assert!(expected.iter::<f32>().any(|value| value != 0.0));
            assert_eq!(got, expected.convert_dtype(dtype), "{narrow:?}, result {i}");
        }
    }
}

#[track_caller]
fn check_operation(lengths: &[usize], f: impl Fn(&[Tensor<1>]) -> Tensor<1>) {
    check(lengths, false, f);
}

#[track_caller]
fn check_loss(lengths: &[usize], f: impl Fn(&[Tensor<1>]) -> Tensor<1>) {
    check(lengths, true, f);
}

#[test]
fn linear_layers_and_attention() {
    check_operation(&[2 * 5 * 3, 4 * 3, 4], |x| {
        let (rows, weight) = (
            x[0].clone().reshape([2, 5, 3]),
            x[1].clone().reshape([4, 3]),
        );
        linear(rows, weight, x[2].clone()).reshape([-1])
    });
    check_operation(&[2 * 5 * 6, 2 * 4 * 12], |x| {
        let (q, kv) = (
            x[0].clone().reshape([2, 5, 6]),
            x[1].clone().reshape([2, 4, 12]),
        );
        attention(q, kv, 3).reshape([-1])
    });
}

#[test]
fn convolutions_and_enlargement() {
    let shape = |stride, padding, groups| ConvShape {
        stride,
        padding,
        groups,
    };
    for (weight, shape) in [
        ([4, 6, 7, 7], shape(4, 3, 1)),
        ([4, 6, 1, 1], ConvShape::POINTWISE),
        ([6, 1, 3, 3], shape(1, 1, 6)),
        ([4, 3, 3, 3], shape(1, 1, 2)),
    ] {
        let lengths = [2 * 6 * 9 * 11, weight.iter().product(), weight[0]];
        check_operation(&lengths, |x| {
            // Channels last in memory, as the model has its maps.
            let map = x[0].clone().reshape([2, 9, 11, 6]).permute([0, 3, 1, 2]);
            conv2d(map, x[1].clone().reshape(weight), Some(x[2].clone()), shape).reshape([-1])
        });
    }
    for (factor, outputs) in [(4, 8), (5, 1)] {
        check_operation(&[2 * 3 * 4 * 5, outputs * 3 * 9, outputs], |x| {
            let map = x[0].clone().reshape([2, 3, 4, 5]);
            let weight = x[1].clone().reshape([outputs, 3, 3, 3]);
            upsample_conv2d(map, weight, Some(x[2].clone()), factor).reshape([-1])
        });
    }
    check_operation(&[2 * 3 * 4 * 3], |x| {
        resize_bilinear(x[0].clone().reshape([2, 3, 4, 3]), [5, 7]).reshape([-1])
    });
    let sizes = [[4, 6], [2, 3], [1, 2], [1, 1]];
    let mut lengths: Vec<usize> = sizes.iter().map(|[h, w]| 2 * 3 * h * w).collect();
    lengths.extend([5 * 12, 5]);
    check_operation(&lengths, |x| {
        let level = |i: usize| x[i].clone().reshape([2, 3, sizes[i][0], sizes[i][1]]);
        let weight = x[4].clone().reshape([5, 12, 1, 1]);
        let levels = std::array::from_fn(level);
        let fused = fuse_levels(levels, weight, Some(x[5].clone()), LevelOrder::DeepestFirst);
        fused.reshape([-1])
    });
}

#[test]
fn norms_activations_and_dropout() {
    check_operation(&[3 * 37, 37, 37], |x| {
        let rows = x[0].clone().reshape([3, 37]);
        layer_norm(rows, x[1].clone(), x[2].clone(), 1e-6).reshape([-1])
    });
    check_operation(&[2 * 3 * 4 * 5, 3, 3], |t| {
        let x = t[0].clone().reshape([2, 3, 4, 5]);
        let statistics = BatchStatistics::from_sums(&batch_sums(x.clone()), 1e-5, Arc::new(Alone));
        batch_norm(x, t[1].clone(), t[2].clone(), statistics).reshape([-1])
    });
    for kind in [Activation::Gelu, Activation::Silu, Activation::Relu] {
        check_operation(&[60], |x| activate(x[0].clone(), kind));
    }
    let pass = Pass {
        masks: Some(Masks {
            seed: 1,
            step: 7,
            samples: Arc::from([1, 2, 3, 4]),
        }),
        ..Pass::new(Mode::Training)
    };
    check_operation(&[60], |x| {
        let map = x[0].clone().reshape([4, 3, 5, 1]);
        dropout(map, 0.3, "layer", &pass).reshape([-1])
    });
    check_operation(&[60], |x| {
        let tokens = x[0].clone().reshape([4, 3, 5]);
        drop_path(tokens, 0.3, "layer", &pass).reshape([-1])
    });
}

fn labels() -> Labels {
    let label = |i: usize| match i % 6 {
        4 => IGNORE,
        _ => u8::from(i.is_multiple_of(3)),
    };
    Labels::new((0..70).map(label).collect(), [2, 5, 7], &Device::flex())
}

#[test]
fn losses_are_f32_and_their_gradients_of_the_maps_type() {
    let map = |t: &Tensor<1>| t.clone().reshape([2, 1, 5, 7]);
    check_loss(&[70], |x| {
        let parameters = Focal {
            alpha: 0.75,
            gamma: 2.0,
            divisor: 13.0,
        };
        focal(map(&x[0]), &labels(), parameters)
    });
    check_loss(&[70], |x| {
        let parameters = SoftBce {
            softening: 0.1,
            divisor: 13.0,
        };
        soft_bce(map(&x[0]), &labels(), parameters)
    });
    check_loss(&[70], |x| dice(map(&x[0]), &labels(), 0.1, 2.0, &Alone));
    let target = noise("target", 70, DType::F32);
    let target = Tensor::<1>::from_data(target, &Device::flex()).reshape([2, 1, 5, 7]);
    check_loss(&[70], |x| l1(map(&x[0]), target.clone(), 7.0));
    check_loss(&[210, 210], |x| {
        let map = |i: usize| x[i].clone().reshape([2, 3, 5, 7]);
        affinity(map(0), map(1), 2, 100.0)
    });
}

#[test]
fn weights_may_be_wider_than_activations() {
    let device = Device::flex().autodiff();
    let tensor = |name: &str, count: usize, dtype: DType| {
        let data = noise(name, count, DType::BF16);
        Tensor::<1>::from_data(data, (&device, dtype)).require_grad()
    };
    let results = |types: [DType; 2]| {
        let x = tensor("x", 60, types[0]);
        let (weight, bias) = (tensor("weight", 5, types[1]), tensor("bias", 5, types[1]));
        let y = layer_norm(
            x.clone().reshape([12, 5]),
            weight.clone(),
            bias.clone(),
            1e-6,
        );
        let gradients = y.clone().cast(DType::F32).sum().backward();
        let gradient = |of: Tensor<1>| of.grad(&gradients).expect("a gradient").into_data();
        (y.into_data(), [x, weight, bias].map(gradient))
    };
    let (y, gradients) = results([DType::BF16, DType::F32]);
    let (expected, in_f32) = results([DType::F32; 2]);
    assert_eq!(y, expected.convert_dtype(DType::BF16));
    let [gx, gw, gb] = in_f32;
    assert_eq!(gradients, [gx.convert_dtype(DType::BF16), gw, gb]);
}
