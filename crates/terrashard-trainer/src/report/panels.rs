//! Which pictures the page shows: the scene, its label and its prediction, whole and in detail.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use terrashard_data::Scene;
use terrashard_data::baseline::{self, Upsampling};
use terrashard_raster::{RasterSource, Samples, Window, is_url};

use super::shore;
use crate::config::{Config, Region};
use crate::dataset::{self, Dataset};
use crate::error::{Error, Result};
use crate::pictures::{Picture, data_uri};
use crate::record::counted;
use crate::training::goes_on;

/// Widest picture of a whole scene, in pixels.
const SCENE_WIDTH: usize = 1000;
/// Side of the detail in pixels of the image.
const DETAIL_SIDE: usize = 72;

/// Pictures drawn on the way that are shown.
const DRAWN: usize = 6;

/// A picture with its caption.
#[derive(Debug)]
pub(super) struct Panel {
    /// What it shows.
    pub caption: String,
    /// Its `data:` address.
    pub address: String,
}

impl Panel {
    fn new(caption: &str, picture: &Picture) -> Self {
        Self {
            caption: caption.into(),
            address: picture.data_uri(),
        }
    }
}

/// Pictures of the first scene.
#[derive(Debug, Default)]
pub(super) struct Panels {
    /// The whole scene, reduced, with the borders of its regions.
    pub scene: Vec<Panel>,
    /// A part of the test region with much of both classes, pixel by pixel.
    pub detail: Vec<Panel>,
    /// What the lines in the pictures of the scene are.
    pub border: String,
    /// Whose the pictures are, or why there are none.
    pub note: String,
    /// Width of the zone along the shore, where the scenes agree on one.
    pub shore_metres: Option<f64>,
}

impl Panels {
    /// Reads the first scene and, if given, a map predicted from it. Without the scenes' files there is only a note.
    ///
    /// # Errors
    /// [`crate::Error::Data`] and [`crate::Error::Raster`] where a file cannot be read; [`crate::Error::InvalidValue`] for a
    /// prediction that is no map of the scene.
    pub(super) fn draw(config: &Config, prediction: Option<&Path>) -> Result<Self> {
        if let Some(path) = missing(config) {
            return Ok(Self {
                note: format!(
                    "No pictures: {} is no longer where the configuration says.",
                    file_name(path)
                ),
                ..Self::default()
            });
        }
        match Self::read(config, prediction) {
            Err(error) if goes_on(config.data.on_unreadable, &error) => Ok(Self {
                note: format!("No pictures: {error}."),
                ..Self::default()
            }),
            read => read,
        }
    }

    fn read(config: &Config, prediction: Option<&Path>) -> Result<Self> {
        let dataset = Dataset::open(config)?;
        let prediction = prediction.map(terrashard_raster::open).transpose()?;
        let Some((scene, test)) = dataset.test_regions().next() else {
            return Ok(Self::default());
        };
        let prediction = prediction.as_ref().map(|map| map as &dyn RasterSource);
        if let Some(map) = prediction {
            check_map(&scene, map)?;
        }
        let step = scene.width().div_ceil(SCENE_WIDTH);
        let detail = busiest(&scene, test)?;
        let train = config
            .data
            .train
            .window("train", scene.width(), scene.height())?;
        let regions = [train, test];
        Ok(Self {
            scene: draw(&scene, scene.window(), prediction, step, &regions)?,
            detail: draw(&scene, detail, prediction, 1, &[])?,
            border: format!(
                "border between the regions trained on ({}) and tested on ({})",
                region_name(config.data.train),
                region_name(config.data.test)
            ),
            note: attribution(scene.image().path()),
            shore_metres: shore_metres(&dataset),
        })
    }
}

/// Pictures that were drawn while the model was trained, some of them, evenly spread, the first and the last among them.
///
/// # Errors
/// [`crate::Error::Read`].
pub(super) fn drawn(all: &[(u64, PathBuf)]) -> Result<Vec<Panel>> {
    let shown = all.len().min(DRAWN);
    let at = |index: usize| match shown {
        1 => all.len() - 1,
        _ => index * (all.len() - 1) / (shown - 1),
    };
    let panel = |index: usize| {
        let (step, path) = &all[at(index)];
        let png = std::fs::read(path).map_err(Error::read(path))?;
        Ok(Panel {
            caption: format!("after step {step}"),
            address: data_uri(&png),
        })
    };
    (0..shown).map(panel).collect()
}

/// The first file of the scenes that is not there.
fn missing(config: &Config) -> Option<&Path> {
    let scenes = config.data.scenes.iter();
    let mut files = scenes.flat_map(|scene| [Some(&scene.image), scene.mask.as_ref()]);
    files
        .find_map(|path| path.filter(|path| !is_url(path) && !path.exists()))
        .map(PathBuf::as_path)
}

fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// Whose the pictures are: products of Sentinel-2 go by their names.
fn attribution(image: &Path) -> String {
    let name = file_name(image);
    let copernicus = ["S2A_", "S2B_", "S2C_"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    let sentence = "Pictures show the scenes and labels named in the configuration; their licences and attribution apply.";
    match copernicus {
        true => format!("{sentence} Contains modified Copernicus Sentinel data."),
        false => sentence.into(),
    }
}

/// The width of the zone along the shore, if it is the same in all scenes.
fn shore_metres(dataset: &Dataset) -> Option<f64> {
    let mut widths = dataset
        .test_regions()
        .map(|(scene, _)| shore::metres(&scene.metadata().georeference, scene.scale()));
    let first = widths.next()??;
    widths.all(|width| width == Some(first)).then_some(first)
}

/// A region as the configuration writes it.
fn region_name(region: Region) -> String {
    match toml::Value::try_from(region) {
        Ok(toml::Value::String(name)) => name,
        Ok(value) => value.to_string(),
        Err(_) => String::new(),
    }
}

/// Image, label, prediction and, pixel by pixel, the baseline's map of a window; every `step`-th pixel of the image, as much of
/// the maps together, and the outlines of `regions`, which are counted from the window's corner.
fn draw(
    scene: &Scene,
    window: Window,
    prediction: Option<&dyn RasterSource>,
    step: usize,
    regions: &[Window],
) -> Result<Vec<Panel>> {
    let fine = window.scaled(scene.scale());
    // In detail a map shows each of its pixels; a whole scene's map is as small as its image.
    let together = if step == 1 { 1 } else { step * scene.scale() };
    let map = |classes: &[u8]| Picture::of_classes(fine.width, fine.height, classes, together);
    let panel = |caption: &str, mut picture: Picture| {
        for region in regions {
            let edges = [region.col, region.row, region.col_end(), region.row_end()];
            picture.outline(edges.map(|edge| edge.div_ceil(step)));
        }
        Panel::new(caption, &picture)
    };
    let mut panels = vec![panel(
        "Image, red, green and blue",
        Picture::true_colour(scene, window, step)?,
    )];
    if scene.has_mask() {
        panels.push(panel("Label", map(&scene.labels(window)?)));
    }
    if let Some(source) = prediction
        && let Samples::U8(classes) = source.read_window(fine)?.into_samples()
    {
        panels.push(panel("Prediction", map(&classes)));
    }
    // An image that does not name its bands has no baseline.
    if step == 1
        && let Ok(classes) = baseline::ndwi_water(scene, window, Upsampling::Nearest)
    {
        panels.push(panel("NDWI baseline", map(&classes)));
    }
    Ok(panels)
}

/// Refuses a raster that is no map of a scene as `predict` writes it.
fn check_map(scene: &Scene, map: &dyn RasterSource) -> Result<()> {
    let (image, found) = (scene.metadata(), map.metadata());
    let expected = terrashard_data::prediction_spec(image, scene.scale());
    let size = (found.width, found.height);
    let (ours, theirs) = (expected.georeference, found.georeference);
    let ground = match (ours.transform, theirs.transform) {
        (Some(a), Some(b)) => a.corner_distance(size, &b, size) <= 0.01 * a.pixel_size(),
        (a, b) => a == b,
    };
    let same = size == (expected.width, expected.height)
        && (found.bands, found.data_type) == (expected.bands, expected.data_type)
        && ours.epsg == theirs.epsg
        && ground;
    if same {
        return Ok(());
    }
    let got = format!(
        "{}, {} x {} pixels with {} of {}",
        map.path().display(),
        found.width,
        found.height,
        counted(found.bands, "band"),
        found.data_type
    );
    let expected = format!(
        "the map of {} as `terrashard predict` writes it, {} x {} pixels of {} on its ground",
        scene.image().path().display(),
        expected.width,
        expected.height,
        expected.data_type
    );
    Err(Error::invalid("--prediction", got, expected))
}

/// The window of the test region whose classes are most evenly mixed.
fn busiest(scene: &Scene, test: Window) -> Result<Window> {
    let mut best = (0, test);
    for window in terrashard_data::tile(test, DETAIL_SIDE, DETAIL_SIDE / 2)? {
        let labels = if scene.has_mask() {
            scene.labels(window)?
        } else {
            Vec::new()
        };
        let foreground = labels
            .iter()
            .filter(|label| dataset::is_foreground(**label))
            .count();
        let background = labels.iter().filter(|label| **label == 0).count();
        let mixed = foreground.min(background);
        if mixed > best.0 || best.1 == test {
            best = (mixed, window);
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_scene_there_is_a_note() {
        let text = "[data]\nscenes = [{ image = \"gone.tif\" }]";
        let folder = tempfile::tempdir().unwrap();
        let config = Config::parse(text, Path::new("run.toml"), folder.path(), &[]).unwrap();
        let panels = Panels::draw(&config, None).unwrap();
        assert_eq!(
            panels.note,
            "No pictures: gone.tif is no longer where the configuration says."
        );
        assert!(panels.scene.is_empty() && panels.detail.is_empty());
    }

    #[test]
    fn of_many_pictures_some_are_shown_with_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step.png");
        std::fs::write(&path, b"png").unwrap();
        let shown = |count: u64| -> Vec<String> {
            let all: Vec<_> = (1..=count).map(|step| (step, path.clone())).collect();
            let panels = drawn(&all).unwrap();
            panels.into_iter().map(|panel| panel.caption).collect()
        };
        assert!(shown(0).is_empty());
        assert_eq!(shown(1), ["after step 1"]);
        assert_eq!(shown(2), ["after step 1", "after step 2"]);
        let eleven = [1, 3, 5, 7, 9, 11].map(|step| format!("after step {step}"));
        assert_eq!(shown(11), eleven);
    }

    #[test]
    fn sentinel_is_attributed() {
        let product = Path::new("/scenes/S2B_T33UUU_20170216_L1C.tif");
        assert!(attribution(product).ends_with("Contains modified Copernicus Sentinel data."));
        assert!(attribution(Path::new("/S2A_/plain.tif")).ends_with("attribution apply."));
    }

    #[test]
    fn regions_are_named_as_written() {
        assert_eq!(region_name(Region::West), "west");
        assert_eq!(
            region_name(Region::Pixels([0, 1, 2, 3])),
            "{ pixels = [0, 1, 2, 3] }"
        );
    }
}
