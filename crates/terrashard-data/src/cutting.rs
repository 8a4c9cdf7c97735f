//! Cutting scenes into chips for a list, as windows or as files.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use terrashard_raster::{
    DataType, GeoTiffSink, Metadata, Overviews, Raster, RasterSink, RasterSource, RasterSpec,
    Samples, Window,
};

use crate::chip_index::{ChipFiles, ChipHeader, ChipIndex, DropReason, DroppedChip, IndexedChip};
use crate::chips::class_counts;
use crate::crs::footprint;
use crate::scene::IGNORE;
use crate::selection::{Balance, Selection};
use crate::splitting::{Ground, Part, SplitRule, split};
use crate::{Error, Result, Scene, partition, tile};

/// How scenes are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CutOptions {
    /// Side of a chip in image pixels.
    pub chip: usize,
    /// Image pixels from one chip for training to the next; none for chips that have each pixel once, as those for validation and test
    /// always do.
    pub stride: Option<usize>,
    /// Which chips are kept. [`Balance::Only`] is for training alone.
    pub selection: Selection,
    /// What is for training, for validation and for test.
    pub rule: SplitRule,
}

/// How many chips there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CutReport {
    /// Windows that were cut.
    pub cut: usize,
    /// Chips of each part.
    pub kept: BTreeMap<Part, usize>,
    /// Windows that were left out, by reason.
    pub dropped: BTreeMap<DropReason, usize>,
}

impl CutReport {
    /// Counts an index.
    pub fn of(index: &ChipIndex) -> Self {
        let mut report = Self {
            cut: index.chips.len() + index.header.dropped.len(),
            ..Self::default()
        };
        for chip in &index.chips {
            *report.kept.entry(chip.part).or_default() += 1;
        }
        for chip in &index.header.dropped {
            *report.dropped.entry(chip.reason).or_default() += 1;
        }
        report
    }
}

/// Cuts scenes, given with their files, into chips. Every pixel of a part is in a chip before selection, and no two parts share ground.
///
/// # Errors
/// Those of [`split`], [`tile`] and [`Scene::labels`]; [`Error::NoChips`] where a part keeps none.
pub fn cut(scenes: &[(ChipFiles, Arc<Scene>)], options: &CutOptions) -> Result<ChipIndex> {
    options.selection.validate()?;
    let metadata: Vec<&Metadata> = scenes.iter().map(|(_, scene)| scene.metadata()).collect();
    let regions = split(&metadata, &options.rule)?;
    let first = scenes.first().map(|(_, scene)| scene);
    let (scale, classes) = first.map_or((1, 2), |scene| (scene.scale(), scene.classes()));
    let mut header = ChipHeader::new(options.chip, options.stride, scale, classes);
    let mut kept: Vec<(usize, IndexedChip)> = Vec::new();
    for (place, ((files, scene), regions)) in scenes.iter().zip(regions).enumerate() {
        for (part, region) in regions {
            let windows = match (part, options.stride) {
                (Part::Train, Some(stride)) => tile(region, options.chip, stride)?,
                _ => partition(region, options.chip)?,
            };
            let mut counts = vec![Vec::new(); windows.len()];
            for at in by_blocks(&windows, scene.metadata().block) {
                counts[at] = class_counts(&scene.labels(windows[at])?, scene.classes());
            }
            for (window, counts) in windows.into_iter().zip(counts) {
                let [col, row, width, height] =
                    [window.col, window.row, window.width, window.height];
                match reason(
                    &counts,
                    window.scaled(scale).pixels(),
                    &options.selection,
                    part,
                ) {
                    Some(reason) => header.dropped.push(DroppedChip {
                        image: files.image.clone(),
                        window: [col, row, width, height],
                        part,
                        reason,
                    }),
                    None => kept.push((
                        place,
                        IndexedChip {
                            part,
                            files: files.clone(),
                            window: [col, row, width, height],
                            counts,
                            footprint: footprint(scene.metadata(), window)?,
                        },
                    )),
                }
            }
        }
    }
    let chips = apart(kept, &metadata, &mut header.dropped);
    let index = ChipIndex { header, chips };
    let report = CutReport::of(&index);
    let asked: Vec<Part> = index.header.dropped.iter().map(|chip| chip.part).collect();
    if asked.iter().any(|part| !report.kept.contains_key(part)) || report.kept.is_empty() {
        let dropped = |reason| report.dropped.get(&reason).copied().unwrap_or(0);
        return Err(Error::NoChips {
            cut: report.cut,
            few_valid: dropped(DropReason::FewValid),
            few_foreground: dropped(DropReason::FewForeground),
            min_valid: options.selection.min_valid,
        });
    }
    Ok(index)
}

