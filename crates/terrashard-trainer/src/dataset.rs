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
        Self::read(config, Keep::Decoded, |scene, _| Ok(scene))
    }

    /// The same with the images at high resolution, for a model with a branch for them.
    ///
    /// # Errors
    /// [`crate::Error::Data`]; [`Error::InvalidValue`] for a scene that names no such image.
    pub fn open_with_targets(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Decoded, |scene, entry| {
            with_target(config, scene, entry)
        })
    }

    /// As [`Dataset::open`], each window read from the files when it is asked for.
    ///
    /// # Errors
    /// [`crate::Error::Data`].
    pub fn stream(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Nothing, |scene, _| Ok(scene))
    }

    /// As [`Dataset::open_with_targets`], each window read from the files when it is asked for.
    ///
    /// # Errors
    /// As [`Dataset::open_with_targets`].
    pub fn stream_with_targets(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Nothing, |scene, entry| {
            with_target(config, scene, entry)
        })
    }

    /// Opens every scene, and completes it.
    fn read(
        config: &Config,
        keep: Keep,
        complete: impl Fn(Scene, &SceneEntry) -> Result<Scene>,
    ) -> Result<Self> {
        let data = &config.data;
        let options = scene_options(
            &config.model,
            BandSelection::Pick(data.bands.clone()),
            &data.scaling,
            data.nodata,
        );
        let options = match keep {
            Keep::Decoded => options,
            Keep::Nothing => SceneOptions {
                cache_bytes: 0,
                ..options
            },
        };
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

/// What is kept of a scene between two windows.
#[derive(Debug, Clone, Copy)]
enum Keep {
    /// All of it, where it is not too large.
    Decoded,
    /// What the readers of its files keep.
    Nothing,
}

/// A scene with the image at high resolution that its entry names.
fn with_target(config: &Config, scene: Scene, entry: &SceneEntry) -> Result<Scene> {
    let highres = &config.data.highres;
    let options = TargetOptions {
        bands: BandSelection::Pick(highres.bands.clone()),
        scaling: highres.scaling.clone(),
        nodata: highres.nodata,
    };
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
