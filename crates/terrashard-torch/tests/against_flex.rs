//! LibTorch on the CPU against burn's own CPU backend and its autodiff.

use burn::tensor::activation::softmax;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_torch::{Attention, conv2d_backward, layer_norm_backward, tch};

/// Values between -1 and 1 that look random, the same everywhere.
fn noise(seed: u64, shape: &[usize]) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..shape.iter().product()).map(|_| next()).collect()
}

fn flex<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    let device = Device::flex().autodiff();
    let data = TensorData::new(noise(seed, &shape), shape);
    Tensor::from_data(data, (&device, DType::F64)).require_grad()
}

fn torch(seed: u64, shape: &[usize]) -> tch::Tensor {
    let sizes: Vec<i64> = shape.iter().map(|extent| *extent as i64).collect();
    tch::Tensor::from_slice(&noise(seed, shape)).reshape(sizes)
}

fn check<const D: usize>(got: &tch::Tensor, expected: Tensor<D>, what: &str) {
    let sizes: Vec<i64> = expected
        .dims()
        .iter()
        .map(|extent| *extent as i64)
        .collect();
    assert_eq!(got.size(), sizes, "{what}");
    let got: Vec<f64> = Vec::try_from(&got.contiguous().reshape([-1])).expect("flat and f64");
    let expected = expected.into_data().try_to_vec::<f64>().expect("f64");
    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert!(
            (got - expected).abs() < 1e-11,
            "{what}[{index}]: {got} not {expected}"
        );
    }
}

#[test]
fn convolutions_strided_grouped_and_depthwise() {
    for (channels, out, kernel, stride, padding, groups) in [
        (3, 4, 3, 1, 1, 1),
        (3, 4, 7, 4, 3, 1),
        (4, 6, 3, 2, 1, 2),
        (6, 6, 3, 1, 1, 6),
        (4, 4, 2, 2, 0, 1),
    ] {
        let (of_x, of_weight) = (
            [2, channels, 9, 12],
            [out, channels / groups, kernel, kernel],
        );
        let (x, weight, bias) = (flex(1, of_x), flex(2, of_weight), flex(3, [out]));
        let options = ConvOptions::new([stride; 2], [padding; 2], [1; 2], groups);
        let y = conv2d(x.clone(), weight.clone(), Some(bias.clone()), options);
        let of_y = y.dims();
        let gradients = (y * flex(4, of_y).detach()).sum().backward();
        let [gx, gw, gb] = conv2d_backward(
            &torch(4, &of_y),
            &torch(1, &of_x),
            &torch(2, &of_weight),
            [stride, padding, groups],
            [true; 3],
        )
        .expect("shapes fit");
        let what = format!("{kernel}x{kernel}, stride {stride}, {groups} groups");
        let results = [gx, gw, gb].map(|result| result.expect("wanted"));
        check(&results[0], x.grad(&gradients).expect("tracked"), &what);
        check(
            &results[1],
            weight.grad(&gradients).expect("tracked"),
            &what,
        );
        check(&results[2], bias.grad(&gradients).expect("tracked"), &what);
    }
}

#[test]
fn layer_normalisation() {
    let (x, weight, bias) = (flex(1, [2, 5, 7]), flex(2, [7]), flex(3, [7]));
    let centred = x.clone() - x.clone().mean_dim(2);
    let inverse = ((centred.clone() * centred.clone()).mean_dim(2) + 1e-6)
        .sqrt()
        .recip();
    let y = centred * inverse * weight.clone().unsqueeze() + bias.clone().unsqueeze();
    let gradients = (y.clone() * flex(4, [2, 5, 7]).detach()).sum().backward();

    let of_x = torch(1, &[2, 5, 7]);
    let (of_weight, of_bias) = (torch(2, &[7]), torch(3, &[7]));
    let (got, mean, inverse) = of_x.native_layer_norm([7], Some(&of_weight), Some(&of_bias), 1e-6);
    check(&got, y.detach(), "result");
    let [gx, gw, gb] = layer_norm_backward(
        &torch(4, &[2, 5, 7]),
        &of_x,
        [&mean, &inverse],
        &of_weight,
        [true; 3],
    )
    .expect("shapes fit")
    .map(|result| result.expect("wanted"));
    check(&gx, x.grad(&gradients).expect("tracked"), "x");
    check(&gw, weight.grad(&gradients).expect("tracked"), "weight");
    check(&gb, bias.grad(&gradients).expect("tracked"), "bias");
}

#[test]
fn attention() {
    let (of_q, of_k) = ([2, 3, 70, 8], [2, 3, 40, 8]);
    let (q, k, v) = (flex(1, of_q), flex(2, of_k), flex(3, of_k));
    let scale = 8f64.powf(-0.5);
    let p = softmax(q.clone().matmul(k.clone().transpose()) * scale, 3);
    let y = p.matmul(v.clone());
    let gradients = (y.clone() * flex(4, of_q).detach()).sum().backward();

    let inputs = [torch(1, &of_q), torch(2, &of_k), torch(3, &of_k)];
    let [of_q_values, of_k_values, of_v_values] = &inputs;
    let attention =
        Attention::forward(of_q_values, of_k_values, of_v_values, scale).expect("shapes fit");
    check(attention.output(), y.detach(), "result");
    let [gq, gk, gv] = attention
        .backward(&torch(4, &of_q), of_q_values, of_k_values, of_v_values)
        .expect("shapes fit");
    check(&gq, q.grad(&gradients).expect("tracked"), "queries");
    check(&gk, k.grad(&gradients).expect("tracked"), "keys");
    check(&gv, v.grad(&gradients).expect("tracked"), "values");
}