/// The places of windows in the order in which the least of an image has to be kept while they are read: block after block of its
/// file.
fn by_blocks(windows: &[Window], (width, height): (usize, usize)) -> Vec<usize> {
    let block = |at: &usize| {
        let window = &windows[*at];
        (window.row / height.max(1), window.col / width.max(1))
    };
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_key(block);
    order
}

/// Why a chip is left out, if it is.
fn reason(counts: &[u64], pixels: usize, selection: &Selection, part: Part) -> Option<DropReason> {
    let valid: u64 = counts.iter().sum();
    if valid == 0 || (valid as f64) < selection.min_valid * pixels as f64 {
        return Some(DropReason::FewValid);
    }
    let foreground: u64 = counts.iter().skip(1).sum();
    match selection.balance {
        Balance::Only { min_foreground } if part == Part::Train && foreground < min_foreground => {
            Some(DropReason::FewForeground)
        }
        _ => None,
    }
}

/// Leaves out what another scene has for a later part: a chip for training over one for test, for instance. Within a scene parts share
/// nothing anyway.
fn apart(
    kept: Vec<(usize, IndexedChip)>,
    scenes: &[&Metadata],
    dropped: &mut Vec<DroppedChip>,
) -> Vec<IndexedChip> {
    let ground = |(scene, chip): &(usize, IndexedChip)| {
        let [col, row, width, height] = chip.window;
        Ground::new(scenes[*scene], Window::new(col, row, width, height))
    };
    let grounds: Vec<Option<Ground>> = kept.iter().map(ground).collect();
    let mut cells: HashMap<(i32, i32), Vec<usize>> = HashMap::new();
    for (at, ground) in grounds.iter().enumerate() {
        for cell in ground.iter().flat_map(Ground::cells) {
            cells.entry(cell).or_default().push(at);
        }
    }
    let shared = |at: usize| {
        let Some(ground) = &grounds[at] else {
            return false;
        };
        let later = |other: &usize| {
            let (ours, theirs) = (&kept[at], &kept[*other]);
            let meets = || {
                grounds[*other]
                    .as_ref()
                    .is_some_and(|other| ground.shares(other))
            };
            ours.0 != theirs.0 && theirs.1.part > ours.1.part && meets()
        };
        ground
            .cells()
            .iter()
            .any(|cell| cells[cell].iter().any(later))
    };
    let shared: Vec<bool> = (0..kept.len()).map(shared).collect();
    let mut chips = Vec::with_capacity(kept.len());
    for ((_, chip), shared) in kept.into_iter().zip(shared) {
        match shared {
            false => chips.push(chip),
            true => dropped.push(DroppedChip {
                image: chip.files.image,
                window: chip.window,
                part: chip.part,
                reason: DropReason::SharedGround,
            }),
        }
    }
    chips
}

