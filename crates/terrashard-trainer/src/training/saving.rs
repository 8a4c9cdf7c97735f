//! Writing a checkpoint: each rank its intervals of parameters and moments, rank 0 the buffers.

use serde_json::{Map, Value, json};
use terrashard_checkpoint::{ElementType, Kind, Piece, Saver, State, TensorSpec, prune};
use terrashard_models::S2s2Net;
use terrashard_zero::{Progress, StateKind, StatePiece, ZeroOptimizer};

use super::Plan;
use crate::error::{Error, Result};
use crate::run_directory::RunDirectory;
use crate::trained_model::THRESHOLD;

/// The program's name and version, as checkpoints and model files carry it.
pub(crate) const TOOL: &str = concat!("terrashard ", env!("CARGO_PKG_VERSION"));

/// The value of a checkpoint that counts the steps which changed the parameters: those that were not skipped.
pub(super) const APPLIED_STEPS: &str = "applied_steps";
/// That which counts the steps that were skipped since.
pub(super) const SKIPPED_IN_A_ROW: &str = "skipped_in_a_row";
/// The scale of the loss.
pub(super) const LOSS_SCALE: &str = "loss_scale";
/// Steps applied since the scale changed.
pub(super) const STEADY_STEPS: &str = "steady_steps";

/// Saves the run after `step`. Collective.
pub(super) fn save(
    plan: &Plan<'_>,
    run: &RunDirectory,
    step: u64,
    optimizer: &ZeroOptimizer,
    model: &S2s2Net,
) -> Result<()> {
    let communicator = optimizer.communicator();
    let root = run.checkpoints();
    let saver = Saver::create(&root, step, communicator.rank(), communicator.ranks())
        .map_err(Error::save)?;
    saver.prepare().map_err(Error::save)?;
    communicator.barrier()?;
    let mut pieces: Vec<Piece<'static>> = optimizer.own_states()?.into_iter().map(piece).collect();
    if communicator.rank() == 0 {
        pieces.extend(model.buffers().iter().map(buffer));
    }
    saver.write(&pieces).map_err(Error::save)?;
    communicator.barrier()?;
    saver
        .publish(&state(plan, step, optimizer.progress()))
        .map_err(Error::save)?;
    communicator.barrier()?;
    if communicator.rank() == 0 {
        prune(&root, plan.config.checkpoint.keep_last).map_err(Error::save)?;
    }
    Ok(())
}

/// The kind under which a state is stored.
pub(super) fn kind(kind: StateKind) -> Kind {
    match kind {
        StateKind::Parameter => Kind::Parameter,
        StateKind::Momentum => Kind::M,
        StateKind::Variance => Kind::V,
        StateKind::Ema => Kind::Ema,
    }
}

fn piece(piece: StatePiece) -> Piece<'static> {
    let StatePiece {
        name,
        kind: of,
        shape,
        dtype,
        interval,
        bytes,
    } = piece;
    Piece {
        tensor: TensorSpec::new(name, kind(of), shape, dtype),
        start: interval.start,
        bytes: bytes.into(),
    }
}

fn buffer((name, values): &(String, Vec<f64>)) -> Piece<'static> {
    let tensor = TensorSpec::new(name.clone(), Kind::Buffer, [values.len()], ElementType::F64);
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    Piece {
        tensor,
        start: 0,
        bytes: bytes.into(),
    }
}

fn state(plan: &Plan<'_>, step: u64, progress: Progress) -> State {
    let values = [
        ("threshold", json!(THRESHOLD)),
        ("global_batch", json!(plan.batch.global)),
        (APPLIED_STEPS, json!(progress.steps)),
        (SKIPPED_IN_A_ROW, json!(progress.skipped)),
        (LOSS_SCALE, json!(progress.loss_scale)),
        (STEADY_STEPS, json!(progress.steady)),
    ];
    State {
        step,
        // The samples from here on are still to come.
        cursor: plan.window(step + 1).samples().start,
        seed: plan.config.train.seed,
        // The learning rate follows from the number of applied steps alone.
        schedule: Value::Null,
        config: plan.config.to_toml(),
        tool: TOOL.into(),
        values: values
            .map(|(name, value)| (name.to_string(), value))
            .into_iter()
            .collect::<Map<_, _>>(),
    }
}
