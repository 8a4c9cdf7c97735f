//! Checkpoints on the disk: saved at every rank count, stage and offload, loaded at every other, and gone on from.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrashard_checkpoint::{Checkpoint, ElementType, Kind, Piece, Saver, State, TensorSpec};
use terrashard_collectives::Communicator;
use terrashard_layout::Stage;
use terrashard_ops::Running;
use terrashard_tests::nasty::{Case, Named, Trainer, difference};
use terrashard_zero::{Offload, Progress, Result, StateKind};

use crate::{STAGES, case, offloaded, ranks};

/// Steps before a save, and after it.
const STEPS: u64 = 5;

/// Where a training runs.
type Place = (usize, Stage, Offload);

/// Twelve samples a step, however many ranks share them, with all that a checkpoint has to bring back.
fn at((ranks, stage, offload): Place) -> Case {
    case(ranks, stage, |case| {
        case.config.offload = offload;
        case.config.ema = Some(0.8);
        case.drop = 0.2;
        case.micro = 12 / ranks;
    })
}

fn kind(kind: StateKind) -> Kind {
    match kind {
        StateKind::Parameter => Kind::Parameter,
        StateKind::Momentum => Kind::M,
        StateKind::Variance => Kind::V,
        StateKind::Ema => Kind::Ema,
    }
}

pub(crate) fn save(
    trainer: &Trainer,
    communicator: &Arc<dyn Communicator>,
    root: &Path,
) -> Result<()> {
    let saver = Saver::create(root, STEPS, communicator.rank(), communicator.ranks()).unwrap();
    saver.prepare().unwrap();
    communicator.barrier()?;
    let states = trainer.optimizer.own_states()?.into_iter();
    let mut pieces: Vec<Piece<'static>> = states
        .map(|state| Piece {
            bytes: state.bytes().to_vec().into(),
            tensor: TensorSpec::new(state.name, kind(state.kind), state.shape, state.dtype),
            start: state.interval.start,
        })
        .collect();
    if communicator.rank() == 0 {
        let Running { mean, variance } = trainer.net.stem.norm.running();
        for (name, values) in [("mean", mean), ("variance", variance)] {
            pieces.push(Piece {
                tensor: TensorSpec::new(name, Kind::Buffer, [values.len()], ElementType::F64),
                start: 0,
                bytes: values.into_iter().flat_map(f64::to_le_bytes).collect(),
            });
        }
    }
    saver.write(&pieces).unwrap();
    communicator.barrier()?;
    let progress = trainer.optimizer.progress();
    let mut state = State {
        step: STEPS,
        ..State::default()
    };
    state.values.insert("applied".into(), progress.steps.into());
    saver.publish(&state).unwrap();
    communicator.barrier().map_err(Into::into)
}

fn load(trainer: &mut Trainer, root: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(root).unwrap();
    let progress = Progress {
        steps: checkpoint.state().values["applied"].as_u64().unwrap(),
        ..trainer.optimizer.progress()
    };
    trainer.optimizer.load(progress, &|name, of, interval| {
        checkpoint
            .read(name, kind(of), interval)
            .map_err(Into::into)
    })?;
    let buffer = |name| -> Vec<f64> {
        let bytes = checkpoint.read_whole(name, Kind::Buffer).unwrap();
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|chunk| f64::from_le_bytes(*chunk))
            .collect()
    };
    trainer.net.stem.norm.set_running(Running {
        mean: buffer("mean"),
        variance: buffer("variance"),
    });
    Ok(())
}

/// A training that was saved on its way.
struct Trained {
    folder: tempfile::TempDir,
    /// At the save.
    saved: Named,
    /// After the steps that follow.
    uninterrupted: Named,
}

fn trained(place: Place) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    let case = at(place);
    let mut results = ranks(place.0, |communicator| {
        let mut trainer = Trainer::new(&case, communicator.clone())?;
        (0..STEPS).try_for_each(|step| trainer.step(step).map(|_| ()))?;
        save(&trainer, &communicator, folder.path())?;
        let saved = trainer.states()?;
        (STEPS..2 * STEPS).try_for_each(|step| trainer.step(step).map(|_| ()))?;
        Ok((saved, trainer.states()?))
    });
    let (saved, uninterrupted) = results.swap_remove(0);
    Trained {
        folder,
        saved,
        uninterrupted,
    }
}

/// Loads at a place what was saved at another, and goes on.
fn check(from: Place, trained: &Trained, to: Place) {
    let case = at(to);
    let mut results = ranks(to.0, |communicator| {
        let mut trainer = Trainer::new(&case, communicator)?;
        load(&mut trainer, trained.folder.path())?;
        let loaded = trainer.states()?;
        (STEPS..2 * STEPS).try_for_each(|step| trainer.step(step).map(|_| ()))?;
        Ok((loaded, trainer.states()?))
    });
    let (loaded, after) = results.swap_remove(0);
    assert!(
        loaded == trained.saved,
        "{from:?} to {to:?}: not loaded bit by bit"
    );
    let (apart, name) = difference(&after, &trained.uninterrupted);
    assert!(
        apart <= 1e-5,
        "{from:?} to {to:?}: {name} is off by {apart:e}"
    );
    // Where states are kept changes no bit.
    if (from.0, from.1) == (to.0, to.1) {
        assert!(
            after == trained.uninterrupted,
            "{from:?} to {to:?}: not bit by bit"
        );
    }
}

#[test]
fn c6_every_rank_count_stage_and_offload_loads_what_every_other_saved() {
    let mut places = Vec::new();
    for ranks in 1..=4 {
        for stage in STAGES {
            places.push((ranks, stage, Offload::None));
            if stage != Stage::Zero {
                places.push((ranks, stage, offloaded(stage)));
            }
        }
    }
    for from in &places {
        let trained = trained(*from);
        places.iter().for_each(|to| check(*from, &trained, *to));
    }
}

#[test]
fn c7_what_is_saved_does_not_grow_with_the_ranks() {
    let bytes: BTreeMap<usize, u64> = (1..=4)
        .map(|ranks| {
            let trained = trained((ranks, Stage::Three, Offload::None));
            let checkpoint = Checkpoint::open(trained.folder.path()).unwrap();
            (ranks, checkpoint.verify().unwrap())
        })
        .collect();
    assert!(bytes.values().all(|own| *own == bytes[&1]), "{bytes:?}");
}
