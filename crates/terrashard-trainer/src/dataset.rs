//! The scenes of a configuration, opened and split.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrashard_data::{
    Augmentation, BandSelection, ChipFiles, ChipIndex, ChipOptions, Chips, IGNORE, IndexedChip,
    Part, Reopened, Scene, SceneOptions, TargetOptions, TileCache, tile,
};
use terrashard_raster::{DataType, RasterSource, ReadLimits, Window};

use crate::config::{Config, HighresSection, ModelConfig, Offset, Scaling, SceneEntry};
use crate::error::{Error, Result};

/// The scenes with their parts for training and testing.
#[derive(Debug)]
pub struct Dataset {
    scenes: Vec<Split>,
}

/// A scene and what of it is for what.
#[derive(Debug)]
pub struct Split {
    /// The scene.
    pub scene: Arc<Scene>,
    /// To be trained on: regions to be cut, or with `data.chips` the chips themselves.
    pub train: Vec<Window>,
    /// To be measured on while it is trained.
    pub validation: Vec<Window>,
    /// To be tested on.
    pub test: Vec<Window>,
}

/// More scenes than this are opened anew for each window, since a program may hold only so many files.
const HELD_OPEN: usize = 100;

/// What a file's reader keeps of it at least where there are many scenes, unless less is to be kept of all.
const PASS_BYTES: usize = 32 << 20;

