//! Batches: chips as a model takes them.

use std::ops::Range;

use terrashard_layout::SampleOrder;
use terrashard_raster::Window;

use crate::chips::sum_counts;
use crate::coding::TargetImages;
use crate::scene::IGNORE;
use crate::{Chip, Chips, LeftOut, Result, mirror_pad};

/// Samples ready for a model, in the order asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Number of samples, N.
    pub samples: usize,
    /// Bands of the images.
    pub bands: usize,
    /// Side of the images in pixels.
    pub side: usize,
    /// Mask pixels per image pixel along one side.
    pub scale: usize,
    /// Model input, `[N, bands, side, side]`.
    pub images: Vec<f32>,
    /// Classes, `[N, side * scale, side * scale]`; 255 is ignored.
    pub masks: Vec<u8>,
    /// The images at high resolution, `[N, bands of the target, side * scale, side * scale]`; `None` where scenes have none.
    pub targets: Option<TargetImages>,
    /// Valid mask pixels of each class in each sample, `[N][classes]`.
    pub valid: Vec<Vec<u64>>,
    /// Sample ids: the indices asked for.
    pub ids: Vec<u64>,
    /// Samples of them that could not be read, and are of weight 0.
    pub left_out: Vec<LeftOut>,
}

impl Batch {
    /// Valid mask pixels of each class over all samples.
    pub fn class_counts(&self) -> Vec<u64> {
        sum_counts(self.valid.iter())
    }
}

/// What a chip shows, before it is augmented.
struct Shown {
    /// `[bands, height, width]`
    values: Vec<f32>,
    /// `[height * scale, width * scale]`
    labels: Vec<u8>,
    /// `[bands of the target, height * scale, width * scale]`
    target: Option<TargetImages>,
}

impl Chips {
    /// The samples of these indices, augmented as in `epoch`.
    ///
    /// # Errors
    /// [`crate::Error::Sample`]; those of [`patch`](crate::Scene::patch), [`labels`](crate::Scene::labels) and [`target`](crate::Scene::target).
    pub fn batch(&self, indices: &[usize], epoch: u64) -> Result<Batch> {
        self.gather(indices.iter().map(|&index| (index, epoch)))
    }

    /// The samples at cursors of an order, each augmented as in its epoch.
    ///
    /// # Errors
    /// As [`Chips::batch`].
    pub fn batch_at(&self, order: &SampleOrder, cursors: Range<u64>) -> Result<Batch> {
        self.gather(cursors.map(|cursor| (order.at(cursor), order.epoch(cursor))))
    }

