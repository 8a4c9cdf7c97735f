//! Every operation's hand-written backward against finite differences, in `f64`.

use burn::tensor::{DType, Device, Tensor, TensorData};
use std::sync::Arc;
use terrashard_ops::{
    Activation, Alone, BatchStatistics, ConvShape, Factor, Focal, IGNORE, Initial, Labels,
    LevelOrder, SoftBce, activate, affinity, attention, batch_norm, batch_sums, conv2d, dice,
    focal, fuse_levels, l1, layer_norm, linear, resize_bilinear, soft_bce, upsample_conv2d,
};

const STEP: f64 = 1e-6;

/// `count` values without pattern, of size about 1.
fn noise(name: &str, count: usize) -> Vec<f64> {
    let values = Initial::Normal { deviation: 1.0 }.values(name, count, 0);
    values.into_iter().map(f64::from).collect()
}

fn tensor<const D: usize>(values: &[f64], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(
        TensorData::new(values.to_vec(), shape),
        (device, DType::F64),
    )
}

fn scalar(x: Tensor<1>) -> f64 {
    x.into_data().iter::<f64>().sum()
}

/// Compares the gradient of every input with finite differences of `f`, whose result is weighed by noise first.
#[track_caller]
fn check(lengths: &[usize], f: impl Fn(&[Tensor<1>]) -> Tensor<1>) {
    let inputs: Vec<Vec<f64>> = lengths
        .iter()
        .enumerate()
        .map(|(i, length)| noise(&format!("input {i}"), *length))
        .collect();
    check_at(&inputs, f);
}

#[track_caller]
fn check_at(inputs: &[Vec<f64>], f: impl Fn(&[Tensor<1>]) -> Tensor<1>) {
    let device = Device::flex().autodiff();
    let weighed = |tensors: &[Tensor<1>]| {
        let y = f(tensors);
        let [count] = y.dims();
        (y * tensor(&noise("weights", count), [count], &device)).sum()
    };
    let tracked: Vec<Tensor<1>> = inputs
        .iter()
        .map(|values| tensor(values, [values.len()], &device).require_grad())
        .collect();
    let gradients = weighed(&tracked).backward();
    for (i, values) in inputs.iter().enumerate() {
        let gradient: Vec<f64> = tracked[i]
            .grad(&gradients)
            .expect("a gradient")
            .into_data()
            .iter::<f64>()
            .collect();
        let size = gradient.iter().fold(0.0, |size: f64, g| size.max(g.abs()));
        assert!(size > 0.0, "input {i} has a gradient");
        // Every element of small inputs, and a spread of those of larger ones.
        for j in (0..values.len()).step_by(values.len().div_ceil(40)) {
            let moved = |by: f64| {
                let tensors: Vec<Tensor<1>> = inputs
                    .iter()
                    .enumerate()
                    .map(|(k, values)| {
                        let mut values = values.clone();
                        if k == i {
                            values[j] += by;
                        }
                        let length = values.len();
                        tensor(&values, [length], &device)
                    })
                    .collect();
                scalar(weighed(&tensors))
            };
            let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let error = (gradient[j] - expected).abs() / size;
            assert!(
                error < 1e-7,
                "input {i}, element {j}: {} instead of {expected}",
                gradient[j]
            );
        }
    }
}

#[test]
fn linear_layer() {
    check(&[2 * 5 * 3, 4 * 3, 4], |x| {
        linear(
            x[0].clone().reshape([2, 5, 3]),
            x[1].clone().reshape([4, 3]),
            x[2].clone(),
        )
        .reshape([-1])
    });
}

#[track_caller]
fn check_convolution(x: [usize; 4], weight: [usize; 4], shape: ConvShape) {
    check(
        &[x.iter().product(), weight.iter().product(), weight[0]],
        |t| {
            conv2d(
                t[0].clone().reshape(x),
                t[1].clone().reshape(weight),
                Some(t[2].clone()),
                shape,
            )
            .reshape([-1])
        },
    );
    check(&[x.iter().product(), weight.iter().product()], |t| {
        conv2d(
            t[0].clone().reshape(x),
            t[1].clone().reshape(weight),
            None,
            shape,
        )
        .reshape([-1])
    });
}

#[test]
fn convolutions() {
    // Patch embeddings, the spatial reduction, single pixels, depthwise, and groups in between.
    check_convolution(
        [2, 3, 9, 11],
        [4, 3, 7, 7],
        ConvShape {
            stride: 4,
            padding: 3,
            groups: 1,
        },
    );
    check_convolution(
        [2, 3, 8, 6],
        [4, 3, 3, 3],
        ConvShape {
            stride: 2,
            padding: 1,
            groups: 1,
        },
    );
    check_convolution(
        [2, 3, 8, 6],
        [3, 3, 2, 2],
        ConvShape {
            stride: 2,
            padding: 0,
            groups: 1,
        },
    );
    check_convolution([2, 3, 4, 5], [4, 3, 1, 1], ConvShape::POINTWISE);
    check_convolution(
        [2, 35, 5, 4],
        [35, 1, 3, 3],
        ConvShape {
            stride: 1,
            padding: 1,
            groups: 35,
        },
    );
    check_convolution(
        [1, 4, 5, 6],
        [6, 2, 3, 3],
        ConvShape {
            stride: 1,
            padding: 1,
            groups: 2,
        },
    );
}

