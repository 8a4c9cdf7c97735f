//! The model as a whole: its names, its laziness, its sizes, its batch statistics.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use std::cell::RefCell;
use std::sync::Arc;
use terrashard_models::{
    Error, HeadNorm, IGNORE, L1_WEIGHT, Labels, Loss, Masks, Mode, ModelConfig, Normalizers, Pass,
    Plain, Scope, Targets, assign, initial_value, parameters,
};

fn tiny() -> ModelConfig {
    ModelConfig {
        dims: [8, 16, 20, 32],
        depths: [1; 4],
        head_channels: 8,
        ..ModelConfig::b0()
    }
}

/// An image of `height` by `width` pixels with values from a wave.
fn image(height: usize, width: usize, device: &Device) -> Tensor<4> {
    let values: Vec<f32> = (0..6 * height * width)
        .map(|i| (i as f32 * 0.37).sin())
        .collect();
    Tensor::from_data(TensorData::new(values, [1, 6, height, width]), device)
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// How many parameters have a value.
#[derive(Default)]
struct Initialised(usize);

impl ModuleVisitor for Initialised {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        self.0 += usize::from(parameter.is_initialized());
    }
}

#[test]
fn parameters_are_listed_in_order_of_use_without_being_made() {
    let model = tiny().init(&Device::flex()).unwrap();
    let parameters = model.parameters();
    let mut initialised = Initialised::default();
    model.visit(&mut initialised);
    assert_eq!(initialised.0, 0);
    let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..8],
        [
            "stages.0.embed.weight",
            "stages.0.embed.bias",
            "stages.0.embed_norm.weight",
            "stages.0.embed_norm.bias",
            "stages.0.blocks.0.norm1.weight",
            "stages.0.blocks.0.norm1.bias",
            "stages.0.blocks.0.attn.q.weight",
            "stages.0.blocks.0.attn.q.bias",
        ]
    );
    let shape = |name: &str| {
        parameters
            .iter()
            .find(|(other, _)| other == name)
            .unwrap()
            .1
            .clone()
    };
    assert_eq!(shape("stages.0.blocks.0.attn.kv.weight"), [16, 8]);
    assert_eq!(shape("stages.0.blocks.0.attn.sr.weight"), [8, 8, 8, 8]);
    assert_eq!(shape("stages.1.blocks.0.ffn.dw.weight"), [64, 1, 3, 3]);
    assert_eq!(shape("tail.head.linear.0.weight"), [8, 8]);
    assert_eq!(shape("tail.head.fuse.weight"), [8, 32, 1, 1]);
    assert_eq!(shape("tail.head.bn.weight"), [8]);
    assert_eq!(names.last(), Some(&"tail.sr.conv1.bias"));
    assert!(!names.contains(&"tail.head.fuse.bias"));
    // The last stage attends without reduction.
    assert!(!names.contains(&"stages.3.blocks.0.attn.sr.weight"));
}

#[test]
fn published_sizes_have_their_numbers_of_parameters() {
    let count = |config: ModelConfig| -> usize {
        let parameters = config.init(&Device::flex()).unwrap().parameters();
        parameters
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    };
    // The reference implementation has these with both branches.
    assert_eq!(count(ModelConfig::b0()), 3_725_645);
    let encoder = |name: &str| -> usize {
        let parameters = ModelConfig {
            bands: 3,
            ..ModelConfig::preset(name).unwrap()
        }
        .init(&Device::flex())
        .unwrap()
        .parameters();
        parameters
            .iter()
            .filter(|(name, _)| name.starts_with("stages"))
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    };
    // transformers' SegformerModel of each.
    assert_eq!(encoder("b0"), 3_319_392);
    assert_eq!(encoder("b5"), 81_443_008);
}

