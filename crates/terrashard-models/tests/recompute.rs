//! A block may be run a second time: the same output, no moved statistics, no question to other ranks.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrashard_models::{
    Labels, Loss, Masks, ModelConfig, Normalizers, Pass, Plain, Recorder, Replay, S2s2Net, Scope,
    SumOverRanks, Targets,
};
use terrashard_ops::Mode;

fn tiny() -> ModelConfig {
    ModelConfig {
        dims: [8, 16, 20, 32],
        depths: [2, 1, 1, 1],
        head_channels: 8,
        ..ModelConfig::b0()
    }
}

/// Values from a wave.
fn wave<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|i: usize| (i as f32 * 0.37).sin())
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    let values = tensor.into_data();
    values.iter::<f32>().map(f32::to_bits).collect()
}

/// Two ranks with the same values, and how often they were asked.
#[derive(Debug, Default)]
struct Twins(AtomicUsize);

impl SumOverRanks for Twins {
    fn sum(&self, values: &mut [f64]) {
        self.0.fetch_add(1, Ordering::Relaxed);
        values.iter_mut().for_each(|value| *value *= 2.0);
    }
}

/// Runs each block once as it is.
struct Once {
    pass: Pass,
}

impl Scope for Once {
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        _name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
    {
        forward(module, inputs, &self.pass)
    }

    fn pass(&self) -> Pass {
        self.pass.clone()
    }
}

/// Runs each block outside the graph and then again inside it, as a recomputation would.
struct Again<'a> {
    pass: Pass,
    sums: Arc<Twins>,
    model: &'a S2s2Net,
    blocks: Cell<usize>,
}

impl Scope for Again<'_> {
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
        let recorder = Arc::new(Recorder::new(self.pass.ranks.clone()));
        let first = Pass {
            ranks: recorder.clone(),
            ..self.pass.clone()
        };
        let detached = inputs.iter().cloned().map(Tensor::detach).collect();
        let kept = forward(module, detached, &first);

        let moved = self.model.buffers();
        let asked = self.sums.0.load(Ordering::Relaxed);
        let second = Pass {
            mode: Mode::Recomputing,
            ranks: Arc::new(Replay::new(recorder.recorded(), self.pass.ranks.clone())),
            ..self.pass.clone()
        };
        let output = forward(module, inputs, &second);
        assert_eq!(bits(output.clone()), bits(kept), "{name}");
        assert_eq!(self.model.buffers(), moved, "{name}");
        assert_eq!(self.sums.0.load(Ordering::Relaxed), asked, "{name}");
        self.blocks.set(self.blocks.get() + 1);
        output
    }

    fn pass(&self) -> Pass {
        self.pass.clone()
    }
}

/// The gradients of all parameters.
struct Collect<'a>(&'a Gradients, Vec<Vec<u32>>);

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let gradient = parameter.val().grad(self.0);
        self.1
            .push(bits(gradient.expect("every parameter is used")));
    }
}

/// The loss and every gradient of one training pass.
fn gradients(model: &S2s2Net, scope: &impl Scope, device: &Device) -> Vec<Vec<u32>> {
    let labels = (0..2 * 160 * 160).map(|i| u8::from(i % 3 == 0)).collect();
    let targets = Targets {
        labels: Labels::new(labels, [2, 160, 160], device),
        superres: Some(wave([2, 4, 160, 160], &device.clone().inner()).into()),
    };
    let maps = model.forward(wave([2, 6, 32, 32], device), scope);
    let losses = Loss::Focal.of(&maps, &targets, &Normalizers::of(&targets), scope);
    let loss = bits(losses.total.clone());
    let gradients = losses.total.backward();
    let mut collect = Collect(&gradients, vec![loss]);
    model.visit(&mut collect);
    collect.1
}

