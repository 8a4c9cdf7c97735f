//! A finished part of a map, and what it is written as.

use terrashard_raster::{DataType, Metadata, Raster, RasterSpec, Samples, Window};

use crate::{IGNORE, Result};

/// What stands for probability 1 in a map of probabilities in bytes; [`IGNORE`] stands for no data.
pub const PROBABILITY_STEPS: u8 = 200;

/// A final part of a mosaic.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Where it lies, in pixels of the image.
    pub image: Window,
    /// Map pixels per image pixel along one side.
    pub scale: usize,
    /// Channels.
    pub channels: usize,
    /// Blended values, `[channels, image.height * scale, image.width * scale]`.
    pub values: Vec<f32>,
    /// Which image pixels have data, `[image.height, image.width]`.
    pub valid: Vec<bool>,
}

impl Block {
    /// Where the block lies in the map.
    pub const fn window(&self) -> Window {
        self.image.scaled(self.scale)
    }

    /// The same block with these of the channels alone.
    ///
    /// # Panics
    /// Where there are fewer channels.
    pub fn of_channels(&self, channels: std::ops::Range<usize>) -> Self {
        let pixels = self.window().pixels();
        Self {
            channels: channels.len(),
            values: self.values[channels.start * pixels..channels.end * pixels].to_vec(),
            valid: self.valid.clone(),
            ..*self
        }
    }

    /// The map of classes, [`IGNORE`] where the image has no data.
    ///
    /// One channel is the probability of class 1, which it is where that is above `threshold`; of several channels the largest
    /// wins, the first of equal ones. A value that is NaN gives [`IGNORE`].
    pub fn classes(&self, threshold: f32) -> Result<Raster> {
        let pixels = self.window().pixels();
        let data = self.data();
        let class = |at: usize| -> u8 {
            let channel = |c: usize| self.values[c * pixels + at];
            if !data[at] || (0..self.channels).any(|c| channel(c).is_nan()) {
                IGNORE
            } else if self.channels == 1 {
                u8::from(channel(0) > threshold)
            } else {
                (1..self.channels).fold(
                    0,
                    |best, c| if channel(c) > channel(best) { c } else { best },
                ) as u8
            }
        };
        let classes = (0..pixels).map(class).collect();
        Ok(Raster::new(self.window(), 1, Samples::U8(classes))?)
    }

    /// The blended values, NaN where the image has no data.
    pub fn values(&self) -> Result<Raster> {
        let data = self.data();
        let value = |(&v, &has_data): (&f32, &bool)| if has_data { v } else { f32::NAN };
        // The same for every channel.
        let data = data.iter().cycle();
        let values = self.values.iter().zip(data).map(value).collect();
        Ok(Raster::new(
            self.window(),
            self.channels,
            Samples::F32(values),
        )?)
    }

    /// The blended values, probabilities from 0 to 1, as the nearest of [`PROBABILITY_STEPS`] steps; [`IGNORE`] where the image
    /// has no data or a value is NaN.
    pub fn probability_steps(&self) -> Result<Raster> {
        let data = self.data();
        let step = |(&v, &has_data): (&f32, &bool)| {
            if v.is_nan() || !has_data {
                IGNORE
            } else {
                (v.clamp(0.0, 1.0) * f32::from(PROBABILITY_STEPS)).round() as u8
            }
        };
        let steps = self.values.iter().zip(data.iter().cycle());
        let steps = steps.map(step).collect();
        Ok(Raster::new(
            self.window(),
            self.channels,
            Samples::U8(steps),
        )?)
    }

    /// Whether the image has data under each map pixel of the block: at once, since dividing places for each takes longer than all else.
    fn data(&self) -> Vec<bool> {
        let mut data = Vec::with_capacity(self.window().pixels());
        for row in self.valid.chunks_exact(self.image.width) {
            let begin = data.len();
            for valid in row {
                data.extend(std::iter::repeat_n(*valid, self.scale));
            }
            let line = begin..data.len();
            for _ in 1..self.scale {
                data.extend_from_within(line.clone());
            }
        }
        data
    }
}

/// The raster that the class map of an image is written to: `scale` times its size, its ground exactly, nodata [`IGNORE`].
pub fn prediction_spec(image: &Metadata, scale: usize) -> RasterSpec {
    RasterSpec::new(image.width * scale, image.height * scale, 1, DataType::U8)
        .georeference(image.georeference.scaled(scale as f64))
        .nodata(f64::from(IGNORE))
}

/// The raster that the super-resolved image of an image is written to: as [`prediction_spec`], this many bands of reflectance,
/// nodata NaN.
pub fn image_spec(image: &Metadata, scale: usize, bands: usize) -> RasterSpec {
    RasterSpec::new(
        image.width * scale,
        image.height * scale,
        bands,
        DataType::F32,
    )
    .georeference(image.georeference.scaled(scale as f64))
    .nodata(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mosaic;

    #[test]
    fn no_data_stays_no_data() {
        let mut mosaic = Mosaic::new(2, 2, 2, 0, 2).expect("sound");
        let values: Vec<f32> = (0..16)
            .map(|i| if i == 5 { f32::NAN } else { i as f32 / 16.0 })
            .collect();
        let valid = [true, false, true, true];
        let block = mosaic
            .add_valid(Window::new(0, 0, 2, 2), &values, &valid)
            .expect("its own")
            .expect("complete");
        let classes = block.classes(0.5).expect("filled");
        assert_eq!(
            classes.samples(),
            &Samples::U8(vec![
                0, 0, 255, 255, 0, 255, 255, 255, 0, 1, 1, 1, 1, 1, 1, 1
            ])
        );
        let values = block.values().expect("filled");
        assert!(values.at(0, 2, 0).is_nan() && values.at(0, 1, 3) == 13.0 / 16.0);
        let steps = block.probability_steps().expect("filled");
        // 13 / 16 of 200 is 162.5.
        assert_eq!([steps.at(0, 2, 0), steps.at(0, 1, 3)], [255.0, 163.0]);
        assert_eq!([steps.at(0, 0, 0), steps.at(0, 1, 1)], [0.0, 255.0]);
    }

    #[test]
    fn of_several_classes_the_largest_wins() {
        let mut mosaic = Mosaic::new(2, 1, 2, 0, 1).expect("sound").with_channels(3);
        let values = [0.2, 0.4, 0.5, 0.4, 0.3, 0.2];
        let block = mosaic
            .add(Window::new(0, 0, 2, 1), &values)
            .expect("its own")
            .expect("complete");
        assert_eq!(
            block.classes(0.5).expect("filled").samples(),
            &Samples::U8(vec![1, 0])
        );
    }
}
