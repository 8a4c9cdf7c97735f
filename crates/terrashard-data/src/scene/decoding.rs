//! From the samples of files to what a model takes, tile by tile or at once.

use std::sync::Arc;

use terrashard_raster::Window;

use super::{IGNORE, Patch, Scene};
use crate::cache::{Key, Layer, TILE, Tile, touched};
use crate::target::{Stored, Target};
use crate::{Error, Result, label_values};

impl Scene {
    /// Whether tiles of the scene are kept; else windows are decoded as they are asked for, and nothing around them.
    pub(super) fn keeps_tiles(&self) -> bool {
        let mask = self
            .mask
            .as_ref()
            .map_or(0, |_| self.scale() * self.scale());
        let bytes = TILE * TILE * (4 * self.bands() + 1 + mask);
        self.cache.has_room(bytes as u64)
    }

    fn key(&self, layer: Layer, place: (usize, usize)) -> Key {
        Key {
            scene: self.number,
            layer,
            place,
        }
    }

    fn image_tile(&self, place: (usize, usize), tile: Window) -> Result<Arc<Patch>> {
        let decode = || Ok(Tile::Image(Arc::new(self.decode_patch(tile)?)));
        match self.cache.get(self.key(Layer::Image, place), decode)? {
            Tile::Image(patch) => Ok(patch),
            Tile::Labels(_) | Tile::Target(_) => unreachable!("the key says which layer it is"),
        }
    }

    pub(super) fn tiled_patch(&self, window: Window) -> Result<Patch> {
        let mut patch = Patch {
            values: vec![0.0; self.bands() * window.pixels()],
            valid: vec![false; window.pixels()],
        };
        for (place, tile) in touched(window, self.window()) {
            let decoded = self.image_tile(place, tile)?;
            paste(&decoded.values, tile, &mut patch.values, window);
            paste(&decoded.valid, tile, &mut patch.valid, window);
        }
        Ok(patch)
    }

    pub(super) fn tiled_labels(&self, window: Window) -> Result<Vec<u8>> {
        let scale = self.scale();
        let mut labels = vec![IGNORE; window.scaled(scale).pixels()];
        for (place, tile) in touched(window, self.window()) {
            let decode = || {
                let valid = &self.image_tile(place, tile)?.valid;
                Ok(Tile::Labels(Arc::new(self.decode_labels(tile, valid)?)))
            };
            let Tile::Labels(decoded) = self.cache.get(self.key(Layer::Labels, place), decode)?
            else {
                unreachable!("the key says which layer it is")
            };
            paste(
                &decoded,
                tile.scaled(scale),
                &mut labels,
                window.scaled(scale),
            );
        }
        Ok(labels)
    }

    /// The image at high resolution over a window of the image, as `of` takes what is stored; `missing` where there is none or no image
    /// pixel with data under it. Tiles are kept as they are stored: half the bytes of reflectance, for samples of 16 bits.
    pub(crate) fn target_as<T: Copy>(
        &self,
        window: Window,
        missing: T,
        of: impl Fn(&Target, &Stored) -> Vec<T>,
    ) -> Result<Vec<T>> {
        let target = self.target.as_ref().ok_or_else(|| Error::NoTarget {
            image: self.image.path().to_owned(),
        })?;
        let scale = self.scale();
        let fine = window.scaled(scale);
        let mut values = match self.window().contains(&window) && self.keeps_tiles() {
            true => {
                let mut values = vec![missing; target.bands() * fine.pixels()];
                for (place, tile) in touched(window, self.window()) {
                    let tile = tile.scaled(scale);
                    let decode = || Ok(Tile::Target(Arc::new(target.stored(tile)?)));
                    let key = self.key(Layer::Target, place);
                    let Tile::Target(stored) = self.cache.get(key, decode)? else {
                        unreachable!("the key says which layer it is")
                    };
                    paste(&of(target, &stored), tile, &mut values, fine);
                }
                values
            }
            false => of(target, &target.stored(fine)?),
        };
        let counts = self.counting(window, self.patch(window)?.valid)?;
        if !counts.iter().all(|&ok| ok) {
            for plane in values.chunks_exact_mut(fine.pixels()) {
                self.blank(plane, window, &counts, missing);
            }
        }
        Ok(values)
    }

