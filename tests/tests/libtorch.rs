//! Every operation on LibTorch gives the values and gradients of burn's own CPU backend.

use std::sync::Arc;

use burn::tensor::{DType, Tensor, TensorData};
use terrashard_ops::{
    Activation, Alone, BatchStatistics, ConvShape, Enlarged, Factor, Focal, IGNORE, Labels,
    LevelOrder, SoftBce, activate, affinity, attention, batch_norm, batch_sums, class_dice, conv2d,
    cross_entropy, dice, enlarge_conv2d, focal, fuse_levels, l1, layer_norm, linear,
    resize_bilinear, soft_bce, upsample_conv2d,
};
use terrashard_tests::backend::Backend;
use terrashard_tests::both_backends::{Inputs, check, check_narrow, host, noise, run};

fn same(stride: usize, padding: usize, groups: usize) -> ConvShape {
    ConvShape {
        stride,
        padding,
        groups,
    }
}

#[test]
fn linear_layers() {
    check(|of| linear(of.tensor([2, 9, 5]), of.tensor([7, 5]), of.tensor([7])));
}

#[test]
fn convolutions() {
    for (channels, out, kernel, shape) in [
        (3, 4, 3, same(1, 1, 1)),
        (3, 4, 7, same(4, 3, 1)),
        (4, 6, 3, same(2, 1, 2)),
        (6, 6, 3, same(1, 1, 6)),
        (5, 3, 1, same(1, 0, 1)),
        (4, 4, 2, same(2, 0, 1)),
    ] {
        let of_weight = [out, channels / shape.groups, kernel, kernel];
        check(|of| {
            let (x, weight) = (of.tensor([2, channels, 10, 12]), of.tensor(of_weight));
            conv2d(x, weight, Some(of.tensor([out])), shape)
        });
        check(|of| {
            conv2d(
                of.tensor([1, channels, 8, 9]),
                of.tensor(of_weight),
                None,
                shape,
            )
        });
    }
}

#[test]
fn tokens_seen_as_maps() {
    // Channels last in memory, as a transformer's tokens are.
    check(|of| {
        let x: Tensor<4> = of.tensor([2, 6, 5, 8]).permute([0, 3, 1, 2]);
        conv2d(
            x,
            of.tensor([8, 1, 3, 3]),
            Some(of.tensor([8])),
            same(1, 1, 8),
        )
    });
}

#[test]
fn norms() {
    check(|of| {
        layer_norm(
            of.tensor([2, 9, 16]),
            of.tensor([16]),
            of.tensor([16]),
            1e-6,
        )
    });
    check(|of| {
        let x: Tensor<4> = of.tensor([2, 5, 6, 7]);
        let statistics = BatchStatistics::from_sums(&batch_sums(x.clone()), 1e-5, Arc::new(Alone));
        batch_norm(x, of.tensor([5]), of.tensor([5]), statistics)
    });
}

#[test]
fn activations() {
    for kind in [Activation::Gelu, Activation::Silu, Activation::Relu] {
        check(|of| activate(of.tensor([2, 3, 40]) * 4.0, kind));
    }
}

#[test]
fn attention_of_many_queries_on_few_keys() {
    for heads in [1, 2, 5] {
        check(|of| attention(of.tensor([2, 70, 40]), of.tensor([2, 12, 80]), heads));
    }
}

#[test]
fn resizing() {
    for size in [[12, 14], [5, 40], [3, 3]] {
        check(|of| resize_bilinear(of.tensor([2, 3, 6, 7]), size));
    }
    for factor in [2, 5] {
        check(|of| {
            let (x, weight) = (of.tensor([2, 3, 5, 6]), of.tensor([4, 3, 3, 3]));
            upsample_conv2d(x, weight, Some(of.tensor([4])), factor)
        });
    }
    check(|of| {
        let levels = [[8, 8], [4, 4], [2, 2], [1, 1]];
        let levels = levels.map(|[h, w]| of.tensor([2, 3, h, w]));
        let weight = of.tensor([5, 12, 1, 1]);
        fuse_levels(
            levels,
            weight,
            Some(of.tensor([5])),
            LevelOrder::DeepestFirst,
        )
    });
}

/// A map and the losses of it, with labels of which some are ignored or none.
fn enlarged(
    factor: usize,
    channels: usize,
    loss: impl Fn(&Inputs, Enlarged) -> Tensor<1>,
) -> impl Fn(&mut Inputs) -> Tensor<1> {
    move |of| {
        let (x, weight) = (
            of.tensor([3, 2, 4, 6]) * 3.0,
            of.tensor([channels, 2, 3, 3]),
        );
        let bias = Some(of.tensor([channels]));
        let values = enlarge_conv2d(x, weight, bias, factor);
        let map = Enlarged::new(values, [4, 6], factor);
        assert_eq!(map.dims(), [3, channels, 4 * factor, 6 * factor]);
        loss(of, map)
    }
}

