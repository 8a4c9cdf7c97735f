//! Saving: each rank its intervals of parameters and moments, rank 0 the buffers, at once or beside the steps that follow.
//!
//! A save has two parts, and no rank begins the second before all have done the first: each writes its own file, then rank 0
//! publishes the whole. What waits for disks runs on a thread of its own. Whether all have done a part, and whether it failed on one of them,
//! the ranks learn together: from numbers that travel with those of the next step, or where a save has to end now, from a sum of
//! their own. So every rank goes on, or gives up, at the same step.

use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::TensorData;
use serde_json::{Map, Value, json};
use terrashard_checkpoint::{Background, ElementType, Keep, Kind, Saver, Slot, State, TensorSpec};
use terrashard_layout::ShardTable;
use terrashard_models::S2s2Net;
use terrashard_zero::{Progress, StateKind, StatePiece, ZeroOptimizer};

use super::Plan;
use super::score::Score;
use super::validation::{METRICS, distance};
use crate::config::OnFailure;
use crate::error::{Error, Result};
use crate::record::ValidationRecord;
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

/// What a validation said of the model.
pub(crate) const VALIDATION: &str = "validation";

/// How long a rank waits for its disk before it tells the others that it goes on waiting.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Between two looks at what is written.
const LOOK: Duration = Duration::from_millis(1);

/// When a save has to have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Some steps later will do.
    Later,
    /// Before anything else.
    Now,
}

/// How far the ranks are with the part of a save that is under way, each or all together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Standing {
    /// Ranks that have done their part.
    pub done: f64,
    /// Ranks on which it failed.
    pub failed: f64,
}

/// One rank's saves.
#[derive(Debug)]
pub(super) struct Saves<'a> {
    plan: &'a Plan<'a>,
    run: &'a RunDirectory,
    under_way: Option<Save>,
    /// How good the model is that is saved next, by its loss.
    pub(super) score: Score,
    /// The last validation, if it was of the model as it is.
    pub(super) validated: Option<ValidationRecord>,
    /// What went wrong, to be told.
    warnings: Vec<String>,
}

/// A save that has not ended.
#[derive(Debug)]
struct Save {
    saver: Saver,
    state: State,
    part: Part,
    work: Work,
    urgency: Urgency,
}

/// What all ranks are at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Prepare,
    Write,
    Publish,
}

/// This rank's work on a part.
#[derive(Debug)]
enum Work {
    Running(Background),
    Done,
    Failed(terrashard_checkpoint::Error),
}

impl Work {
    fn of(result: Result<(), terrashard_checkpoint::Error>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => Self::Failed(error),
        }
    }

    fn started(started: Result<Background, terrashard_checkpoint::Error>) -> Self {
        match started {
            Ok(work) => Self::Running(work),
            Err(error) => Self::Failed(error),
        }
    }

    /// Takes the end in if the work has ended, or ends within that time.
    fn settle(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while matches!(self, Self::Running(work) if !work.is_finished()) && Instant::now() < until {
            thread::sleep(LOOK);
        }
        if matches!(self, Self::Running(work) if work.is_finished()) {
            self.finish();
        }
    }

    /// Waits for the end if the work is running.
    fn finish(&mut self) {
        if matches!(self, Self::Running(_))
            && let Self::Running(work) = std::mem::replace(self, Self::Done)
        {
            *self = Self::of(work.wait());
        }
    }

    fn standing(&self) -> Standing {
        let (done, failed) = match self {
            Self::Running(_) => (0.0, 0.0),
            Self::Done => (1.0, 0.0),
            Self::Failed(_) => (0.0, 1.0),
        };
        Standing { done, failed }
    }
}

impl<'a> Saves<'a> {
    pub(super) fn new(plan: &'a Plan<'a>, run: &'a RunDirectory) -> Self {
        Self {
            plan,
            run,
            under_way: None,
            score: plan.start.score(&plan.config.checkpoint.best_by),
            validated: None,
            warnings: Vec::new(),
        }
    }

    /// Saves the run after `step`. Waits for the save before it. Collective.
    ///
    /// # Errors
    /// [`Error::Save`] on the rank where it failed, another on the others, unless the run goes on without that save.
    pub(super) fn save(
        &mut self,
        step: u64,
        optimizer: &ZeroOptimizer,
        model: &S2s2Net,
        urgency: Urgency,
    ) -> Result<()> {
        self.settle(optimizer)?;
        let communicator = optimizer.communicator();
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let saver =
            Saver::create(self.run.checkpoints(), step, rank, ranks).map_err(Error::save)?;
        let work = Work::of(saver.prepare());
        self.under_way = Some(Save {
            saver,
            state: self.state(step, optimizer.progress()),
            part: Part::Prepare,
            work,
            urgency,
        });
        self.agree(optimizer)?;
        if let Some(save) = &mut self.under_way {
            let slots = slots(optimizer, model)?;
            save.work = Work::started(save.saver.write_beside(slots));
        }
        match (self.plan.config.checkpoint.asynchronous, urgency) {
            (true, Urgency::Later) => Ok(()),
            _ => self.settle(optimizer),
        }
    }

