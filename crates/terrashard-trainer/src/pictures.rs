//! Small pictures of scenes and maps, as PNG.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use terrashard_data::Scene;
use terrashard_raster::Window;

use crate::error::Result;

/// An RGB picture, 8 bits a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// `[height, width, 3]`.
    pub pixels: Vec<u8>,
}

/// Shares of the darkest and the brightest pixels that a stretch clips.
const CLIPPED: f64 = 0.02;
/// Background, foreground and ignored pixels of a map.
const BACKGROUND: [u8; 3] = [236, 233, 225];
const FOREGROUND: [u8; 3] = [37, 99, 168];
const IGNORED: [u8; 3] = [190, 187, 180];
/// Pixels between pictures that lie beside each other, and their grey, which shows on light and dark pages.
const GAP: usize = 8;
const APART: u8 = 128;
/// Lines drawn over a picture.
const BORDER: [u8; 3] = [214, 84, 40];

impl Picture {
    /// Red, green and blue, each stretched between its 2nd and 98th percentile; NaN is black.
    ///
    /// # Shapes
    /// Each of `bands` is `[height, width]`.
    pub(crate) fn stretched(width: usize, height: usize, bands: [&[f32]; 3]) -> Self {
        let mut pixels = vec![0; width * height * 3];
        for (channel, band) in bands.into_iter().enumerate() {
            let mut sorted: Vec<f32> = band
                .iter()
                .copied()
                .filter(|value| value.is_finite())
                .collect();
            sorted.sort_by(f32::total_cmp);
            let Some(top) = sorted.len().checked_sub(1) else {
                continue;
            };
            let at = |share: f64| sorted[(share * top as f64).round() as usize];
            let (low, high) = (at(CLIPPED), at(1.0 - CLIPPED));
            let range = (high - low).max(f32::MIN_POSITIVE);
            for (value, pixel) in band.iter().zip(pixels.chunks_exact_mut(3)) {
                // A cast of NaN is 0.
                pixel[channel] =
                    (((value - low) / range).clamp(0.0, 1.0).powf(0.8) * 255.0).round() as u8;
            }
        }
        Self {
            width,
            height,
            pixels,
        }
    }

    /// A map of classes (0 background, 255 ignored, others foreground), each pixel the mean colour of `step` x `step`.
    ///
    /// # Shapes
    /// `classes` is `[height, width]`; the picture is `[ceil(height / step), ceil(width / step)]`.
    pub(crate) fn of_classes(width: usize, height: usize, classes: &[u8], step: usize) -> Self {
        let (across, down) = (width.div_ceil(step), height.div_ceil(step));
        let mut pixels = Vec::with_capacity(across * down * 3);
        for top in (0..height).step_by(step) {
            for left in (0..width).step_by(step) {
                let (bottom, right) = ((top + step).min(height), (left + step).min(width));
                let mut counts = [0usize; 3];
                for class in
                    (top..bottom).flat_map(|y| &classes[y * width + left..y * width + right])
                {
                    counts[match class {
                        0 => 0,
                        255 => 2,
                        _ => 1,
                    }] += 1;
                }
                let total = (bottom - top) * (right - left);
                for channel in 0..3 {
                    let colours = [BACKGROUND, FOREGROUND, IGNORED]
                        .map(|colour| usize::from(colour[channel]));
                    let sum: usize = colours
                        .iter()
                        .zip(counts)
                        .map(|(colour, count)| colour * count)
                        .sum();
                    pixels.push(((sum + total / 2) / total) as u8);
                }
            }
        }
        Self {
            width: across,
            height: down,
            pixels,
        }
    }

    /// Draws the edges of the rectangle from (`left`, `top`) to (`right`, `bottom`), one pixel to either side of each. Edges that
    /// the rectangle shares with the picture are left out.
    pub(crate) fn outline(&mut self, [left, top, right, bottom]: [usize; 4]) {
        let (width, height) = (self.width, self.height);
        let (right, bottom) = (right.min(width), bottom.min(height));
        for column in [left, right]
            .into_iter()
            .filter(|at| *at > 0 && *at < width)
        {
            for row in top..bottom {
                self.paint(column - 1, row);
                self.paint(column, row);
            }
        }
        for row in [top, bottom]
            .into_iter()
            .filter(|at| *at > 0 && *at < height)
        {
            for column in left..right {
                self.paint(column, row - 1);
                self.paint(column, row);
            }
        }
    }

    fn paint(&mut self, column: usize, row: usize) {
        let at = (row * self.width + column) * 3;
        self.pixels[at..at + 3].copy_from_slice(&BORDER);
    }

    /// True colours of a window where the image names its bands, else its first three; every `step`-th pixel.
    ///
    /// # Errors
    /// [`crate::Error::Raster`].
    pub(crate) fn true_colour(scene: &Scene, window: Window, step: usize) -> Result<Self> {
        let source = scene.image();
        let last = source.metadata().bands - 1;
        let places = [("B04", 0), ("B03", 1), ("B02", 2)].map(|(name, other)| {
            source
                .metadata()
                .band_named(name)
                .unwrap_or(last.min(other))
        });
        let raster = source.read_window(window)?;
        let bands = places.map(|band| every(&raster.band_f32(band), window.width, step));
        let (width, height) = (window.width.div_ceil(step), window.height.div_ceil(step));
        Ok(Self::stretched(
            width,
            height,
            [&bands[0], &bands[1], &bands[2]],
        ))
    }