#[test]
fn maps_by_blocks() {
    // Above 17 a class of pixels is more than a byte counts.
    for factor in [1, 2, 3, 4, 5, 20] {
        check(|of| enlarged(factor, 3, |_, map| map.pixels().reshape([-1]))(of));
        let labels = [3, 4 * factor, 6 * factor];
        let target = [3, 3, 4 * factor, 6 * factor];
        check(enlarged(factor, 3, |of, map| {
            let values = noise(77, target);
            let target = values.iter::<f64>().map(|value| match value {
                // A missing target.
                value if value > 0.9 => f64::NAN,
                value => 2.0 * value,
            });
            let target = TensorData::new(target.collect(), map.dims());
            l1(map, Tensor::from_data(target, (&of.device, of.dtype)), 17.0)
        }));
        for ignored in [true, false] {
            let labels = |of: &Inputs| match ignored {
                true => of.labels(labels),
                false => {
                    let count: usize = labels.iter().product();
                    let label = |index: usize| u8::from(index.is_multiple_of(3));
                    Labels::new((0..count).map(label).collect(), labels, &of.device)
                }
            };
            for gamma in [2.0, 1.5] {
                check(enlarged(factor, 1, |of, map| {
                    let settings = Focal {
                        alpha: 0.75,
                        gamma,
                        divisor: 30.0,
                    };
                    focal(map, &labels(of), settings)
                }));
            }
            check(enlarged(factor, 1, |of, map| {
                let settings = SoftBce {
                    softening: 0.1,
                    divisor: 30.0,
                };
                soft_bce(map, &labels(of), settings)
            }));
            check(enlarged(factor, 1, |of, map| {
                dice(map, &labels(of), 0.1, 2.0, &Alone)
            }));
        }
    }
}

#[test]
fn enlargement_by_two_and_a_half() {
    // Odd sizes are cut, and one with a single row or column.
    for [h, w] in [[4, 6], [5, 3], [1, 7], [1, 1]] {
        let enlarge = |of: &mut Inputs| {
            let (x, weight) = (of.tensor([3, 2, h, w]), of.tensor([5, 2, 3, 3]));
            let bias = Some(of.tensor([5]));
            upsample_conv2d(x, weight, bias, Factor::FiveHalves)
        };
        check(enlarge);
        check_narrow(enlarge);
    }
    check(|of| {
        let (x, weight) = (of.tensor([1, 3, 4, 4]), of.tensor([2, 3, 3, 3]));
        upsample_conv2d(x, weight, None, Factor::FiveHalves)
    });
}

#[test]
fn ignored_blocks_may_hold_anything() {
    let device = Backend::Tch.device().autodiff();
    let values = TensorData::new(vec![f32::NAN; 9], [1, 9, 1, 1]);
    let values = Tensor::<4>::from_data(values, &device).require_grad();
    let map = Enlarged::new(values.clone(), [1, 1], 5);
    let settings = Focal {
        alpha: 0.75,
        gamma: 2.0,
        divisor: 1.0,
    };
    let mut labels = vec![IGNORE; 25];
    let ignored = Labels::new(labels.clone(), [1, 5, 5], &device);
    let loss = focal(map.clone(), &ignored, settings);
    assert_eq!(host(loss.clone()), [0.0]);
    let gradient = values.grad(&loss.backward()).expect("tracked");
    assert_eq!(host(gradient), [0.0; 9]);
    // One valid pixel, in the middle class: it alone is no number.
    labels[12] = 1;
    let labels = Labels::new(labels, [1, 5, 5], &device);
    let loss = focal(map, &labels, settings);
    assert!(host(loss.clone())[0].is_nan());
    let gradient = host(values.grad(&loss.backward()).expect("tracked"));
    let no_numbers = gradient.iter().map(|value| value.is_nan());
    assert!(
        no_numbers.eq((0..9).map(|class| class == 4)),
        "{gradient:?}"
    );
}

#[test]
fn convolutions_of_single_pixels_in_both_layouts() {
    for bias in [true, false] {
        check(|of| {
            let x: Tensor<4> = of.tensor([2, 5, 6, 7]).permute([0, 3, 1, 2]);
            let weight = of.tensor([3, 7, 1, 1]);
            conv2d(x, weight, bias.then(|| of.tensor([3])), same(1, 0, 1))
        });
        check(|of| {
            let (x, weight) = (of.tensor([2, 7, 5, 6]), of.tensor([3, 7, 1, 1]));
            conv2d(x, weight, bias.then(|| of.tensor([3])), same(1, 0, 1))
        });
    }
}

