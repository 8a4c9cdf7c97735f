//! What is wrong with the files of a scene, all of it at once and before anything is trained.

mod label;
pub(crate) mod scaling;
#[cfg(test)]
mod scenarios;

use std::path::{Path, PathBuf};

use serde::Serialize;
use terrashard_raster::{DataType, Metadata, RasterSource, ReadLimits, Window};

use crate::fine_grid::{self, Fine};
use crate::offset::ProductOffset;
use crate::registration::{LARGEST_SHIFT, measure};
use crate::statistics::Statistics;
use crate::sweep::sweep;
use crate::{BandSelection, Error, SceneOptions, TargetOptions};

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It cannot be trained on as it is, or contradicts itself.
    Wrong,
    /// It could be meant so, and hardly ever is.
    Suspicious,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// There is no such file.
    Missing,
    /// The file, or a part of it, cannot be read.
    Corrupt,
    /// A band is not there.
    Bands,
    /// A size that does not fit the image's.
    Size,
    /// Ground that is not the image's.
    Registration,
    /// Nothing says where it lies.
    NoGeoreference,
    /// NaN or infinities that are not declared as nodata.
    NotFinite,
    /// Not one pixel with data.
    NoData,
    /// Many zeros, and zero is not declared as nodata.
    UndeclaredZeros,
    /// Many pixels of the largest number of the type, and it is not declared as nodata.
    UndeclaredFill,
    /// A nodata value that no sample can have.
    ImpossibleNodata,
    /// Values of a label that are no class, or a label that says nothing.
    Label,
    /// An offset that the product needs and does not get.
    OffsetMissing,
    /// An offset that has been applied before.
    OffsetTwice,
    /// Values of another range than the scaling takes.
    Range,
    /// Bands that have each other's places.
    SwappedBands,
    /// A region that does not fit the image, or shares pixels with another.
    Split,
}

/// One thing that is wrong with one file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// How sure it is.
    pub level: Level,
    /// What it is about.
    pub kind: Kind,
    /// The file.
    pub file: PathBuf,
    /// What was found and what was expected, in one line.
    pub message: String,
    /// The number that was found, where it is about one.
    pub found: Option<f64>,
    /// The number that it was held against.
    pub expected: Option<f64>,
}

impl Finding {
    pub(crate) fn new(level: Level, kind: Kind, file: &Path, message: impl Into<String>) -> Self {
        Self {
            level,
            kind,
            file: file.to_owned(),
            message: message.into(),
            found: None,
            expected: None,
        }
    }

    /// With both numbers.
    pub(crate) fn numbers(mut self, found: f64, expected: f64) -> Self {
        (self.found, self.expected) = (Some(found), Some(expected));
        self
    }

    /// What an error says, which names its file already.
    pub fn of_error(file: &Path, error: &Error) -> Self {
        let kind = match error {
            Error::Raster(terrashard_raster::Error::NotFound { .. }) => Kind::Missing,
            Error::BandCount { .. } | Error::UnknownBand { .. } => Kind::Bands,
            Error::FineSize { .. } => Kind::Size,
            Error::FineGround { .. } => Kind::Registration,
            Error::Region { .. } | Error::Overlap { .. } => Kind::Split,
            Error::UnknownOffset { .. } | Error::Metadata { .. } => Kind::OffsetMissing,
            _ => Kind::Corrupt,
        };
        let message = error.to_string();
        let name = format!("{}: ", file.display());
        Self::new(Level::Wrong, kind, file, message.trim_start_matches(&name))
    }
}

/// The files of a scene.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SceneFiles {
    /// The image.
    pub image: PathBuf,
    /// The label.
    pub mask: Option<PathBuf>,
    /// The image at high resolution.
    pub highres: Option<PathBuf>,
    /// The scene classification or cloud mask.
    pub classification: Option<PathBuf>,
}

impl SceneFiles {
    /// All of them.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let others = [&self.mask, &self.highres, &self.classification];
        let others = others.into_iter().flatten();
        std::iter::once(&self.image)
            .chain(others)
            .map(PathBuf::as_path)
    }
}

/// What keeps the files of a scene from being read, each to its last pixel: the first that is missing or damaged; none where all read.
///
/// Memory does not grow with the scene.
pub fn unreadable(files: &SceneFiles) -> Option<Finding> {
    files.paths().find_map(|path| {
        let read = || -> terrashard_raster::Result<()> {
            let source = open_once(path)?;
            for window in sweep(source.metadata().window(), source.metadata()) {
                source.read_window(window)?;
                source.read_mask(window)?;
            }
            Ok(())
        };
        read()
            .err()
            .map(|error| Finding::of_error(path, &error.into()))
    })
}

/// What is kept decoded of a file that is read once, along its blocks: rows of strips that a window ends in.
const KEPT_BYTES: usize = 32 << 20;

