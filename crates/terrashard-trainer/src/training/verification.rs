//! `verify`: the same steps trained twice, plainly and as the configuration says, and where they part.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use terrashard_data::Chips;
use terrashard_layout::{Offload, SampleOrder, Stage};
use terrashard_models::HeadNorm;
use terrashard_zero::StateKind;

use super::rank::Rank;
use super::resume::Start;
use super::{Plan, run_ranks, samples};
use crate::config::{
    Batch, BatchNormStatistics, Config, Device, Precision, Recompute, RecomputeChoice, ZeroSection,
};
use crate::error::{Error, Result};
use crate::record::Display;

/// Up to this relative difference a parameter counts as equal. AdamW divides gradients by their own size, so rounding in small
/// ones weighs as much as in large ones: over some steps it stays below this.
pub const BOUND: f64 = 1e-4;

/// What `verify` found: what it prints as JSON.
///
/// Differences are relative to a parameter's norm, `||a - b|| / ||b||`, over the elements whose gradient is not rounding
/// noise. Where a gradient is zero in mathematics, as that of a bias in front of a batch normalisation, AdamW turns its noise
/// into steps; such elements are told apart, with the most that they can differ by.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verification {
    /// What was compared with: in words.
    pub reference: String,
    /// Steps that were trained.
    pub steps: u64,
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
    /// Elements whose gradient is rounding noise.
    pub noise: Noise,
}

/// Elements whose gradient is below a millionth of the largest one at every step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Noise {
    /// How many.
    pub elements: u64,
    /// The most that one of them differs by.
    pub max_difference: f64,
    /// What AdamW can make of noise: twice the learning rate at every step.
    pub allowed: f64,
}

/// Trains `steps` steps twice in memory, at stage 0 on one rank and as the configuration says, and compares the parameters
/// after each. Nothing is written.
///
/// Both see the same samples in the same micro-batches. Where batch statistics are taken over ranks and micro-batches follow
/// one another, one rank cannot have the same statistics, and in 16 bits it would round otherwise: then the reference runs at
/// stage 0 on as many ranks.
///
/// # Errors
/// Those of [`super::fit`].
pub fn verify(config: &Config, device: Device, steps: u64) -> Result<Verification> {
    if steps == 0 {
        return Err(Error::invalid("--steps", 0, "at least 1"));
    }
    let (ranks, chips) = samples(config, device)?;
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
    let expected = train(&plain, reference_ranks, reference_batch, &chips, steps)?;
    let got = train(config, ranks, batch, &chips, steps)?;
    let allowed = 2.0 * config.train.lr * steps as f64;
    let mut found = compare(&got, &expected, allowed);
    found.reference = match reference_ranks {
        1 => "stage 0 on one rank".into(),
        ranks => format!("stage 0 on {ranks} ranks"),
    };
    Ok(found)
}