    fn state(&mut self, step: u64, progress: Progress) -> State {
        let best_by = self.plan.config.checkpoint.best_by.as_str();
        let validated = self.validated.take().filter(|record| record.step == step);
        let score = match &validated {
            Some(record) if METRICS.contains(&best_by) => distance(record, best_by),
            _ => self.score.mean(),
        };
        let every = self.plan.config.checkpoint.every;
        if every > 0 && step.is_multiple_of(every) {
            self.score.begin_anew();
        }
        let mut state = state(self.plan, step, progress, score);
        self.score.carry(&mut state.values);
        if let Some(record) = validated {
            state.values.insert(VALIDATION.into(), json!(record));
        }
        state
    }

    /// How far this rank is, without waiting for anything.
    pub(super) fn standing(&mut self) -> Standing {
        match &mut self.under_way {
            None => Standing::default(),
            Some(save) => {
                save.work.settle(Duration::ZERO);
                save.work.standing()
            }
        }
    }

    /// Takes in how far all ranks are together. Collective only where a save failed and the run ends by that.
    ///
    /// # Errors
    /// As [`Self::save`].
    pub(super) fn hear(&mut self, all: Standing, optimizer: &ZeroOptimizer) -> Result<()> {
        let ranks = optimizer.communicator().ranks() as f64;
        let Some(save) = &mut self.under_way else {
            return Ok(());
        };
        if all.failed > 0.0 {
            return self.give_up(optimizer);
        }
        if all.done < ranks {
            return Ok(());
        }
        match save.part {
            // What is written next has still to be fetched.
            Part::Prepare => save.part = Part::Write,
            Part::Write => {
                save.part = Part::Publish;
                let settings = &self.plan.config.checkpoint;
                let keep = Keep {
                    last: settings.keep_last,
                    best: settings.keep_best,
                };
                save.work = match optimizer.communicator().rank() {
                    0 => Work::started(save.saver.publish_beside(save.state.clone(), keep)),
                    _ => Work::Done,
                };
            }
            Part::Publish => self.under_way = None,
        }
        Ok(())
    }

    /// Ends the save that is under way, if there is one. Collective.
    ///
    /// # Errors
    /// As [`Self::save`].
    pub(super) fn settle(&mut self, optimizer: &ZeroOptimizer) -> Result<()> {
        while self.under_way.is_some() {
            self.agree(optimizer)?;
        }
        Ok(())
    }

    /// What went wrong since the last call while the run went on.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Waits for a while until this rank has done the part that is under way, and tells the others how far it is.
    fn agree(&mut self, optimizer: &ZeroOptimizer) -> Result<()> {
        if let Some(save) = &mut self.under_way {
            save.work.settle(HEARTBEAT);
        }
        let Standing { done, failed } = self.standing();
        let sums = optimizer.parameters().sum_over_ranks(vec![done, failed])?;
        let all = Standing {
            done: sums[0],
            failed: sums[1],
        };
        self.hear(all, optimizer)
    }

    /// A save failed on one rank at least: the run goes on without it, or ends.
    fn give_up(&mut self, optimizer: &ZeroOptimizer) -> Result<()> {
        let Some(mut save) = self.under_way.take() else {
            return Ok(());
        };
        // The folder is not to be written to any more when the next save clears it away.
        save.work.finish();
        save.saver.abandon();
        let goes_on = self.plan.config.checkpoint.on_failure == OnFailure::Continue
            && save.urgency == Urgency::Later;
        match (save.work, goes_on) {
            (Work::Failed(error), true) => self.warnings.push(format!(
                "step {} was not saved: {error}; the run goes on, as `checkpoint.on_failure` says",
                save.state.step
            )),
            (Work::Failed(error), false) => return Err(Error::save(error)),
            (_, true) => {}
            // The rank on which it failed does not come, and tells why.
            (_, false) => optimizer.communicator().barrier()?,
        }
        Ok(())
    }
}

/// Values in host memory that wait to be written.
enum Values {
    Tensor(TensorData),
    Bytes(Vec<u8>),
}

