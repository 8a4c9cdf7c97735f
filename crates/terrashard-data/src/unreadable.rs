//! Chips that cannot be read any more, or not yet: a damaged tile, a file that has gone, a disk that fails.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrashard_raster::Window;

use crate::{Chip, Error, Scene};

/// What becomes of a chip that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnreadable {
    /// It is an error.
    #[default]
    Abort,
    /// Its samples are of weight 0, as if all of it were ignored: the image of training's mean, every label 255, every value of the
    /// high-resolution image missing.
    SkipTile,
}

/// A sample of a batch that is of weight 0 because its chip could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The image whose chip it is.
    pub path: PathBuf,
    /// The chip's window in image pixels.
    pub window: Window,
    /// Valid mask pixels that the chip was counted with.
    pub valid_pixels: u64,
    /// Values of its high-resolution image that it was counted with, over all bands.
    pub target_values: u64,
    /// Why it cannot be read.
    pub reason: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            window,
            reason,
            ..
        } = self;
        write!(f, "{window} of {}: {reason}", path.display())
    }
}

impl LeftOut {
    pub(crate) fn new(scene: &Scene, chip: &Chip, error: &Error) -> Self {
        Self {
            path: scene.image().path().to_owned(),
            window: chip.window,
            valid_pixels: chip.counts.iter().sum(),
            target_values: scene.target_bands().unwrap_or(0) as u64 * chip.target_pixels,
            reason: error.to_string(),
        }
    }
}

impl OnUnreadable {
    /// Whether that is a chip to go on without. What a file holds that is read, and should not, is none.
    pub fn skips(self, error: &Error) -> bool {
        self == Self::SkipTile && matches!(error, Error::Raster(_))
    }
}