#[test]
fn a_batch_without_samples_adds_nothing() {
    let device = Backend::Tch.device().autodiff();
    let tensor = |shape: [usize; 4]| Tensor::<4>::ones(shape, &device).require_grad();
    let (x, weight) = (tensor([0, 2, 16, 16]), tensor([1, 2, 3, 3]));
    let values = enlarge_conv2d(x.clone(), weight.clone(), None, 5);
    let map = Enlarged::new(values, [16, 16], 5);
    let labels = Labels::new(Vec::new(), [0, 80, 80], &device);
    let settings = Focal {
        alpha: 0.75,
        gamma: 2.0,
        divisor: 1.0,
    };
    let target = Tensor::zeros([0, 1, 80, 80], &device);
    let loss = focal(map.clone(), &labels, settings)
        + l1(map, target, 1.0)
        + affinity(x.clone(), x.clone(), 8, 1.0);
    assert_eq!(host(loss.clone()), [0.0]);
    let gradients = loss.backward();
    let gradient = weight.grad(&gradients).expect("tracked");
    assert_eq!(host(gradient), [0.0; 18]);
    assert_eq!(x.grad(&gradients).expect("tracked").dims(), x.dims());
}

/// The loss of a whole map in one sample of many: everything beside the gradient is made for one sample at a time.
#[test]
fn losses_make_no_temporary_of_the_maps_size() {
    const SAMPLES: usize = 32;
    terrashard_torch::tch::set_num_threads(1);
    let device = Backend::Tch.device().autodiff();
    let shape = [SAMPLES, 1, 60, 60];
    let bytes = (SAMPLES * 60 * 60 * 4) as u64;
    let labels = Labels::new(vec![1; SAMPLES * 60 * 60], [SAMPLES, 60, 60], &device);
    let target = Tensor::<4>::from_data(noise(2, shape), (&device, DType::F32));
    let settings = Focal {
        alpha: 0.75,
        gamma: 2.0,
        divisor: 1.0,
    };
    let bce = SoftBce {
        softening: 0.1,
        divisor: 1.0,
    };
    let losses: [&dyn Fn(Tensor<4>) -> Tensor<1>; 4] = [
        &|map| focal(map, &labels, settings),
        &|map| soft_bce(map, &labels, bce),
        &|map| dice(map, &labels, 0.1, 32.0, &Alone),
        &|map| l1(map, target.clone(), 1.0),
    ];
    for (index, loss) in losses.into_iter().enumerate() {
        // What one sample of 32 needs: that of the focal loss is fifteen maps of a sample.
        check_peak(index, shape, bytes * 2 / 3, loss);
    }
    let shape = [SAMPLES, 4, 60, 60];
    let classes: [&dyn Fn(Tensor<4>) -> Tensor<1>; 2] =
        [&|map| cross_entropy(map, &labels, 1.0), &|map| {
            class_dice(map, &labels, 0.1, 32.0, &Alone)
        }];
    for (index, loss) in classes.into_iter().enumerate() {
        check_peak(losses.len() + index, shape, bytes * 2 / 3, loss);
    }
}

/// Beside the gradient, a loss takes no more than `beside` bytes.
fn check_peak(index: usize, shape: [usize; 4], beside: u64, loss: &dyn Fn(Tensor<4>) -> Tensor<1>) {
    let device = Backend::Tch.device().autodiff();
    let bytes = 4 * shape.iter().product::<usize>() as u64;
    let map = Tensor::from_data(noise(1, shape), (&device, DType::F32)).require_grad();
    let run = || map.grad(&loss(map.clone()).backward());
    let (gradient, peak) = terrashard_torch::cpu_peak(run).expect("nothing else counts");
    assert!(gradient.is_some());
    assert!(
        peak >= bytes,
        "loss {index}: {peak} bytes are less than a gradient"
    );
    assert!(
        peak < bytes + beside,
        "loss {index}: {peak} of {bytes} bytes"
    );
}

#[test]
fn maps_of_sixteen_bits() {
    // Losses are f32; maps are rounded to 8 or 11 bits.
    let settings = Focal {
        alpha: 0.75,
        gamma: 2.0,
        divisor: 30.0,
    };
    for (dtype, bound) in [(DType::BF16, 0.02), (DType::F16, 0.003)] {
        let operations: [&dyn Fn(&mut Inputs) -> Tensor<1>; 3] = [
            &enlarged(5, 1, |of, map| {
                focal(map, &of.labels([3, 20, 30]), settings)
            }),
            &enlarged(5, 2, |of, map| {
                let target = Tensor::from_data(noise(77, map.dims()), (&of.device, DType::F32));
                l1(map, target, 17.0)
            }),
            &|of| affinity(of.tensor([2, 6, 8, 8]), of.tensor([2, 4, 8, 8]), 2, 9.0),
        ];
        for operation in operations {
            let got = run(Backend::Tch, dtype, &operation);
            let expected = run(Backend::Flex, DType::F32, &operation);
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let pairs = got.iter().zip(expected);
                let difference: f64 = pairs.map(|(a, b)| (a - b) * (a - b)).sum();
                let norm: f64 = expected.iter().map(|value| value * value).sum();
                let rel = (difference / norm).sqrt();
                assert!(rel < bound, "{dtype:?}, tensor {index}: {rel:e}");
            }
        }
    }
}

