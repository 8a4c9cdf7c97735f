//! The model in 16 bits: finite, and near what it is in `f32`.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use terrashard_models::{
    IGNORE, Labels, Loss, ModelConfig, Normalizers, Plain, S2s2Net, Targets, assign, initial_value,
};

fn model(dtype: DType, device: &Device) -> S2s2Net {
    let config = ModelConfig {
        dims: [8, 16, 20, 32],
        depths: [1; 4],
        head_channels: 8,
        ..ModelConfig::b0()
    };
    let model = config.init(device).expect("a valid configuration");
    assign(model, &mut |name, shape| {
        let values = TensorData::new(initial_value(name, shape, 3), shape.to_vec());
        // The same values in every type.
        values.convert_dtype(DType::BF16).convert_dtype(dtype)
    })
}

/// The gradients of all parameters.
struct Collect<'a>(&'a Gradients, Vec<(String, Vec<f64>)>, DType, Vec<String>);

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let name = self.3.join(".");
        let gradient = parameter
            .val()
            .grad(self.0)
            .expect("every parameter is used");
        assert_eq!(gradient.dtype(), self.2, "{name}");
        let values = gradient.into_data().iter::<f64>().collect();
        self.1.push((name, values));
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.3.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.3.pop();
    }
}

/// The logits, the loss, and the gradients, whose scale is `2^11` so that none is too small for 16 bits. The image is padded
/// inside and the maps are cropped.
fn run(dtype: DType, loss: Loss) -> Vec<(String, Vec<f64>)> {
    let (n, height, width) = (2, 40, 50);
    let device = Device::flex().autodiff();
    let model = model(dtype, &device);
    let wave = |shape: [usize; 4], dtype| {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
        let data = TensorData::new(values, shape).convert_dtype(DType::BF16);
        Tensor::<4>::from_data(data, (&device, dtype))
    };
    let label = |i: usize| match i % 7 {
        3 => IGNORE,
        _ => u8::from(i / 5 % 50 > 20),
    };
    let labels = (0..n * 25 * height * width).map(label).collect();
    let targets = Targets {
        labels: Labels::new(labels, [n, 5 * height, 5 * width], &device),
        superres: Some(wave([n, 4, 5 * height, 5 * width], DType::F32).into()),
    };
    let scope = Plain::training();
    let maps = model.forward(wave([n, 6, height, width], dtype), &scope);
    assert_eq!(maps.segmentation.values().dtype(), dtype);
    let losses = loss.of(&maps, &targets, &Normalizers::of(&targets), &scope);
    assert_eq!(losses.total.dtype(), DType::F32);
    let mut found = vec![
        (
            "logits".into(),
            maps.segmentation
                .pixels()
                .into_data()
                .iter::<f64>()
                .collect(),
        ),
        (
            "loss".into(),
            losses.total.clone().into_data().iter::<f64>().collect(),
        ),
    ];
    let gradients = (losses.total * 2048.0).backward();
    let mut collect = Collect(&gradients, Vec::new(), dtype, Vec::new());
    model.visit(&mut collect);
    found.append(&mut collect.1);
    for (name, values) in &found {
        assert!(values.iter().all(|value| value.is_finite()), "{name}");
    }
    found
}

/// The norm of the difference by that of what is expected.
fn relative<'a>(pairs: impl Iterator<Item = (&'a f64, &'a f64)>) -> f64 {
    let (difference, norm) = pairs.fold((0.0, 0.0), |(difference, norm), (got, expected)| {
        (
            difference + (got - expected).powi(2),
            norm + expected.powi(2),
        )
    });
    f64::sqrt(difference / norm)
}

/// Compares a type of 16 bits, with this many rounding steps to 1, with `f32`.
#[track_caller]
fn check(dtype: DType, precision: f64) {
    for loss in [Loss::Focal, Loss::BceDice] {
        let (got, expected) = (run(dtype, loss), run(DType::F32, loss));
        let pairs = || got.iter().zip(&expected);
        for ((name, got), (_, expected)) in pairs().take(2) {
            let error = relative(got.iter().zip(expected));
            assert!(error < 4.0 / precision, "{name} differs by {error:e}");
        }
        let gradients = pairs().skip(2);
        let error = relative(gradients.flat_map(|(got, expected)| got.1.iter().zip(&expected.1)));
        // A share of the ReLUs' inputs as small as a rounding step changes sides, which shows in the norm as its root; they
        // are few, so by chance it may be twice that.
        assert!(
            error < 2.0 * precision.sqrt().recip(),
            "gradients differ by {error:e}"
        );
    }
}

#[test]
fn bf16_is_near_f32() {
    check(DType::BF16, 256.0);
}

#[test]
fn f16_is_near_f32() {
    check(DType::F16, 2048.0);
}
