//! The scenes of a configuration, opened and split.

use std::sync::Arc;

use terrashard_data::{
    Augmentation, BandSelection, ChipOptions, Chips, IGNORE, Scene, SceneOptions, Split,
    SplitWindows, TargetOptions,
};
use terrashard_raster::Window;

use crate::config::{Config, ModelConfig, Scaling, SceneEntry};
use crate::error::{Error, Result};

/// The scenes with their parts for training and testing.
#[derive(Debug)]
pub struct Dataset {
    scenes: Vec<(Arc<Scene>, SplitWindows)>,
}

impl Dataset {
    /// Opens every scene and checks it against its label, the bands and the regions. Images at high resolution are left aside.
    ///
    /// # Errors
    /// [`crate::Error::Data`].
    pub fn open(config: &Config) -> Result<Self> {
        Self::read(config, |scene, _| Ok(scene))
    }

    /// The same with the images at high resolution, for a model with a branch for them.
    ///
    /// # Errors
    /// [`crate::Error::Data`]; [`Error::InvalidValue`] for a scene that names no such image.
    pub fn open_with_targets(config: &Config) -> Result<Self> {
        let highres = &config.data.highres;
        let options = TargetOptions {
            bands: BandSelection::Pick(highres.bands.clone()),
            scaling: highres.scaling.clone(),
            nodata: highres.nodata,
        };
        Self::read(config, |scene, entry| {
            let Some(path) = &entry.highres else {
                return Err(Error::invalid(
                    "data.scenes",
                    format!("{} without `highres`", entry.image.display()),
                    "`highres = \"scene_2m.tif\"` beside it, since `model.superres = true` learns that image; \
                     or set `model.superres = false`",
                ));
            };
            let target = Box::new(terrashard_raster::open(path)?);
            Ok(scene.with_target(target, &options)?)
        })
    }

    /// Opens every scene, and completes it.
    fn read(
        config: &Config,
        complete: impl Fn(Scene, &SceneEntry) -> Result<Scene>,
    ) -> Result<Self> {
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
        let open = |entry: &SceneEntry| -> Result<_> {
            let scene = Scene::open(&entry.image, entry.mask.as_deref(), options.clone())?;
            let scene = Arc::new(complete(scene, entry)?);
            let windows = split.windows(scene.width(), scene.height())?;
            Ok((scene, windows))
        };
        Ok(Self {
            scenes: data.scenes.iter().map(open).collect::<Result<_>>()?,
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
