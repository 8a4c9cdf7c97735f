//! `verify`: the same steps trained twice, plainly and as the configuration says, and where they part.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use serde::Serialize;
use terrashard_collectives::Communicator;
use terrashard_data::Chips;
use terrashard_layout::{Offload, SampleOrder, Stage};
use terrashard_models::HeadNorm;
use terrashard_zero::StateKind;

use super::rank::Rank;
use super::resume::Start;
use super::{Plan, StopRequest, run_ranks, samples, settings};
use crate::config::{
    Batch, BatchNormStatistics, Config, Device, Precision, Recompute, RecomputeChoice, ZeroSection,
};
use crate::error::{Error, Result};
use crate::record::Display;

/// Up to this relative difference a parameter counts as equal. In double precision, sums in another order differ by 1e-16 and
/// AdamW, which divides gradients by their own size, makes of that what its epsilon of 1e-8 allows.
pub const BOUND: f64 = 1e-6;

/// What `verify` found: what it prints as JSON.
///
/// Differences are relative to a parameter's norm, `||a - b|| / ||b||`, or where that is less, to a step of the learning rate in
/// each element: a bias whose gradient is zero in mathematics stays at its rounding noise, of which nothing can be said.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verification {
    /// What was compared with: in words.
    pub reference: String,
    /// In what both were computed: in words.
    pub precision: String,
    /// Steps that were trained.
    pub steps: u64,
    /// Those of them that changed the parameters: the others were skipped.
    pub applied_steps: u64,
    /// The largest difference of any parameter at any step.
    pub max_rel: f64,
    /// The parameter that differs most.
    pub parameter: Option<String>,
    /// The first step at which a parameter differed by more than `bound`; if none did, that of the largest difference.
    pub step: Option<u64>,
    /// Up to here a parameter counts as equal.
    pub bound: f64,
    /// Whether every parameter is.
    pub equal: bool,
    /// The largest difference of each parameter.
    pub per_parameter: BTreeMap<String, f64>,
}

/// Trains `steps` steps twice in memory, at stage 0 on one rank and as the configuration says, and compares the parameters
/// after each. Nothing is written.
///
/// Both see the same samples in the same micro-batches. A training in fp32 is compared in double precision, in which rounding
/// can neither look like a difference nor hide one. Where batch statistics are taken over ranks and micro-batches follow one
/// another, one rank cannot have the same statistics, and in 16 bits it would round otherwise: then the reference runs at
/// stage 0 on as many ranks.
///
/// # Errors
/// Those of [`super::fit`]; [`Error::InvalidValue`] if every step was skipped.
pub fn verify(config: &Config, device: Device, steps: u64) -> Result<Verification> {
    if steps == 0 {
        return Err(Error::invalid("--steps", 0, "at least 1"));
    }
    let ranks = config.zero.ranks.count(device);
    let chips = samples(config, ranks, false)?.chips;
    let batch = Batch::resolve(&config.train, ranks)?;
    let (reference_ranks, reference_batch) = reference(config, ranks, batch);
    let plain = Config {
        zero: ZeroSection {
            stage: Stage::Zero,
            offload: Offload::None,
            recompute: RecomputeChoice::All(Recompute::Keep),
            prefetch: 0,
            shard_group: None,
            overlap: false,
            ..config.zero.clone()
        },
        ..config.clone()
    };
    let mut found = Verification {
        reference: match reference_ranks {
            1 => "stage 0 on one rank".into(),
            ranks => format!("stage 0 on {ranks} ranks"),
        },
        precision: match config.train.precision {
            Precision::Fp32 | Precision::Tf32 => "double precision".into(),
            Precision::Bf16 => "bf16".into(),
            Precision::Fp16 => "fp16".into(),
        },
        steps,
        applied_steps: 0,
        max_rel: 0.0,
        parameter: None,
        step: None,
        bound: BOUND,
        equal: true,
        per_parameter: BTreeMap::new(),
    };
    thread::scope(|scope| {
        // Both train at once, a step apart at most, so that two sets of parameters are kept and not two for each step.
        let (to_expected, expected) = sync_channel(0);
        let (to_got, got) = sync_channel(0);
        let chips = &chips;
        let trial = |config, ranks, batch, sender| {
            scope.spawn(move || train(config, device, (ranks, batch), chips, steps, &sender))
        };
        let reference = trial(&plain, reference_ranks, reference_batch, to_expected);
        let trained = trial(config, ranks, batch, to_got);
        for step in 1..=steps {
            // A training that failed says why below.
            let (Ok(expected), Ok(got)) = (expected.recv(), got.recv()) else {
                break;
            };
            found.compare(step, &got, &expected, config.train.lr);
        }
        drop((expected, got));
        for trained in [reference, trained] {
            let joined = trained.join().map_err(|_| Error::Panicked {
                who: "a training".into(),
                message: "its message stands above".into(),
            })?;
            found.applied_steps = joined?;
        }
        Ok::<(), Error>(())
    })?;
    if found.applied_steps == 0 {
        let expected = "more steps: each of these was skipped, since a gradient was not finite";
        return Err(Error::invalid("--steps", steps, expected));
    }
    Ok(found)
}