#[test]
fn initial_values_follow_from_the_name() {
    let values = initial_value("stages.0.embed.weight", &[8, 6, 7, 7], 1);
    assert_eq!(
        values,
        initial_value("stages.0.embed.weight", &[8, 6, 7, 7], 1)
    );
    let deviation = |values: &[f32]| {
        (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
            / 0.8796
    };
    assert!((deviation(&values) / (2.0 / 392.0f64).sqrt() - 1.0).abs() < 0.05);
    let depthwise = initial_value("stages.0.blocks.0.ffn.dw.weight", &[256, 1, 3, 3], 1);
    assert!((deviation(&depthwise) / (2.0 / 9.0f64).sqrt() - 1.0).abs() < 0.05);
    assert_eq!(initial_value("a.norm.weight", &[2], 1), [1.0; 2]);
    assert_eq!(initial_value("a.q.bias", &[2], 1), [0.0; 2]);
}

/// The map is on the fine grid: nobody has to enlarge it afterwards.
#[test]
fn geo_47_a_map_is_five_times_as_large_as_the_image() {
    let device = Device::flex();
    let model = ModelConfig::b0().init(&device).unwrap().initialize(3);
    let maps = model.forward(image(64, 64, &device), &Plain::inference());
    assert_eq!(maps.segmentation.dims(), [1, 1, 320, 320]);
    assert_eq!(maps.segmentation.pixels().dims(), [1, 1, 320, 320]);
    assert_eq!(maps.superres.unwrap().dims(), [1, 4, 320, 320]);
}

#[test]
fn geo_16_any_size_is_padded_inside_and_cropped_after() {
    let device = Device::flex();
    let model = tiny().init(&device).unwrap().initialize(3);
    let scope = Plain::inference();
    let maps = model.forward(image(35, 50, &device), &scope);
    assert_eq!(maps.segmentation.dims(), [1, 1, 175, 250]);
    assert_eq!(maps.superres.as_ref().unwrap().dims(), [1, 4, 175, 250]);
    assert_eq!(maps.seg_low.dims(), [1, 8, 35, 50]);
    // Padding by hand with the edge pixels gives the same map.
    let wide: Vec<f32> = {
        let values = host(image(35, 50, &device));
        let pixel = |c: usize, y: usize, x: usize| values[(c * 35 + y.min(34)) * 50 + x.min(49)];
        (0..6 * 64 * 64)
            .map(|i| pixel(i / 4096, i / 64 % 64, i % 64))
            .collect()
    };
    let wide = Tensor::from_data(TensorData::new(wide, [1, 6, 64, 64]), &device);
    let large = model.forward(wide, &scope).segmentation.pixels();
    assert_eq!(
        host(large.slice([0..1, 0..1, 0..175, 0..250])),
        host(maps.segmentation.pixels())
    );
}

#[test]
fn branches_and_scale_follow_the_configuration() {
    let device = Device::flex();
    let config = ModelConfig {
        superres: false,
        classes: 3,
        scale: 2,
        bands: 4,
        head_norm: HeadNorm::None,
        ..tiny()
    };
    let model = config.init(&device).unwrap();
    let maps = model.forward(Tensor::ones([2, 4, 32, 32], &device), &Plain::training());
    assert_eq!(maps.segmentation.dims(), [2, 3, 64, 64]);
    assert!(maps.superres.is_none() && maps.sr_low.is_none());
    let names: Vec<String> = model
        .parameters()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert!(names.iter().any(|name| name == "tail.head.fuse.bias"));
    assert!(
        !names
            .iter()
            .any(|name| name.starts_with("tail.sr.") || name.contains(".bn."))
    );
    assert!(model.buffers().is_empty());
}

#[test]
fn inference_leaves_the_running_statistics_and_training_moves_them() {
    let device = Device::flex();
    let model = tiny().init(&device).unwrap().initialize(3);
    let before = model.buffers();
    assert_eq!(
        before[0],
        ("tail.head.bn.running_mean".into(), vec![0.0; 8])
    );
    assert_eq!(before[1], ("tail.head.bn.running_var".into(), vec![1.0; 8]));
    let first = host(
        model
            .forward(image(32, 32, &device), &Plain::inference())
            .segmentation
            .pixels(),
    );
    assert_eq!(model.buffers(), before);
    model.forward(image(32, 32, &device), &Plain::training());
    let moved = model.buffers();
    assert_ne!(moved, before);
    model.load_buffers(&before).unwrap();
    assert_eq!(
        host(
            model
                .forward(image(32, 32, &device), &Plain::inference())
                .segmentation
                .pixels()
        ),
        first
    );
    let short = vec![
        moved[0].clone(),
        ("tail.head.bn.running_var".into(), vec![1.0]),
    ];
    assert_eq!(
        model.load_buffers(&short).unwrap_err(),
        Error::BufferLength {
            name: "tail.head.bn.running_var".into(),
            expected: 8,
            got: 1
        }
    );
    assert_eq!(model.buffers(), before);
}

/// Notes which blocks are run, and in which order.
#[derive(Default)]
struct Noted(RefCell<Vec<(String, Vec<usize>)>>);

impl Scope for Noted {
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
    {
        let shapes = parameters(module).into_iter();
        let counts = shapes.map(|(_, shape)| shape.iter().product()).collect();
        self.0.borrow_mut().push((name.into(), counts));
        forward(module, inputs, &self.pass())
    }

    fn pass(&self) -> Pass {
        Pass::new(Mode::Training)
    }
}

#[test]
fn every_parameter_is_in_one_of_the_declared_blocks() {
    let device = Device::flex();
    let config = ModelConfig {
        depths: [1, 2, 1, 1],
        ..tiny()
    };
    let model = config.init(&device).unwrap();
    let blocks = model.blocks();
    let listed = model.parameters();
    let mut initialised = Initialised::default();
    model.visit(&mut initialised);
    assert_eq!(initialised.0, 0);
    let names: Vec<&str> = blocks.iter().map(|block| block.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "stages.0.embed",
            "stages.0.blocks.0",
            "stages.0.norm",
            "stages.1.embed",
            "stages.1.blocks.0",
            "stages.1.blocks.1",
            "stages.1.norm",
            "stages.2.embed",
            "stages.2.blocks.0",
            "stages.2.norm",
            "stages.3.embed",
            "stages.3.blocks.0",
            "stages.3.norm",
            "tail.head",
            "tail.seg.conv0",
            "tail.seg.conv1",
            "tail.sr.conv0",
            "tail.sr.conv1",
        ]
    );
    let declared: Vec<&String> = blocks.iter().flat_map(|block| &block.parameters).collect();
    assert_eq!(
        declared,
        listed.iter().map(|(name, _)| name).collect::<Vec<_>>()
    );

    // A forward pass runs just these, in this order.
    let scope = Noted::default();
    model.forward(image(32, 32, &device), &scope);
    let count = |name: &String| -> usize {
        let shape = &listed.iter().find(|(other, _)| other == name).unwrap().1;
        shape.iter().product()
    };
    let expected: Vec<(String, Vec<usize>)> = blocks
        .into_iter()
        .map(|block| (block.name, block.parameters.iter().map(count).collect()))
        .collect();
    assert_eq!(scope.0.into_inner(), expected);
}

