//! Masks of dropout: a function of what is dropped for whom, and of nothing else.

use burn::tensor::{Device, Tensor};
use std::sync::Arc;
use terrashard_ops::{Masks, Mode, Pass, drop_path, dropout};

fn pass(seed: u64, step: u64, samples: &[u64]) -> Pass {
    Pass {
        masks: Some(Masks {
            seed,
            step,
            samples: Arc::from(samples),
        }),
        ..Pass::new(Mode::Training)
    }
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// What becomes of ones: the factors of each sample.
fn factors(rate: f64, layer: &str, pass: &Pass, elements: usize) -> Vec<Vec<f32>> {
    let samples = pass.masks.as_ref().map_or(1, |masks| masks.samples.len());
    let ones = Tensor::<2>::ones([samples, elements], &Device::flex());
    let values = host(dropout(ones, rate, layer, pass));
    values.chunks(elements).map(<[f32]>::to_vec).collect()
}

#[test]
fn a_mask_follows_its_sample() {
    let there = factors(0.5, "head", &pass(1, 7, &[40, 41, 42]), 64);
    let here = factors(0.5, "head", &pass(1, 7, &[42, 9]), 64);
    assert_eq!(here[0], there[2]);
    let recomputed = Pass {
        mode: Mode::Recomputing,
        ..pass(1, 7, &[42, 9])
    };
    assert_eq!(factors(0.5, "head", &recomputed, 64), here);
}

#[test]
fn b3_masks_differ_between_samples_steps_layers_and_seeds() {
    let masks = [
        factors(0.5, "head", &pass(1, 7, &[40]), 64),
        factors(0.5, "head", &pass(1, 7, &[41]), 64),
        factors(0.5, "head", &pass(1, 8, &[40]), 64),
        factors(0.5, "head", &pass(2, 7, &[40]), 64),
        factors(0.5, "tail", &pass(1, 7, &[40]), 64),
    ];
    for (i, mask) in masks.iter().enumerate() {
        for other in &masks[..i] {
            let same = mask[0].iter().zip(&other[0]).filter(|(a, b)| a == b);
            // Independent masks agree on half of 64 elements, give or take 4.
            assert!((16..48).contains(&same.count()), "mask {i}");
        }
    }
}

#[test]
fn values_are_dropped_at_the_rate_and_the_others_make_up_for_them() {
    let samples: Vec<u64> = (0..100).collect();
    let mask = factors(0.2, "head", &pass(1, 7, &samples), 1000).concat();
    let dropped = mask.iter().filter(|factor| **factor == 0.0).count();
    assert!(mask.iter().all(|factor| [0.0, 1.25].contains(factor)));
    // Four deviations of the share of 100 000 draws.
    assert!((dropped as f64 / 1e5 - 0.2).abs() < 0.005, "{dropped}");
}

#[test]
fn stochastic_depth_drops_whole_samples() {
    let samples: Vec<u64> = (0..10_000).collect();
    let ones = Tensor::<3>::ones([10_000, 2, 3], &Device::flex());
    let values = host(drop_path(ones, 0.2, "block", &pass(1, 7, &samples)));
    let kept = values.chunks(6).filter(|sample| sample == &[1.25; 6]);
    let dropped = values.chunks(6).filter(|sample| sample == &[0.0; 6]);
    let (kept, dropped) = (kept.count(), dropped.count());
    assert_eq!(kept + dropped, 10_000);
    assert!((dropped as f64 / 1e4 - 0.2).abs() < 0.016, "{dropped}");
}

#[test]
fn a_map_is_dropped_as_its_tokens_are() {
    let device = Device::flex();
    let map = dropout(
        Tensor::<4>::ones([2, 3, 4, 5], &device),
        0.5,
        "head",
        &pass(1, 7, &[5, 6]),
    );
    let tokens = map.permute([0, 2, 3, 1]).reshape([2, 60]);
    let expected = factors(0.5, "head", &pass(1, 7, &[5, 6]), 60).concat();
    assert_eq!(host::<2>(tokens), expected);
}

#[test]
fn gradients_pass_through_the_same_mask() {
    let device = Device::flex().autodiff();
    let pass = pass(1, 7, &[5, 6]);
    let x = Tensor::<4>::ones([2, 3, 4, 5], &device).require_grad();
    let y = dropout(x.clone(), 0.5, "head", &pass);
    let gradients = (y.clone() * 3.0).sum().backward();
    let gradient = host(x.grad(&gradients).expect("a gradient"));
    assert!(gradient.contains(&0.0) && gradient.contains(&6.0));
    assert_eq!(gradient, host(y * 3.0));
}

#[test]
fn nothing_is_dropped_without_masks_at_rate_zero_or_in_inference() {
    let ones = vec![vec![1.0; 8]];
    let inference = Pass {
        mode: Mode::Inference,
        ..pass(1, 7, &[5])
    };
    assert_eq!(factors(0.9, "head", &inference, 8), ones);
    assert_eq!(factors(0.9, "head", &Pass::new(Mode::Training), 8), ones);
    assert_eq!(factors(0.0, "head", &pass(1, 7, &[5]), 8), ones);
}

#[test]
#[should_panic(expected = "masks name every sample of the batch")]
fn masks_of_another_batch_are_refused() {
    let ones = Tensor::<2>::ones([3, 4], &Device::flex());
    dropout(ones, 0.5, "head", &pass(1, 7, &[5, 6]));
}
