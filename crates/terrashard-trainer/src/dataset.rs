//! The scenes of a configuration, opened and split.

use std::path::Path;
use std::sync::Arc;

use terrashard_data::{
    Augmentation, BandSelection, ChipOptions, Chips, IGNORE, Scene, SceneOptions, Split,
    SplitWindows,
};
use terrashard_raster::Window;

use crate::config::{Config, ModelConfig, Scaling};
use crate::error::Result;

/// The scenes with their parts for training and testing.
#[derive(Debug)]
pub struct Dataset {
    scenes: Vec<(Arc<Scene>, SplitWindows)>,
}

impl Dataset {
    /// Opens every scene and checks it against its label, the bands and the regions.
    ///
    /// # Errors
    /// [`crate::Error::Data`].
    pub fn open(config: &Config) -> Result<Self> {
        let data = &config.data;
        let options = scene_options(
            &config.model,
            BandSelection::Pick(data.bands.clone()),
            &data.scaling,
            data.nodata,
        );
        let split = Split {
            train: data.train,
            validation: None,
            test: data.test,
        };
        let open = |image: &Path, mask: Option<&Path>| -> Result<_> {
            let scene = Arc::new(Scene::open(image, mask, options.clone())?);
            let windows = split.windows(scene.width(), scene.height())?;
            Ok((scene, windows))
        };
        let scenes = data
            .scenes
            .iter()
            .map(|entry| open(&entry.image, entry.mask.as_deref()));
        Ok(Self {
            scenes: scenes.collect::<Result<_>>()?,
        })
    }

    /// The training samples.
    ///
    /// # Errors
    /// [`crate::Error::Data`].
    pub fn training_chips(&self, config: &Config) -> Result<Chips> {
        let data = &config.data;
        let augmentation = match data.augment {
            true => Augmentation::Orientations {
                seed: config.train.seed,
            },
            false => Augmentation::Off,
        };
        let options = ChipOptions {
            chip: data.chip,
            stride: data.stride,
            selection: data.selection,
            augmentation,
        };
        let regions = self
            .scenes
            .iter()
            .map(|(scene, windows)| (scene.clone(), windows.train));
        Ok(Chips::new(regions.collect(), options)?)
    }

    /// The scenes with the parts to test on.
    pub fn test_regions(&self) -> impl Iterator<Item = (Arc<Scene>, Window)> {
        self.scenes
            .iter()
            .map(|(scene, windows)| (scene.clone(), windows.test))
    }
}

/// How scenes are read for a model.
pub(crate) fn scene_options(
    model: &ModelConfig,
    bands: BandSelection,
    scaling: &Scaling,
    nodata: Option<f64>,
) -> SceneOptions {
    SceneOptions {
        scaling: scaling.clone(),
        scale: model.scale,
        // One logit tells two classes apart.
        classes: model.classes.max(2),
        nodata,
        ..SceneOptions::new(bands)
    }
}

/// Whether a label is of a class other than the background.
pub(crate) fn is_foreground(label: u8) -> bool {
    label != 0 && label != IGNORE
}
