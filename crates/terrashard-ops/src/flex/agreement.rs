//! The kernels against the portable bodies, forward and backward, in both types and for both layouts in memory.

use super::{Flat, as_map, channels_last};
use crate::batch_norm::BatchStatistics;
use crate::cross_entropy;
use crate::kernels::{Gradients, Kernels, portable};
use crate::{Activation, Coding, ConvShape, Focal, IGNORE, Image, Initial, Labels, SoftBce};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// A tensor without pattern.
fn noise<const D: usize>(name: &str, shape: [usize; D], dtype: DType) -> Flat {
    let values = Initial::Normal { deviation: 1.0 }.values(name, shape.iter().product(), 0);
    Flat::from_data(TensorData::new(values, shape).convert_dtype(dtype))
}

/// Relative difference over the whole tensor.
#[track_caller]
fn check(got: &Flat, expected: &Flat) {
    assert_eq!(got.shape(), expected.shape());
    assert_eq!(got.dtype(), expected.dtype());
    let host =
        |tensor: &Flat| -> Vec<f64> { tensor.to_contiguous().into_data().iter::<f64>().collect() };
    let (got, expected) = (host(got), host(expected));
    let norm: f64 = expected.iter().map(|x| x * x).sum();
    let difference: f64 = got
        .iter()
        .zip(&expected)
        .map(|(a, b)| (a - b) * (a - b))
        .sum();
    assert!(norm > 0.0);
    // In f32 the gradient of a bias, a sum of noise that mostly cancels, keeps five digits.
    let allowed = if matches!(DTYPE.get(), DType::F64) {
        1e-12
    } else {
        1e-5
    };
    assert!(
        (difference / norm).sqrt() < allowed,
        "{:e}",
        (difference / norm).sqrt()
    );
}

#[track_caller]
fn check_all(got: Gradients<Flex>, expected: Gradients<Flex>) {
    assert!(got.len() <= expected.len());
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(got.is_some(), expected.is_some());
        if let (Some(got), Some(expected)) = (got, expected) {
            check(got, expected);
        }
    }
}

thread_local! {
    /// The type under test.
    static DTYPE: std::cell::Cell<DType> = const { std::cell::Cell::new(DType::F64) };
}

/// Runs a comparison in both types.
fn in_both_types(body: impl Fn(DType)) {
    for dtype in [DType::F64, DType::F32] {
        DTYPE.set(dtype);
        body(dtype);
    }
}

/// The same values, channels last in memory.
fn relaid(map: &Flat) -> Flat {
    let map = as_map(channels_last(map));
    assert!(!map.is_contiguous());
    map
}

#[test]
fn linear() {
    in_both_types(|dtype| {
        let (x, weight) = (
            noise("x", [3, 50, 7], dtype),
            noise("weight", [5, 7], dtype),
        );
        let (bias, g) = (noise("bias", [5], dtype), noise("g", [3, 50, 5], dtype));
        check(
            &Flex::linear_forward(x.clone(), weight.clone(), bias.clone()),
            &portable::linear_forward::<Flex>(x.clone(), weight.clone(), bias),
        );
        check_all(
            Flex::linear_backward(g.clone(), x.clone(), weight.clone(), &[true; 3]),
            portable::linear_backward::<Flex>(g, x, weight, &[true; 3]),
        );
    });
}

fn convolution(x: [usize; 4], weight: [usize; 4], shape: ConvShape) {
    in_both_types(|dtype| {
        let (x, weight) = (noise("x", x, dtype), noise("weight", weight, dtype));
        let bias = noise("bias", [weight.shape()[0]], dtype);
        let y =
            portable::conv2d_forward::<Flex>(x.clone(), weight.clone(), Some(bias.clone()), shape);
        let g = noise("g", [0, 1, 2, 3].map(|i| y.shape()[i]), dtype);
        for (x, g) in [(x.clone(), g.clone()), (relaid(&x), relaid(&g))] {
            check(
                &Flex::conv2d_forward(x.clone(), weight.clone(), Some(bias.clone()), shape),
                &y,
            );
            check_all(
                Flex::conv2d_backward(g.clone(), x.clone(), weight.clone(), shape, &[true; 3]),
                portable::conv2d_backward::<Flex>(g, x, weight.clone(), shape, &[true; 3]),
            );
        }
    });
}

#[test]
fn convolutions() {
    convolution(
        [2, 6, 33, 30],
        [8, 6, 7, 7],
        ConvShape {
            stride: 4,
            padding: 3,
            groups: 1,
        },
    );
    convolution(
        [2, 5, 16, 9],
        [6, 5, 3, 3],
        ConvShape {
            stride: 2,
            padding: 1,
            groups: 1,
        },
    );
    convolution(
        [1, 4, 16, 24],
        [4, 4, 8, 8],
        ConvShape {
            stride: 8,
            padding: 0,
            groups: 1,
        },
    );
    convolution([2, 9, 5, 6], [7, 9, 1, 1], ConvShape::POINTWISE);
    convolution(
        [2, 70, 9, 8],
        [70, 1, 3, 3],
        ConvShape {
            stride: 1,
            padding: 1,
            groups: 70,
        },
    );
    convolution(
        [1, 3, 9, 8],
        [3, 1, 5, 5],
        ConvShape {
            stride: 1,
            padding: 2,
            groups: 3,
        },
    );
}

