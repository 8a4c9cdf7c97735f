//! Initial values: those of a file where it has them, the others drawn by the seed.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use terrashard_checkpoint::Kind;
use terrashard_models::{S2s2Net, initial_value, parameters};

use super::resume::Start;
use crate::config::{Config, ModelConfig};
use crate::error::{Error, Result};
use crate::trained_model::TrainedModel;

/// Where the parameters of a new training begin.
#[derive(Debug)]
pub(super) struct InitialValues {
    seed: u64,
    file: Option<WeightsFile>,
    /// The first error of reading, since a parameter's value is asked for where none can be returned.
    failed: Mutex<Option<Error>>,
}

/// The file of `train.init`.
#[derive(Debug)]
struct WeightsFile {
    weights: TrainedModel,
    /// Tensors that the model takes from it, and all that it has.
    taken: [usize; 2],
    /// What it was trained with and the model has otherwise.
    differs: Vec<String>,
}

impl InitialValues {
    /// Opens the file of `train.init`, if there is one and the training begins afresh, and checks that it fits the model.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], [`Error::InvalidValue`] if its encoder is another one, or it has nothing of the model.
    pub(super) fn open(config: &Config, start: &Start) -> Result<Self> {
        let file = match (&config.train.init, start) {
            (Some(path), Start::Afresh) => Some(WeightsFile::open(path, &config.model)?),
            _ => None,
        };
        Ok(Self {
            seed: config.train.seed,
            file,
            failed: Mutex::default(),
        })
    }

    /// The first value of a parameter.
    pub(super) fn of(&self, name: &str, shape: &[usize]) -> Vec<f32> {
        match self.file.as_ref().map(|file| file.read(name, shape)) {
            Some(Ok(Some(values))) => values,
            Some(Err(error)) => {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(error);
                vec![0.0; shape.iter().product()]
            }
            Some(Ok(None)) | None => initial_value(name, shape, self.seed),
        }
    }

    /// Gives a model the running statistics of the file, where it has them.
    ///
    /// # Errors
    /// What reading a parameter failed with before; [`Error::Checkpoint`].
    pub(super) fn finish(self, model: &S2s2Net) -> Result<()> {
        if let Some(error) = self
            .failed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            return Err(error);
        }
        let Some(file) = self.file else { return Ok(()) };
        let source = file.weights.source();
        let mut buffers = model.buffers();
        for (name, values) in &mut buffers {
            let there = source.tensor(name, Kind::Buffer);
            if there.is_some_and(|tensor| tensor.shape == [values.len()]) {
                *values = source.read_f64(name, Kind::Buffer, 0..values.len())?;
            }
        }
        Ok(model.load_buffers(&buffers)?)
    }

    /// What a run says of the file.
    pub(super) fn told(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        let [taken, all] = file.taken;
        let path = file.weights.source().path().display();
        let drawn = match taken == all {
            true => "",
            false => ", the others are drawn by the seed",
        };
        let differs = match file.differs.is_empty() {
            true => String::new(),
            false => format!("; it was trained with {}", file.differs.join(", ")),
        };
        Some(format!(
            "initial values of {taken} of {all} tensors from {path}{drawn}{differs}"
        ))
    }
}

impl WeightsFile {
    fn open(path: &Path, model: &ModelConfig) -> Result<Self> {
        let weights = TrainedModel::open(path)?;
        let (mut taken, mut all) = (0, 0);
        for (name, shape) in parameters(&model.init(&Device::flex())?) {
            all += 1;
            let Some(tensor) = weights.source().tensor(&name, Kind::Parameter) else {
                continue;
            };
            if tensor.shape == shape {
                taken += 1;
            } else if name.starts_with("stages.") {
                let remedy = match weights.model.bands == model.bands {
                    true => "set the sizes in `[model]` as they are there",
                    false => "import it again with this number of `--bands`",
                };
                let expected = format!(
                    "the encoder of `[model]`: `{name}` is {:?} there and {shape:?} here; {remedy}",
                    tensor.shape
                );
                return Err(Error::invalid("train.init", path.display(), expected));
            }
        }
        if taken == 0 {
            let expected =
                "a file with tensors of the model, made by `terrashard import` or `export`";
            return Err(Error::invalid("train.init", path.display(), expected));
        }
        check_sizes_beside_shapes(path, &weights, model)?;
        let differs = differences(&weights, model);
        Ok(Self {
            weights,
            taken: [taken, all],
            differs,
        })
    }

    /// The values of a parameter, if the file has it in this shape.
    fn read(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        let source = self.weights.source();
        let there = source.tensor(name, Kind::Parameter);
        if there.is_none_or(|tensor| tensor.shape != shape) {
            return Ok(None);
        }
        let values = source.read_f32(name, Kind::Parameter, 0..shape.iter().product());
        Ok(Some(values?))
    }
}

/// Whether a file has any parameter whose name begins like this.
fn has(weights: &TrainedModel, prefix: &str) -> bool {
    let tensors = weights.source().tensors();
    let mut tensors = tensors.iter();
    tensors.any(|tensor| tensor.kind == Kind::Parameter && tensor.name.starts_with(prefix))
}

/// Compares the sizes of the encoder that no shape tells of, in the stages of which the file has what they are sizes of.
fn check_sizes_beside_shapes(
    path: &Path,
    weights: &TrainedModel,
    model: &ModelConfig,
) -> Result<()> {
    let there = &weights.model;
    for (key, part, theirs, ours) in [
        ("heads", "blocks.", there.heads, model.heads),
        ("sr_ratios", "blocks.", there.sr_ratios, model.sr_ratios),
        ("stride", "embed.", there.stride, model.stride),
    ] {
        let differs = (0..4).any(|stage| {
            theirs[stage] != ours[stage] && has(weights, &format!("stages.{stage}.{part}"))
        });
        if differs {
            let expected = format!(
                "the encoder of `[model]`: it was trained with `model.{key} = {theirs:?}`, here it is {ours:?}; set it as it is there"
            );
            return Err(Error::invalid("train.init", path.display(), expected));
        }
    }
    Ok(())
}

/// With what else than the model the tensors of a file were trained.
fn differences(weights: &TrainedModel, model: &ModelConfig) -> Vec<String> {
    let there = &weights.model;
    let of = |model: &ModelConfig, own: Option<f64>| own.unwrap_or(model.layer_norm_eps);
    let mut differs = Vec::new();
    let epsilons = [
        (
            "layer_norm_eps",
            Some(there.layer_norm_eps),
            Some(model.layer_norm_eps),
        ),
        ("embed_norm_eps", there.embed_norm_eps, model.embed_norm_eps),
        ("attn_norm_eps", there.attn_norm_eps, model.attn_norm_eps),
    ];
    for (key, theirs, ours) in epsilons {
        let in_force = of(there, theirs);
        if theirs != ours && in_force != of(model, ours) {
            differs.push(format!("`model.{key} = {in_force:e}`"));
        }
    }
    if there.activation != model.activation {
        differs.push("another `model.activation`".into());
    }
    if has(weights, "tail.head.") {
        if there.head_norm != model.head_norm {
            differs.push("another `model.head_norm`".into());
        }
        if there.level_activation() != model.level_activation() {
            differs.push("another `model.head_activation`".into());
        }
    }
    differs
}
