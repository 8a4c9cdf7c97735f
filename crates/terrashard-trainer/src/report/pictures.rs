//! Small pictures of scenes and maps, inlined as PNG.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// An RGB picture, 8 bits a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Picture {
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
/// Lines drawn over a picture.
const BORDER: [u8; 3] = [214, 84, 40];

impl Picture {
    /// Red, green and blue, each stretched between its 2nd and 98th percentile; NaN is black.
    ///
    /// # Shapes
    /// Each of `bands` is `[height, width]`.
    pub(super) fn stretched(width: usize, height: usize, bands: [&[f32]; 3]) -> Self {
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
    pub(super) fn of_classes(width: usize, height: usize, classes: &[u8], step: usize) -> Self {
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
    pub(super) fn outline(&mut self, [left, top, right, bottom]: [usize; 4]) {
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

    /// A `data:` address that holds the picture as PNG.
    pub(super) fn data_uri(&self) -> String {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_compression(png::Compression::High);
        let written = encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(&self.pixels));
        written.expect("memory takes any picture whose pixels fit its size");
        format!("data:image/png;base64,{}", STANDARD.encode(&bytes))
    }
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
}