/// On how many ranks the reference runs, and how it takes a step's samples.
fn reference(config: &Config, ranks: usize, batch: Batch) -> (usize, Batch) {
    if config.train.precision != Precision::Fp32 {
        return (ranks, batch);
    }
    let statistics = match config.model.head_norm {
        HeadNorm::Batch => Some(config.train.batch_norm),
        _ => None,
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

/// The parameters after each step and the gradients of each.
#[derive(Debug, Default)]
struct Trained {
    parameters: Vec<Tensors>,
    gradients: Vec<Tensors>,
}

fn train(
    config: &Config,
    ranks: usize,
    batch: Batch,
    chips: &Arc<Chips>,
    steps: u64,
) -> Result<Trained> {
    let plan = Plan {
        config,
        run: None,
        display: Display::Quiet,
        batch,
        order: SampleOrder::new(chips.len(), config.train.seed)?,
        chips: chips.clone(),
        start: Start::Afresh,
        steps,
        end: None,
        last_step: steps,
    };
    let mut trained = run_ranks(ranks, |communicator| {
        let first = terrashard_collectives::Communicator::rank(&communicator) == 0;
        let mut rank = Rank::new(&plan, Arc::new(communicator))?;
        rank.watch_gradients();
        let mut trained = Trained::default();
        for step in 1..=steps {
            rank.step(step)?;
            let parameters = rank.optimizer.whole_states(StateKind::Parameter)?;
            let gradients = rank.take_gradients();
            if first {
                trained.parameters.push(doubles(parameters));
                trained.gradients.push(doubles(gradients));
            }
        }
        Ok(trained)
    })?;
    Ok(trained.swap_remove(0))
}

fn doubles(tensors: Vec<(String, burn::tensor::TensorData)>) -> Tensors {
    let tensors = tensors.into_iter();
    tensors
        .map(|(name, data)| (name, data.iter::<f64>().collect()))
        .collect()
}

fn compare(got: &Trained, expected: &Trained, allowed: f64) -> Verification {
    let loud = loud(&expected.gradients);
    let mut found = Verification {
        reference: String::new(),
        steps: expected.parameters.len() as u64,
        max_rel: 0.0,
        parameter: None,
        step: None,
        bound: BOUND,
        equal: true,
        per_parameter: BTreeMap::new(),
        noise: Noise {
            allowed,
            ..Noise::default()
        },
    };
    for (index, (got, expected)) in got.parameters.iter().zip(&expected.parameters).enumerate() {
        let step = index as u64 + 1;
        for ((name, got), (_, expected)) in got.iter().zip(expected) {
            let loud = loud.get(name.as_str());
            let (mut difference, mut norm, mut quiet) = (0.0, 0.0, 0);
            for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
                // Not a number must not pass for small.
                let away = finite(got - expected);
                if loud.is_none_or(|loud| loud[i]) {
                    difference += away * away;
                    norm += expected * expected;
                } else {
                    quiet += 1;
                    let most = &mut found.noise.max_difference;
                    *most = most.max(away.abs());
                }
            }
            if step == 1 {
                found.noise.elements += quiet;
            }
            let rel = match difference {
                0.0 => 0.0,
                _ => finite((difference / norm).sqrt()),
            };
            let largest = found.per_parameter.entry(name.clone()).or_default();
            *largest = largest.max(rel);
            if rel > found.max_rel {
                found.max_rel = rel;
                found.parameter = Some(name.clone());
                if found.equal {
                    found.step = Some(step);
                }
            }
            found.equal &= rel <= BOUND;
        }
    }
    found.equal &= found.noise.max_difference <= allowed;
    found
}

/// The value, infinite where it is no number.
fn finite(value: f64) -> f64 {
    if value.is_nan() { f64::INFINITY } else { value }
}

/// For each parameter with a gradient, which elements have one that is not rounding noise at some step.
fn loud(gradients: &[Tensors]) -> BTreeMap<&str, Vec<bool>> {
    let mut loud: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    for tensors in gradients {
        let all = tensors.iter().flat_map(|(_, values)| values);
        let most = all.fold(0.0, |most: f64, value| most.max(value.abs()));
        for (name, values) in tensors {
            let loud = loud
                .entry(name)
                .or_insert_with(|| vec![false; values.len()]);
            for (loud, value) in loud.iter_mut().zip(values) {
                *loud |= value.abs() >= 1e-6 * most;
            }
        }
    }
    loud
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trained(parameters: &[[f64; 3]], gradients: &[[f64; 3]]) -> Trained {
        let tensors = |values: &[f64; 3]| vec![("a".to_string(), values.to_vec())];
        Trained {
            parameters: parameters.iter().map(tensors).collect(),
            gradients: gradients.iter().map(tensors).collect(),
        }
    }

    #[test]
    fn the_first_step_that_differs_is_told_and_noise_apart() {
        let gradients = [[1.0, 1e-9, 1.0], [1.0, 1e-8, 1.0]];
        let expected = trained(
            &[[3.0, 7.0, 4.0], [3.0, 7.0, 4.0], [3.0, 7.0, 4.0]],
            &gradients,
        );
        let got = trained(
            &[[3.0, 7.0, 4.0], [3.0, 7.5, 4.5], [3.0, 7.0, 5.0]],
            &gradients,
        );
        let found = compare(&got, &expected, 0.6);
        // Without the noisy second element the norm is 5.
        assert_eq!(found.max_rel, 0.2);
        assert_eq!(
            (found.parameter.as_deref(), found.step),
            (Some("a"), Some(2))
        );
        assert!(!found.equal);
        assert_eq!((found.noise.elements, found.noise.max_difference), (1, 0.5));
        let same = compare(&expected, &expected, 0.6);
        assert!(same.equal && same.max_rel == 0.0 && same.step.is_none());
        let nan = trained(&[[f64::NAN, 7.0, 4.0]], &gradients);
        assert!(!compare(&nan, &expected, 0.6).equal);
    }
}
