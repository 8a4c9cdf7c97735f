//! Binary losses by themselves on given logits, each sample on a rank of its own where a set says so, and over the valid pixels of a
//! net on two ranks.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::{Communicator, local};
use terrashard_models::{Labels, SumOverRanks};
use terrashard_ops::{Enlarged, Focal, SoftBce, dice, focal, soft_bce};
use terrashard_zero::{Initial, ZeroOptimizer};

use crate::fixture::{Error, Fixture, Result, Tensors, Values};
use crate::hash;
use crate::training::{Run, Sharded, insert_states, optimizer_config};

/// Sums over the ranks of a group, in `f64`.
#[derive(Debug)]
struct Sums {
    communicator: Arc<dyn Communicator>,
    device: Device,
}

impl SumOverRanks for Sums {
    fn sum(&self, values: &mut [f64]) {
        let tensor = Tensor::<1>::from_data(TensorData::from(&*values), (&self.device, DType::F64));
        let pending = self.communicator.all_reduce(tensor).expect("no rank fails");
        let summed = pending.wait().expect("no rank fails").into_data();
        values.copy_from_slice(&summed.iter::<f64>().collect::<Vec<_>>());
    }
}

/// One of the losses, by the reference's name for it, over all valid pixels of `samples` samples.
fn loss(
    name: &str,
    logits: Enlarged,
    labels: &Labels,
    [samples, valid]: [f64; 2],
    sums: &Sums,
) -> Tensor<1> {
    let divisor = valid.max(1.0);
    match name {
        "bce" => {
            let softening = 0.1;
            soft_bce(logits, labels, SoftBce { softening, divisor })
        }
        "dice" => dice(logits, labels, 0.1, samples, sums),
        _ => {
            let (alpha, gamma) = (0.75, 2.0);
            let focal_loss = Focal {
                alpha,
                gamma,
                divisor,
            };
            focal(logits, labels, focal_loss)
        }
    }
}

/// The valid pixels among labels.
fn valid(labels: &Values) -> f64 {
    labels
        .values
        .iter()
        .filter(|label| **label != 255.0)
        .count() as f64
}

/// Rows of the first axis.
fn part(values: &Values, rows: std::ops::Range<usize>) -> Vec<f64> {
    let row = values.values.len() / values.shape[0];
    values.values[rows.start * row..rows.end * row].to_vec()
}

fn run_ranks<T: Send>(
    ranks: usize,
    rank: impl Fn(Arc<dyn Communicator>) -> Result<T> + Send + Sync,
) -> Result<Vec<T>> {
    let results = local::run(ranks, |communicator| rank(Arc::new(communicator)));
    results.map_err(|error| Error::Ranks {
        reason: error.to_string(),
    })
}

/// Whether the targets of a case are labels: losses here take a class for each pixel, no part of one.
pub fn has_labels(targets: &Values) -> bool {
    targets.values.iter().all(|target| target.fract() == 0.0)
}