#[test]
fn an_ignored_image_has_no_loss_and_no_gradient() {
    let device = Device::flex().autodiff();
    let config = ModelConfig {
        superres: false,
        ..tiny()
    };
    for loss in [Loss::Focal, Loss::BceDice] {
        let model = config.init(&device).unwrap().initialize(3);
        let scope = Plain::training();
        let labels = Labels::new(vec![IGNORE; 160 * 160], [1, 160, 160], &device);
        let targets = Targets {
            labels,
            superres: None,
        };
        let maps = model.forward(image(32, 32, &device), &scope);
        let losses = loss.of(&maps, &targets, &Normalizers::of(&targets), &scope);
        assert_eq!(host(losses.total.clone()), [0.0]);
        let gradients = losses.total.backward();
        let gradient = maps.segmentation.values().grad(&gradients);
        assert!(gradient.is_none_or(|gradient| host(gradient).iter().all(|g| *g == 0.0)));
    }
}

#[test]
fn a_rank_without_samples_runs_the_model_and_adds_nothing() {
    let device = Device::flex().autodiff();
    for (loss, dtype) in [
        (Loss::Focal, DType::F32),
        (Loss::BceDice, DType::F32),
        (Loss::Focal, DType::BF16),
    ] {
        let config = ModelConfig {
            drop_path: 0.5,
            dropout: 0.5,
            ..tiny()
        };
        let model = assign(config.init(&device).unwrap(), &mut |name, shape| {
            let values = TensorData::new(initial_value(name, shape, 3), shape.to_vec());
            values.convert_dtype(dtype)
        });
        let before = model.buffers();
        let map = |shape: [usize; 4]| Tensor::<4>::zeros(shape, (&device, dtype));
        let targets = Targets {
            labels: Labels::new(Vec::new(), [0, 200, 160], &device),
            superres: Some(map([0, 4, 200, 160]).into()),
        };
        let normalizers = Normalizers {
            samples: 2.0,
            valid_pixels: 100.0,
            superres_values: 100.0,
        };
        let scope = Plain::training().with_masks(Masks {
            seed: 1,
            step: 1,
            samples: Arc::from([]),
        });
        // Padded inside and cropped after.
        let maps = model.forward(map([0, 6, 40, 32]), &scope);
        assert_eq!(maps.segmentation.dims(), [0, 1, 200, 160]);
        let losses = loss.of(&maps, &targets, &normalizers, &scope);
        assert_eq!(host(losses.total.clone()), [0.0]);
        let gradients = losses.total.backward();
        let mut values = Gathered(&gradients, Vec::new());
        model.visit(&mut values);
        assert!(values.1.iter().all(|gradient| *gradient == 0.0));
        assert_eq!(values.1.len(), model.num_params());
        assert_eq!(model.buffers(), before);
    }
}

