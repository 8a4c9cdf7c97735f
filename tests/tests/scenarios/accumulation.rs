//! However a step's samples are shared out to ranks and micro-batches, the step is the same.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_layout::{Stage, counter, micro_batch};
use terrashard_tests::chain::{Chain, Operations, initial};
use terrashard_tests::nasty::Named;
use terrashard_zero::{
    Initial, Offload, Precision, Recompute, Result, StateKind, StepOutcome, ZeroConfig,
    ZeroOptimizer,
};

use crate::{STAGES, close, offloaded, ranks};

const WIDTHS: [usize; 4] = [5, 7, 6, 3];
/// Samples of a step: what 1 to 4 micro-batches of 1 and 2 ranks share evenly.
const SAMPLES: usize = 24;
const STEPS: u64 = 5;

/// Parameters, moments and norms after some steps of AdamW with clipping.
fn train(
    stage: Stage,
    offload: Offload,
    accumulate: usize,
    communicator: Arc<dyn Communicator>,
) -> Result<Named> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let config = ZeroConfig {
        stage,
        offload,
        accumulate,
        precision: Precision::F64,
        clip_norm: Some(0.1),
        bucket_bytes: Some(128),
        ..ZeroConfig::default()
    };
    let (device, chain) = (Device::flex(), Chain::new(&WIDTHS));
    let first = Initial::Keyed(&initial);
    let mut optimizer = ZeroOptimizer::new(&chain, config, first, communicator, &device)?;
    optimizer.declare_blocks(&chain.blocks())?;
    let mut states = Named::new();
    let micro = SAMPLES / ranks / accumulate;
    for step in 0..STEPS {
        for m in 0..accumulate {
            let cursor = step * SAMPLES as u64;
            let samples = micro_batch(cursor, rank, ranks, micro, accumulate, m);
            let own = samples.start as usize * WIDTHS[0]..samples.end as usize * WIDTHS[0];
            let values = own.map(|index| counter::uniform(9, "x", index as u64) - 0.5);
            let x = TensorData::new(values.collect::<Vec<f64>>(), [micro, WIDTHS[0]]);
            let x = Tensor::from_data(x, (&device.clone().autodiff(), DType::F64));
            let y = chain.forward(x, &optimizer, Recompute::Keep, Operations::Own, |_| ());
            optimizer.backward((y.clone() * y).sum() / SAMPLES as f64)?;
        }
        let StepOutcome::Applied { norm, .. } = optimizer.step(1e-2, &[])? else {
            panic!("step {step} was skipped")
        };
        states.insert(format!("norm/{step}"), vec![norm]);
    }
    for kind in StateKind::ALL {
        for (name, data) in optimizer.whole_states(kind)? {
            states.insert(format!("{kind:?}/{name}"), data.iter::<f64>().collect());
        }
    }
    Ok(states)
}

#[test]
fn n2_the_number_of_micro_batches_changes_nothing() {
    let run = |count, stage, offload, accumulate| {
        ranks(count, |communicator| {
            train(stage, offload, accumulate, communicator)
        })
        .swap_remove(0)
    };
    let expected = run(1, Stage::Zero, Offload::None, 1);
    let clipped = expected.iter().filter(|(name, _)| name.starts_with("norm"));
    assert!(clipped.into_iter().any(|(_, norm)| norm[0] > 0.1));
    for count in [1, 2] {
        for stage in STAGES {
            for accumulate in 1..=4 {
                let what = format!("{count} ranks, stage {stage}, {accumulate} micro-batches");
                let got = run(count, stage, Offload::None, accumulate);
                close(&got, &expected, 1e-11, &what);
                let offload = run(count, stage, offloaded(stage), accumulate);
                assert!(offload == got, "{what}: offload");
            }
        }
    }
}
