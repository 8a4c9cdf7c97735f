//! A model with its weights, from a run, a checkpoint or an exported file.

use std::path::Path;

use burn::tensor::{Device, TensorData};
use serde_json::{Map, json};
use terrashard_checkpoint::{Checkpoint, ElementType, Kind, ModelDescription, Source, TensorSpec};
use terrashard_data::{Scene, unlike_training};
use terrashard_models::{S2s2Net, assign, parameters};

use crate::config::{self, Band, Config, HighresSection, ModelConfig, Scaling, SceneEntry};
use crate::error::{Error, Result};
use crate::training::TOOL;

/// A pixel is foreground where its probability is above this.
pub const THRESHOLD: f64 = 0.5;

/// A model as it was trained: what its input has to be, and where its weights are.
#[derive(Debug)]
pub struct TrainedModel {
    source: Source,
    /// The network.
    pub model: ModelConfig,
    /// The bands of the input, in order.
    pub bands: Vec<Band>,
    /// From digital numbers to what the model takes.
    pub scaling: Scaling,
    /// Digital number that means "no data", in place of what an image declares.
    pub nodata: Option<f64>,
    /// Median reflectance of each band over what was trained on; older files do not tell.
    pub medians: Option<Vec<f32>>,
    /// How the images at high resolution were read, if there were any; older files do not tell.
    pub highres: Option<HighresSection>,
    /// A pixel is foreground where its probability is above this.
    pub threshold: f64,
    /// Height and width of windows in pixels of the image.
    pub tile: usize,
    /// Pixels of the image that neighbouring windows share.
    pub overlap: usize,
    /// The step of a checkpoint.
    pub step: Option<u64>,
    /// The scenes that a checkpoint was trained on; an exported file does not tell.
    pub scenes: Vec<SceneEntry>,
}