    /// The same in another size: each pixel that of the place it lies at.
    pub(crate) fn resized(&self, width: usize, height: usize) -> Self {
        let mut pixels = Vec::with_capacity(width * height * 3);
        for row in 0..height {
            for column in 0..width {
                let (y, x) = (row * self.height / height, column * self.width / width);
                let at = (y * self.width + x) * 3;
                pixels.extend_from_slice(&self.pixels[at..at + 3]);
            }
        }
        Self {
            width,
            height,
            pixels,
        }
    }

    /// Pictures of one height in a row, a little apart.
    pub(crate) fn beside(pictures: &[Self]) -> Self {
        let height = pictures.iter().map(|picture| picture.height).max();
        let height = height.unwrap_or(0);
        let mut pixels = Vec::new();
        let mut width = 0;
        for row in 0..height {
            let before = pixels.len();
            for (index, picture) in pictures.iter().enumerate() {
                if index > 0 {
                    pixels.extend([APART; 3 * GAP]);
                }
                let line = picture.pixels.chunks_exact(picture.width * 3).nth(row);
                match line {
                    Some(line) => pixels.extend_from_slice(line),
                    None => pixels.resize(pixels.len() + picture.width * 3, APART),
                }
            }
            width = (pixels.len() - before) / 3;
        }
        Self {
            width,
            height,
            pixels,
        }
    }

    /// The picture as the bytes of a PNG.
    pub(crate) fn png(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_compression(png::Compression::High);
        let written = encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(&self.pixels));
        written.expect("memory takes any picture whose pixels fit its size");
        bytes
    }

    /// A `data:` address that holds the picture as PNG.
    pub(crate) fn data_uri(&self) -> String {
        data_uri(&self.png())
    }
}

/// A `data:` address of the bytes of a PNG.
pub(crate) fn data_uri(png: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(png))
}

/// Every `step`-th value of every `step`-th row.
fn every(values: &[f32], width: usize, step: usize) -> Vec<f32> {
    values
        .chunks_exact(width)
        .step_by(step)
        .flat_map(|row| row.iter().step_by(step).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_clips_both_ends() {
        let band: Vec<f32> = (0..101).map(|value| value as f32).collect();
        let picture = Picture::stretched(101, 1, [&band, &band, &[f32::NAN; 101]]);
        assert_eq!(&picture.pixels[..6], [0; 6]);
        assert_eq!(&picture.pixels[98 * 3..98 * 3 + 3], [255, 255, 0]);
        // (50 - 2) / 96 = 0.5, and 0.5^0.8 = 0.574.
        assert_eq!(picture.pixels[50 * 3], 146);
    }

    #[test]
    fn classes_are_averaged_by_colour() {
        let picture = Picture::of_classes(3, 2, &[0, 1, 255, 0, 1, 255], 2);
        assert_eq!((picture.width, picture.height), (2, 1));
        assert_eq!(picture.pixels, [137, 166, 197, 190, 187, 180]);
    }

    #[test]
    fn an_outline_has_no_edge_at_the_border() {
        let mut picture = Picture {
            width: 5,
            height: 3,
            pixels: vec![0; 45],
        };
        // The right part: its left edge alone lies inside.
        picture.outline([3, 0, 5, 3]);
        for row in picture.pixels.chunks_exact(15) {
            let painted: Vec<bool> = row.chunks_exact(3).map(|pixel| pixel == BORDER).collect();
            assert_eq!(painted, [false, false, true, true, false]);
        }
        picture.outline([0, 2, 1, 3]);
        assert_eq!(picture.pixels[15..18], BORDER);
        assert_eq!(picture.pixels[..3], [0; 3]);
    }

    #[test]
    fn the_address_decodes_to_the_pixels() {
        let picture = Picture {
            width: 2,
            height: 1,
            pixels: vec![1, 2, 3, 250, 251, 252],
        };
        let uri = picture.data_uri();
        let bytes = STANDARD
            .decode(uri.strip_prefix("data:image/png;base64,").unwrap())
            .unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, picture.pixels);
    }

    #[test]
    fn every_second_of_every_second() {
        let values: Vec<f32> = (0..15).map(|value| value as f32).collect();
        assert_eq!(every(&values, 5, 2), [0.0, 2.0, 4.0, 10.0, 12.0, 14.0]);
    }

    #[test]
    fn pictures_are_resized_and_lie_in_a_row() {
        let picture = |width, values: &[u8]| Picture {
            width,
            height: values.len() / width,
            pixels: values.iter().flat_map(|value| [*value; 3]).collect(),
        };
        let small = picture(2, &[1, 2, 3, 4]);
        let large = picture(4, &[1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4]);
        assert_eq!(small.resized(4, 4), large);
        assert_eq!(large.resized(2, 2), small);
        let row = Picture::beside(&[small, picture(1, &[9])]);
        assert_eq!((row.width, row.height), (2 + GAP + 1, 2));
        // The second is lower, and what is missing of it is grey, too.
        let reds: Vec<u8> = row.pixels.iter().step_by(3).copied().collect();
        let pixels = reds.iter().filter(|red| **red != APART);
        assert_eq!(pixels.copied().collect::<Vec<_>>(), [1, 2, 9, 3, 4]);
        assert_eq!(reds.len(), 22);
    }
}