/// The values of all gradients.
struct Gathered<'a>(&'a Gradients, Vec<f32>);

impl ModuleVisitor for Gathered<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let gradient = parameter.val().grad(self.0);
        self.1
            .extend(host(gradient.expect("every parameter is used")));
    }
}

#[test]
fn shares_of_a_window_add_up_to_the_whole() {
    let device = Device::flex();
    let config = ModelConfig {
        head_norm: HeadNorm::None,
        ..tiny()
    };
    let model = config.init(&device).unwrap().initialize(3);
    let scope = Plain::training();
    let labels = |n: usize| -> Vec<u8> {
        (0..160 * 160)
            .map(|i| {
                if i % (2 + n) == 0 {
                    IGNORE
                } else {
                    u8::from(i % 3 == 0)
                }
            })
            .collect()
    };
    let superres = |n: usize| Tensor::<4>::full([1, 4, 160, 160], 0.1 * n as f32, &device);
    let images = [image(32, 32, &device), image(32, 32, &device).neg()];
    let whole = Targets {
        labels: Labels::new([labels(0), labels(1)].concat(), [2, 160, 160], &device),
        superres: Some(Tensor::cat(vec![superres(0), superres(1)], 0).into()),
    };
    let normalizers = Normalizers::of(&whole);
    let expected = Loss::Focal.of(
        &model.forward(Tensor::cat(images.to_vec(), 0), &scope),
        &whole,
        &normalizers,
        &scope,
    );
    let total: f32 = (0..2)
        .map(|n| {
            let targets = Targets {
                labels: Labels::new(labels(n), [1, 160, 160], &device),
                superres: Some(superres(n).into()),
            };
            let maps = model.forward(images[n].clone(), &scope);
            host(Loss::Focal.of(&maps, &targets, &normalizers, &scope).total)[0]
        })
        .sum();
    let expected = host(expected.total)[0];
    assert!(
        (total - expected).abs() < 1e-6 * expected,
        "{total} {expected}"
    );
}

#[test]
fn unknown_keys_are_errors_and_defaults_are_b0() {
    let config: ModelConfig = toml::from_str("").unwrap();
    assert_eq!(config, ModelConfig::b0());
    let config: ModelConfig =
        toml::from_str("head_norm = \"none\"\nactivation = \"silu\"\nsuperres = false").unwrap();
    assert_eq!((config.head_norm, config.superres), (HeadNorm::None, false));
    let error = toml::from_str::<ModelConfig>("dimensions = [1, 2, 3, 4]")
        .unwrap_err()
        .to_string();
    assert!(error.contains("unknown field `dimensions`"), "{error}");
}

#[test]
fn the_image_weighs_as_much_as_is_asked_for() {
    let device = Device::flex();
    let model = tiny().init(&device).unwrap().initialize(3);
    let scope = Plain::training();
    let maps = model.forward(image(32, 32, &device), &scope);
    let targets = Targets {
        labels: Labels::new(vec![1; 160 * 160], [1, 160, 160], &device),
        superres: Some(Tensor::full([1, 4, 160, 160], 0.5, &device).into()),
    };
    let normalizers = Normalizers::of(&targets);
    let value = |loss: Option<Tensor<1>>| host(loss.expect("of the branch"))[0];
    for weight in [0.0, L1_WEIGHT, 2.0] {
        let losses = Loss::Focal.weighted(&maps, &targets, &normalizers, weight, &scope);
        let (affinity, l1) = (value(losses.affinity), value(losses.l1));
        let expected = affinity + host(losses.segmentation)[0] + weight as f32 * l1;
        let total = host(losses.total)[0];
        assert!(
            l1 > 0.1 && (total - expected).abs() < 1e-5 * expected.abs(),
            "{total} {expected}"
        );
    }
    let default = Loss::Focal.of(&maps, &targets, &normalizers, &scope);
    let reference = Loss::Focal.weighted(&maps, &targets, &normalizers, 0.001, &scope);
    assert_eq!(host(default.total), host(reference.total));
}