/// Writes each chip's image, label and high-resolution image as files of their own below `folder`, and names them in the index.
///
/// Images keep their samples, bands, nodata value and what they say of themselves; pixels that a mask beside them leaves out hold the
/// nodata value, or where there is none one that no other pixel of the chip has. Labels are those that are trained on: 255 where the
/// image has no data or a classification leaves pixels out.
///
/// # Errors
/// [`Error::Raster`] where a file cannot be read or written, [`Error::Setting`] where two scenes would give files of one name, or no
/// value is free for masked pixels.
pub fn write_files(
    index: &mut ChipIndex,
    scenes: &[(ChipFiles, Arc<Scene>)],
    folder: &Path,
) -> Result<()> {
    let mut names: HashMap<String, &Path> = HashMap::new();
    for (files, _) in scenes {
        let name = stem(&files.image);
        if names
            .insert(name.clone(), &files.image)
            .is_some_and(|other| other != files.image)
        {
            let what = format!("two images called {name}; rename one");
            return Err(Error::Setting {
                key: "scenes",
                what,
            });
        }
    }
    for chip in &mut index.chips {
        let found = scenes.iter().find(|(files, _)| *files == chip.files);
        let (_, scene) = found.expect("chips are cut from these scenes");
        let [col, row, width, height] = chip.window;
        let window = Window::new(col, row, width, height);
        let part = folder.join(match chip.part {
            Part::Train => "train",
            Part::Validation => "validation",
            Part::Test => "test",
        });
        std::fs::create_dir_all(&part).map_err(|source| {
            Error::Raster(terrashard_raster::Error::Io {
                path: part.clone(),
                action: "create",
                source,
            })
        })?;
        let name = |what: &str| {
            part.join(format!(
                "{}_{row}_{col}_{what}.tif",
                stem(&chip.files.image)
            ))
        };
        let (image, mask, highres) = (name("image"), name("mask"), name("highres"));
        copy(scene.image(), scene.metadata().nodata, window, &image)?;
        let fine = window.scaled(scene.scale());
        if scene.has_mask() {
            write_label(scene, window, &mask)?;
        }
        if let Some(source) = scene.target_source() {
            copy(source, scene.target_nodata(), fine, &highres)?;
        }
        chip.files = ChipFiles {
            image,
            mask: scene.has_mask().then_some(mask),
            highres: scene.target_source().map(|_| highres),
            // What it leaves out is in the label.
            classification: None,
            offset: chip.files.offset,
        };
        chip.window = [0, 0, width, height];
    }
    Ok(())
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The smallest tile that holds a chip, of at most 512 pixels.
fn tile_side(window: Window) -> usize {
    window
        .width
        .max(window.height)
        .next_multiple_of(16)
        .min(512)
}

/// Writes a window of a raster, which is read with this nodata value, all it says of itself included.
fn copy(
    source: &dyn RasterSource,
    nodata: Option<f64>,
    window: Window,
    path: &PathBuf,
) -> Result<()> {
    let (metadata, annotations) = (source.metadata(), source.annotations());
    let mut georeference = metadata.georeference;
    georeference.transform = georeference
        .transform
        .map(|t| t.offset(window.col, window.row));
    let mut spec = RasterSpec::new(
        window.width,
        window.height,
        metadata.bands,
        metadata.data_type,
    )
    .georeference(georeference)
    .tile(tile_side(window));
    spec.descriptions = metadata.descriptions.clone();
    spec.tags = annotations.tags;
    let scaling: Vec<(f64, f64)> = annotations
        .scales
        .into_iter()
        .zip(annotations.offsets)
        .collect();
    if scaling.iter().any(|scaling| *scaling != (1.0, 0.0)) {
        spec.scaling = scaling;
    }
    // One that no sample can have says nothing.
    spec.nodata = metadata
        .nodata
        .filter(|nodata| metadata.data_type.represents(*nodata));
    let mut samples = source.read_window(window)?.into_samples();
    let data = source
        .read_mask(window)?
        .filter(|data| data.contains(&false));
    if let Some(data) = data {
        let represented = nodata.filter(|nodata| metadata.data_type.represents(*nodata));
        let value = match represented.or_else(|| free_value(&samples, &data)) {
            Some(value) => value,
            None => {
                let what = format!(
                    "none for the masked pixels of {}, and every value of {} occurs there; declare one",
                    source.path().display(),
                    metadata.data_type
                );
                return Err(Error::Setting {
                    key: "nodata",
                    what,
                });
            }
        };
        for band in 0..metadata.bands {
            for (at, _) in data.iter().enumerate().filter(|(_, data)| !**data) {
                samples.fill(band * window.pixels() + at, 1, value);
            }
        }
        spec.nodata = Some(value);
    }
    put(path, spec, samples, metadata.bands)
}

/// A value that no pixel with data has: NaN, or the largest such number of 16 bits that the type has.
fn free_value(samples: &Samples, data: &[bool]) -> Option<f64> {
    let data_type = samples.data_type();
    if data_type.represents(f64::NAN) {
        return Some(f64::NAN);
    }
    let mut taken = vec![false; usize::from(u16::MAX) + 1];
    for at in (0..samples.len()).filter(|at| data[at % data.len()]) {
        let value = samples.get(at);
        if (0.0..=f64::from(u16::MAX)).contains(&value) {
            taken[value as usize] = true;
        }
    }
    let values = (0..=u16::MAX).rev().map(f64::from);
    let mut free = values.filter(|value| data_type.represents(*value) && !taken[*value as usize]);
    free.next()
}

fn write_label(scene: &Scene, window: Window, path: &PathBuf) -> Result<()> {
    let fine = window.scaled(scene.scale());
    let mut georeference = scene.metadata().georeference.scaled(scene.scale() as f64);
    georeference.transform = georeference.transform.map(|t| t.offset(fine.col, fine.row));
    let spec = RasterSpec::new(fine.width, fine.height, 1, DataType::U8)
        .georeference(georeference)
        .nodata(f64::from(IGNORE))
        .tile(tile_side(fine));
    put(path, spec, Samples::U8(scene.labels(window)?), 1)
}

fn put(path: &PathBuf, spec: RasterSpec, samples: Samples, bands: usize) -> Result<()> {
    let whole = spec.window();
    let mut sink = GeoTiffSink::create(path, spec.overviews(Overviews::None))?;
    sink.write(&Raster::new(whole, bands, samples)?)?;
    Box::new(sink).finish()?;
    Ok(())
}
