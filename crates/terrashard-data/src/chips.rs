//! Chips: the samples that a model is trained on and tested with.

use std::ops::Range;
use std::sync::Arc;

use terrashard_layout::SampleOrder;
use terrashard_raster::Window;

use crate::coding::{Coding, Numbers};
use crate::selection::{ChipReport, Selection, draws};
use crate::{Augmentation, Error, LeftOut, OnUnreadable, Result, Scene, tile};

/// How scenes are cut into chips.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipOptions {
    /// Side of a chip in image pixels. Default: 64.
    pub chip: usize,
    /// Image pixels from one chip to the next. Default: 64.
    pub stride: usize,
    /// Which chips are kept, and how often each is drawn in an epoch.
    pub selection: Selection,
    /// How samples differ from their chips. Default: not.
    pub augmentation: Augmentation,
    /// What becomes of a chip that cannot be read, when it is cut or when it is drawn. Default: it is an error.
    pub unreadable: OnUnreadable,
}

impl Default for ChipOptions {
    fn default() -> Self {
        Self {
            chip: 64,
            stride: 64,
            selection: Selection::default(),
            augmentation: Augmentation::OFF,
            unreadable: OnUnreadable::Abort,
        }
    }
}

/// One window of one scene.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chip {
    /// The scene's place in the list of scenes.
    pub scene: usize,
    /// The window in image pixels, smaller than a chip where the region is.
    pub window: Window,
    /// Valid mask pixels of each class.
    pub counts: Vec<u64>,
    /// Pixels of the high-resolution image that are not missing; 0 where there is no such image.
    pub target_pixels: u64,
}

/// The samples of a list of scenes, drawn from one region of each.
///
/// # Samples and chips
/// A *chip* is a window; a *sample* is one draw of a chip in an epoch, so a chip that [`Selection`] prefers is several samples.
/// Sample ids are `0..len()`. They, their order and their augmentation depend on the scenes and options alone, never on the
/// number of ranks.
///
/// # Padding
/// A region smaller than a chip gives one chip: its image is mirrored to the right and downwards, its mask there is ignored and
/// its high-resolution image is missing.
#[derive(Debug)]
pub struct Chips {
    pub(crate) scenes: Vec<Arc<Scene>>,
    chips: Vec<Chip>,
    draws: Vec<usize>,
    pub(crate) options: ChipOptions,
    report: ChipReport,
    /// What high-resolution images of digital numbers mean; none where they are floats.
    pub(crate) coding: Option<Coding>,
    /// Chips that could not be read when they were cut.
    unreadable: Vec<LeftOut>,
}

impl Chips {
    /// Cuts `regions` of scenes into chips. No chip reaches beyond its region.
    ///
    /// # Errors
    /// Those of [`tile`]; [`Error::Setting`] where there is no scene or scenes differ in bands, scale, classes or in whether they
    /// have a high-resolution image;
    /// [`Error::Region`]; [`Error::NoChips`] where selection leaves none; those of [`Scene::labels`] and [`Scene::target`].
    pub fn new(regions: Vec<(Arc<Scene>, Window)>, options: ChipOptions) -> Result<Self> {
        let cut = |(scene, region): (Arc<Scene>, Window)| -> Result<_> {
            check_region(&scene, region)?;
            let windows = tile(region, options.chip, options.stride)?;
            Ok((scene, windows))
        };
        let windows = regions.into_iter().map(cut).collect::<Result<_>>()?;
        Self::of_windows(windows, options)
    }

