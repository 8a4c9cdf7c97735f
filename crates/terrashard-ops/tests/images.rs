//! The L1 loss of images that are stored as digital numbers, beside the same images as floats.

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_ops::{Coding, Image, l1};

const CODING: Coding = Coding {
    offset: -1000.0,
    scale: 1e-4,
    missing: 40_000,
};

/// A map, its loss and its gradient.
fn run(dtype: DType, x: &[f64], shape: [usize; 4], target: Image) -> (f64, Vec<f64>) {
    let device = Device::flex().autodiff();
    let data = TensorData::new(x.to_vec(), shape);
    let x = Tensor::<4>::from_data(data, (&device, dtype)).require_grad();
    let loss = l1(x.clone(), target, 3.0);
    let gradient = x
        .grad(&loss.clone().backward())
        .expect("tracked")
        .into_data();
    (loss.into_scalar::<f64>(), gradient.iter::<f64>().collect())
}

#[test]
fn numbers_mean_reflectance() {
    // 0.5, 6.4535 above what `i16` holds, missing, -0.1
    let numbers = Image::numbers(
        vec![6000, 65_535, 40_000, 0],
        [1, 1, 2, 2],
        CODING,
        &Device::flex(),
    );
    assert_eq!((numbers.dims(), numbers.missing()), ([1, 1, 2, 2], 1));
    let x = [0.75, 6.0, f64::NAN, -0.25];
    for (dtype, allowed) in [(DType::F32, 1e-6), (DType::F64, 1e-6), (DType::BF16, 2e-2)] {
        let (loss, gradient) = run(dtype, &x, [1, 1, 2, 2], numbers.clone());
        let expected = (0.25 + 0.4535 + 0.15) / 3.0;
        assert!((loss - expected).abs() < allowed, "{dtype:?}: {loss}");
        let signs: Vec<f64> = gradient.iter().map(|g| (g * 3.0).round()).collect();
        assert_eq!(signs, [1.0, -1.0, 0.0, -1.0], "{dtype:?}");
    }
}

#[test]
fn numbers_and_floats_give_the_same_bits() {
    let shape = [2, 3, 50, 70];
    let count = shape.iter().product();
    // All numbers of 16 bits, and a map around what they mean.
    let numbers: Vec<u16> = (0..count).map(|i: usize| (i * 40_503) as u16).collect();
    let x: Vec<f64> = (0..count)
        .map(|i| (i * 7919 % 6553) as f64 * 1e-3 - 0.1)
        .collect();
    let reflectance: Vec<f32> = numbers
        .iter()
        .map(|number| match *number == CODING.missing {
            true => f32::NAN,
            false => (f32::from(*number) + CODING.offset) * CODING.scale,
        })
        .collect();
    let device = Device::flex();
    let floats = Tensor::<4>::from_data(TensorData::new(reflectance, shape), (&device, DType::F32));
    let floats = Image::from(floats);
    let stored = Image::numbers(numbers, shape, CODING, &device);
    assert_eq!(stored.missing(), floats.missing());
    let bits = |image: &Image| -> Vec<u32> {
        let values = image.reflectance().into_data();
        values.iter::<f32>().map(f32::to_bits).collect()
    };
    assert_eq!(bits(&stored), bits(&floats));
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let got = run(dtype, &x, shape, stored.clone());
        let expected = run(dtype, &x, shape, floats.clone());
        assert!(got == expected && got.0 > 0.0, "{dtype:?}");
    }
}

#[test]
fn finite_differences_of_numbers() {
    let shape = [1, 1, 4, 5];
    let numbers: Vec<u16> = (0..20).map(|i| i * 3000 + 1000).collect();
    let stored = Image::numbers(numbers, shape, CODING, &Device::flex());
    let x: Vec<f64> = (0..20)
        .map(|i| f64::from(i * 7 % 20) * 0.3 + 0.017)
        .collect();
    let (_, gradient) = run(DType::F64, &x, shape, stored.clone());
    for (at, gradient) in gradient.iter().enumerate() {
        let moved = |by: f64| {
            let mut x = x.clone();
            x[at] += by;
            run(DType::F64, &x, shape, stored.clone()).0
        };
        let expected = (moved(1e-6) - moved(-1e-6)) / 2e-6;
        assert!((gradient - expected).abs() < 1e-8, "{at}: {gradient}");
        // 1000 + 13 * 3000 is missing.
        assert_eq!(*gradient == 0.0, at == 13, "{at}");
    }
}