fn open_once(path: &Path) -> terrashard_raster::Result<Box<dyn RasterSource>> {
    let limits = ReadLimits {
        cache_bytes: KEPT_BYTES,
        ..ReadLimits::default()
    };
    terrashard_raster::open_with(path, limits)
}

/// Looks at all files of a scene, each to its last pixel, and says what is wrong; nothing is where nothing is.
///
/// `options` say how the scene is meant to be read, `target` how its high-resolution image is, where that is read at all. How far that
/// image is shifted against the scene's is measured by [`measure`](crate::measure).
/// Memory does not grow with the scene.
pub fn inspect(
    files: &SceneFiles,
    options: &SceneOptions,
    target: Option<&TargetOptions>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let image = open(&files.image, &mut findings);
    if let Some(image) = &image {
        inspect_image(&**image, options, &mut findings);
    }
    if let Some(path) = &files.mask
        && let Some(mask) = open(path, &mut findings)
    {
        place(
            Fine::Mask,
            image.as_deref(),
            &*mask,
            options.scale,
            &mut findings,
        );
        label::inspect(&*mask, options.classes, &mut findings);
    }
    if let (Some(path), Some(target)) = (&files.highres, target)
        && let Some(highres) = open(path, &mut findings)
    {
        place(
            Fine::Target,
            image.as_deref(),
            &*highres,
            options.scale,
            &mut findings,
        );
        inspect_target(&*highres, target, &mut findings);
        // Of files that do not read, or lie elsewhere, a shift says nothing.
        let sound = |finding: &Finding| {
            !matches!(
                finding.kind,
                Kind::Corrupt | Kind::Size | Kind::Registration
            )
        };
        if let Some(image) = &image
            && findings.iter().all(sound)
        {
            inspect_shift(&**image, &*highres, options.scale, &mut findings);
        }
    }
    if let Some(path) = &files.classification
        && let Some(classification) = open(path, &mut findings)
    {
        let whole = classification.metadata().window();
        let mut windows = sweep(whole, classification.metadata());
        let failed = windows.find_map(|window| classification.read_window(window).err());
        findings.extend(failed.map(|error| Finding::of_error(path, &error.into())));
    }
    findings
}

fn open(path: &Path, findings: &mut Vec<Finding>) -> Option<Box<dyn RasterSource>> {
    match open_once(path) {
        Ok(source) => Some(source),
        Err(error) => {
            findings.push(Finding::of_error(path, &error.into()));
            None
        }
    }
}

/// Whether a raster lies on the fine grid of the image.
fn place(
    what: Fine,
    image: Option<&dyn RasterSource>,
    fine: &dyn RasterSource,
    scale: usize,
    findings: &mut Vec<Finding>,
) {
    let Some(image) = image else {
        return;
    };
    if let Err(error) = fine_grid::check(what, image, fine, scale) {
        findings.push(Finding::of_error(fine.path(), &error));
    }
    let placed = |source: &dyn RasterSource| source.metadata().georeference.transform.is_some();
    if placed(image) && !placed(fine) {
        let message = format!(
            "the {what} has no georeference, so that only its size tells that it fits its image"
        );
        findings.push(Finding::new(
            Level::Suspicious,
            Kind::NoGeoreference,
            fine.path(),
            message,
        ));
    }
}

fn inspect_image(image: &dyn RasterSource, options: &SceneOptions, findings: &mut Vec<Finding>) {
    let path = image.path();
    let places = match options.bands.resolve(path, image.metadata()) {
        Ok(places) => places,
        Err(error) => return findings.push(Finding::of_error(path, &error)),
    };
    if image.metadata().georeference.transform.is_none() {
        let message = "it has no georeference: maps of it will have none, and nothing tells whether its label fits";
        findings.push(Finding::new(
            Level::Suspicious,
            Kind::NoGeoreference,
            path,
            message,
        ));
    }
    let product = match ProductOffset::find(image) {
        Ok(product) => product,
        Err(error) => {
            findings.push(Finding::of_error(path, &error));
            None
        }
    };
    let selected = (&options.bands, &places[..], options.nodata);
    survey(image, selected, findings, |read, findings| {
        read.inspect(&options.scaling, product.as_ref(), findings);
    });
}

fn inspect_target(
    highres: &dyn RasterSource,
    options: &TargetOptions,
    findings: &mut Vec<Finding>,
) {
    let path = highres.path();
    let places = match options.bands.resolve(path, highres.metadata()) {
        Ok(places) => places,
        Err(error) => return findings.push(Finding::of_error(path, &error)),
    };
    let selected = (&options.bands, &places[..], options.nodata);
    survey(highres, selected, findings, |read, findings| {
        read.inspect_range(&options.scaling, findings);
    });
}