    /// Takes these windows of scenes as chips, each at most as large as one.
    ///
    /// # Errors
    /// As [`Chips::new`]; [`Error::Setting`] for a window that is larger than a chip.
    pub fn of_windows(
        windows: Vec<(Arc<Scene>, Vec<Window>)>,
        options: ChipOptions,
    ) -> Result<Self> {
        options.selection.validate()?;
        options.augmentation.validate()?;
        check_alike(windows.iter().map(|(scene, _)| &**scene))?;
        let mut report = ChipReport::default();
        let mut numbers = Numbers::of(windows.iter().map(|(scene, _)| &**scene));
        let (mut scenes, mut chips) = (Vec::new(), Vec::new());
        let (mut unreadable, mut first_error) = (Vec::new(), None);
        for (scene, windows) in windows {
            for window in windows {
                check_region(&scene, window)?;
                if window.width.max(window.height) > options.chip {
                    let what = format!(
                        "{} pixels, smaller than the window of {window} of {}; cut chips anew",
                        options.chip,
                        scene.image().path().display()
                    );
                    return Err(Error::Setting { key: "chip", what });
                }
                let pixels = (window.pixels() * scene.scale() * scene.scale()) as u64;
                let mut counted = || -> Result<Option<Chip>> {
                    let counts = class_counts(&scene.labels(window)?, scene.classes());
                    if !report.keeps(&options.selection, &counts, pixels) {
                        return Ok(None);
                    }
                    Ok(Some(Chip {
                        scene: scenes.len(),
                        window,
                        counts,
                        target_pixels: target_pixels(&scene, window, &mut numbers)?,
                    }))
                };
                match counted() {
                    Ok(chip) => chips.extend(chip),
                    // It stays a sample, so that the order of all others is what it was when it could be read.
                    Err(error) if options.unreadable.skips(&error) => {
                        let chip = Chip {
                            scene: scenes.len(),
                            window,
                            counts: vec![0; scene.classes()],
                            target_pixels: 0,
                        };
                        unreadable.push(LeftOut::new(&scene, &chip, &error));
                        first_error.get_or_insert(error);
                        chips.push(chip);
                    }
                    Err(error) => return Err(error),
                }
            }
            scenes.push(scene);
        }
        if let Some(error) = first_error.filter(|_| unreadable.len() == chips.len()) {
            return Err(error);
        }
        if chips.is_empty() {
            let ChipReport {
                cut,
                few_valid,
                few_foreground,
                ..
            } = report;
            return Err(Error::NoChips {
                cut,
                few_valid,
                few_foreground,
                min_valid: options.selection.min_valid,
            });
        }
        let draws = draws(&options.selection, &chips);
        report.samples = draws.len();
        Ok(Self {
            scenes,
            chips,
            draws,
            options,
            report,
            coding: numbers.and_then(|numbers| numbers.coding()),
            unreadable,
        })
    }

    /// Number of samples in an epoch.
    pub fn len(&self) -> usize {
        self.draws.len()
    }

    /// Never: there is at least one sample.
    pub fn is_empty(&self) -> bool {
        self.draws.is_empty()
    }

    /// The chips that were kept, each once.
    pub fn chips(&self) -> &[Chip] {
        &self.chips
    }

    /// What was cut, dropped and kept.
    pub fn report(&self) -> &ChipReport {
        &self.report
    }

    /// The chips that could not be read when they were cut: their samples are of weight 0.
    pub fn unreadable(&self) -> &[LeftOut] {
        &self.unreadable
    }

    /// Bands of a sample.
    pub fn bands(&self) -> usize {
        self.scenes[0].bands()
    }

    /// Side of a sample in image pixels.
    pub fn side(&self) -> usize {
        self.options.chip
    }

    /// Mask pixels per image pixel along one side.
    pub fn scale(&self) -> usize {
        self.scenes[0].scale()
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.scenes[0].classes()
    }

    /// Bytes of a batch of so many samples.
    pub fn batch_bytes(&self, samples: usize) -> usize {
        let fine = (self.side() * self.scale()).pow(2);
        let target = self.scenes[0].target_bands().unwrap_or(0) * fine * self.target_value_bytes();
        samples * (self.bands() * self.side().pow(2) * size_of::<f32>() + fine + target)
    }

    /// Bytes of one value of a high-resolution image: 2 where it is of digital numbers, 4 where it is of floats.
    pub fn target_value_bytes(&self) -> usize {
        self.coding.map_or(size_of::<f32>(), |_| size_of::<u16>())
    }