    /// Fills in what lies over image pixels that are not valid.
    pub(super) fn blank<T: Copy>(&self, plane: &mut [T], window: Window, valid: &[bool], with: T) {
        let scale = self.scale();
        for (row, line) in plane.chunks_exact_mut(window.width * scale).enumerate() {
            let coarse = &valid[row / scale * window.width..][..window.width];
            for (block, _) in line
                .chunks_exact_mut(scale)
                .zip(coarse)
                .filter(|(_, ok)| !**ok)
            {
                block.fill(with);
            }
        }
    }

    /// Which of these pixels with data count in training: those that the classification does not leave out.
    pub(super) fn counting(&self, window: Window, mut valid: Vec<bool>) -> Result<Vec<bool>> {
        if let Some(classification) = &self.classification {
            let ignored = classification.ignored(&*self.image, window)?;
            valid
                .iter_mut()
                .zip(ignored)
                .for_each(|(ok, ignored)| *ok &= !ignored);
        }
        Ok(valid)
    }

    pub(super) fn no_mask(&self) -> Error {
        Error::NoMask {
            image: self.image.path().to_owned(),
        }
    }

    pub(super) fn decode_patch(&self, window: Window) -> Result<Patch> {
        let raster = self.image.read_window(window)?;
        let mut values = Vec::with_capacity(self.bands() * window.pixels());
        let mut valid = vec![true; window.pixels()];
        for (place, &band) in self.bands.iter().enumerate() {
            let mut samples = raster.band_f32(band);
            for (ok, &sample) in valid.iter_mut().zip(&samples) {
                *ok &= sample.is_finite() && !self.metadata.is_nodata(f64::from(sample));
            }
            self.options.scaling.apply(place, &mut samples);
            values.append(&mut samples);
        }
        if let Some(mask) = self.image.read_mask(window)? {
            valid
                .iter_mut()
                .zip(mask)
                .for_each(|(ok, data)| *ok &= data);
        }
        // After all bands: a pixel that lacks one band lacks all.
        for plane in values.chunks_exact_mut(window.pixels()) {
            plane
                .iter_mut()
                .zip(&valid)
                .filter(|(_, ok)| !**ok)
                .for_each(|(value, _)| *value = 0.0);
        }
        Ok(Patch { values, valid })
    }

    pub(super) fn decode_labels(&self, window: Window, valid: &[bool]) -> Result<Vec<u8>> {
        let mask = self.mask.as_deref().ok_or_else(|| self.no_mask())?;
        let fine = window.scaled(self.scale());
        let mut labels = label_values::read(mask, fine, self.classes())?;
        let counts = self.counting(window, valid.to_vec())?;
        if !counts.iter().all(|&ok| ok) {
            self.blank(&mut labels, window, &counts, IGNORE);
        }
        Ok(labels)
    }
}

/// Copies what two windows share, plane by plane.
///
/// # Shapes
/// `[planes, tile.height, tile.width]` -> `[planes, window.height, window.width]`.
fn paste<T: Copy>(tile_values: &[T], tile: Window, values: &mut [T], window: Window) {
    let Some(shared) = tile.intersection(&window) else {
        return;
    };
    let planes = tile_values.chunks_exact(tile.pixels());
    for (from, to) in planes.zip(values.chunks_exact_mut(window.pixels())) {
        for row in shared.row..shared.row_end() {
            let from =
                &from[(row - tile.row) * tile.width + shared.col - tile.col..][..shared.width];
            to[(row - window.row) * window.width + shared.col - window.col..][..shared.width]
                .copy_from_slice(from);
        }
    }
}