#[test]
fn enlargement_and_convolution() {
    for (factor, outputs) in [(1, 3), (2, 1), (3, 8), (4, 8), (5, 4), (7, 2)] {
        in_both_types(|dtype| {
            // More rows than one strip has.
            let x = noise("x", [2, 3, 40, 35], dtype);
            let weight = noise("weight", [outputs, 3, 3, 3], dtype);
            let bias = noise("bias", [outputs], dtype);
            let y = portable::upsample_conv2d_forward::<Flex>(
                x.clone(),
                weight.clone(),
                Some(bias.clone()),
                factor,
            );
            let g = noise("g", [2, outputs, 40 * factor, 35 * factor], dtype);
            check(
                &Flex::upsample_conv2d_forward(x.clone(), weight.clone(), Some(bias), factor),
                &y,
            );
            check_all(
                Flex::upsample_conv2d_backward(
                    g.clone(),
                    relaid(&x),
                    weight.clone(),
                    factor,
                    &[true; 3],
                ),
                portable::upsample_conv2d_backward::<Flex>(g, x, weight, factor, &[true; 3]),
            );
        });
    }
}

#[test]
fn enlargement_by_five_halves() {
    for (outputs, [h, w]) in [(1, [40, 36]), (4, [41, 35]), (6, [40, 35])] {
        in_both_types(|dtype| {
            let x = noise("x", [2, 3, h, w], dtype);
            let weight = noise("weight", [outputs, 3, 3, 3], dtype);
            let bias = noise("bias", [outputs], dtype);
            // What it is: the enlarged map, and a convolution of it.
            let rows = |extent: usize| -> Tensor<1, Int> {
                let rows: Vec<i64> = (0..extent * 5 / 2).map(|i| (i * 2 / 5) as i64).collect();
                Tensor::from_data(&rows[..], &Device::flex())
            };
            let large = Flex::lift::<4>(x.clone())
                .select(2, rows(h))
                .select(3, rows(w));
            let y = portable::conv2d_forward::<Flex>(
                Flex::lower(large),
                weight.clone(),
                Some(bias.clone()),
                ConvShape::SAME_3X3,
            );
            let (a, b, c) = (x.clone(), weight.clone(), Some(bias));
            check(
                &portable::upsample_conv2d_five_halves_forward::<Flex>(
                    a.clone(),
                    b.clone(),
                    c.clone(),
                ),
                &y,
            );
            check(
                &Flex::upsample_conv2d_five_halves_forward(relaid(&a), b, c),
                &y,
            );
            let g = noise("g", [2, outputs, h * 5 / 2, w * 5 / 2], dtype);
            check_all(
                Flex::upsample_conv2d_five_halves_backward(
                    g.clone(),
                    relaid(&x),
                    weight.clone(),
                    &[true; 3],
                ),
                portable::upsample_conv2d_five_halves_backward::<Flex>(g, x, weight, &[true; 3]),
            );
        });
    }
}

#[test]
fn losses_of_several_classes() {
    for classes in [3, 7] {
        let values = (0..2 * 90 * 110).map(|i| match i % 11 {
            5 => IGNORE,
            _ => (i % 3) as u8,
        });
        let labels = Labels::new(values.collect(), [2, 90, 110], &Device::flex());
        in_both_types(|dtype| {
            let (x, g) = (
                noise("x", [2, classes, 90, 110], dtype),
                noise("g", [1], dtype),
            );
            for x in [x.clone(), relaid(&x)] {
                check(
                    &Flex::cross_entropy_forward(x.clone(), &labels, 9.0),
                    &Flex::lower(cross_entropy::forward(Flex::lift(x.clone()), &labels, 9.0)),
                );
                check(
                    &Flex::cross_entropy_backward(g.clone(), x.clone(), &labels, 9.0),
                    &portable::cross_entropy_backward::<Flex>(g.clone(), x.clone(), &labels, 9.0),
                );
                check(
                    &Flex::class_sums(x.clone(), &labels),
                    &Flex::lower(cross_entropy::sums(Flex::lift(x), &labels)),
                );
            }
        });
    }
}

