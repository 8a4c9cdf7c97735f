//! The whole model.

use crate::blocks::BlockInfo;
use crate::config::ModelConfig;
use crate::decoder::Tail;
use crate::encoder::Stage;
use crate::error::{Error, Result};
use crate::padding::Padding;
use crate::scope::Scope;
use crate::weights;
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use terrashard_ops::{Enlarged, Running};

/// S2S2Net: a Mix Transformer whose output is enlarged to several times the input's resolution, with a branch for the
/// segmentation and perhaps one for the image itself ([weiji14/s2s2net](https://github.com/weiji14/s2s2net)).
#[derive(Module, Debug)]
pub struct S2s2Net {
    stages: Vec<Stage>,
    tail: Tail,
    multiple: usize,
    scale: usize,
}

/// What a forward pass gives. Maps at and above the input's resolution are cropped to the input's extent; `features` and `head`
/// are of the padded input.
#[derive(Debug, Clone)]
pub struct Maps {
    /// Of each stage, `[N, C, h, w]` at 1/4, 1/8, 1/16 and 1/32.
    pub features: [Tensor<4>; 4],
    /// `[N, head_outputs, H / 4, W / 4]`.
    pub head: Tensor<4>,
    /// The segmentation branch at the input's resolution, `[N, 8, H, W]`; half of that where it is enlarged step by step.
    pub seg_low: Tensor<4>,
    /// Logits, `[N, classes, scale H, scale W]`.
    pub segmentation: Enlarged,
    /// The super-resolution branch at the input's resolution, `[N, 8, H, W]`.
    pub sr_low: Option<Tensor<4>>,
    /// The super-resolved image, `[N, 4, scale H, scale W]`.
    pub superres: Option<Enlarged>,
}

impl S2s2Net {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        Self {
            stages: (0..4)
                .map(|stage| Stage::new(config, stage, device))
                .collect(),
            tail: Tail::new(config, device),
            multiple: config.multiple(),
            scale: config.scale,
        }
    }

    /// Applies the model. The image is of any size: it is padded by its edge pixels to what the encoder divides, and the
    /// results are cropped.
    ///
    /// # Shapes
    /// `[N, bands, H, W]`, scaled reflectance; see [`Maps`] for the results.
    pub fn forward(&self, image: Tensor<4>, scope: &impl Scope) -> Maps {
        let padding = Padding::new(&image, self.multiple);
        let mut x = padding.pad(image);
        let features = std::array::from_fn(|stage| {
            let name = format!("stages.{stage}");
            x = self.stages[stage].forward(&name, x.clone(), scope);
            x.clone()
        });
        let maps = self.tail.forward(&features, scope);
        let (seg_low, segmentation) = maps.segmentation;
        let (sr_low, superres) = maps.superres.unzip();
        let enlarged = |map: Enlarged| {
            let scale = self.scale / map.factor();
            map.map(|values| padding.crop(values, scale))
        };
        Maps {
            features,
            head: maps.head,
            seg_low: padding.crop(seg_low, 1),
            segmentation: enlarged(segmentation),
            sr_low: sr_low.map(|low| padding.crop(low, 1)),
            superres: superres.map(enlarged),
        }
    }

    /// Names and shapes of all parameters in the order in which a forward pass uses them. Initialises nothing.
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        weights::parameters(self)
    }

    /// The units in which a forward pass uses the parameters, in its order: for each stage `stages.I.embed` (with the norm
    /// behind it), `stages.I.blocks.J` and `stages.I.norm`, then `tail.head`, `conv0` and `conv1` of `tail.seg` or `tail.up.I`, and
    /// perhaps `conv0` and `conv1` of `tail.sr`. Every parameter is in one of them. Initialises nothing.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        let stages = self.stages.iter().enumerate();
        let mut blocks: Vec<_> = stages
            .flat_map(|(i, stage)| stage.list(&format!("stages.{i}")))
            .collect();
        blocks.extend(self.tail.list());
        blocks
    }

    /// The model with the initial values that follow from this seed, on its device.
    #[must_use]
    pub fn initialize(self, seed: u64) -> Self {
        weights::assign(self, &mut |name, shape| {
            TensorData::new(weights::initial_value(name, shape, seed), shape.to_vec())
        })
    }

    /// Values that belong to the model but are not trained, by name: the running statistics of batch-norm.
    pub fn buffers(&self) -> Vec<(String, Vec<f64>)> {
        let Some((name, norm)) = self.tail.batch_norm() else {
            return Vec::new();
        };
        let Running { mean, variance } = norm.running();
        vec![
            (format!("{name}.running_mean"), mean),
            (format!("{name}.running_var"), variance),
        ]
    }

    /// Replaces the [`buffers`](Self::buffers) by those of the same name; others are left aside.
    ///
    /// # Errors
    /// [`Error::BufferMissing`], [`Error::BufferLength`]; nothing has changed then.
    pub fn load_buffers(&self, buffers: &[(String, Vec<f64>)]) -> Result<()> {
        let Some((name, norm)) = self.tail.batch_norm() else {
            return Ok(());
        };
        let expected = norm.running().mean.len();
        let find = |field: &str| {
            let name = format!("{name}.{field}");
            match buffers.iter().find(|(other, _)| *other == name) {
                None => Err(Error::BufferMissing { name }),
                Some((_, values)) if values.len() != expected => Err(Error::BufferLength {
                    name,
                    expected,
                    got: values.len(),
                }),
                Some((_, values)) => Ok(values.clone()),
            }
        };
        norm.set_running(Running {
            mean: find("running_mean")?,
            variance: find("running_var")?,
        });
        Ok(())
    }
}
