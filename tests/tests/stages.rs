//! The model trains alike at every stage, rank count and accumulation: 20 steps against one process over the same
//! micro-batches.

use std::path::Path;
use std::sync::Arc;

use burn::tensor::DType;
use terrashard_collectives::{Communicator, local};
use terrashard_layout::{ElementType, Stage, micro_batch};
use terrashard_models::ModelConfig;
use terrashard_tests::backend::Backend;
use terrashard_tests::fixture::{Fixture, Tensors};
use terrashard_tests::hash;
use terrashard_tests::training::{Batch, Role, Run, forward, insert_states, optimizer_config};
use terrashard_zero::{Error, Initial, Offload, StateKind, ZeroConfig, ZeroOptimizer};

const STEPS: u64 = 20;
/// Input pixels: the least at which every attention has several keys.
const SIZE: usize = 64;

/// The parameters and moments after training on `ranks` threads, from rank 0. The head has no batch-norm, so that the
/// cut into micro-batches does not matter beyond rounding.
fn train(
    backend: Backend,
    stage: Stage,
    dtype: ElementType,
    offload: Offload,
    ranks: usize,
    accumulate: usize,
) -> Tensors {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dual_nobn");
    let mut fixture = Fixture::open(&dir).expect("the set is shipped");
    fixture.parity.size = SIZE.into();
    let run = Run {
        backend,
        role: Role::Ranks,
        stage,
        dtype,
    };
    let results = local::run(ranks, |communicator| -> Result<Tensors, Error> {
        let rank = communicator.rank();
        let device = backend.device();
        let model = ModelConfig {
            superres: false,
            ..fixture.model()
        };
        let model = model.init(&device).expect("a valid model");
        let config = ZeroConfig {
            clip_norm: Some(1.0),
            offload,
            ..optimizer_config(&fixture.parity, run, accumulate)
        };
        let initial = Initial::Keyed(&hash::initial);
        let mut optimizer =
            ZeroOptimizer::new(&model, config, initial, Arc::new(communicator), &device)?;
        let dtype = match dtype {
            ElementType::F64 => DType::F64,
            ElementType::Bf16 => DType::BF16,
            _ => DType::F32,
        };
        let batch = Batch {
            fixture: &fixture,
            device: device.autodiff(),
            dtype,
        };
        // One sample a micro-batch.
        let window = ranks * accumulate;
        for step in 0..STEPS {
            for m in 0..accumulate {
                let cursor = step * window as u64;
                let (image, targets) =
                    batch.make(micro_batch(cursor, rank, ranks, 1, accumulate, m), 0);
                let (_, losses) = forward(&model, &optimizer, image, &targets, window);
                optimizer.backward(losses.total)?;
            }
            optimizer.step(fixture.parity.lr, &[])?;
        }
        let mut states = Tensors::new();
        for kind in [
            StateKind::Parameter,
            StateKind::Momentum,
            StateKind::Variance,
        ] {
            insert_states(
                &mut states,
                &format!("{kind:?}"),
                optimizer.whole_states(kind)?,
            );
        }
        Ok(states)
    });
    results.expect("no rank fails").swap_remove(0)
}

/// Compares norm-wise, tensor by tensor. Moments are sums of gradients that nearly cancel, so that rounding weighs more
/// in them: in float32 they have a bound of their own. K's half of the attention biases has a gradient of zero in mathematics: AdamW
/// turns its rounding noise into steps of at most the learning rate.
fn compare(got: &Tensors, expected: &Tensors, bound: f64, what: &str) {
    assert_eq!(got.len(), expected.len());
    // Parameters first: what a failure names should be the parameter, if it is one.
    let parameters = expected
        .iter()
        .filter(|(key, _)| key.starts_with("Parameter/"));
    for (key, expected) in parameters.chain(expected) {
        let keys_half = key
            .ends_with("attn.kv.bias")
            .then_some(expected.values.len() / 2);
        let (mut difference, mut norm) = (0.0, 0.0);
        for (i, (got, expected)) in got[key].values.iter().zip(&expected.values).enumerate() {
            if keys_half.is_some_and(|half| i < half) {
                let allowance = 2.0 * 6e-5 * STEPS as f64;
                assert!(
                    (got - expected).abs() <= allowance,
                    "{what}: {key}[{i}]: {got} not {expected}"
                );
            } else {
                difference += (got - expected) * (got - expected);
                norm += expected * expected;
            }
        }
        let rel = (difference / norm).sqrt();
        let rounding = if bound > 1e-8 { 100.0 } else { 1.0 };
        let bound = if key.starts_with("Parameter/") {
            bound
        } else {
            bound * rounding
        };
        assert!(rel <= bound, "{what}: {key}: {rel:e}");
    }
}

/// Ranks and accumulation. Others, and all else: the stage grid, on a smaller net.
const SHAPES: &[(usize, usize)] = &[(2, 1), (3, 1), (4, 1), (2, 3)];

fn check(backend: Backend, shapes: &[(usize, usize)], dtype: ElementType, bound: f64) {
    for &(ranks, accumulate) in shapes {
        // The reference: one process over the same micro-batches.
        let reference = train(
            backend,
            Stage::Zero,
            dtype,
            Offload::None,
            1,
            ranks * accumulate,
        );
        let mut first: Option<Tensors> = None;
        for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
            let got = train(backend, stage, dtype, Offload::None, ranks, accumulate);
            let what =
                format!("stage {stage}, {ranks} ranks, accumulation {accumulate}, {dtype:?}");
            compare(&got, &reference, bound, &what);
            if accumulate == 1 {
                let first = first.get_or_insert_with(|| got.clone());
                assert!(*first == got, "{what}: not bitwise equal to stage 0");
            }
        }
    }
}

#[test]
fn every_stage_trains_like_one_process_in_float64() {
    check(Backend::Flex, SHAPES, ElementType::F64, 1e-10);
}

#[test]
fn every_stage_trains_like_one_process_in_float32() {
    check(Backend::Flex, SHAPES, ElementType::F32, 1e-5);
}

#[cfg(feature = "tch")]
#[test]
fn every_stage_trains_like_one_process_on_libtorch() {
    check(Backend::Tch, &[(2, 1)], ElementType::F64, 1e-10);
    check(Backend::Tch, &[(2, 3)], ElementType::F32, 1e-5);
}

/// Parameters of half precision lie in memory that the device reads by itself, and come from there piece by piece.
#[cfg(feature = "tch")]
#[test]
fn parameters_in_host_memory_train_like_those_on_the_device() {
    let train = |dtype, offload| train(Backend::Tch, Stage::Three, dtype, offload, 2, 1);
    for dtype in [ElementType::Bf16, ElementType::F32] {
        let on_device = train(dtype, Offload::Optimizer);
        let in_host_memory = train(dtype, Offload::Parameters);
        assert!(on_device == in_host_memory, "{dtype:?}: other bits");
    }
}
