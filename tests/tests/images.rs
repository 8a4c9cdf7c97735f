//! The L1 loss on LibTorch of images that are stored as digital numbers.

use burn::tensor::{DType, Tensor, TensorData};
use terrashard_ops::{Coding, Enlarged, Image, enlarge_conv2d, l1};
use terrashard_tests::backend::Backend;
use terrashard_tests::both_backends::{Inputs, check, host, noise};

const CODING: Coding = Coding {
    offset: -30_000.0,
    scale: 1e-4,
    missing: 65_535,
};

/// Numbers of all 16 bits, of which some are missing.
fn numbers(shape: [usize; 4]) -> Vec<u16> {
    let count: usize = shape.iter().product();
    let number = |at: usize| match at % 11 {
        3 => CODING.missing,
        _ => (at * 40_503) as u16,
    };
    (0..count).map(number).collect()
}

/// A map that was enlarged by this factor, and its loss beside numbers.
fn enlarged(factor: usize) -> impl Fn(&mut Inputs) -> Tensor<1> {
    move |of| {
        let (x, weight) = (of.tensor([3, 2, 4, 6]) * 3.0, of.tensor([3, 2, 3, 3]));
        let values = enlarge_conv2d(x, weight, Some(of.tensor([3])), factor);
        let map = Enlarged::new(values, [4, 6], factor);
        let shape = map.dims();
        l1(
            map,
            Image::numbers(numbers(shape), shape, CODING, &of.device),
            17.0,
        )
    }
}

#[test]
fn numbers_beside_enlarged_maps() {
    // In single and in double precision, as on burn's own backend.
    for factor in [1, 2, 3, 5, 20] {
        check(enlarged(factor));
    }
}

#[test]
fn numbers_and_floats_give_the_same_bits() {
    let shape = [2, 3, 40, 60];
    let device = Backend::Tch.device();
    let stored = Image::numbers(numbers(shape), shape, CODING, &device);
    let meaning = |number: u16| match number == CODING.missing {
        true => f32::NAN,
        false => (f32::from(number) + CODING.offset) * CODING.scale,
    };
    let reflectance: Vec<f32> = numbers(shape).into_iter().map(meaning).collect();
    let floats = TensorData::new(reflectance, shape);
    let floats = Image::from(Tensor::<4>::from_data(floats, (&device, DType::F32)));
    let missing = numbers(shape)
        .iter()
        .filter(|n| **n == CODING.missing)
        .count();
    assert_eq!([&stored, &floats].map(Image::missing), [missing as u64; 2]);
    let bits = |image: &Image| -> Vec<u32> {
        let values = image.reflectance().into_data();
        values.iter::<f32>().map(f32::to_bits).collect()
    };
    assert_eq!(bits(&stored), bits(&floats));
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let run = |target: &Image| {
            let device = device.clone().autodiff();
            let map = Tensor::<4>::from_data(noise(1, shape), (&device, dtype)).require_grad();
            let loss = l1(map.clone(), target.clone(), 3.0);
            let gradient = map.grad(&loss.clone().backward()).expect("tracked");
            (host(loss), host(gradient))
        };
        let (got, expected) = (run(&stored), run(&floats));
        assert!(got == expected && got.0[0] > 0.0, "{dtype:?}");
    }
}

#[test]
fn numbers_take_half_the_memory_and_the_loss_no_more() {
    const SAMPLES: usize = 32;
    terrashard_torch::tch::set_num_threads(1);
    let shape = [SAMPLES, 1, 60, 60];
    let device = Backend::Tch.device();
    let make = || Image::numbers(vec![7; SAMPLES * 60 * 60], shape, CODING, &device);
    let (stored, peak) = terrashard_torch::cpu_peak(make).expect("nothing else counts");
    let floats = 4 * SAMPLES as u64 * 60 * 60;
    assert!(
        peak >= floats / 2 && peak < floats * 3 / 5,
        "{peak} of {floats}"
    );
    let device = device.autodiff();
    let map = Tensor::<4>::from_data(noise(1, shape), (&device, DType::F32)).require_grad();
    let run = || map.grad(&l1(map.clone(), stored.clone(), 1.0).backward());
    let (gradient, peak) = terrashard_torch::cpu_peak(run).expect("nothing else counts");
    assert!(gradient.is_some());
    // Beside the gradient what one sample of 32 needs.
    assert!(
        peak >= floats && peak < floats + floats / 8,
        "{peak} of {floats}"
    );
}