/// Says how far the image at high resolution is shifted, where that is clear and above half a pixel.
fn inspect_shift(
    image: &dyn RasterSource,
    highres: &dyn RasterSource,
    scale: usize,
    findings: &mut Vec<Finding>,
) {
    match measure(image, highres, scale) {
        Ok(Some(shift)) if shift.is_large() => {
            let message = format!(
                "it is shifted against its image by {:.2} pixels right and {:.2} down ({} of the image's pixels, allowed are \
                 {LARGEST_SHIFT}; {} windows, peak {:.2}): correct its georeference, or `terrashard align` it anew",
                shift.right,
                shift.down,
                shift.length() as f32,
                shift.windows,
                shift.peak
            );
            let finding = Finding::new(
                Level::Suspicious,
                Kind::Registration,
                highres.path(),
                message,
            );
            findings.push(finding.numbers(shift.length(), LARGEST_SHIFT));
        }
        Ok(_) => {}
        Err(error) => findings.push(Finding::of_error(highres.path(), &error)),
    }
}

/// Counts the selected bands, with the nodata value that is asked for, and tells of zeros; of the numbers themselves `inspect` tells.
fn survey(
    source: &dyn RasterSource,
    (bands, places, nodata): (&BandSelection, &[usize], Option<f64>),
    findings: &mut Vec<Finding>,
    inspect: impl FnOnce(&scaling::Read<'_>, &mut Vec<Finding>),
) {
    let path = source.path();
    let mut metadata = source.metadata().clone();
    metadata.nodata = nodata.or(metadata.nodata);
    let names = bands.titles(source.metadata());
    let Some(statistics) = count(source, &metadata, places, &names, findings) else {
        return;
    };
    match metadata.nodata {
        None => {
            scaling::undeclared_zeros(&statistics, path, findings);
            if metadata.data_type == DataType::U16 {
                scaling::undeclared_fill(&statistics, names.len(), path, findings);
            }
        }
        Some(nodata) if !metadata.data_type.represents(nodata) => {
            let message = format!(
                "its nodata value {nodata} is none that samples of type {} can have, so that it marks no pixel: declare the one that is used, or none",
                metadata.data_type
            );
            let kind = Kind::ImpossibleNodata;
            findings.push(Finding::new(Level::Suspicious, kind, path, message));
        }
        Some(_) => {}
    }
    if statistics.valid() > 0 {
        let read = scaling::Read {
            statistics: &statistics,
            names: &names,
            path,
        };
        inspect(&read, findings);
    }
}

/// Reads every pixel. None where a part cannot be read, which is a finding.
fn count(
    source: &dyn RasterSource,
    metadata: &Metadata,
    places: &[usize],
    names: &[String],
    findings: &mut Vec<Finding>,
) -> Option<Statistics> {
    let (path, data_type) = (source.path(), metadata.data_type);
    let mut statistics = Statistics::new(places.len(), Statistics::counts_each(data_type, 0.0));
    // The first place of each band that is not finite.
    let mut first: Vec<Option<(usize, usize)>> = vec![None; places.len()];
    let mut counts = vec![0_u64; places.len()];
    let declared = metadata.nodata.is_some_and(f64::is_nan);
    for window in sweep(metadata.window(), source.metadata()) {
        let read = source.read_window(window);
        let read = read.and_then(|raster| Ok((raster, source.read_mask(window)?)));
        let (raster, data) = match read {
            Ok(read) => read,
            Err(error) => {
                findings.push(Finding::of_error(path, &error.into()));
                return None;
            }
        };
        let bands: Vec<Vec<f32>> = places.iter().map(|&place| raster.band_f32(place)).collect();
        for ((band, first), count) in bands.iter().zip(&mut first).zip(&mut counts) {
            let bad = |at: &usize| {
                let (value, masked) = (band[*at], data.as_ref().is_some_and(|data| !data[*at]));
                !masked && (value.is_infinite() || (value.is_nan() && !declared))
            };
            let mut bad = (0..band.len()).filter(bad).peekable();
            if first.is_none() {
                *first = bad.peek().map(|at| position(window, *at));
            }
            *count += bad.count() as u64;
        }
        let is_nodata = |sample: f32| metadata.is_nodata(f64::from(sample));
        statistics.add(bands, data, is_nodata, 0.0);
    }
    for ((name, count), first) in names.iter().zip(counts).zip(first) {
        if let Some((col, row)) = first {
            let message = format!(
                "{name} is NaN or infinite at {count} of {} pixels, the first at column {col}, row {row}, and NaN is not declared \
                 as nodata; declare it with `nodata`, or repair the file",
                statistics.pixels()
            );
            let finding = Finding::new(Level::Suspicious, Kind::NotFinite, path, message);
            findings.push(finding.numbers(count as f64, 0.0));
        }
    }
    if statistics.valid() == 0 {
        let message = format!(
            "none of its {} pixels has data in every band; leave the scene out, or correct `nodata`",
            statistics.pixels()
        );
        findings.push(Finding::new(Level::Wrong, Kind::NoData, path, message).numbers(0.0, 1.0));
    }
    Some(statistics)
}

/// Column and row of the sample `at` of a window.
fn position(window: Window, at: usize) -> (usize, usize) {
    (
        window.col + at % window.width,
        window.row + at / window.width,
    )
}