/// Every case of the set: values under `LOSS/CASE`, gradients of the logits under `LOSS.grad/CASE`.
///
/// # Errors
/// [`Error::Tensors`] for a case without its inputs, [`Error::Ranks`].
pub fn observe_cases(fixture: &Fixture, run: Run) -> Result<Tensors> {
    let ranks = fixture.parity.ranks.max(1);
    let mut seen = Tensors::new();
    for case in &fixture.parity.cases {
        let (logits, labels) = match fixture.expected.get(&format!("x/{case}")) {
            Some(logits) => (logits, fixture.stored(&format!("t/{case}"))?),
            None => (
                fixture.stored(&format!("logits/{case}"))?,
                fixture.stored(&format!("labels/{case}"))?,
            ),
        };
        if !has_labels(labels) {
            continue;
        }
        let (samples, valid) = (logits.shape[0], valid(labels));
        for name in &fixture.parity.terms {
            let results = run_ranks(ranks, |communicator| {
                let own = samples / ranks;
                let rows = communicator.rank() * own..(communicator.rank() + 1) * own;
                let plain = run.backend.device();
                let device = plain.clone().autodiff();
                let [h, w] = [logits.shape[2], logits.shape[3]];
                let data = TensorData::new(part(logits, rows.clone()), [own, 1, h, w]);
                let x = Tensor::<4>::from_data(data, (&device, run.dtype())).require_grad();
                let bytes = part(labels, rows)
                    .iter()
                    .map(|label| *label as u8)
                    .collect();
                let labels = Labels::new(bytes, [own, h, w], &device);
                let sums = Sums {
                    communicator,
                    device: plain,
                };
                let counts = [samples as f64, valid];
                let value = loss(name, x.clone().into(), &labels, counts, &sums);
                let gradients = value.clone().backward();
                let gradient = x.grad(&gradients).map(Tensor::into_data);
                let gradient: Vec<f64> =
                    gradient.iter().flat_map(TensorData::iter::<f64>).collect();
                Ok((value.into_scalar::<f64>(), gradient))
            })?;
            let (values, gradients): (Vec<f64>, Vec<Vec<f64>>) = results.into_iter().unzip();
            let value = Values {
                shape: Vec::new(),
                values: vec![values.iter().sum()],
            };
            let gradient = Values {
                shape: logits.shape.clone(),
                values: gradients.concat(),
            };
            seen.insert(format!("{name}/{case}"), value);
            seen.insert(format!("{name}.grad/{case}"), gradient);
        }
    }
    Ok(seen)
}

/// Each loss of the net over the valid pixels of all ranks, and the gradients of its parameters.
///
/// # Errors
/// [`Error::Tensors`] without the labels, [`Error::Ranks`].
pub fn observe_net(fixture: &Fixture, run: Run) -> Result<Tensors> {
    let parity = &fixture.parity;
    let prefix = parity.prefix.get("net").cloned().unwrap_or_default();
    let labels = fixture.stored(&format!("{prefix}labels"))?;
    let counts = [parity.batch as f64, valid(labels)];
    let mut seen = Tensors::new();
    for name in &parity.terms {
        let results = run_ranks(parity.ranks, |communicator| {
            let rank = communicator.rank();
            let plain = run.backend.device();
            let device = plain.clone().autodiff();
            let config = fixture.model();
            let model = config.init(&plain)?;
            let initial = Initial::Keyed(&hash::initial);
            let mut optimizer = ZeroOptimizer::new(
                &model,
                optimizer_config(parity, run, 1),
                initial,
                communicator.clone(),
                &plain,
            )?;
            let (size, bands) = (fixture.size(), config.bands);
            let sample = parity.first_sample as usize + rank;
            let image = hash::batch(size, [sample]).image;
            let data = TensorData::new(image, [1, bands, size, size]);
            let image = Tensor::<4>::from_data(data, (&device, run.dtype()));
            let bytes = part(labels, rank..rank + 1);
            let bytes = bytes.iter().map(|label| *label as u8).collect();
            let own = Labels::new(bytes, [1, 5 * size, 5 * size], &device);
            let logits = model.forward(image, &Sharded::new(&optimizer)).segmentation;
            let sums = Sums {
                communicator,
                device: plain,
            };
            let value = loss(name, logits, &own, counts, &sums);
            let share = value.clone().into_scalar::<f64>();
            optimizer.backward(value)?;
            Ok((share, optimizer.whole_gradients()?))
        })?;
        let shares = results.iter().map(|(share, _)| share);
        let value = Values {
            shape: Vec::new(),
            values: vec![shares.sum()],
        };
        seen.insert(format!("{prefix}{name}"), value);
        let gradients = results.into_iter().next().map(|(_, gradients)| gradients);
        let key = format!("{prefix}grad.{name}");
        insert_states(&mut seen, &key, gradients.unwrap_or_default());
    }
    Ok(seen)
}