impl TrainedModel {
    /// Opens a run directory, for its checkpoint in force, one checkpoint, or an exported file.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], [`Error::Syntax`].
    pub fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        match &source {
            Source::Checkpoint(checkpoint) => {
                let Config { model, data, .. } = saved_config(checkpoint)?;
                let step = Some(checkpoint.state().step);
                let (tile, overlap) = (data.tile(), data.overlap);
                let (bands, scaling, nodata) = (data.bands, data.scaling, data.nodata);
                let medians = data.medians;
                Ok(Self {
                    source,
                    model,
                    bands,
                    scaling,
                    nodata,
                    medians,
                    highres: Some(data.highres),
                    threshold: THRESHOLD,
                    tile,
                    overlap,
                    step,
                    scenes: data.scenes,
                })
            }
            Source::Model(file) => {
                let description = file.description();
                let bad = |error: serde_json::Error| Error::Syntax {
                    path: path.into(),
                    message: error.to_string(),
                };
                let value = |key: &str| description.values.get(key).cloned().unwrap_or_default();
                Ok(Self {
                    model: serde_json::from_value(description.architecture.clone()).map_err(bad)?,
                    bands: serde_json::from_value(value("bands")).map_err(bad)?,
                    scaling: serde_json::from_value(description.scaling.clone()).map_err(bad)?,
                    nodata: serde_json::from_value(value("nodata")).map_err(bad)?,
                    medians: serde_json::from_value(value("medians")).map_err(bad)?,
                    highres: serde_json::from_value(value("highres")).map_err(bad)?,
                    threshold: description.threshold.unwrap_or(THRESHOLD),
                    tile: serde_json::from_value(value("tile")).map_err(bad)?,
                    overlap: serde_json::from_value(value("overlap")).map_err(bad)?,
                    step: serde_json::from_value(value("step")).map_err(bad)?,
                    scenes: Vec::new(),
                    source,
                })
            }
            _ => Err(Error::NoCheckpoint {
                path: path.into(),
                remedy: "give a run directory, a checkpoint or an exported file".into(),
            }),
        }
    }

    /// What speaks against a scene being of the bands and the scaling that the model was trained with.
    ///
    /// # Errors
    /// [`Error::Data`].
    pub(crate) fn unlike(&self, scene: &Scene) -> Result<Vec<String>> {
        let means = Some(&self.scaling.mean).filter(|means| !means.is_empty());
        let centres = self.medians.as_ref().or(means);
        Ok(unlike_training(scene, centres.map(Vec::as_slice))?)
    }

    /// Where the weights are.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What an exported file says of the model.
    pub fn description(&self) -> ModelDescription {
        let values = [
            ("bands", json!(self.bands)),
            ("nodata", json!(self.nodata)),
            ("medians", json!(self.medians)),
            ("highres", json!(self.highres)),
            ("tile", json!(self.tile)),
            ("overlap", json!(self.overlap)),
            ("step", json!(self.step)),
        ];
        ModelDescription {
            architecture: json!(self.model),
            bands: self.bands.iter().map(Band::to_string).collect(),
            scaling: json!(self.scaling),
            threshold: Some(self.threshold),
            tool: TOOL.into(),
            values: values
                .map(|(key, value)| (key.to_string(), value))
                .into_iter()
                .collect::<Map<_, _>>(),
        }
    }

    /// Bytes of the weights where they take up the process's memory: not on a GPU.
    ///
    /// # Errors
    /// [`Error::Model`].
    pub(crate) fn parameter_bytes(&self, device: config::Device) -> Result<u64> {
        if device == config::Device::Cuda {
            return Ok(0);
        }
        let shapes = parameters(&self.model.init(&Device::flex())?);
        let elements = shapes
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>());
        Ok(4 * elements.sum::<usize>() as u64)
    }

    /// The network without weights, with its running statistics; all weights are there to be read.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if a tensor is missing or has another shape; [`Error::Model`].
    pub(crate) fn skeleton(&self, device: &Device) -> Result<S2s2Net> {
        let network = self.model.init(device)?;
        // An export may be in any element type.
        let spec = |(name, shape): (String, Vec<usize>)| {
            let there = self.source.tensor(&name, Kind::Parameter);
            let dtype = there.map_or(ElementType::F32, |there| there.dtype);
            TensorSpec::new(name, Kind::Parameter, shape, dtype)
        };
        let expected: Vec<TensorSpec> = parameters(&network).into_iter().map(spec).collect();
        self.source.require(&expected)?;
        load_buffers(&network, |name, length| {
            let values = self.source.read_f64(name, Kind::Buffer, 0..length)?;
            Ok(values.into_iter().flat_map(f64::to_le_bytes).collect())
        })?;
        Ok(network)
    }

    /// The network with its weights.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if a tensor is missing, has another shape or is damaged; [`Error::Model`].
    pub fn network(&self, device: &Device) -> Result<S2s2Net> {
        let network = self.skeleton(device)?;
        let mut failed = None;
        let network = assign(network, &mut |name, shape| {
            let elements = shape.iter().product();
            let values = match self.source.read_f32(name, Kind::Parameter, 0..elements) {
                Ok(values) => values,
                Err(error) => {
                    failed.get_or_insert(error);
                    vec![0.0; elements]
                }
            };
            TensorData::new(values, shape.to_vec())
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        Ok(network)
    }
}

/// The configuration that a checkpoint was trained with.
pub(crate) fn saved_config(checkpoint: &Checkpoint) -> Result<Config> {
    // Its paths are absolute.
    Config::parse(
        &checkpoint.state().config,
        checkpoint.folder(),
        Path::new(""),
        &[],
    )
}

/// Gives a network its running statistics, by name and length.
pub(crate) fn load_buffers(
    network: &S2s2Net,
    read: impl Fn(&str, usize) -> Result<Vec<u8>>,
) -> Result<()> {
    let doubles = |bytes: &[u8]| {
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|chunk| f64::from_le_bytes(*chunk))
            .collect()
    };
    let mut buffers = network.buffers();
    for (name, values) in &mut buffers {
        *values = doubles(&read(name, values.len())?);
    }
    Ok(network.load_buffers(&buffers)?)
}
