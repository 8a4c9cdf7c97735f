//! Losses of several classes: values against plain sums in `f64`, gradients against finite differences.

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_ops::{Alone, IGNORE, Initial, Labels, class_dice, cross_entropy};

/// Samples, classes, height and width.
const SHAPE: [usize; 4] = [2, 5, 3, 4];

/// One label a pixel: every class but the last, and some that are ignored.
fn labels() -> Vec<u8> {
    (0..24)
        .map(|i| if i % 5 == 3 { IGNORE } else { (i % 4) as u8 })
        .collect()
}

fn logits() -> Vec<f64> {
    let values = Initial::Normal { deviation: 3.0 }.values("logits", 120, 0);
    values.into_iter().map(f64::from).collect()
}

fn run(values: &[f64], loss: impl Fn(Tensor<4>, &Labels) -> Tensor<1>) -> (f64, Vec<f64>) {
    let device = Device::flex().autodiff();
    let data = TensorData::new(values.to_vec(), SHAPE);
    let x = Tensor::<4>::from_data(data, (&device, DType::F64)).require_grad();
    let [n, _, h, w] = SHAPE;
    let value = loss(x.clone(), &Labels::new(labels(), [n, h, w], &device));
    let gradients = value.clone().backward();
    let gradient = x.grad(&gradients).expect("a gradient").into_data();
    (value.into_scalar::<f64>(), gradient.iter::<f64>().collect())
}

/// The softmax of a pixel, taken plainly.
fn softmax(values: &[f64], pixel: usize) -> Vec<f64> {
    let [_, classes, h, w] = SHAPE;
    let (image, at) = (pixel / (h * w), pixel % (h * w));
    let exponentials: Vec<f64> = (0..classes)
        .map(|class| values[(image * classes + class) * h * w + at].exp())
        .collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|value| value / sum).collect()
}

#[track_caller]
fn check_gradient(loss: impl Fn(Tensor<4>, &Labels) -> Tensor<1>) {
    const STEP: f64 = 1e-5;
    let values = logits();
    let (_, gradient) = run(&values, &loss);
    for i in 0..values.len() {
        let moved = |by: f64| {
            let mut values = values.clone();
            values[i] += by;
            run(&values, &loss).0
        };
        let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        assert!(
            (gradient[i] - expected).abs() < 1e-9,
            "element {i}: {} instead of {expected}",
            gradient[i]
        );
    }
}

#[test]
fn cross_entropy_is_the_logarithm_of_the_right_class() {
    let values = logits();
    let (value, _) = run(&values, |x, labels| cross_entropy(x, labels, 7.0));
    let of = |(pixel, label): (usize, &u8)| -softmax(&values, pixel)[usize::from(*label)].ln();
    let labels = labels();
    let valid = labels
        .iter()
        .enumerate()
        .filter(|(_, label)| **label != IGNORE);
    let expected = valid.map(of).sum::<f64>() / 7.0;
    assert!((value - expected).abs() < 1e-12, "{value} not {expected}");
    check_gradient(|x, labels| cross_entropy(x, labels, 7.0));
}

#[test]
fn dice_is_the_mean_over_classes_and_leaves_out_absent_ones() {
    let values = logits();
    let (value, gradient) = run(&values, |x, labels| class_dice(x, labels, 0.1, 2.0, &Alone));
    let all = labels();
    let mut expected = 0.0;
    for class in 0..4usize {
        let (mut intersection, mut cardinality) = (0.0, 0.0);
        for (pixel, label) in all
            .iter()
            .enumerate()
            .filter(|(_, label)| **label != IGNORE)
        {
            let p = softmax(&values, pixel)[class];
            let own = f64::from(u8::from(usize::from(*label) == class));
            intersection += p * own;
            cardinality += p + own;
        }
        // The fifth class has no pixel: its share is 0.
        expected += (1.0 - (2.0 * intersection + 0.1) / (cardinality + 0.1)) / 5.0;
    }
    assert!((value - expected).abs() < 1e-12, "{value} not {expected}");
    for (pixel, label) in all.iter().enumerate() {
        let of = |class: usize| gradient[(pixel / 12 * 5 + class) * 12 + pixel % 12];
        assert_eq!(*label == IGNORE, (0..5).all(|class| of(class) == 0.0));
    }
    check_gradient(|x, labels| class_dice(x, labels, 0.1, 2.0, &Alone));
}

#[test]
fn ignored_pixels_may_hold_anything() {
    let mut values = logits();
    // Pixel 3 is ignored.
    (0..5).for_each(|class| values[class * 12 + 3] = f64::NAN);
    for loss in [
        |x: Tensor<4>, labels: &Labels| cross_entropy(x, labels, 7.0),
        |x: Tensor<4>, labels: &Labels| class_dice(x, labels, 0.1, 2.0, &Alone),
    ] {
        let (value, gradient) = run(&values, loss);
        assert!(value.is_finite());
        assert!(gradient.iter().all(|value| value.is_finite()));
    }
}

#[test]
fn far_logits_neither_overflow_nor_vanish() {
    // exp(1000) is no number in f64; the loss is the distance to the largest logit.
    let mut values = vec![0.0; 120];
    values[0] = 1000.0;
    values[12] = 998.0;
    let (value, gradient) = run(&values, |x, labels| cross_entropy(x, labels, 1.0));
    // 18 other valid pixels of equal logits: ln 5 each.
    let expected = 18.0 * 5f64.ln() + (-2f64).exp().ln_1p();
    assert!((value - expected).abs() < 1e-12, "{value} not {expected}");
    assert!(gradient.iter().all(|value| value.is_finite()));
}

#[test]
#[should_panic(expected = "a pixel is labelled 3 where there are 2 classes")]
fn a_label_without_a_logit_is_refused() {
    let device = Device::flex();
    let x = Tensor::<4>::zeros([2, 2, 3, 4], &device);
    cross_entropy(x, &Labels::new(labels(), [2, 3, 4], &device), 1.0);
}