    fn gather(&self, samples: impl Iterator<Item = (usize, u64)>) -> Result<Batch> {
        let (bands, side, scale) = (self.bands(), self.side(), self.scale());
        let fine = side * scale;
        // Room for all, else a growing batch is copied several times.
        let (count, _) = samples.size_hint();
        let targets = self.scenes[0].target_bands();
        let mut batch = Batch {
            samples: 0,
            bands,
            side,
            scale,
            images: Vec::with_capacity(count * bands * side * side),
            masks: Vec::with_capacity(count * fine * fine),
            targets: targets
                .map(|bands| TargetImages::with_capacity(count * bands * fine * fine, self.coding)),
            valid: vec![],
            ids: vec![],
            left_out: vec![],
        };
        for (index, epoch) in samples {
            let chip = self.chip(index)?;
            let scene = &self.scenes[chip.scene];
            let Window { width, height, .. } = chip.window;
            let shown = match self.unread(chip) {
                // It was counted as nothing when it was cut, so it is nothing, whatever it is by now.
                Some(unread) => Err(unread.clone()),
                None => match self.shown(chip) {
                    Ok(shown) => Ok(shown),
                    Err(error) if self.options.unreadable.skips(&error) => {
                        Err(LeftOut::new(scene, chip, &error))
                    }
                    Err(error) => return Err(error),
                },
            };
            let (shown, counts) = match shown {
                Ok(shown) => (shown, chip.counts.clone()),
                Err(left_out) => {
                    batch.left_out.push(left_out);
                    (self.nothing(chip), vec![0; chip.counts.len()])
                }
            };
            let draw = self.options.augmentation.draw(index as u64, epoch);
            let orientation = draw.orientation;
            let values = match (width, height) == (side, side) {
                true => shown.values,
                false => mirror_pad(&shown.values, (width, height), (side, side)),
            };
            let begin = batch.images.len();
            for plane in values.chunks_exact(side * side) {
                orientation.apply(plane, side, &mut batch.images);
            }
            draw.disturb(&mut batch.images[begin..], bands, scene.scaling());
            let size = (width * scale, height * scale);
            orientation.apply(
                &padded(&shown.labels, size, fine, IGNORE),
                fine,
                &mut batch.masks,
            );
            match (&mut batch.targets, shown.target) {
                (
                    Some(TargetImages::Reflectance(targets)),
                    Some(TargetImages::Reflectance(own)),
                ) => {
                    for plane in own.chunks_exact(size.0 * size.1) {
                        orientation.apply(&padded(plane, size, fine, f32::NAN), fine, targets);
                    }
                }
                (
                    Some(TargetImages::Numbers(targets, coding)),
                    Some(TargetImages::Numbers(own, _)),
                ) => {
                    for plane in own.chunks_exact(size.0 * size.1) {
                        orientation.apply(
                            &padded(plane, size, fine, coding.missing),
                            fine,
                            targets,
                        );
                    }
                }
                _ => {}
            }
            batch.valid.push(counts);
            batch.ids.push(index as u64);
            batch.samples += 1;
        }
        Ok(batch)
    }

    /// Why a chip could not be read when it was cut, if so.
    fn unread(&self, chip: &Chip) -> Option<&LeftOut> {
        // Of all others that are kept, some pixel is valid.
        let is_empty = chip.counts.iter().all(|count| *count == 0);
        let path = || self.scenes[chip.scene].image().path();
        let mut unread = self.unreadable().iter().filter(|_| is_empty);
        unread.find(|it| it.window == chip.window && it.path == path())
    }

    fn shown(&self, chip: &Chip) -> Result<Shown> {
        let scene = &self.scenes[chip.scene];
        let window = chip.window;
        let target = match (scene.target_bands(), self.coding) {
            (None, _) => None,
            (Some(_), None) => Some(TargetImages::Reflectance(scene.target(window)?)),
            (Some(_), Some(coding)) => {
                let missing = coding.missing;
                let numbers = scene.target_as(window, missing, |target, stored| {
                    target.numbers(stored, missing, |number| number)
                })?;
                Some(TargetImages::Numbers(numbers, coding))
            }
        };
        Ok(Shown {
            values: scene.patch(window)?.values,
            labels: scene.labels(window)?,
            target,
        })
    }

    /// What a chip shows of which nothing counts.
    fn nothing(&self, chip: &Chip) -> Shown {
        let scene = &self.scenes[chip.scene];
        let coarse = chip.window.pixels();
        let fine = coarse * scene.scale() * scene.scale();
        let target = scene.target_bands().map(|bands| match self.coding {
            None => TargetImages::Reflectance(vec![f32::NAN; bands * fine]),
            Some(coding) => TargetImages::Numbers(vec![coding.missing; bands * fine], coding),
        });
        Shown {
            values: vec![0.0; self.bands() * coarse],
            labels: vec![IGNORE; fine],
            target,
        }
    }
}

/// A plane of this size made `side` x `side` with pixels that count for nothing.
fn padded<T: Copy>(
    plane: &[T],
    (width, height): (usize, usize),
    side: usize,
    nothing: T,
) -> std::borrow::Cow<'_, [T]> {
    if (width, height) == (side, side) {
        return plane.into();
    }
    let mut padded = vec![nothing; side * side];
    for (line, row) in padded.chunks_exact_mut(side).zip(plane.chunks_exact(width)) {
        line[..width].copy_from_slice(row);
    }
    padded.into()
}