    /// The chip that a sample shows.
    ///
    /// # Errors
    /// [`Error::Sample`] where there is no such sample.
    pub fn chip(&self, sample: usize) -> Result<&Chip> {
        let chip = self.draws.get(sample).map(|&chip| &self.chips[chip]);
        chip.ok_or(Error::Sample {
            index: sample,
            samples: self.len(),
        })
    }

    /// Valid mask pixels of each class over samples of an order, known without reading a pixel: what losses divide by.
    ///
    /// # Errors
    /// [`Error::Sample`] where the order has more samples than there are.
    pub fn class_counts(&self, order: &SampleOrder, cursors: Range<u64>) -> Result<Vec<u64>> {
        let chips: Vec<&Chip> = cursors
            .map(|cursor| self.chip(order.at(cursor)))
            .collect::<Result<_>>()?;
        Ok(sum_counts(chips.iter().map(|chip| &chip.counts)))
    }

    /// Values of high-resolution images, over all their bands, that are not missing in samples of an order; known without
    /// reading a pixel.
    ///
    /// # Errors
    /// [`Error::Sample`] where the order has more samples than there are.
    pub fn target_values(&self, order: &SampleOrder, cursors: Range<u64>) -> Result<u64> {
        let bands = self.scenes[0].target_bands().unwrap_or(0) as u64;
        let mut pixels = 0;
        for cursor in cursors {
            pixels += self.chip(order.at(cursor))?.target_pixels;
        }
        Ok(bands * pixels)
    }
}

/// Refuses scenes that differ in what a batch has to have in common.
fn check_alike<'a>(mut scenes: impl Iterator<Item = &'a Scene>) -> Result<()> {
    let alike = |s: &Scene| (s.bands(), s.scale(), s.classes(), s.target_bands());
    let refuse = |what: &str| {
        Err(Error::Setting {
            key: "scenes",
            what: what.to_owned(),
        })
    };
    match scenes.next() {
        None => refuse("there is none; name at least one"),
        Some(first) if scenes.all(|scene| alike(scene) == alike(first)) => Ok(()),
        Some(_) => refuse(
            "they differ in bands, scale, classes or high-resolution images; train on scenes that are alike",
        ),
    }
}

fn check_region(scene: &Scene, region: Window) -> Result<()> {
    if !region.is_empty() && scene.window().contains(&region) {
        return Ok(());
    }
    Err(Error::Region {
        key: "region",
        window: region,
        width: scene.width(),
        height: scene.height(),
    })
}

/// Counts the pixels of each class.
pub(crate) fn class_counts(labels: &[u8], classes: usize) -> Vec<u64> {
    let mut histogram = [0_u64; 256];
    labels
        .iter()
        .for_each(|&label| histogram[usize::from(label)] += 1);
    histogram[..classes].to_vec()
}

pub(crate) fn sum_counts<'a>(counts: impl Iterator<Item = &'a Vec<u64>>) -> Vec<u64> {
    let mut sum = Vec::new();
    for counts in counts {
        sum.resize(counts.len(), 0);
        sum.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count);
    }
    sum
}

/// Pixels of a scene's high-resolution image over a window that are not missing. Notes the numbers that they have.
fn target_pixels(scene: &Scene, window: Window, numbers: &mut Option<Numbers>) -> Result<u64> {
    if scene.target_bands().is_none() {
        return Ok(0);
    }
    let plane = window.scaled(scene.scale()).pixels();
    // A pixel is missing in all bands or in none.
    let count = match numbers {
        Some(numbers) => {
            let values = scene.target_as(window, None, |target, stored| {
                target.numbers(stored, None, Some)
            })?;
            let present = values.iter().flatten();
            present.for_each(|number| numbers.add(*number));
            values[..plane].iter().flatten().count()
        }
        None => {
            let values = scene.target(window)?;
            values[..plane].iter().filter(|v| !v.is_nan()).count()
        }
    };
    Ok(count as u64)
}