#[test]
fn layer_normalisation() {
    check(&[3 * 37, 37, 37], |x| {
        layer_norm(
            x[0].clone().reshape([3, 37]),
            x[1].clone(),
            x[2].clone(),
            1e-6,
        )
        .reshape([-1])
    });
}

#[test]
fn batch_normalisation_through_its_statistics() {
    check(&[2 * 3 * 4 * 5, 3, 3], |t| {
        let x = t[0].clone().reshape([2, 3, 4, 5]);
        let statistics = BatchStatistics::from_sums(&batch_sums(x.clone()), 1e-5, Arc::new(Alone));
        batch_norm(x, t[1].clone(), t[2].clone(), statistics).reshape([-1])
    });
}

#[test]
fn batch_normalisation_by_fixed_statistics() {
    check(&[2 * 3 * 4 * 5, 3, 3], |t| {
        let statistics = BatchStatistics::fixed(vec![0.1, -0.2, 0.3], vec![1.0, 2.0, 0.5], 1e-5);
        batch_norm(
            t[0].clone().reshape([2, 3, 4, 5]),
            t[1].clone(),
            t[2].clone(),
            statistics,
        )
        .reshape([-1])
    });
}

#[test]
fn activations() {
    let kinds = [
        Activation::Gelu,
        Activation::Silu,
        Activation::Mish,
        Activation::Relu,
    ];
    for kind in kinds {
        check(&[60], |x| activate(x[0].clone(), kind));
    }
}

#[test]
fn attention_of_several_heads() {
    check(&[2 * 5 * 6, 2 * 4 * 12], |t| {
        attention(
            t[0].clone().reshape([2, 5, 6]),
            t[1].clone().reshape([2, 4, 12]),
            3,
        )
        .reshape([-1])
    });
}

#[test]
fn fused_levels() {
    let sizes = [[4, 6], [2, 3], [1, 2], [1, 1]];
    for order in [LevelOrder::ShallowFirst, LevelOrder::DeepestFirst] {
        let mut lengths: Vec<usize> = sizes.iter().map(|[h, w]| 2 * 3 * h * w).collect();
        lengths.extend([5 * 12, 5]);
        check(&lengths, |t| {
            let levels =
                std::array::from_fn(|i| t[i].clone().reshape([2, 3, sizes[i][0], sizes[i][1]]));
            fuse_levels(
                levels,
                t[4].clone().reshape([5, 12, 1, 1]),
                Some(t[5].clone()),
                order,
            )
            .reshape([-1])
        });
    }
}

#[test]
fn fused_levels_are_the_convolution_of_their_concatenation() {
    let device = Device::flex();
    let map =
        |name: &str, [h, w]: [usize; 2]| tensor(&noise(name, 2 * 3 * h * w), [2, 3, h, w], &device);
    let levels = [
        map("a", [4, 6]),
        map("b", [2, 3]),
        map("c", [1, 2]),
        map("d", [1, 1]),
    ];
    let weight = tensor(&noise("weight", 60), [5, 12, 1, 1], &device);
    let mut large = levels.clone().map(|level| resize_bilinear(level, [4, 6]));
    for order in [LevelOrder::ShallowFirst, LevelOrder::DeepestFirst] {
        let expected = conv2d(
            Tensor::cat(large.to_vec(), 1),
            weight.clone(),
            None,
            ConvShape::POINTWISE,
        );
        let got = fuse_levels(levels.clone(), weight.clone(), None, order);
        assert!(scalar((got - expected).abs().sum()) < 1e-12, "{order:?}");
        large.reverse();
    }
}

#[test]
fn bilinear_resizing() {
    for size in [[8, 12], [5, 7], [3, 2]] {
        check(&[2 * 3 * 4 * 3], |t| {
            resize_bilinear(t[0].clone().reshape([2, 3, 4, 3]), size).reshape([-1])
        });
    }
}

#[test]
fn enlargement_and_convolution() {
    for (factor, outputs) in [(1, 2), (2, 2), (3, 4), (4, 8), (5, 1), (5, 4)] {
        check(&[2 * 3 * 4 * 5, outputs * 3 * 9, outputs], |t| {
            let (x, weight) = (
                t[0].clone().reshape([2, 3, 4, 5]),
                t[1].clone().reshape([outputs, 3, 3, 3]),
            );
            upsample_conv2d(x, weight, Some(t[2].clone()), factor).reshape([-1])
        });
    }
}

#[test]
fn enlargement_by_five_halves_and_convolution() {
    for ([h, w], outputs) in [([4, 6], 1), ([5, 3], 2), ([2, 1], 6)] {
        check(&[2 * 3 * h * w, outputs * 3 * 9, outputs], |t| {
            let (x, weight) = (
                t[0].clone().reshape([2, 3, h, w]),
                t[1].clone().reshape([outputs, 3, 3, 3]),
            );
            upsample_conv2d(x, weight, Some(t[2].clone()), Factor::FiveHalves).reshape([-1])
        });
    }
}

