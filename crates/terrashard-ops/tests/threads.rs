//! Results are the same bits on any number of threads.

use burn::tensor::{Device, Tensor, TensorData};
use terrashard_ops::{
    Activation, ConvShape, Focal, Initial, Labels, activate, conv2d, focal, layer_norm, linear,
    upsample_conv2d,
};

fn noise<const D: usize>(name: &str, shape: [usize; D], device: &Device) -> Tensor<D> {
    let values = Initial::Normal { deviation: 1.0 }.values(name, shape.iter().product(), 0);
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Values and gradients of a chain of operations, each large enough to be cut into pieces.
fn results() -> Vec<Vec<f32>> {
    let device = Device::flex().autodiff();
    let tracked = [
        noise("weight", [64, 32], &device).require_grad(),
        noise("fused", [64, 64], &device).require_grad(),
    ];
    let scale = noise("scale", [64], &device).require_grad();
    let depthwise = noise("depthwise", [64, 1, 3, 3], &device).require_grad();
    let embed = noise("embed", [16, 64, 3, 3], &device).require_grad();
    let last = noise("last", [1, 16, 3, 3], &device).require_grad();

    let x = noise("x", [2, 64 * 64, 32], &device);
    let x = linear(x, tracked[0].clone(), scale.clone());
    let x = layer_norm(x, scale.clone(), scale.clone(), 1e-6);
    let x = activate(
        linear(x, tracked[1].clone(), scale.clone()),
        Activation::Gelu,
    );
    let x = x.reshape([2, 64, 64, 64]).permute([0, 3, 1, 2]);
    let x = conv2d(
        x,
        depthwise.clone(),
        None,
        ConvShape {
            stride: 1,
            padding: 1,
            groups: 64,
        },
    );
    let x = conv2d(
        x,
        embed.clone(),
        None,
        ConvShape {
            stride: 2,
            padding: 1,
            groups: 1,
        },
    );
    let x = upsample_conv2d(x, last.clone(), None, 5);
    let labels = Labels::new(
        (0..2 * 160 * 160).map(|i| u8::from(i % 3 == 0)).collect(),
        [2, 160, 160],
        &device,
    );
    let loss = focal(
        x,
        &labels,
        Focal {
            alpha: 0.75,
            gamma: 2.0,
            divisor: 1.0,
        },
    );
    let gradients = loss.backward();

    let host = |data: TensorData| data.iter::<f32>().collect::<Vec<_>>();
    let mut results = vec![
        host(loss.into_data()),
        host(scale.grad(&gradients).expect("tracked").into_data()),
    ];
    results.extend(
        tracked
            .iter()
            .map(|w| host(w.grad(&gradients).expect("tracked").into_data())),
    );
    results.extend(
        [&depthwise, &embed, &last].map(|w| host(w.grad(&gradients).expect("tracked").into_data())),
    );
    results
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("a pool of threads");
        pool.install(results)
    };
    let one = on(1);
    assert!(one.iter().flatten().all(|value| value.is_finite()));
    for threads in [2, 5] {
        assert!(one == on(threads), "{threads} threads");
    }
}
