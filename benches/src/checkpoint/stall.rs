//! The stall of an asynchronous save: that of a model's states in host memory, beside copying as many bytes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{Device, TensorData};
use terrashard_checkpoint::{Keep, Kind, Saver, Slot, State, TensorSpec};
use terrashard_collectives::local;
use terrashard_models::ModelConfig;
use terrashard_zero::{Initial, StateKind, ZeroConfig, ZeroOptimizer};

use super::{Arguments, CheckpointRow, Failure, Turns};

/// How long a step waits for an asynchronous save, beside copying as many bytes.
pub(super) fn row(bench: &Arguments, root: &Path) -> Result<CheckpointRow, Failure> {
    let config = ModelConfig::preset(&bench.model)?;
    let results = local::run(1, |communicator| {
        stalls(&config, bench.rounds, root, communicator).map_err(|error| error.to_string())
    });
    let mut results = results.map_err(|error| error.to_string())?;
    let (turns, parameters, bytes) = results.swap_remove(0);
    Ok(CheckpointRow {
        bench: "checkpoint".into(),
        what: format!("stall, {}", bench.model),
        parameters,
        ranks: 1,
        bytes,
        disk: None,
        seconds: turns.fastest(),
        gb_s: bytes as f64 / turns.fastest() / 1e9,
        other_seconds: turns.fastest_other(),
        fraction: turns.fastest_other() / turns.fastest(),
        fraction_median: turns.median(),
    })
}

fn stalls(
    config: &ModelConfig,
    rounds: usize,
    root: &Path,
    communicator: local::LocalCommunicator,
) -> Result<(Turns, usize, u64), Failure> {
    let device = Device::flex();
    let model = config.init(&device)?;
    let values = |_: &str, shape: &[usize]| vec![0.5; shape.iter().product()];
    let communicator = Arc::new(communicator);
    let settings = ZeroConfig::default();
    let mut optimizer = ZeroOptimizer::new(
        &model,
        settings,
        Initial::Keyed(&values),
        communicator,
        &device,
    )?;
    // Memory that nothing was written to yet would be read in no time.
    optimizer.load(optimizer.progress(), &|_, _, interval| {
        Ok(0.25_f32.to_le_bytes().repeat(interval.len()))
    })?;
    let parameters = optimizer.table().rows().iter().map(|row| row.numel()).sum();
    let mut turns = Turns::default();
    let mut bytes = 0;
    for round in 0..rounds as u64 {
        let saver = Saver::create(root, round + 1, 0, 1)?;
        let began = Instant::now();
        saver.prepare()?;
        let states = optimizer.own_states()?.into_iter();
        let slots: Vec<(Slot, Copied)> = states
            .map(|state| {
                let tensor =
                    TensorSpec::new(state.name, kind(state.kind), state.shape, state.dtype);
                let interval = state.interval;
                (Slot { tensor, interval }, Copied(state.data))
            })
            .collect();
        let lengths: Vec<usize> = slots
            .iter()
            .map(|(_, data)| data.0.as_bytes().len())
            .collect();
        let writing = saver.write_beside(slots)?;
        let stalled = began.elapsed().as_secs_f64();
        writing.wait()?;
        let state = State {
            step: round + 1,
            ..State::default()
        };
        saver
            .publish_beside(state, Keep { last: 1, best: 0 })?
            .wait()?;
        bytes = lengths.iter().map(|length| *length as u64).sum();
        let source: Vec<Vec<u8>> = lengths.iter().map(|length| vec![1; *length]).collect();
        let began = Instant::now();
        let copies = source.clone();
        let copied = began.elapsed().as_secs_f64();
        drop(copies);
        turns.add(stalled, copied);
    }
    Ok((turns, parameters, bytes))
}

/// A state in host memory.
struct Copied(TensorData);

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn kind(kind: StateKind) -> Kind {
    match kind {
        StateKind::Parameter => Kind::Parameter,
        StateKind::Momentum => Kind::M,
        StateKind::Variance => Kind::V,
        StateKind::Ema => Kind::Ema,
    }
}
