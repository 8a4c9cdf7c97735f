//! Pictures of what the model makes of one window as it learns: image, label and map beside each other.

use burn::tensor::{DType, Device};
use terrashard_data::{OnUnreadable, tile};
use terrashard_models::S2s2Net;
use terrashard_zero::ZeroOptimizer;

use super::left_out::goes_on;
use super::mapped_window::{Mapped, MappedWindow, accompany};
use super::validation::Made;
use crate::config::Config;
use crate::dataset::{self, Dataset};
use crate::error::Result;
use crate::pictures::Picture;

/// Windows that are looked at to find one with much of both classes.
const LOOKED_AT: usize = 100;

/// Longest side of each of the three pictures, in pixels.
const SIDE: usize = 512;

/// The window that is drawn, and when.
#[derive(Debug)]
pub(super) struct Panels {
    mapped: MappedWindow,
    /// Whether the training goes on without a picture where the window cannot be read.
    on_unreadable: OnUnreadable,
    /// Steps from one picture to the next; 0 for one at the end only.
    every: u64,
}

impl Panels {
    /// Those that a configuration asks for: of the part for validation if there is one, else of that which is trained on.
    ///
    /// # Errors
    /// [`crate::Error::Data`], [`crate::Error::Raster`] for a label that cannot be read.
    pub(super) fn of(config: &Config, dataset: &Dataset) -> Result<Option<Self>> {
        let every = config.log.panels.unwrap_or(config.checkpoint.every);
        if config.log.panels == Some(0) {
            return Ok(None);
        }
        let mut regions: Vec<_> = dataset.validation_regions().collect();
        if regions.is_empty() {
            let splits = dataset.scenes().iter();
            let train = |split: &dataset::Split| {
                let (scene, windows) = (split.scene.clone(), split.train.clone().into_iter());
                windows.map(move |window| (scene.clone(), window))
            };
            regions = splits.flat_map(train).collect();
        }
        let side = config.data.chip;
        let mut windows = Vec::new();
        for (scene, region) in regions {
            let cut = tile(region, side, side)?.into_iter();
            windows.extend(cut.map(|window| (scene.clone(), window)));
        }
        let apart = windows.len().div_ceil(LOOKED_AT).max(1);
        let mut best: Option<(usize, MappedWindow)> = None;
        for (scene, window) in windows.into_iter().step_by(apart) {
            let mixed = match scene.labels(window) {
                Err(error) if config.data.on_unreadable.skips(&error) => continue,
                labels => mixture(&labels?),
            };
            if best.as_ref().is_none_or(|(most, _)| mixed > *most) {
                let mapped = MappedWindow {
                    scene,
                    window,
                    counted: window,
                };
                best = Some((mixed, mapped));
            }
        }
        Ok(best.map(|(_, mapped)| Self {
            mapped,
            on_unreadable: config.data.on_unreadable,
            every,
        }))
    }

    /// Whether there is one after a step.
    pub(super) fn is_due(&self, made: Made) -> bool {
        made.is_last || (self.every > 0 && made.step.is_multiple_of(self.every))
    }

    /// Draws it on rank 0, with the moving averages of the parameters where they are kept; none on other ranks, or where the window has no
    /// data. Collective.
    ///
    /// # Errors
    /// [`crate::Error::Data`], [`crate::Error::Raster`], [`crate::Error::Zero`].
    pub(super) fn draw(
        &self,
        optimizer: &ZeroOptimizer,
        model: &S2s2Net,
        on: (&Device, DType),
    ) -> Result<Option<Picture>> {
        optimizer.with_averages(|| self.map(optimizer, model, on))?
    }

    fn map(
        &self,
        optimizer: &ZeroOptimizer,
        model: &S2s2Net,
        on: (&Device, DType),
    ) -> Result<Option<Picture>> {
        let MappedWindow { scene, .. } = &self.mapped;
        let parameters = optimizer.parameters();
        let scope = crate::sharding::Sharded(parameters);
        let mapped = match optimizer.communicator().rank() {
            0 => self.mapped.map(model, &scope, on),
            _ => Ok(None),
        };
        if !matches!(mapped, Ok(Some(_))) {
            accompany(model, &scope, scene.bands(), on);
        }
        parameters.check()?;
        let drawn =
            mapped.and_then(|mapped| mapped.map(|mapped| self.picture(&mapped)).transpose());
        match drawn {
            Err(error) if goes_on(self.on_unreadable, &error) => Ok(None),
            drawn => drawn,
        }
    }

    /// Image, label and map beside each other.
    fn picture(&self, mapped: &Mapped) -> Result<Picture> {
        let MappedWindow { scene, window, .. } = &self.mapped;
        let fine = window.scaled(scene.scale());
        let together = fine.width.max(fine.height).div_ceil(SIDE);
        let map = |classes: &[u8]| Picture::of_classes(fine.width, fine.height, classes, together);
        let (label, predicted) = (map(&mapped.labels), map(&mapped.predicted));
        let image = Picture::true_colour(scene, *window, 1)?;
        let image = image.resized(label.width, label.height);
        Ok(Picture::beside(&[image, label, predicted]))
    }
}

/// Pixels of the rarer of foreground and background.
fn mixture(labels: &[u8]) -> usize {
    let foreground = labels
        .iter()
        .filter(|label| dataset::is_foreground(**label));
    let background = labels.iter().filter(|label| **label == 0);
    foreground.count().min(background.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_as_mixed_as_its_rarer_class() {
        assert_eq!(mixture(&[0, 0, 1, 255, 255]), 1);
        assert_eq!(mixture(&[1, 2, 3, 0, 0]), 2);
        assert_eq!(mixture(&[1, 1, 255]), 0);
    }
}