#[test]
fn normalisations() {
    in_both_types(|dtype| {
        let (x, g) = (
            noise("x", [2, 500, 37], dtype),
            noise("g", [2, 500, 37], dtype),
        );
        let (weight, bias) = (noise("weight", [37], dtype), noise("bias", [37], dtype));
        check(
            &Flex::layer_norm_forward(x.clone(), weight.clone(), bias.clone(), 1e-6),
            &portable::layer_norm_forward::<Flex>(x.clone(), weight.clone(), bias.clone(), 1e-6),
        );
        check_all(
            Flex::layer_norm_backward(g.clone(), x.clone(), weight.clone(), 1e-6),
            portable::layer_norm_backward::<Flex>(g, x, weight.clone(), 1e-6),
        );
        let (x, g) = (
            noise("x", [2, 37, 20, 25], dtype),
            noise("g", [2, 37, 20, 25], dtype),
        );
        let statistics = BatchStatistics::fixed(vec![0.3; 37], vec![1.7; 37], 1e-5);
        check(
            &Flex::batch_norm_forward(relaid(&x), weight.clone(), bias.clone(), &statistics),
            &portable::batch_norm_forward::<Flex>(x.clone(), weight.clone(), bias, &statistics),
        );
        check_all(
            Flex::batch_norm_backward(g.clone(), relaid(&x), weight.clone(), &statistics),
            portable::batch_norm_backward::<Flex>(g, x, weight, &statistics),
        );
    });
}

#[test]
fn attention() {
    in_both_types(|dtype| {
        let (q, kv) = (
            noise("q", [2, 50, 20], dtype),
            noise("kv", [2, 11, 40], dtype),
        );
        let g = noise("g", [2, 50, 20], dtype);
        check(
            &Flex::attention_forward(q.clone(), kv.clone(), 5),
            &portable::attention_forward::<Flex>(q.clone(), kv.clone(), 5),
        );
        check_all(
            Flex::attention_backward(g.clone(), q.clone(), kv.clone(), 5),
            portable::attention_backward::<Flex>(g, q, kv, 5),
        );
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
        in_both_types(|dtype| {
            let (x, g) = (
                noise("x", [2, 9, 30, 40], dtype),
                noise("g", [2, 9, 30, 40], dtype),
            );
            let y = portable::activate_forward::<Flex>(x.clone(), kind);
            check(&Flex::activate_forward(x.clone(), kind), &y);
            check(&Flex::activate_forward(relaid(&x), kind), &y);
            check(
                &Flex::activate_backward(g.clone(), relaid(&x), kind),
                &portable::activate_backward::<Flex>(g, x, kind),
            );
        });
    }
}

#[test]
fn resizing() {
    for size in [[32, 40], [9, 7], [3, 5]] {
        in_both_types(|dtype| {
            let (x, g) = (
                noise("x", [2, 5, 8, 10], dtype),
                noise("g", [2, 5, size[0], size[1]], dtype),
            );
            check(
                &Flex::resize_forward(x.clone(), size),
                &portable::resize_forward::<Flex>(x, size),
            );
            check(
                &Flex::resize_backward(g.clone(), [8, 10]),
                &portable::resize_backward::<Flex>(g, [8, 10]),
            );
        });
    }
}

#[test]
fn losses() {
    let values = (0..2 * 100 * 130)
        .map(|i| {
            if i % 7 == 3 {
                IGNORE
            } else {
                u8::from(i % 3 == 0)
            }
        })
        .collect();
    let labels = Labels::new(values, [2, 100, 130], &Device::flex());
    let (focal, bce) = (
        Focal {
            alpha: 0.7,
            gamma: 2.0,
            divisor: 9.0,
        },
        SoftBce {
            softening: 0.1,
            divisor: 9.0,
        },
    );
    in_both_types(|dtype| {
        let (x, g) = (noise("x", [2, 1, 100, 130], dtype), noise("g", [1], dtype));
        check(
            &Flex::focal_forward(x.clone(), &labels, focal),
            &portable::focal_forward::<Flex>(x.clone(), &labels, focal),
        );
        check(
            &Flex::focal_backward(g.clone(), x.clone(), &labels, focal),
            &portable::focal_backward::<Flex>(g.clone(), x.clone(), &labels, focal),
        );
        check(
            &Flex::soft_bce_forward(x.clone(), &labels, bce),
            &portable::soft_bce_forward::<Flex>(x.clone(), &labels, bce),
        );
        check(
            &Flex::soft_bce_backward(g.clone(), x.clone(), &labels, bce),
            &portable::soft_bce_backward::<Flex>(g.clone(), x.clone(), &labels, bce),
        );
        let target: Tensor<4> = Flex::lift(noise("target", [2, 1, 100, 130], dtype));
        // Some targets are missing.
        let missing = target.clone().greater_elem(1.0);
        let target = target.mask_fill(missing, f32::NAN);
        let numbers = (0..26_000).map(|i| (i * 331) as u16).collect();
        let coding = Coding {
            offset: -30_000.0,
            scale: 1e-4,
            missing: 331,
        };
        let numbers = Image::numbers(numbers, [2, 1, 100, 130], coding, &Device::flex());
        for target in [Image::Reflectance(target), numbers] {
            check(
                &Flex::l1_forward(x.clone(), &target, 9.0),
                &portable::l1_forward::<Flex>(x.clone(), &target, 9.0),
            );
            check(
                &Flex::l1_backward(g.clone(), x.clone(), &target, 9.0),
                &portable::l1_backward::<Flex>(g.clone(), x.clone(), &target, 9.0),
            );
        }
    });
}