/// Compares a pass that runs each block once with one that runs each twice, and returns its loss and gradients.
fn check(config: &ModelConfig, masks: Option<Masks>) -> Vec<Vec<u32>> {
    let pass = |ranks: Arc<dyn SumOverRanks>| Pass {
        mode: Mode::Training,
        ranks,
        masks: masks.clone(),
        slots: None,
    };
    let device = Device::flex().autodiff();
    let sums = [Arc::new(Twins::default()), Arc::new(Twins::default())];
    let models = [0, 1].map(|_| {
        config
            .init(&device)
            .expect("a valid configuration")
            .initialize(3)
    });
    let once = Once {
        pass: pass(sums[0].clone()),
    };
    let again = Again {
        pass: pass(sums[1].clone()),
        sums: sums[1].clone(),
        model: &models[1],
        blocks: Cell::new(0),
    };
    let expected = gradients(&models[0], &once, &device);
    assert!(gradients(&models[1], &again, &device) == expected);
    assert_eq!(again.blocks.get(), models[1].blocks().len());
    // Batch statistics have moved once, and are summed once in forward and once in backward.
    assert_eq!(models[1].buffers(), models[0].buffers());
    assert_ne!(models[1].buffers()[0].1, [0.0; 8]);
    let asked = sums.map(|sums| sums.0.load(Ordering::Relaxed));
    assert_eq!(asked, [2, 2]);
    expected
}

#[test]
fn a_block_that_is_run_again_gives_the_same_bits_and_moves_nothing() {
    check(&tiny(), None);
}

#[test]
fn a2_dropout_draws_the_same_masks_in_the_recomputation() {
    let masks = |samples: [u64; 2]| {
        Some(Masks {
            seed: 1,
            step: 7,
            samples: Arc::from(samples),
        })
    };
    let config = ModelConfig {
        dropout: 0.5,
        drop_path: 0.5,
        ..tiny()
    };
    let dropped = check(&config, masks([20, 21]));
    // The masks matter, so equal gradients above are no accident.
    assert!(check(&config, None) == check(&tiny(), None));
    assert!(dropped != check(&config, None));
    assert!(dropped != check(&config, masks([20, 22])));
}

#[test]
fn rates_say_what_is_dropped() {
    let device = Device::flex();
    let image = || wave([1, 6, 32, 32], &device);
    let masks = |step| Masks {
        seed: 1,
        step,
        samples: Arc::from([20]),
    };
    let head = |config: ModelConfig, scope: &Plain| {
        let model = config.init(&device).expect("a valid configuration");
        bits(model.initialize(3).forward(image(), scope).head)
    };
    let dropping = |dropout, drop_path| ModelConfig {
        dropout,
        drop_path,
        ..tiny()
    };
    let plain = head(tiny(), &Plain::training());
    let half = head(dropping(0.5, 0.0), &Plain::training().with_masks(masks(1)));
    for (value, whole) in half.iter().zip(&plain) {
        let doubled = 2.0 * f32::from_bits(*whole);
        assert!([0.0, doubled].contains(&f32::from_bits(*value)));
    }
    let zeros = half.iter().filter(|value| f32::from_bits(**value) == 0.0);
    // Of 1024 values, give or take 16.
    assert!((448..576).contains(&zeros.count()));

    let shallow = head(dropping(0.0, 0.9), &Plain::training().with_masks(masks(1)));
    assert_ne!(shallow, plain);
    let inference = Plain::inference().with_masks(masks(1));
    assert_eq!(
        head(dropping(0.5, 0.9), &inference),
        head(tiny(), &Plain::inference())
    );
}

#[test]
fn statistics_of_a_training_pass_move_the_model_unless_it_recomputes() {
    let device = Device::flex();
    let model = tiny().init(&device).unwrap().initialize(3);
    let image = wave([1, 6, 32, 32], &device);
    let before = model.buffers();
    let scope = Once {
        pass: Pass::new(Mode::Recomputing),
    };
    let again = bits(model.forward(image.clone(), &scope).segmentation.pixels());
    assert_eq!(model.buffers(), before);
    let first = bits(
        model
            .forward(image, &Plain::training())
            .segmentation
            .pixels(),
    );
    assert_eq!(first, again);
    assert_ne!(model.buffers(), before);
}