impl Dataset {
    /// Opens every scene and checks it against its label, the bands and the regions. Images at high resolution are left aside.
    ///
    /// # Errors
    /// [`crate::Error::Data`].
    pub fn open(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Decoded, |scene, _, _| Ok(scene))
    }

    /// The same with the images at high resolution, for a model with a branch for them.
    ///
    /// # Errors
    /// [`crate::Error::Data`]; [`Error::InvalidValue`] for a scene that names no such image.
    pub fn open_with_targets(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Decoded, |scene, entry, limits| {
            with_target(config, scene, entry, limits)
        })
    }

    /// As [`Dataset::open`], each window read from the files when it is asked for.
    ///
    /// # Errors
    /// [`crate::Error::Data`].
    pub fn stream(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Nothing, |scene, _, _| Ok(scene))
    }

    /// As [`Dataset::open_with_targets`], each window read from the files when it is asked for.
    ///
    /// # Errors
    /// As [`Dataset::open_with_targets`].
    pub fn stream_with_targets(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Nothing, |scene, entry, limits| {
            with_target(config, scene, entry, limits)
        })
    }

    /// As [`Dataset::stream`], for one pass along the blocks of the files, of which few are kept.
    ///
    /// # Errors
    /// [`crate::Error::Data`].
    pub fn pass(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Blocks, |scene, _, _| Ok(scene))
    }

    /// As [`Dataset::stream_with_targets`], for one pass along the blocks of the files, of which few are kept.
    ///
    /// # Errors
    /// As [`Dataset::open_with_targets`].
    pub fn pass_with_targets(config: &Config) -> Result<Self> {
        Self::read(config, Keep::Blocks, |scene, entry, limits| {
            with_target(config, scene, entry, limits)
        })
    }

    /// Opens every scene, and completes it.
    fn read(
        config: &Config,
        keep: Keep,
        complete: impl Fn(Scene, &SceneEntry, ReadLimits) -> Result<Scene>,
    ) -> Result<Self> {
        let data = &config.data;
        let mut options = scene_options(
            &config.model,
            BandSelection::Pick(data.bands.clone()),
            &data.scaling,
            data.nodata,
        );
        let cache = match keep {
            Keep::Decoded => data.cache_bytes,
            Keep::Nothing | Keep::Blocks => 0,
        };
        options.cache_bytes = cache;
        let cache = Arc::new(TileCache::new(cache));
        let parts = Parts::of(config)?;
        let many = data.scenes.len() > HELD_OPEN;
        // What readers keep: beside the tiles a quarter for all scenes together, by themselves all of it, though each as much as a
        // pass over rows of tiles takes.
        let each = data.cache_bytes / data.scenes.len().max(1);
        let each = match keep {
            Keep::Decoded => each / 4,
            Keep::Nothing => each.max(PASS_BYTES.min(data.cache_bytes)),
            Keep::Blocks => PASS_BYTES.min(data.cache_bytes),
        };
        let mut limits = ReadLimits::default();
        limits.cache_bytes = limits.cache_bytes.min(each);
        let raster = |path: &PathBuf| -> terrashard_raster::Result<Box<dyn RasterSource>> {
            match many {
                true => Ok(Box::new(Reopened::new(path)?)),
                false => terrashard_raster::open_with(path, limits),
            }
        };
        let open = |entry: &SceneEntry| -> Result<_> {
            let image = raster(&entry.image)?;
            let options = SceneOptions {
                scaling: entry_scaling(&data.scaling, entry, &*image)?,
                ..options.clone()
            };
            let mask = entry.mask.as_ref().map(raster).transpose()?;
            let scene = Scene::new(image, mask, options)?.with_cache(cache.clone());
            let scene = match &data.ignore_from {
                Some(ignore) => {
                    let classification = entry.classification.as_ref();
                    scene.ignoring(ignore, classification.map(raster).transpose()?)?
                }
                None => scene,
            };
            let scene = Arc::new(complete(scene, entry, limits)?);
            let [train, validation, test] = parts.of_scene(entry, &scene)?;
            Ok(Split {
                scene,
                train,
                validation,
                test,
            })
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
        let augmentation = Augmentation {
            seed: config.train.seed,
            orientations: data.augment,
            jitter: data.jitter,
        };
        let options = ChipOptions {
            chip: data.chip,
            stride: data.stride,
            selection: data.selection,
            augmentation,
            unreadable: data.on_unreadable,
        };
        let cut = |split: &Split| -> Result<_> {
            let windows = match data.chips {
                Some(_) => split.train.clone(),
                None => split
                    .train
                    .iter()
                    .map(|region| tile(*region, data.chip, data.stride))
                    .collect::<terrashard_data::Result<Vec<_>>>()?
                    .concat(),
            };
            Ok((split.scene.clone(), windows))
        };
        let windows = self.scenes.iter().map(cut).collect::<Result<_>>()?;
        Ok(Chips::of_windows(windows, options)?)
    }

    /// The scenes with their parts.
    pub fn scenes(&self) -> &[Split] {
        &self.scenes
    }

    /// The scenes with the parts to test on.
    pub fn test_regions(&self) -> impl Iterator<Item = (Arc<Scene>, Window)> {
        self.regions(|split| &split.test)
    }

    /// The same one scene after the other: what a scene's readers keep is gone before the next one is read.
    pub fn into_test_regions(self) -> impl Iterator<Item = (Arc<Scene>, Window)> {
        self.scenes.into_iter().flat_map(|split| {
            let Split { scene, test, .. } = split;
            test.into_iter().map(move |window| (scene.clone(), window))
        })
    }

    /// The scenes with the parts to validate on.
    pub fn validation_regions(&self) -> impl Iterator<Item = (Arc<Scene>, Window)> {
        self.regions(|split| &split.validation)
    }

    fn regions(
        &self,
        part: impl Fn(&Split) -> &Vec<Window>,
    ) -> impl Iterator<Item = (Arc<Scene>, Window)> {
        self.scenes.iter().flat_map(move |split| {
            let scene = split.scene.clone();
            let windows = part(split).clone().into_iter();
            windows.map(move |window| (scene.clone(), window))
        })
    }
}

/// The windows of a scene for training, validation and test.
type Windows = [Vec<Window>; 3];

/// What of each scene is for what.
enum Parts {
    /// The same regions of each.
    Regions(terrashard_data::Split),
    /// By image, the windows of an index of chips.
    Chips(HashMap<PathBuf, Windows>),
}

impl Parts {
    fn of(config: &Config) -> Result<Self> {
        let data = &config.data;
        let Some(path) = &data.chips else {
            return Ok(Self::Regions(terrashard_data::Split {
                train: data.train,
                validation: data.validation,
                test: data.test,
            }));
        };
        let index = ChipIndex::read(path)?;
        let header = &index.header;
        let refuse = |key: &str, got: usize, expected: usize| {
            let expected = format!("{expected}, as {} was cut", path.display());
            Err(Error::invalid(key, got, expected))
        };
        if header.scale != config.model.scale {
            return refuse("model.scale", config.model.scale, header.scale);
        }
        if header.classes != config.model.classes.max(2) {
            return refuse("model.classes", config.model.classes, header.classes);
        }
        if header.chip > data.chip {
            return refuse("data.chip", data.chip, header.chip);
        }
        let mut parts: HashMap<_, Windows> = HashMap::new();
        for chip in index.chips {
            let [col, row, width, height] = chip.window;
            let window = Window::new(col, row, width, height);
            let [train, validation, test] = parts.entry(chip.files.image).or_default();
            match chip.part {
                Part::Train => train.push(window),
                Part::Validation => validation.push(window),
                Part::Test => test.push(window),
            }
        }
        Ok(Self::Chips(parts))
    }