/// On how many ranks the reference runs, and how it takes a step's samples.
fn reference(config: &Config, ranks: usize, batch: Batch) -> (usize, Batch) {
    if matches!(config.train.precision, Precision::Bf16 | Precision::Fp16) {
        return (ranks, batch);
    }
    let statistics = match config.model.head_norm {
        HeadNorm::Batch => Some(config.train.batch_norm),
        HeadNorm::None => None,
    };
    let local = |statistics| statistics != BatchNormStatistics::Sync;
    if batch.accumulate == 1 && !statistics.is_some_and(local) {
        let micro = batch.global;
        return (1, Batch { micro, ..batch });
    }
    if statistics.is_none_or(local) {
        let accumulate = batch.accumulate * ranks;
        return (
            1,
            Batch {
                accumulate,
                ..batch
            },
        );
    }
    (ranks, batch)
}

/// Names and values.
type Tensors = Vec<(String, Vec<f64>)>;

/// Trains and sends the parameters after each step; returns the number of steps that changed them.
fn train(
    config: &Config,
    device: Device,
    (ranks, batch): (usize, Batch),
    chips: &Arc<Chips>,
    steps: u64,
    to: &SyncSender<Tensors>,
) -> Result<u64> {
    let plan = Plan {
        validation: None,
        panels: None,
        config,
        run: None,
        device,
        gpu: None,
        display: Display::Quiet,
        stop: StopRequest::default(),
        precision: match settings::precision(config) {
            terrashard_zero::Precision::F32 => terrashard_zero::Precision::F64,
            half => half,
        },
        batch,
        order: SampleOrder::new(chips.len(), config.train.seed)?,
        chips: chips.clone(),
        start: Start::Afresh,
        changed: None,
        steps,
        end: None,
        last_step: steps,
    };
    let applied = run_ranks(ranks, |communicator| {
        let first = communicator.rank() == 0;
        let mut rank = Rank::new(&plan, Arc::new(communicator))?;
        for step in 1..=steps {
            rank.step(step)?;
            let parameters = rank.optimizer.whole_states(StateKind::Parameter)?;
            // Nobody listens after the other training failed; this one then ends with its steps.
            if first {
                let _ = to.send(doubles(parameters));
            }
        }
        Ok(rank.optimizer.steps())
    })?;
    Ok(applied[0])
}

fn doubles(tensors: Vec<(String, burn::tensor::TensorData)>) -> Tensors {
    let tensors = tensors.into_iter();
    tensors
        .map(|(name, data)| (name, data.iter::<f64>().collect()))
        .collect()
}

impl Verification {
    /// Takes in the parameters after one step.
    fn compare(&mut self, step: u64, got: &Tensors, expected: &Tensors, lr: f64) {
        for ((name, got), (_, expected)) in got.iter().zip(expected) {
            let away = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2));
            let (away, norm) = (
                away.sum::<f64>(),
                expected.iter().map(|x| x * x).sum::<f64>(),
            );
            let least = expected.len() as f64 * lr * lr;
            let rel = match away {
                0.0 => 0.0,
                _ => (away / norm.max(least)).sqrt(),
            };
            // What is no number must not pass for small.
            let rel = if rel.is_nan() { f64::INFINITY } else { rel };
            let largest = self.per_parameter.entry(name.clone()).or_default();
            *largest = largest.max(rel);
            if rel > self.max_rel {
                self.max_rel = rel;
                self.parameter = Some(name.clone());
                if self.equal {
                    self.step = Some(step);
                }
            }
            self.equal &= rel <= self.bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_that_differs_is_told() {
        let found = |steps: &[[f64; 2]]| {
            let mut found = Verification {
                reference: String::new(),
                precision: String::new(),
                steps: 3,
                applied_steps: 3,
                max_rel: 0.0,
                parameter: None,
                step: None,
                bound: BOUND,
                equal: true,
                per_parameter: BTreeMap::new(),
            };
            let tensors = |values: &[f64; 2]| vec![("a".to_string(), values.to_vec())];
            for (index, values) in steps.iter().enumerate() {
                let expected = tensors(&[3.0, 4.0]);
                found.compare(index as u64 + 1, &tensors(values), &expected, 0.1);
            }
            found
        };
        let apart = found(&[[3.0, 4.0], [3.0, 4.5], [3.0, 5.0]]);
        assert_eq!((apart.max_rel, apart.equal), (0.2, false));
        assert_eq!(
            (apart.parameter.as_deref(), apart.step),
            (Some("a"), Some(2))
        );
        let near = found(&[[3.0, 4.0 + 1e-7]]);
        assert!(near.equal && near.step == Some(1) && near.max_rel > 0.0);
        let same = found(&[[3.0, 4.0]]);
        assert!(same.equal && same.step.is_none());
        assert!(!found(&[[f64::NAN, 4.0]]).equal);
        let mut noise = found(&[]);
        let tensors = |value| vec![("a".to_string(), vec![value])];
        noise.compare(1, &tensors(1e-12), &tensors(-1e-12), 1e-3);
        assert!(noise.equal && noise.max_rel < 1e-8);
    }
}
