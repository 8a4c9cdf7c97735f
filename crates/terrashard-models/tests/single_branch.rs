//! The branch that enlarges step by step, and several classes.
use burn::tensor::{Device, Tensor};
use terrashard_models::{
    IGNORE, Labels, Loss, ModelConfig, Normalizers, Plain, Targets, Upsampling,
};

fn small() -> ModelConfig {
    ModelConfig {
        dims: [8, 16, 20, 32],
        depths: [1; 4],
        head_channels: 8,
        ..ModelConfig::single_branch()
    }
}

fn image([h, w]: [usize; 2], device: &Device) -> Tensor<4> {
    let ramp = Tensor::arange(0..(6 * h * w) as i64, device).float();
    (ramp * 0.1).sin().reshape([1, 6, h, w])
}

#[test]
fn every_scale_and_size_gives_a_map_of_the_input_s_extent() {
    let device = Device::flex();
    for scale in [1, 2, 3, 5, 7] {
        let config = ModelConfig { scale, ..small() };
        let model = config.init(&device).unwrap().initialize(1);
        let maps = model.forward(image([33, 40], &device), &Plain::inference());
        let map = maps.segmentation.pixels();
        assert_eq!(map.dims(), [1, 1, 33 * scale, 40 * scale]);
        assert_eq!(maps.seg_low.dims()[2..], [33, 40]);
    }
}

#[test]
fn blocks_have_every_parameter_once() {
    for superres in [false, true] {
        let config = ModelConfig {
            superres,
            ..small()
        };
        let model = config.init(&Device::flex()).unwrap();
        let of_blocks = model
            .blocks()
            .into_iter()
            .flat_map(|block| block.parameters);
        let names = model.parameters().into_iter().map(|(name, _)| name);
        assert_eq!(of_blocks.collect::<Vec<_>>(), names.collect::<Vec<_>>());
    }
}

#[test]
fn both_branches_learn_where_one_goes_step_by_step() {
    let device = Device::flex().autodiff();
    let config = ModelConfig {
        superres: true,
        ..small()
    };
    assert_eq!(config.upsampling, Upsampling::Progressive);
    let model = config.init(&device).unwrap().initialize(1);
    let maps = model.forward(image([32, 32], &device), &Plain::training());
    let targets = Targets {
        labels: Labels::new(vec![1; 160 * 160], [1, 160, 160], &device),
        superres: Some(Tensor::zeros([1, 4, 160, 160], &device.clone().inner()).into()),
    };
    let losses = Loss::BceDice.of(
        &maps,
        &targets,
        &Normalizers::of(&targets),
        &Plain::training(),
    );
    let terms = [losses.affinity, losses.dice, losses.l1, Some(losses.total)];
    for term in terms {
        let value = term.unwrap().into_scalar::<f64>();
        assert!(value.is_finite() && value > 0.0, "{value}");
    }
}

#[test]
fn classes_have_a_logit_each_and_nothing_valid_is_no_loss() {
    let device = Device::flex().autodiff();
    for (classes, loss) in [
        (4, Loss::CrossEntropyDice),
        (1, Loss::BceDice),
        (1, Loss::Focal),
    ] {
        let config = ModelConfig { classes, ..small() };
        let model = config.init(&device).unwrap().initialize(1);
        let image = image([32, 32], &device).require_grad();
        let maps = model.forward(image.clone(), &Plain::training());
        assert_eq!(maps.segmentation.dims(), [1, classes, 160, 160]);
        let targets = Targets {
            labels: Labels::new(vec![IGNORE; 160 * 160], [1, 160, 160], &device),
            superres: None,
        };
        let normalizers = Normalizers::of(&targets);
        let losses = loss.of(&maps, &targets, &normalizers, &Plain::training());
        assert_eq!(losses.total.clone().into_scalar::<f64>(), 0.0);
        let gradients = losses.total.backward();
        let gradient = image.grad(&gradients).unwrap().abs().sum();
        assert_eq!(gradient.into_scalar::<f64>(), 0.0);
    }
}