    fn of_scene(&self, entry: &SceneEntry, scene: &Scene) -> Result<Windows> {
        match self {
            Self::Regions(split) => {
                let windows = split.windows(scene.width(), scene.height())?;
                let validation = windows.validation.into_iter().collect();
                Ok([vec![windows.train], validation, vec![windows.test]])
            }
            Self::Chips(parts) => Ok(parts.get(&entry.image).cloned().unwrap_or_default()),
        }
    }
}

/// The scenes of an index of chips, each once, in the order of their first chips.
///
/// # Errors
/// [`crate::Error::Data`].
pub(crate) fn indexed_scenes(path: &Path) -> Result<Vec<SceneEntry>> {
    let mut seen = HashSet::new();
    let chips = ChipIndex::read(path)?.chips.into_iter();
    let entries = chips.filter(|chip| seen.insert(chip.files.image.clone()));
    let entry = |chip: IndexedChip| {
        let ChipFiles {
            image,
            mask,
            highres,
            classification,
            offset,
        } = chip.files;
        SceneEntry {
            image,
            mask,
            highres,
            classification,
            offset: offset.map(Offset::Fixed),
        }
    };
    Ok(entries.map(entry).collect())
}

/// A scene with the image at high resolution that its entry names.
fn with_target(
    config: &Config,
    scene: Scene,
    entry: &SceneEntry,
    limits: ReadLimits,
) -> Result<Scene> {
    let Some(path) = &entry.highres else {
        return Err(Error::invalid(
            "data.scenes",
            format!("{} without `highres`", entry.image.display()),
            "`highres = \"scene_2m.tif\"` beside it, since `model.superres = true` learns that image; \
             or set `model.superres = false`",
        ));
    };
    let source: Box<dyn RasterSource> = match config.data.scenes.len() > HELD_OPEN {
        true => Box::new(Reopened::new(path)?),
        false => terrashard_raster::open_with(path, limits)?,
    };
    Ok(scene.with_target(source, &target_options(&config.data.highres))?)
}

/// Bytes of one value of an image at high resolution in a batch, by what the first of a configuration says of itself; those of single
/// precision where it cannot be read.
pub(crate) fn target_value_bytes(config: &Config) -> usize {
    let first = config.data.scenes.first();
    let path = first.and_then(|entry| entry.highres.as_ref());
    let source = path.and_then(|path| terrashard_raster::open(path).ok());
    match source.map(|source| source.metadata().data_type) {
        Some(DataType::U8 | DataType::U16) => size_of::<u16>(),
        _ => size_of::<f32>(),
    }
}

/// Whether decoded scenes are kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Where they fit.
    Decoded,
    /// Not.
    Nothing,
    /// Not, and of the files no more than one pass along their blocks needs.
    Blocks,
}

/// The scaling of a scene: that of all, with its own offset where it has one.
///
/// # Errors
/// [`terrashard_data::Error::UnknownOffset`], [`terrashard_data::Error::Metadata`].
pub(crate) fn entry_scaling(
    scaling: &Scaling,
    entry: &SceneEntry,
    image: &dyn RasterSource,
) -> terrashard_data::Result<Scaling> {
    let offset = match entry.offset {
        Some(offset) => offset.resolve(image)?,
        None => scaling.offset,
    };
    Ok(Scaling {
        offset,
        ..scaling.clone()
    })
}

/// How images at high resolution are read.
pub(crate) fn target_options(highres: &HighresSection) -> TargetOptions {
    TargetOptions {
        bands: BandSelection::Pick(highres.bands.clone()),
        scaling: highres.scaling.clone(),
        nodata: highres.nodata,
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