impl AsRef<[u8]> for Values {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Tensor(data) => data.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// What this rank writes: a copy, which no step changes any more.
fn slots(optimizer: &ZeroOptimizer, model: &S2s2Net) -> Result<Vec<(Slot, Values)>> {
    let states = optimizer.own_states()?.into_iter();
    let mut slots: Vec<(Slot, Values)> = states.map(slot).collect();
    if optimizer.communicator().rank() == 0 {
        let specs: Vec<&TensorSpec> = slots.iter().map(|(slot, _)| &slot.tensor).collect();
        let aliases = aliases(optimizer.table(), &specs);
        slots.extend(aliases);
        slots.extend(model.buffers().iter().map(buffer));
    }
    Ok(slots)
}

/// The names of parameters that share another's values, with no values of their own.
fn aliases(table: &ShardTable, specs: &[&TensorSpec]) -> Vec<(Slot, Values)> {
    let rows = table.rows().iter();
    rows.filter_map(|row| {
        let owner = row.parameter.tied_to.as_ref()?;
        let is_owner = |spec: &&&TensorSpec| spec.kind == Kind::Parameter && &spec.name == owner;
        let values = specs.iter().find(is_owner)?;
        let spec = TensorSpec {
            name: row.parameter.name.clone(),
            ..(*values).clone()
        };
        let slot = Slot {
            tensor: spec.tied_to(owner),
            interval: 0..0,
        };
        Some((slot, Values::Bytes(Vec::new())))
    })
    .collect()
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

fn slot(piece: StatePiece) -> (Slot, Values) {
    let StatePiece {
        name,
        kind: of,
        shape,
        dtype,
        interval,
        data,
    } = piece;
    let tensor = TensorSpec::new(name, kind(of), shape, dtype);
    (Slot { tensor, interval }, Values::Tensor(data))
}

fn buffer((name, values): &(String, Vec<f64>)) -> (Slot, Values) {
    let tensor = TensorSpec::new(name.clone(), Kind::Buffer, [values.len()], ElementType::F64);
    let slot = Slot {
        tensor,
        interval: 0..values.len(),
    };
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    (slot, Values::Bytes(bytes.collect()))
}

fn state(plan: &Plan<'_>, step: u64, progress: Progress, score: Option<f64>) -> State {
    let values = [
        ("threshold", json!(THRESHOLD)),
        ("bands", json!(plan.config.data.bands)),
        ("scaling", json!(plan.config.data.scaling)),
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
        score,
        scored_by: Some(plan.config.checkpoint.best_by.clone()),
        values: values
            .map(|(name, value)| (name.to_string(), value))
            .into_iter()
            .collect::<Map<_, _>>(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{self, Receiver};

    use terrashard_layout::{LayoutConfig, ParameterSpec};

    use super::*;

    /// Bytes that can be read only once the other end is gone.
    struct Slow(Mutex<Receiver<()>>);

    impl AsRef<[u8]> for Slow {
        fn as_ref(&self) -> &[u8] {
            let slow = self.0.lock().expect("one reader");
            slow.recv().expect_err("nothing is sent");
            &[1, 2, 3, 4]
        }
    }

    /// A disk that takes longer than any collective may: the rank tells so in time, and the save ends well.
    #[test]
    fn h8_a_rank_that_writes_slowly_is_heard_of_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let saver = Saver::create(folder.path(), 1, 0, 1).unwrap();
        saver.prepare().unwrap();
        let (disk, slow) = mpsc::channel();
        let slot = Slot {
            tensor: TensorSpec::new("a", Kind::Parameter, [1], ElementType::F32),
            interval: 0..1,
        };
        let bytes = Slow(Mutex::new(slow));
        let mut work = Work::started(saver.write_beside(vec![(slot, bytes)]));
        for patience in [Duration::ZERO, 20 * LOOK] {
            let asked = Instant::now();
            work.settle(patience);
            assert!(asked.elapsed() >= patience, "it waits as long as it may");
            assert_eq!(work.standing(), Standing::default(), "not done, not failed");
        }
        drop(disk);
        work.finish();
        let done = Standing {
            done: 1.0,
            failed: 0.0,
        };
        assert_eq!(work.standing(), done);
        work.settle(HEARTBEAT);
        work.finish();
        assert_eq!(work.standing(), done);
    }

    #[test]
    fn a_tied_parameter_is_an_alias_of_its_owner() {
        let tied = ParameterSpec {
            tied_to: Some("a".into()),
            ..ParameterSpec::new("b", [2], ElementType::F32)
        };
        let parameters = vec![ParameterSpec::new("a", [2], ElementType::F32), tied];
        let table = ShardTable::new(parameters, &LayoutConfig::default()).unwrap();
        let spec = |kind| TensorSpec::new("a", kind, [2], ElementType::F32);
        let found = aliases(&table, &[&spec(Kind::M), &spec(Kind::Parameter)]);
        let expected = TensorSpec::new("b", Kind::Parameter, [2], ElementType::F32).tied_to("a");
        assert_eq!(found.len(), 1);
        let (slot, values) = &found[0];
        assert_eq!((&slot.tensor, values.as_ref().len()), (&expected, 0));
    }
}