#[test]
fn losses() {
    let shape = [2, 1, 12, 13];
    check(|of| {
        let settings = Focal {
            alpha: 0.25,
            gamma: 2.0,
            divisor: 30.0,
        };
        focal(of.tensor(shape) * 5.0, &of.labels([2, 12, 13]), settings)
    });
    check(|of| {
        let settings = SoftBce {
            softening: 0.05,
            divisor: 30.0,
        };
        soft_bce(of.tensor(shape) * 5.0, &of.labels([2, 12, 13]), settings)
    });
    check(|of| dice(of.tensor(shape), &of.labels([2, 12, 13]), 1.0, 2.0, &Alone));
    check(|of| {
        let target = Tensor::from_data(noise(77, shape), (&of.device, of.dtype));
        l1(of.tensor(shape), target, 17.0)
    });
    check(|of| affinity(of.tensor([2, 6, 8, 8]), of.tensor([2, 4, 8, 8]), 2, 9.0));
}

#[test]
fn losses_of_several_classes() {
    let shape = [3, 4, 12, 13];
    // Class 3 is that of no pixel.
    let labels = |of: &Inputs| {
        let label = |index: usize| match index % 7 {
            3 => IGNORE,
            rest => (rest % 3) as u8,
        };
        let labels = (0..3 * 12 * 13).map(label).collect();
        Labels::new(labels, [3, 12, 13], &of.device)
    };
    check(|of| cross_entropy(of.tensor(shape) * 5.0, &labels(of), 30.0));
    check(|of| class_dice(of.tensor(shape) * 5.0, &labels(of), 0.1, 3.0, &Alone));
    check_narrow(|of| cross_entropy(of.tensor(shape), &labels(of), 30.0));
    check_narrow(|of| class_dice(of.tensor(shape), &labels(of), 0.1, 3.0, &Alone));

    // An ignored pixel may hold anything.
    let device = Backend::Tch.device().autodiff();
    let data = TensorData::new(vec![f32::NAN, 1.0, f32::NAN, 2.0], [1, 2, 1, 2]);
    let map = Tensor::<4>::from_data(data, &device).require_grad();
    let labels = Labels::new(vec![IGNORE, 0], [1, 1, 2], &device);
    let loss = cross_entropy(map.clone(), &labels, 1.0);
    // log(1 + e)
    assert!((host(loss.clone())[0] - 1.0f64.exp().ln_1p()).abs() < 1e-6);
    let gradient = host(map.grad(&loss.backward()).expect("tracked"));
    assert_eq!([gradient[0], gradient[2]], [0.0, 0.0]);
    assert!(
        (gradient[1] + gradient[3]).abs() < 1e-6 && gradient[3] > 0.7,
        "{gradient:?}"
    );
}

#[test]
fn sixteen_bits_add_up_in_more() {
    check_narrow(|of| {
        let (x, weight) = (of.tensor([2, 900, 64]), of.tensor([32, 64]));
        linear(x, weight, of.tensor([32]))
    });
    check_narrow(|of| {
        let x: Tensor<4> = of.tensor([2, 20, 22, 8]).permute([0, 3, 1, 2]);
        let weight = of.tensor([8, 1, 3, 3]);
        conv2d(x, weight, Some(of.tensor([8])), same(1, 1, 8))
    });
    check_narrow(|of| {
        let (x, weight) = (of.tensor([2, 3, 24, 24]), of.tensor([8, 3, 7, 7]));
        conv2d(x, weight, Some(of.tensor([8])), same(4, 3, 1))
    });
    check_narrow(|of| {
        let (x, weight) = (of.tensor([2, 300, 16]), of.tensor([16]));
        layer_norm(x, weight, of.tensor([16]), 1e-6)
    });
    check_narrow(|of| attention(of.tensor([2, 70, 40]), of.tensor([2, 12, 80]), 5));
    check_narrow(|of| activate(of.tensor([2, 3, 40]), Activation::Gelu));
    check_narrow(|of| resize_bilinear(of.tensor([2, 3, 6, 7]), [12, 14]));
}