fn labels() -> Labels {
    let values = (0..2 * 5 * 7)
        .map(|i| {
            if i % 6 == 4 {
                IGNORE
            } else {
                u8::from(i % 3 == 0)
            }
        })
        .collect();
    Labels::new(values, [2, 5, 7], &Device::flex())
}

#[test]
fn binary_losses() {
    let map = |t: &Tensor<1>| t.clone().reshape([2, 1, 5, 7]);
    for gamma in [2.0, 1.5] {
        check(&[70], |t| {
            focal(
                map(&t[0]),
                &labels(),
                Focal {
                    alpha: 0.75,
                    gamma,
                    divisor: 13.0,
                },
            )
        });
    }
    check(&[70], |t| {
        soft_bce(
            map(&t[0]),
            &labels(),
            SoftBce {
                softening: 0.1,
                divisor: 13.0,
            },
        )
    });
    check(&[70], |t| dice(map(&t[0]), &labels(), 0.1, 2.0, &Alone));
}

#[test]
fn mean_absolute_difference() {
    let target = tensor(&noise("target", 60), [1, 3, 4, 5], &Device::flex());
    check(&[60], |t| {
        l1(t[0].clone().reshape([1, 3, 4, 5]), target.clone(), 7.0)
    });
}

#[test]
fn a_missing_target_has_no_loss_and_no_gradient() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let device = Device::flex().autodiff();
        let map = |values: Vec<f64>, device: &Device| {
            Tensor::<4>::from_data(TensorData::new(values, [1, 1, 2, 3]), (device, dtype))
        };
        // 0.5 + 2 + 1 over the three targets that are there; of the others' pixels one is NaN itself.
        let x = map(vec![1.0, 2.0, f64::NAN, -1.0, 3.0, 0.0], &device).require_grad();
        let gone = f64::NAN;
        let target = map(vec![0.5, gone, gone, 1.0, gone, 1.0], &Device::flex());
        let loss = l1(x.clone(), target, 3.0);
        let value = scalar(loss.clone());
        assert!((value - 3.5 / 3.0).abs() < 1e-2, "{dtype:?}: {value}");
        let gradient = x.grad(&loss.backward()).expect("a gradient").into_data();
        let signs: Vec<f64> = gradient.iter::<f64>().map(|g| (g * 3.0).round()).collect();
        assert_eq!(signs, [1.0, 0.0, 0.0, -1.0, 0.0, -1.0], "{dtype:?}");
    }
}

#[test]
fn feature_affinity() {
    check(&[2 * 3 * 5 * 7, 2 * 3 * 5 * 7], |t| {
        let map = |i: usize| t[i].clone().reshape([2, 3, 5, 7]);
        affinity(map(0), map(1), 2, 100.0)
    });
}

#[test]
fn geo_22_ignored_pixels_have_no_loss_and_no_gradient_whatever_they_hold() {
    let device = Device::flex().autodiff();
    let mut values = noise("logits", 70);
    (0..70)
        .filter(|i| i % 6 == 4)
        .for_each(|i| values[i] = f64::NAN);
    let losses: [(&str, &dyn Fn(Tensor<4>) -> Tensor<1>); 3] = [
        ("focal", &|x| {
            focal(
                x,
                &labels(),
                Focal {
                    alpha: 0.75,
                    gamma: 2.0,
                    divisor: 13.0,
                },
            )
        }),
        ("soft bce", &|x| {
            soft_bce(
                x,
                &labels(),
                SoftBce {
                    softening: 0.1,
                    divisor: 13.0,
                },
            )
        }),
        ("dice", &|x| dice(x, &labels(), 0.1, 2.0, &Alone)),
    ];
    for (name, loss) in losses {
        let x = tensor(&values, [2, 1, 5, 7], &device).require_grad();
        let value = loss(x.clone());
        assert!(scalar(value.clone()).is_finite(), "{name}");
        let gradient: Vec<f64> = x
            .grad(&value.backward())
            .expect("a gradient")
            .into_data()
            .iter::<f64>()
            .collect();
        for (i, g) in gradient.iter().enumerate() {
            assert_eq!(i % 6 == 4, *g == 0.0, "{name}: pixel {i} has gradient {g}");
        }
    }
}

#[test]
fn dice_without_positive_pixels_is_zero() {
    let device = Device::flex().autodiff();
    let empty = Labels::new(vec![0; 70], [2, 5, 7], &device);
    let x = tensor(&noise("logits", 70), [2, 1, 5, 7], &device).require_grad();
    let value = dice(x.clone(), &empty, 0.1, 2.0, &Alone);
    assert_eq!(scalar(value.clone()), 0.0);
    let gradient: Vec<f64> = x
        .grad(&value.backward())
        .expect("a gradient")
        .into_data()
        .iter::<f64>()
        .collect();
    assert_eq!(gradient, vec![0.0; 70]);
}
