//! `stats`: what the values of bands are, over all scenes and by part of the split.

use std::path::PathBuf;

use serde::Serialize;
use terrashard_data::{BandStatistics, PERCENTILES, Statistics};
use terrashard_raster::{DataType, RasterSource};

use crate::config::{Config, Scaling};
use crate::dataset::{Dataset, Split};
use crate::error::{Error, Result};

/// What `stats --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Surveyed {
    /// What values are in: reflectance, or the digital numbers of files.
    pub unit: &'static str,
    /// Scenes, or files.
    pub scenes: usize,
    /// The shares of pixels, in percent, that `percentiles` are for.
    pub percentages: [f64; PERCENTILES.len()],
    /// All pixels, and with a configuration those of `data.train` and `data.test`.
    pub parts: Vec<Part>,
    /// With a configuration, `data.scaling` with mean and standard deviation of the training part, as TOML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<String>,
}

/// The statistics of one part.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// `all`, `train` or `test`.
    pub part: &'static str,
    /// Its pixels.
    pub pixels: u64,
    /// Those with data in every band.
    pub valid: u64,
    /// Of each band.
    pub bands: Vec<BandStatistics>,
}

impl Part {
    fn new(part: &'static str, statistics: &Statistics, names: &[String], scale: f64) -> Self {
        Self {
            part,
            pixels: statistics.pixels(),
            valid: statistics.valid(),
            bands: statistics.bands(names, scale),
        }
    }
}

/// The statistics of a configuration's scenes: of the bands that the model takes, as reflectance, read once in bounded memory.
///
/// # Errors
/// [`Error::Data`], [`Error::Raster`].
pub fn of_config(config: &Config) -> Result<Surveyed> {
    let dataset = Dataset::stream(config)?;
    let scaling = &config.data.scaling;
    let (mut names, mut whole) = (Vec::new(), true);
    for Split { scene, .. } in dataset.scenes() {
        let data_type = scene.image().metadata().data_type;
        whole &= Statistics::counts_each(data_type, scene.scaling().offset);
        if names.is_empty() {
            names = scene.band_titles();
        }
    }
    let mut parts = [(); 3].map(|()| Statistics::new(names.len(), whole));
    for scene in dataset.scenes() {
        let train = scene.train.iter().map(|window| (1, *window));
        let test = scene.test.iter().map(|window| (2, *window));
        let all = [(0, scene.scene.window())].into_iter();
        let regions: Vec<_> = all.chain(train).chain(test).collect();
        scene.scene.add_statistics(&regions, &mut parts)?;
    }
    let scale = f64::from(scaling.scale);
    let [all, train, test] = &parts;
    let parts = vec![
        Part::new("all", all, &names, scale),
        Part::new("train", train, &names, scale),
        Part::new("test", test, &names, scale),
    ];
    let of_training = |value: fn(&BandStatistics) -> Option<f64>| -> Option<Vec<f32>> {
        let bands = parts[1].bands.iter();
        bands
            .map(|band| value(band).map(|value| value as f32))
            .collect()
    };
    let normalised = of_training(|band| band.mean)
        .zip(of_training(|band| band.std))
        .map(|(mean, std)| Scaling {
            mean,
            std,
            ..scaling.clone()
        });
    Ok(Surveyed {
        unit: "reflectance",
        scenes: config.data.scenes.len(),
        percentages: PERCENTILES,
        scaling: normalised.map(|scaling| in_one_line(&scaling)),
        parts,
    })
}

/// The median reflectance of each band over what is trained on; none where no pixel of it has data.
///
/// # Errors
/// [`Error::Data`], [`Error::Raster`].
pub(crate) fn training_medians(config: &Config) -> Result<Option<Vec<f32>>> {
    let dataset = Dataset::stream(config)?;
    let scenes = dataset.scenes().iter().map(|split| &split.scene);
    let whole = scenes.clone().all(|scene| {
        Statistics::counts_each(scene.image().metadata().data_type, scene.scaling().offset)
    });
    let names = scenes
        .clone()
        .next()
        .map(|scene| scene.band_titles())
        .unwrap_or_default();
    let mut statistics = [Statistics::new(names.len(), whole)];
    for Split { scene, train, .. } in dataset.scenes() {
        let regions: Vec<_> = train.iter().map(|window| (0, *window)).collect();
        scene.add_statistics(&regions, &mut statistics)?;
    }
    let scale = f64::from(config.data.scaling.scale);
    let bands = statistics[0].bands(&names, scale);
    Ok(bands
        .iter()
        .map(|band| band.median().map(|median| median as f32))
        .collect())
}

/// `scaling = { offset = 0.0, … }`, each number as short as it reads back.
fn in_one_line(scaling: &Scaling) -> String {
    let Scaling {
        offset,
        scale,
        mean,
        std,
    } = scaling;
    format!(
        "scaling = {{ offset = {offset:?}, scale = {scale:?}, mean = {mean:?}, std = {std:?} }}"
    )
}

/// The statistics of raster files, of all bands as they are stored.
///
/// # Errors
/// [`Error::Raster`]; [`Error::InvalidValue`] where a file has another number of bands than the first.
pub fn of_files(files: &[PathBuf], nodata: Option<f64>) -> Result<Surveyed> {
    let sources = files
        .iter()
        .map(|file| Ok(terrashard_raster::open(file)?))
        .collect::<Result<Vec<_>>>()?;
    let first = sources
        .first()
        .ok_or_else(|| Error::invalid("FILE", "nothing", "a configuration or raster files"))?;
    let bands = first.metadata().bands;
    let other = sources
        .iter()
        .find(|source| source.metadata().bands != bands);
    if let Some(other) = other {
        return Err(Error::invalid(
            "FILE",
            format!(
                "{} with {} bands",
                other.path().display(),
                other.metadata().bands
            ),
            format!("{bands} bands, as {} has", first.path().display()),
        ));
    }
    let small = |data_type: DataType| Statistics::counts_each(data_type, 0.0);
    let whole = sources
        .iter()
        .all(|source| small(source.metadata().data_type));
    let mut statistics = Statistics::new(bands, whole);
    for source in &sources {
        statistics.add_raster(source, nodata)?;
    }
    let names = terrashard_data::BandSelection::All(bands).titles(first.metadata());
    Ok(Surveyed {
        unit: "digital numbers",
        scenes: files.len(),
        percentages: PERCENTILES,
        parts: vec![Part::new("all", &statistics, &names, 1.0)],
        scaling: None,
    })
}
